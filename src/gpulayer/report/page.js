"use strict";
// Draws the charts that come into view, and again when something is switched. Plotly redraws what differs.

const charts = JSON.parse(document.getElementById("charts").textContent);
const cards = [...document.querySelectorAll("[data-chart]")];
const hiddenRuns = new Set();
const hiddenKeys = charts.map(() => new Set());
const logarithmic = charts.map(() => false);
const drawn = new Set();
let xAxis = "step";

const CONFIG = {
  responsive: true,
  displaylogo: false,
  modeBarButtons: [["toImage", "zoom2d", "pan2d", "resetScale2d"]],
  showSendToCloud: false, // plotly 7 has it on: a button that uploads the chart
};

function traces(number) {
  return charts[number].data.map((trace) => ({
    ...trace,
    x: xAxis === "epoch" ? trace.customdata : trace.x,
    visible: !hiddenRuns.has(trace.meta.run) && !hiddenKeys[number].has(trace.meta.key),
  }));
}

function layout(number) {
  const style = getComputedStyle(document.documentElement);
  const colour = (name) => style.getPropertyValue(name).trim();
  const axis = { gridcolor: colour("--grid"), linecolor: colour("--edge"), zeroline: false, tickfont: { size: 11 } };
  const base = charts[number].layout;
  return {
    ...base,
    paper_bgcolor: colour("--card"),
    plot_bgcolor: colour("--card"),
    font: { color: colour("--soft"), family: getComputedStyle(document.body).fontFamily, size: 12 },
    hoverlabel: { bgcolor: colour("--card"), bordercolor: colour("--edge"), font: { color: colour("--text") }, namelength: 32 },
    modebar: { bgcolor: "rgba(0,0,0,0)", color: colour("--soft"), activecolor: colour("--accent") },
    xaxis: { ...base.xaxis, ...axis, title: { ...base.xaxis.title, text: xAxis }, unifiedhovertitle: { text: `${xAxis} %{x}` } },
    yaxis: { ...base.yaxis, ...axis, type: logarithmic[number] ? "log" : "linear", minorloglabels: "complete" },
  };
}

function draw(card) {
  const number = Number(card.dataset.chart);
  drawn.add(card);
  Plotly.react(card.querySelector(".plot"), traces(number), layout(number), CONFIG);
}

function redraw() {
  drawn.forEach(draw);
}

function press(button, on) {
  button.setAttribute("aria-pressed", String(on));
}

function toggle(button, hidden, value) {
  const hide = !hidden.has(value);
  hide ? hidden.add(value) : hidden.delete(value);
  press(button, !hide);
}

function setLogarithmic(card, on) {
  const button = card.querySelector(".log");
  const possible = on && !button.disabled;
  logarithmic[Number(card.dataset.chart)] = possible;
  press(button, possible);
  card.querySelectorAll(".only-log").forEach((note) => (note.hidden = !possible));
}

document.addEventListener("click", (event) => {
  const button = event.target.closest("button");
  if (!button) return;
  const card = button.closest("[data-chart]");
  const { run, key, axis, value } = button.dataset;
  if (run !== undefined) {
    toggle(button, hiddenRuns, Number(run));
  } else if (key !== undefined) {
    toggle(button, hiddenKeys[Number(card.dataset.chart)], key);
  } else if (axis !== undefined) {
    document.querySelectorAll(`[data-axis="${axis}"]`).forEach((other) => press(other, other === button));
    if (axis === "x") xAxis = value;
    else cards.forEach((one) => setLogarithmic(one, value === "log"));
  } else if (button.classList.contains("log")) {
    setLogarithmic(card, button.getAttribute("aria-pressed") === "false");
  } else {
    return; // one of plotly's
  }
  card ? draw(card) : redraw();
});

const watcher = new IntersectionObserver(
  (entries) => {
    for (const entry of entries) {
      if (entry.isIntersecting) {
        watcher.unobserve(entry.target);
        draw(entry.target);
      }
    }
  },
  { rootMargin: "600px" },
);
cards.forEach((card) => watcher.observe(card));
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", redraw);
addEventListener("beforeprint", () => cards.forEach(draw));

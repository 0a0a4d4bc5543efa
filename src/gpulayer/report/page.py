"""The report as one HTML page that needs nothing but itself."""

from __future__ import annotations

import base64
import hashlib
import json
from datetime import datetime
from importlib.resources import files

import gpulayer
from gpulayer.report.figures import COLOURS, Chart, Key, draw, points_of_a_line
from gpulayer.report.groups import DEVICE, LEARNING_RATE, METRICS, THROUGHPUT, group
from gpulayer.report.html import Html, duration, html, join, moment, number, size, table, tag
from gpulayer.report.read import Run

SECTIONS = (METRICS, LEARNING_RATE, THROUGHPUT, DEVICE)
FOLDED = {DEVICE}
# Patterns of the legend's lines, as plotly draws them.
PATTERNS = {"dash": "6 4", "dot": "2 3", "dashdot": "6 3 2 3", "longdash": "9 4", "longdashdot": "9 3 2 3"}


def make_page(runs: list[Run], notes: list[str]) -> str:
    """The whole page.

    Args:
        runs: what to show; several are drawn into the same charts.
        notes: sentences about how the runs were chosen.

    Raises:
        ModuleNotFoundError: plotly is not installed.
    """
    try:
        from plotly.offline import get_plotlyjs, get_plotlyjs_version
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(
            "`gpulayer report` draws with plotly, which is not installed: pip install 'gpulayer[report]'"
        ) from error

    names = [name for run in runs for name in run.metrics.series]
    points = points_of_a_line(runs)
    charts = [draw(found, runs, points) for found in group(names)]
    charts.sort(key=lambda chart: SECTIONS.index(chart.group.section))
    longest = max((len(series.values) for run in runs for series in run.metrics.series.values()), default=0)
    if longest > points:
        notes = [
            *notes,
            f"Lines of more than {points:,} points are thinned (the longest has {longest:,}). Pale: the lowest and the "
            "highest value of each short stretch, so that spikes stay. Strong: the mean of each longer stretch.",
        ]
    notes = notes + [f"{run.name}: {note}" if len(runs) > 1 else note for run in runs for note in run.notes]
    scripts = [get_plotlyjs(), _resource("page.js")]
    title = runs[0].name if len(runs) == 1 else f"{len(runs)} runs"
    drawn_by = f"GPUlayer {gpulayer.__version__}, drawn by plotly.js {get_plotlyjs_version()}"
    body = [
        tag("header", join([tag("h1", title), _facts(runs[0]) if len(runs) == 1 else _table_of_runs(runs)])),
        _notes(notes),
        _toolbar(charts, runs) if charts else "",
        tag("main", join([*_sections(charts, runs), _hparams(runs), _checkpoints(runs), _numbers(charts, runs)])),
        tag("footer", join(["Made ", moment(datetime.now()), f" by {drawn_by}."], "")),
        Html(f'<script type="application/json" id="charts">{_json(charts)}</script>'),
        *(Html(f"<script>{script}</script>") for script in scripts),
    ]
    head = [
        Html('<meta charset="utf-8">'),
        Html('<meta name="viewport" content="width=device-width, initial-scale=1">'),
        Html(f'<meta http-equiv="Content-Security-Policy" content="{_policy(scripts)}">'),
        tag("title", f"{title} - gpulayer report"),
        Html(f"<style>{_resource('page.css')}</style>"),
    ]
    return f'<!DOCTYPE html>\n<html lang="en">\n<head>\n{join(head)}\n</head>\n<body>\n{join(body)}\n</body>\n</html>\n'


def _resource(name: str) -> str:
    return files("gpulayer.report").joinpath(name).read_text(encoding="utf-8")


def _policy(scripts: list[str]) -> str:
    """What the browser may do: run these very scripts, and open no connection, whatever a run's names contain."""
    hashes = [base64.b64encode(hashlib.sha256(script.encode()).digest()).decode() for script in scripts]
    allowed = " ".join(f"'sha256-{value}'" for value in hashes)
    return f"default-src 'none'; script-src {allowed}; style-src 'unsafe-inline'; img-src data: blob:"


def _json(charts: list[Chart]) -> str:
    """The figures; "<" is written so that no text in them ends the element."""
    return json.dumps([chart.figure.to_plotly_json() for chart in charts], separators=(",", ":")).replace(
        "<", "\\u003c"
    )


# -- what the runs are -----------------------------------------------------------------------------------------------


def _facts(run: Run) -> Html:
    names = "rows,last step,epochs,started,last row,duration,folder".split(",")
    values = [*_facts_of(run), run.folder]
    pairs = [
        tag("div", join([tag("dt", name), tag("dd", f"{value:,}" if isinstance(value, int) else value)], ""))
        for name, value in zip(names, values, strict=True)
        if value is not None
    ]
    return tag("dl", join(pairs), class_="facts")


def _facts_of(run: Run) -> list[object]:
    last = run.metrics.last_step
    done = None if last is None else run.metrics.epochs_done(last)
    known = run.started is not None and run.ended is not None and run.ended > run.started
    took = duration(run.ended - run.started) if known and run.ended and run.started else None
    return [run.metrics.rows, last, None if done is None else int(done), moment(run.started), moment(run.ended), took]


def _table_of_runs(runs: list[Run]) -> Html:
    """One row a run, whose button shows and hides its lines."""
    rows = [
        [
            tag("button", join([_swatch(COLOURS[index % len(COLOURS)]), run.name], ""), **_switch("run", index)),
            *_facts_of(run),
        ]
        for index, run in enumerate(runs)
    ]
    return table(["run", "rows", "last step", "epochs", "started", "last row", "duration"], rows)


def _switch(kind: str, value: object) -> dict[str, object]:
    return {"type": "button", "class_": "key", f"data_{kind}": value, "aria_pressed": "true"}


def _swatch(colour: str, key: Key | None = None) -> Html:
    """A piece of the line; `currentColor` where each run has its own."""
    stroke = colour or "currentColor"
    width, opacity, pattern = (1.5, 0.6, "") if key and key.faint else (2.5, 1, "")
    if key and key.dash in PATTERNS:
        pattern = f' stroke-dasharray="{PATTERNS[key.dash]}"'
    return Html(
        f'<svg width="24" height="8" aria-hidden="true"><line x1="0" x2="24" y1="4" y2="4" stroke="{stroke}" '
        f'stroke-width="{width}" opacity="{opacity}"{pattern}/></svg>'
    )


def _notes(notes: list[str]) -> Html:
    if not notes:
        return Html("")
    return tag("section", tag("ul", join(tag("li", note) for note in notes)), class_="notes", aria_label="Notes")


# -- charts ----------------------------------------------------------------------------------------------------------


def _toolbar(charts: list[Chart], runs: list[Run]) -> Html:
    has_epochs = all(run.metrics.epoch_ends for run in runs if run.metrics.series)
    parts = [
        tag("span", join(["x ", _choice("x", ("step", "epoch"), "step", set() if has_epochs else {"epoch"})])),
        tag("span", join(["y ", _choice("y", ("linear", "log"), "linear", set())])),
    ]
    sections = [section for section in SECTIONS if any(chart.group.section == section for chart in charts)]
    links = [*sections, "Hyperparameters", "Checkpoints", "Numbers"]
    parts.append(tag("nav", join(tag("a", link, href=f"#{_anchor(link)}") for link in links)))
    return tag("div", join(parts), class_="toolbar")


def _choice(axis: str, values: tuple[str, ...], pressed: str, disabled: set[str]) -> Html:
    buttons = [
        tag(
            "button",
            value,
            type="button",
            data_axis=axis,
            data_value=value,
            aria_pressed=str(value == pressed).lower(),
            disabled="" if value in disabled else None,
            title="not every run logged its epochs" if value in disabled else None,
        )
        for value in values
    ]
    return tag("span", join(buttons, ""), class_="choice", role="group")


def _anchor(section: str) -> str:
    return section.lower().replace(" ", "-")


def _sections(charts: list[Chart], runs: list[Run]) -> list[Html]:
    sections = []
    for name in SECTIONS:
        cards = [_card(chart, index, runs) for index, chart in enumerate(charts) if chart.group.section == name]
        if cards:
            sections.append(_section(name, tag("div", join(cards), class_="cards"), folded=name in FOLDED))
    return sections


def _section(name: str, content: Html, folded: bool = False) -> Html:
    if folded:
        inside = tag("details", join([tag("summary", tag("h2", name)), content]))
    else:
        inside = join([tag("h2", name), content])
    return tag("section", inside, id=_anchor(name))


def _card(chart: Chart, index: int, runs: list[Run]) -> Html:
    keys = [
        tag(
            "button", join([_swatch(key.colour, key), key.text, _last_value(key, runs)], ""), **_switch("key", key.text)
        )
        for key in chart.keys
    ]
    logarithmic = tag(
        "button",
        "log",
        type="button",
        class_="log",
        aria_pressed="false",
        disabled=None if chart.has_positive else "",
        title="logarithmic y axis" if chart.has_positive else "no value is above 0",
    )
    below = [tag("p", note) for note in chart.notes]
    if chart.nonpositive and chart.has_positive:
        note = f"Not drawn on a logarithmic axis: what is 0 or less ({chart.nonpositive:,})."
        below.append(tag("p", note, class_="only-log", hidden=""))
    return tag(
        "article",
        join(
            [
                tag("div", join([tag("h3", chart.group.title), logarithmic]), class_="head"),
                tag("div", join(keys), class_="keys"),
                tag("div", "", class_="plot", role="img", aria_label=f"{chart.group.title} by step"),
                *below,
            ]
        ),
        class_="card",
        data_chart=index,
    )


def _last_value(key: Key, runs: list[Run]) -> Html:
    if len(runs) > 1:
        return Html("")
    last = runs[0].metrics.series[key.text].values[-1]
    return tag("span", "NaN" if last is None else number(last), class_="last", title="the last value")


# -- tables ----------------------------------------------------------------------------------------------------------


def _hparams(runs: list[Run]) -> Html:
    """Those that differ between runs come first."""
    names = sorted({name for run in runs for name in run.hparams})
    differ = [name for name in names if len({run.hparams.get(name) for run in runs}) > 1]
    names = [*differ, *(name for name in names if name not in differ)]
    if not names:
        return _section("Hyperparameters", tag("p", "No hyperparameters were logged."))
    rows = [[name, *(run.hparams.get(name) for run in runs)] for name in names]
    shown = table(
        ["name", *(run.name for run in runs)] if len(runs) > 1 else ["name", "value"], rows, range(len(differ))
    )
    said = "Marked: values that differ between the runs." if differ else "All runs have the same values."
    return _section("Hyperparameters", join([shown, tag("p", said) if len(runs) > 1 else ""]))


def _checkpoints(runs: list[Run]) -> Html:
    several = len(runs) > 1
    rows: list[list[object]] = []
    best: list[int] = []
    for run in runs:
        for file in run.checkpoints:
            if file.best_by:
                best.append(len(rows))
            marks = join((tag("span", f"best {name}", class_="badge") for name in file.best_by), " ")
            scores = ", ".join(f"{name} {number(score)}" for name, score in file.scores.items())
            path = join([file.path, marks], " ") if marks else html(file.path)
            rows.append(
                [*([run.name] if several else []), path, scores or None, file.epoch, file.step, size(file.size)]
            )
    if not rows:
        return _section("Checkpoints", tag("p", "There are no checkpoints in the folder."))
    heads = ["file", "score", "epoch", "step", "size"]
    shown = table(["run", *heads] if several else heads, rows, best)
    return _section("Checkpoints", join([shown, tag("p", "Epochs count from 0, steps are those done.")]))


def _numbers(charts: list[Chart], runs: list[Run]) -> Html:
    """The charts in numbers; of all points, also those that were thinned out."""
    rows = []
    for line in (line for chart in charts for line in chart.group.lines):
        for run in runs:
            series = run.metrics.series.get(line.name)
            if series is not None:
                finite = series.finite()
                row: list[object] = [line.name, *([run.name] if len(runs) > 1 else []), len(series.values)]
                row.append("NaN" if series.values[-1] is None else series.values[-1])
                for extreme in (min(finite), max(finite)) if finite else ():
                    row += [extreme, series.steps[series.values.index(extreme)]]
                rows.append(row if finite else [*row, None, None, None, None])
    heads = ["metric", *(["run"] if len(runs) > 1 else []), "values", "last", "lowest", "at step", "highest", "at step"]
    return _section("Numbers", table(heads, rows) if rows else tag("p", "No numbers were logged."), folded=True)

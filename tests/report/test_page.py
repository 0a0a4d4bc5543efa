"""The page: what is on it, that nothing of a run can become code, and that a browser draws it."""

from __future__ import annotations

import csv
import html
import json
import math
import re
import shutil
import subprocess
import time
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from gpulayer.report.page import make_page
from gpulayer.report.read import names_of, read_run
from tests.report.trained import HOSTILE

pytest.importorskip("plotly")

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
PLOTLY = 5_500_000  # bytes, about what the library itself is
DRAWN = 'class="plot js-plotly-plot"'


class Elements(HTMLParser):
    """The elements of a page, with their attributes, and the text of those that are asked for."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.found: list[tuple[str, dict[str, str | None]]] = []
        self.cells: list[str] = []
        self._in_cell = False
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attrs)))
        if tag == "td":
            self.cells.append("")
            self._in_cell = True

    def handle_endtag(self, tag: str) -> None:
        self._in_cell = self._in_cell and tag != "td"

    def handle_data(self, data: str) -> None:
        if self._in_cell:
            self.cells[-1] += data

    def count(self, tag: str, **attributes: str) -> int:
        return sum(name == tag and attributes.items() <= has.items() for name, has in self.found)


def page_of(*folders: Path) -> str:
    return make_page(
        [read_run(folder, name) for folder, name in zip(folders, names_of(list(folders)), strict=True)], []
    )


def figures(page: str) -> list[dict[str, Any]]:
    """The charts' data as the page's script reads it."""
    found = re.search(r'<script type="application/json" id="charts">(.*?)</script>', page, re.DOTALL)
    assert found is not None
    return list(json.loads(found[1]))


def write(folder: Path, rows: list[dict[str, Any]]) -> Path:
    """A run with these rows; keys are the union of the first and the last row's."""
    folder.mkdir(parents=True)
    with (folder / "metrics.csv").open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, list(rows[0] | rows[-1]))
        writer.writeheader()
        writer.writerows(rows)
    return folder


@pytest.fixture
def two(trained: Path) -> tuple[Path, Path]:
    return trained / "Line/version_0", trained / "Line/version_1"


class TestContent:
    def test_one_run(self, two: tuple[Path, Path]) -> None:
        page = page_of(two[0])
        elements = Elements(page)
        assert "<h1>Line/version_0</h1>" in page
        assert elements.count("article") == 3  # loss, the hostile one, learning rate
        for cell in ("optimizer.name", "SGD", "checkpoints/last.ckpt", "24", HOSTILE):
            assert cell in elements.cells
        assert "checkpoints/epoch=2-step=24.ckpt best val_loss" in elements.cells
        assert elements.count("tr", class_="marked") == 0
        assert page.count('class="marked"') == 1  # the best checkpoint

    def test_versions_of_a_metric_share_a_chart(self, two: tuple[Path, Path]) -> None:
        loss = figures(page_of(two[0]))[0]["data"]
        assert [trace["name"] for trace in loss] == ["loss_epoch", "loss_step", "val_loss"]
        assert loss[0]["line"]["color"] == loss[1]["line"]["color"] != loss[2]["line"]["color"]
        assert loss[0]["x"] == [7, 15, 23]
        assert loss[0]["customdata"] == [1, 2, 3]  # epochs done, the other axis

    def test_several_runs(self, two: tuple[Path, Path]) -> None:
        page = page_of(*two)
        elements = Elements(page)
        assert "<h1>2 runs</h1>" in page
        assert {"version_0", "version_1"} <= set(elements.cells)
        assert elements.count("button", **{"data-run": "1"}) == 1
        loss = figures(page)[0]["data"]
        assert [trace["meta"]["run"] for trace in loss] == [0, 1, 0, 1, 0, 1]
        assert loss[0]["line"]["color"] != loss[1]["line"]["color"]
        assert loss[0]["line"]["dash"] != loss[4]["line"]["dash"]
        marked = re.findall(r'<tr class="marked"><td>([^<]*)', page)
        assert marked == ["lr", "version_0", "version_1"]  # the parameter that differs, and the best checkpoints

    def test_no_metrics(self, tmp_path: Path) -> None:
        (tmp_path / "metrics.csv").touch()
        page = page_of(tmp_path)
        assert "metrics.csv has no rows yet." in page
        assert Elements(page).count("article") == 0
        assert figures(page) == []

    def test_missing_values_are_gaps_and_said(self, tmp_path: Path) -> None:
        rows = [{"step": step, "loss": value} for step, value in enumerate([1, "nan", 2, "inf", 3] + [4] * 80)]
        page = page_of(write(tmp_path / "run", rows))
        (trace,) = figures(page)[0]["data"]
        assert trace["y"][:5] == [1, None, 2, None, 3]
        assert trace["marker"]["size"][:5] == [5, 0, 5, 0, 0]  # a value between two gaps is a dot
        assert "loss: 2 of 85 values NaN or infinite, first at step 1; gaps in the line." in page

    def test_nothing_to_draw_on_a_logarithmic_axis(self, tmp_path: Path) -> None:
        rows = [{"step": step, "down": -1 - step, "both": step - 1, "none": "nan"} for step in range(3)]
        page = page_of(write(tmp_path / "run", rows))
        buttons = [has for tag, has in Elements(page).found if tag == "button" and has.get("class") == "log"]
        assert ["disabled" in has for has in buttons] == [True, False, True]
        assert "what is 0 or less (2)" in page

    def test_steps_instead_of_epochs_where_they_were_not_logged(self, tmp_path: Path) -> None:
        page = page_of(write(tmp_path / "run", [{"step": 0, "loss": 1}]))
        assert [has["data-value"] for tag, has in Elements(page).found if "disabled" in has] == ["epoch"]


class TestSafety:
    def test_nothing_of_a_run_becomes_an_element(self, two: tuple[Path, Path]) -> None:
        page = page_of(two[0])
        assert HOSTILE not in page
        assert html.escape(HOSTILE) in page
        assert Elements(page).count("script") == 3  # the data, plotly, the page's own

    def test_the_page_asks_for_nothing(self, two: tuple[Path, Path]) -> None:
        elements = Elements(page_of(two[0])).found
        assert not [has for _, has in elements if "src" in has]
        assert all(str(has["href"]).startswith("#") for _, has in elements if "href" in has)
        policy = next(str(has["content"]) for tag, has in elements if tag == "meta" and "http-equiv" in has)
        assert policy.startswith("default-src 'none'; script-src 'sha256-")
        assert "http" not in policy

    @pytest.mark.parametrize(
        "name", ["</script><script>alert(1)</script>", '"><img src=x onerror=alert(1)>', "a\nb", "'"]
    )
    def test_names(self, tmp_path: Path, name: str) -> None:
        folder = write(tmp_path / "run", [{"step": 0, name: 1}])
        (folder / "hparams.yaml").write_text(json.dumps({name: name}))
        page = page_of(folder)
        elements = Elements(page)
        assert elements.count("script") == 3
        assert elements.count("img") == 0
        assert elements.cells.count(name) == 3  # in the tables of hyperparameters and of numbers
        assert html.unescape(figures(page)[0]["data"][0]["name"]) == name


class TestSize:
    def test_a_hundred_thousand_rows(self, tmp_path: Path) -> None:
        spike = 54_321
        rows = [
            {
                "epoch": step // 10_000,
                "step": step,
                "loss": 9.0 if step == spike else 1 / (1 + step / 5000) + 0.1 * math.sin(step),
                **{f"metric_{number}": math.cos(step / (number + 1)) for number in range(3)},
            }
            for step in range(100_000)
        ]
        folder = write(tmp_path / "run", rows)
        start = time.perf_counter()
        page = page_of(folder)
        took = time.perf_counter() - start
        extremes, means = figures(page)[0]["data"]
        assert extremes["y"][extremes["x"].index(spike)] == 9
        assert len(extremes["x"]) <= 2002
        assert len(means["x"]) == 150
        assert "the longest has 100,000" in page
        assert len(page) < PLOTLY + 2_000_000
        assert took < 20, "2 s where it was measured"

    def test_many_runs_with_many_metrics(self, tmp_path: Path) -> None:
        rows = [{"epoch": 0, "step": step, **{f"m{n}": step * n for n in range(20)}} for step in range(500)]
        first = write(tmp_path / "0", rows)
        for number in range(1, 10):
            shutil.copytree(first, tmp_path / str(number))
        page = page_of(*(tmp_path / str(number) for number in range(10)))
        assert len(figures(page)) == 20
        assert len(page) < PLOTLY + 5_000_000


@pytest.mark.skipif(CHROMIUM is None, reason="needs Chromium")
class TestBrowser:
    def look(self, tmp_path: Path, page: str, script: str = "", *flags: str) -> tuple[str, list[str]]:
        """The page as it stands after its scripts have run, and what they wrote to the console.

        Args:
            tmp_path: where the page is put.
            page: the page.
            script: what a reader does; the page's policy is taken out for it.
            flags: of Chromium.
        """
        if script:
            page = re.sub(r'<meta http-equiv="Content-Security-Policy"[^>]*>', "", page)
            page = page.replace("</body>", f"<script>setTimeout(() => {{ {script} }}, 2000)</script></body>")
        file = tmp_path / "page.html"
        file.write_text(page)
        done = subprocess.run(
            [
                *(str(CHROMIUM), "--headless", "--no-sandbox", "--disable-gpu", "--enable-logging=stderr", *flags),
                *(f"--user-data-dir={tmp_path / 'profile'}", "--window-size=1280,3000", "--virtual-time-budget=5000"),
                *("--dump-dom", file.as_uri()),
            ],
            capture_output=True,
            text=True,
            timeout=90,
            check=True,
        )
        return done.stdout, [line for line in done.stderr.splitlines() if "CONSOLE" in line]

    def test_charts_are_drawn_and_nothing_is_wrong(self, two: tuple[Path, Path], tmp_path: Path) -> None:
        dom, console = self.look(tmp_path, page_of(*two))
        assert console == []
        assert dom.count(DRAWN) == 3
        lines = re.findall(r'<path class="js-line"[^>]* d="M([^"]*)"', dom)
        assert len(lines) == 6 + 2 + 2  # loss in three versions, the hostile one, learning rate; of two runs
        assert all(line.count(",") >= 2 for line in lines)
        assert "<title>2 runs - gpulayer report</title>" in dom  # the hostile name would have changed it

    def test_what_a_reader_switches(self, two: tuple[Path, Path], tmp_path: Path) -> None:
        script = """
            document.querySelector("[data-value=epoch]").click();
            document.querySelector("[data-value=log]").click();
            document.querySelector("[data-run='1']").click();
            document.querySelector("[data-key=loss_step]").click();
            const plot = document.querySelector(".plot");
            const shown = plot.data.filter((trace) => trace.visible).map((trace) => trace.name);
            document.title = JSON.stringify({x: plot.layout.xaxis.title.text, y: plot.layout.yaxis.type, shown,
                epochs: plot.data[0].x, cloud: document.querySelectorAll("[data-title*=loud]").length});
        """
        dom, console = self.look(tmp_path, page_of(*two), script)
        assert console == []
        found = re.search("<title>(.*?)</title>", dom)
        assert found is not None
        assert json.loads(html.unescape(found[1])) == {
            "x": "epoch",
            "y": "log",
            "shown": ["version_0: loss_epoch", "version_0: val_loss"],
            "epochs": [1, 2, 3],
            "cloud": 0,
        }

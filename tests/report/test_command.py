"""`python -m gpulayer report`, as it is typed."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import gpulayer

pytest.importorskip("plotly")

WITHOUT = """
import sys
from importlib.abc import MetaPathFinder

class Missing(MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in {missing!r}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)

sys.meta_path.insert(0, Missing())
sys.argv[0] = "gpulayer"
from gpulayer.cli import main
sys.exit(main())
"""


def gpulayer_command(*arguments: object, cwd: Path, program: str | None = None) -> subprocess.CompletedProcess[str]:
    start = ["-c", program] if program else ["-m", "gpulayer"]
    command = [sys.executable, "-W", "error", *start, *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, cwd=cwd, timeout=100)


def rows(folder: Path) -> int:
    """Rows of all metrics.csv below a folder."""
    return sum(len(file.read_text().splitlines()) - 1 for file in folder.rglob("metrics.csv"))


@pytest.fixture
def runs(trained: Path, tmp_path: Path) -> Path:
    """A copy to write into; without the checkpoints, for which torch would be imported each time."""
    shutil.copytree(trained, tmp_path / "runs", ignore=lambda folder, names: set(names) & {"checkpoints"})
    return tmp_path / "runs"


class TestCommand:
    def test_help(self, tmp_path: Path) -> None:
        done = gpulayer_command("--help", cwd=tmp_path)
        assert done.returncode == 0
        assert "report     draw the learning curves" in done.stdout

    def test_version(self, tmp_path: Path) -> None:
        assert gpulayer_command("--version", cwd=tmp_path).stdout == f"gpulayer {gpulayer.__version__}\n"

    def test_help_of_a_command(self, tmp_path: Path) -> None:
        done = gpulayer_command("report", "--help", cwd=tmp_path)
        assert done.returncode == 0
        assert done.stdout.startswith("usage: gpulayer report [-h] [--output FILE]")

    @pytest.mark.parametrize("arguments", [[], ["paint"], ["--fast"], ["report"], ["report", "x", "--newest", "0"]])
    def test_what_cannot_be_understood(self, tmp_path: Path, arguments: list[str]) -> None:
        done = gpulayer_command(*arguments, cwd=tmp_path)
        assert done.returncode == 2
        assert "error:" in done.stderr
        assert "Traceback" not in done.stderr

    def test_no_torch(self) -> None:
        """Neither the command nor a report of a run without checkpoints waits for it."""
        script = "import sys, gpulayer.cli, gpulayer.report.command; print('torch' in sys.modules)"
        done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
        assert done.stdout == "False\n"


class TestReport:
    def test_one_run(self, trained: Path, runs: Path) -> None:
        run = runs / "Line/version_0"
        shutil.copytree(trained / "Line/version_0/checkpoints", run / "checkpoints")
        done = gpulayer_command("report", run, cwd=runs)
        assert (done.returncode, done.stderr) == (0, "")
        assert done.stdout.startswith(f"1 run, 5 metrics, {rows(run)} rows: {run}/report.html (")
        page = (run / "report.html").read_text()
        assert "<h1>Line/version_0</h1>" in page
        assert "best val_loss" in page

    def test_again(self, runs: Path) -> None:
        """The file is replaced, and nothing else is left behind."""
        run = runs / "Line/version_0"
        for _ in range(2):
            assert gpulayer_command("report", run, cwd=runs).returncode == 0
            assert sorted(os.listdir(run)) == ["hparams.yaml", "metrics.csv", "report.html"]

    def test_several(self, runs: Path, tmp_path: Path) -> None:
        done = gpulayer_command(
            "report", "runs/Line/version_1", "runs/Line/version_0", "runs/Line/version_1", cwd=tmp_path
        )
        assert done.stdout.startswith(f"2 runs, 5 metrics, {rows(runs)} rows: report.html (")
        page = (tmp_path / "report.html").read_text()
        assert page.index("version_1") < page.index("version_0")  # in the order given

    def test_a_folder_of_runs(self, runs: Path, tmp_path: Path) -> None:
        done = gpulayer_command("report", "runs", "--output", "all.html", cwd=tmp_path)
        assert done.stdout.startswith(f"2 runs, 5 metrics, {rows(runs)} rows: all.html (")

    def test_the_newest_of_a_folder(self, runs: Path, tmp_path: Path) -> None:
        done = gpulayer_command("report", "runs", "--newest", "1", cwd=tmp_path)
        assert "runs holds 2 runs; these are the 1 newest (--newest 1)." in done.stdout
        assert "holds 2 runs" in (runs / "Line/version_1/report.html").read_text()

    def test_output_may_be_a_folder(self, runs: Path, tmp_path: Path) -> None:
        gpulayer_command("report", "runs", "--output", tmp_path, cwd=tmp_path)
        assert (tmp_path / "report.html").exists()

    @pytest.mark.parametrize(
        ("run", "said"), [("missing", "there is no folder 'missing'"), (".", "there is no run in '.'")]
    )
    def test_no_run(self, tmp_path: Path, run: str, said: str) -> None:
        done = gpulayer_command("report", run, cwd=tmp_path)
        assert done.returncode == 2
        assert f"gpulayer report: error: {said}" in done.stderr.splitlines()[-1]

    def test_what_is_damaged_is_named(self, runs: Path, tmp_path: Path) -> None:
        run = runs / "Line/version_0"
        (run / "metrics.csv").write_text("epoch,step,loss\n0,0,0.5\n0,1,0.")
        (run / "hparams.yaml").write_text("a: [")
        done = gpulayer_command("report", run, cwd=tmp_path)
        assert done.returncode == 0
        notes = done.stdout.splitlines()[:-1]
        assert len(notes) == 2
        assert notes[0].startswith("Line/version_0: hparams.yaml could not be read: ")
        assert notes[1].startswith("Line/version_0: The last row of metrics.csv has no end")

    @pytest.mark.parametrize("output", ["missing/report.html", "runs/Line/version_0/metrics.csv/x.html", "/dev/full/x"])
    def test_a_place_that_cannot_be_written(self, runs: Path, tmp_path: Path, output: str) -> None:
        done = gpulayer_command("report", "runs", "--output", output, cwd=tmp_path)
        assert done.returncode == 1
        assert done.stderr.startswith(f"gpulayer report: {output!r} could not be written (")
        assert "--output" in done.stderr

    def test_an_older_report_outlives_a_full_disk(self, runs: Path, tmp_path: Path) -> None:
        limited = "import resource; resource.setrlimit(resource.RLIMIT_FSIZE, (1_000_000, 1_000_000))\n"
        limited += "import signal; signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n" + WITHOUT.format(missing=())
        (tmp_path / "report.html").write_text("the older one")
        done = gpulayer_command("report", "runs", cwd=tmp_path, program=limited)
        assert done.returncode == 1
        assert "'report.html' could not be written (" in done.stderr
        assert (tmp_path / "report.html").read_text() == "the older one"
        assert sorted(os.listdir(tmp_path)) == ["report.html", "runs"]

    def test_without_plotly(self, runs: Path, tmp_path: Path) -> None:
        done = gpulayer_command("report", "runs", cwd=tmp_path, program=WITHOUT.format(missing=("plotly",)))
        assert done.returncode == 1
        assert "pip install 'gpulayer[report]'" in done.stderr
        assert len(done.stderr.splitlines()) == 1

    def test_open_where_there_is_no_browser(self, runs: Path, tmp_path: Path) -> None:
        program = "import webbrowser; webbrowser.open = lambda url: print(url) or False\n" + WITHOUT.format(missing=())
        done = gpulayer_command("report", "runs", "--open", cwd=tmp_path, program=program)
        assert done.returncode == 0
        assert (tmp_path / "report.html").resolve().as_uri() in done.stdout
        assert "open the file yourself" in done.stdout

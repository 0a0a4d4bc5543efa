"""Draw the learning curves of one run, or of several for comparison, into one HTML page that opens with no network."""

from __future__ import annotations

import argparse
import os
import sys
import webbrowser
from pathlib import Path

from gpulayer.report.html import size
from gpulayer.report.page import make_page
from gpulayer.report.read import find_runs, names_of, read_run

FILE = "report.html"
NEWEST = 10


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """What `gpulayer report` takes."""
    parser.add_argument(
        "runs",
        nargs="+",
        type=Path,
        metavar="RUN",
        help="a run's folder, such as runs/Classifier/version_0, or a folder with runs below it: then all of them, up "
        "to the newest --newest",
    )
    parser.add_argument(
        "--output",
        type=Path,
        metavar="FILE",
        help=f"where to write. Default: {FILE} in the run's folder, or in the current folder for several runs",
    )
    parser.add_argument(
        "--newest",
        type=int,
        default=NEWEST,
        metavar="N",
        help="of a folder of runs, take the N that were written to last (default: %(default)s)",
    )
    parser.add_argument("--open", action="store_true", help="open the page in the browser")


def run(arguments: argparse.Namespace, parser: argparse.ArgumentParser) -> int:
    """Write the page.

    Returns:
        0; 1 if plotly is missing or the page cannot be written.
    """
    if arguments.newest < 1:
        parser.error(f"--newest {arguments.newest}: give a number from 1")
    try:
        folders, notes = _choose(arguments.runs, arguments.newest)
    except OSError as error:
        parser.error(str(error))
    runs = [read_run(folder, name) for folder, name in zip(folders, names_of(folders), strict=True)]
    output = _output(arguments.output, folders)
    try:
        page = make_page(runs, notes)
        _write_whole(output, page)
    except (ModuleNotFoundError, OSError) as error:
        print(f"{parser.prog}: {_reason(error, output)}", file=sys.stderr)
        return 1
    for note in notes:
        _say(note)
    for each in runs:
        for note in each.notes:
            _say(f"{each.name}: {note}")
    metrics = len({name for each in runs for name in each.metrics.series})
    rows = sum(each.metrics.rows for each in runs)
    counts = f"{_count(len(runs), 'run')}, {_count(metrics, 'metric')}, {_count(rows, 'row')}"
    _say(f"{counts}: {output} ({size(len(page))})")
    if arguments.open and not webbrowser.open(output.resolve().as_uri()):
        _say("No browser could be started here; open the file yourself.")
    return 0


def _choose(paths: list[Path], newest: int) -> tuple[list[Path], list[str]]:
    """The runs' folders, each once, and sentences about those that were left out."""
    chosen: dict[str, Path] = {}
    notes = []
    for path in paths:
        found = find_runs(path)
        if len(found) > newest:
            notes.append(f"{path} holds {len(found)} runs; these are the {newest} newest (--newest {newest}).")
        for folder in found[-newest:]:
            chosen.setdefault(os.path.realpath(folder), folder)
    return list(chosen.values()), notes


def _output(given: Path | None, folders: list[Path]) -> Path:
    if given is None:
        return folders[0] / FILE if len(folders) == 1 else Path(FILE)
    return given / FILE if given.is_dir() else given


def _write_whole(output: Path, page: str) -> None:
    """Beside its place first, so that an earlier report stays whole where there is no room for a new one."""
    temporary = output.with_name(f".{output.name}.{os.getpid()}.part")
    try:
        temporary.write_text(page, encoding="utf-8", errors="replace")
        os.replace(temporary, output)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def _count(number: int, noun: str) -> str:
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"


def _say(text: str) -> None:
    """Print; names of metrics may hold characters that this terminal cannot show."""
    encoding = sys.stdout.encoding or "utf-8"
    print(text.encode(encoding, "replace").decode(encoding))


def _reason(error: Exception, output: Path) -> str:
    if isinstance(error, OSError):
        return f"{str(output)!r} could not be written ({error.strerror}); give another place with --output FILE"
    return str(error)

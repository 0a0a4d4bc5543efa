"""A run's folder as data: what CSVLogger and ModelCheckpoint left there, whole or damaged."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path

from gpulayer.report.checkpoints import CheckpointFile, read_checkpoints
from gpulayer.report.hparams import read_hparams
from gpulayer.report.metrics import Metrics, read_metrics

METRICS_FILE = "metrics.csv"
HPARAMS_FILE = "hparams.yaml"


@dataclass
class Run:
    """What one run left behind.

    Attributes:
        folder: where it was found.
        name: what tells it from the other runs of the page.
        metrics: the columns of metrics.csv.
        hparams: values of hparams.yaml as text, by dotted name.
        checkpoints: in the order of steps.
        started: when hparams.yaml was written, which is at the start of a run.
        ended: when metrics.csv was last written.
        notes: sentences about what could not be read, or not as it stands.
    """

    folder: Path
    name: str
    metrics: Metrics
    hparams: dict[str, str] = field(default_factory=dict)
    checkpoints: list[CheckpointFile] = field(default_factory=list)
    started: datetime | None = None
    ended: datetime | None = None
    notes: list[str] = field(default_factory=list)


def find_runs(path: Path) -> list[Path]:
    """The folders of the runs at a path, oldest first.

    Args:
        path: a run's folder, its metrics.csv, or a folder with runs at any depth below it.

    Raises:
        OSError: there is nothing there, nothing that can be read, or no run.
    """
    if path.is_file() and path.name == METRICS_FILE:
        path = path.parent
    if not path.exists():
        raise FileNotFoundError(f"there is no folder {str(path)!r}")
    if not path.is_dir():
        raise NotADirectoryError(
            f"{str(path)!r} is a file; give the folder of a run, such as runs/Classifier/version_0"
        )
    with os.scandir(path):
        pass  # says so if the folder itself may not be read
    found = sorted(_runs_below(path), key=_last_written)
    if not found:
        raise FileNotFoundError(
            f"there is no run in {str(path)!r}: neither it nor a folder below it holds {METRICS_FILE}, which "
            f"CSVLogger writes"
        )
    return found


def _runs_below(path: Path) -> Iterator[Path]:
    for folder, below, files in os.walk(path):
        if METRICS_FILE in files or HPARAMS_FILE in files:
            yield Path(folder)
            below.clear()  # what lies in a run's folder belongs to it


def _last_written(folder: Path) -> tuple[float, list[tuple[int, str]]]:
    """Time of the last row; of two with one time the one with the lower number comes first."""
    file = folder / METRICS_FILE
    parts = [(int(part), "") if part.isdigit() else (0, part) for part in re.split(r"(\d+)", str(folder))]
    return (file if file.exists() else folder).stat().st_mtime, parts


def read_run(folder: Path, name: str) -> Run:
    """Read all of a run that can be read; what cannot is named in its notes."""
    run = Run(folder, name, Metrics())
    run.hparams = read_hparams(folder / HPARAMS_FILE, run.notes)
    run.metrics = read_metrics(folder / METRICS_FILE, run.notes)
    run.checkpoints = read_checkpoints(folder)
    run.notes += [f"{file.path}: {file.problem}" for file in run.checkpoints if file.problem]
    run.started = _written(folder / HPARAMS_FILE)
    run.ended = _written(folder / METRICS_FILE)
    return run


def _written(file: Path) -> datetime | None:
    try:
        return datetime.fromtimestamp(file.stat().st_mtime).astimezone()
    except OSError:
        return None


def names_of(folders: list[Path]) -> list[str]:
    """The shortest ends of paths that tell runs apart; of one run, its folder and the one that holds it."""
    full = [Path(os.path.abspath(folder)) for folder in folders]
    if len(full) == 1:
        return ["/".join(full[0].parts[-2:])]
    common = os.path.commonpath(full)
    return [Path(os.path.relpath(folder, common)).as_posix() for folder in full]

"""CSVLogger: metrics.csv and hparams.yaml in a folder of the run's own."""

from __future__ import annotations

import csv
import os
from argparse import Namespace
from typing import Any

from torch import Tensor

from gpulayer.fabric.utilities.types import Path
from gpulayer.pytorch.core.saving import save_hparams
from gpulayer.pytorch.loggers.logger import Logger


class ExperimentWriter:
    """Appends rows to `metrics.csv`, so that a run of any length is written in constant memory.

    A row is written as it comes and not touched again. When a metric appears for the first time its column is added:
    the file is then copied once, line by line, under the wider header, and renamed; older rows are just shorter, which
    every reader of CSV takes as empty cells.

    Args:
        log_dir: the folder.
        flush_every: rows are handed to the operating system every so many rows.
    """

    NAME_METRICS_FILE = "metrics.csv"
    NAME_HPARAMS_FILE = "hparams.yaml"

    def __init__(self, log_dir: str, flush_every: int = 1) -> None:
        self._file: Any = None
        self.log_dir = log_dir
        os.makedirs(log_dir, exist_ok=True)
        self.metrics_file_path = os.path.join(log_dir, self.NAME_METRICS_FILE)
        self.hparams: dict[str, Any] = {}
        self._flush_every = flush_every
        self._unflushed = 0
        self._columns = _read_header(self.metrics_file_path)
        _end_last_row(self.metrics_file_path)
        self._rows = 0

    def log_hparams(self, params: dict[str, Any]) -> None:
        """Keep hyperparameters for `hparams.yaml`."""
        self.hparams.update(params)

    def log_metrics(self, metrics: dict[str, float], step: int | None = None) -> None:
        """Append one row."""
        row = {**metrics, "step": self._rows if step is None else step}
        new = [name for name in sorted(row) if name not in self._columns]
        if new:
            self._widen(new)
        if self._file is None:
            self._file = open(self.metrics_file_path, "a", newline="", encoding="utf-8")  # noqa: SIM115 - open as long as the run
        csv.writer(self._file).writerow([_text(row.get(name)) for name in self._columns])
        self._rows += 1
        self._unflushed += 1
        if self._unflushed >= self._flush_every:
            self.flush()

    def _widen(self, new: list[str]) -> None:
        first = [name for name in ("epoch", "step") if name in new]
        self._columns += first + [name for name in new if name not in first]
        self.close()
        temporary = f"{self.metrics_file_path}.part"
        with open(temporary, "w", newline="", encoding="utf-8") as target:
            csv.writer(target).writerow(self._columns)
            if os.path.exists(self.metrics_file_path):
                with open(self.metrics_file_path, newline="", encoding="utf-8") as source:
                    next(source, None)
                    target.writelines(source)
        os.replace(temporary, self.metrics_file_path)

    def flush(self) -> None:
        """Hand the rows to the operating system, so that they outlive a killed process."""
        if self._file is not None:
            self._file.flush()
        self._unflushed = 0

    def save(self) -> None:
        """Write `hparams.yaml`, if there are hyperparameters that it lacks, and flush the rows."""
        if self.hparams:
            save_hparams(os.path.join(self.log_dir, self.NAME_HPARAMS_FILE), self.hparams)
            self.hparams = {}
        self.flush()

    def __del__(self) -> None:
        self.close()

    def close(self) -> None:
        """Close the file; the next row opens it again."""
        if self._file is not None:
            self._file.close()
            self._file = None


def _text(value: Any) -> Any:
    return "" if value is None else value.item() if isinstance(value, Tensor) else value


def _end_last_row(path: str) -> None:
    """A killed process may have left half a row: the next one must not be written into it."""
    if os.path.exists(path) and os.path.getsize(path):
        with open(path, "rb+") as file:
            file.seek(-1, os.SEEK_END)
            if file.read(1) != b"\n":
                file.write(b"\r\n")


def _read_header(path: str) -> list[str]:
    if not os.path.exists(path):
        return []
    with open(path, newline="", encoding="utf-8") as file:
        return next(csv.reader(file), [])


class CSVLogger(Logger):
    """Writes `metrics.csv` (a row for each time that values are logged) and `hparams.yaml`.

    Args:
        save_dir: the folder of all experiments.
        name: the folder of this experiment in it; None for none.
        version: this run's folder: a number for `version_<number>`, or a name. Default: the next free number.
        prefix: put before each metric's name, with a "-".
        flush_logs_every_n_steps: rows are handed to the operating system every so many rows; with 1 a killed process
            loses none.
    """

    LOGGER_JOIN_CHAR = "-"

    def __init__(
        self,
        save_dir: Path,
        name: str | None = "lightning_logs",
        version: int | str | None = None,
        prefix: str = "",
        flush_logs_every_n_steps: int = 1,
    ) -> None:
        super().__init__()
        self._save_dir = os.fspath(save_dir)
        self._root = os.path.abspath(os.path.expanduser(self._save_dir))  # the program may change its working folder
        self._name = name
        self._version = version
        self._prefix = prefix
        self._flush_every = flush_logs_every_n_steps
        self._experiment: ExperimentWriter | None = None

    @property
    def name(self) -> str | None:
        return self._name

    @name.setter
    def name(self, name: str) -> None:
        self._name = name

    @property
    def save_dir(self) -> str:
        return self._save_dir

    @property
    def root_dir(self) -> str:
        return os.path.join(os.path.expanduser(self._save_dir), self._name or "")

    @property
    def version(self) -> int | str:
        if self._version is None:
            self._version = self._claim_version()
        return self._version

    @property
    def log_dir(self) -> str:
        version = self.version
        return os.path.join(self.root_dir, version if isinstance(version, str) else f"version_{version}")

    def _claim_version(self) -> int:
        """The next free number. Its folder is made at once, so that of two processes each gets its own."""
        root = os.path.join(self._root, self._name or "")
        os.makedirs(root, exist_ok=True)
        taken = [int(name[8:]) for name in os.listdir(root) if name.startswith("version_") and name[8:].isdigit()]
        version = max(taken, default=-1) + 1
        while True:
            try:
                os.mkdir(os.path.join(root, f"version_{version}"))
                return version
            except FileExistsError:
                version += 1

    @property
    def experiment(self) -> ExperimentWriter:
        if self._experiment is None:
            folder = os.path.relpath(self.log_dir, os.path.expanduser(self._save_dir))
            self._experiment = ExperimentWriter(os.path.normpath(os.path.join(self._root, folder)), self._flush_every)
        return self._experiment

    def log_metrics(self, metrics: dict[str, float], step: int | None = None) -> None:
        if self._prefix:
            metrics = {f"{self._prefix}{self.LOGGER_JOIN_CHAR}{name}": value for name, value in metrics.items()}
        self.experiment.log_metrics(metrics, step)

    def log_hyperparams(self, params: dict[str, Any] | Namespace, *args: Any, **kwargs: Any) -> None:
        self.experiment.log_hparams(vars(params) if isinstance(params, Namespace) else dict(params))

    def save(self) -> None:
        if self._flush_every == 1 and self._experiment is not None and not self._experiment.hparams:
            return  # each row was flushed as it came
        self.experiment.save()

    def finalize(self, status: str) -> None:
        if self._experiment is not None:
            self._experiment.save()
            self._experiment.close()

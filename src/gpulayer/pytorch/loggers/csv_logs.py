"""CSVLogger: metrics.csv and hparams.yaml in a folder of the run's own."""

from __future__ import annotations

import csv
import io
import os
import zlib
from argparse import Namespace
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from itertools import count
from typing import IO, Any

from torch import Tensor

from gpulayer.fabric.utilities.files import replaced_whole
from gpulayer.fabric.utilities.rank_zero import rank_zero_info, rank_zero_only
from gpulayer.fabric.utilities.types import Path
from gpulayer.pytorch.core.saving import save_hparams
from gpulayer.pytorch.loggers.folders import FolderLogger
from gpulayer.pytorch.loggers.logger import rank_zero_experiment

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]


class _Returned:
    """A file of which `csv.writer.writerow` returns what it would write."""

    @staticmethod
    def write(text: str) -> str:
        return text


class ExperimentWriter:
    """Appends rows to `metrics.csv`, so that a run of any length is written in constant memory.

    A row is written as it comes and not touched again. When a metric appears for the first time its column is added:
    the file is then copied once, line by line, under the wider header, and renamed; older rows are just shorter, which
    every reader of CSV takes as empty cells. Where the disk is full a row is written whole or not at all.

    Several writers may share the file: each goes on with the columns that another one added. Of two processes one may
    lose a row that it writes in the milliseconds in which the other copies the file.

    Args:
        log_dir: the folder.
        flush_every: rows are handed to the operating system every so many rows.
    """

    NAME_METRICS_FILE = "metrics.csv"
    NAME_HPARAMS_FILE = "hparams.yaml"

    def __init__(self, log_dir: str, flush_every: int = 1) -> None:
        self._file: Any = None
        self._open_file: tuple[int, int] | None = None  # its device and number
        self._columns: list[str] = []  # of the open file
        self._unflushed: list[dict[str, Any]] = []  # rows that the operating system has not got yet
        self.log_dir = log_dir
        os.makedirs(log_dir, exist_ok=True)
        self.metrics_file_path = os.path.join(log_dir, self.NAME_METRICS_FILE)
        self.hparams: dict[str, Any] = {}
        self._hparams_unsaved = False
        self._flush_every = flush_every
        self._line = csv.writer(_Returned())
        self._rows = 0
        self._summed = self._checksum = 0  # of the rows' first bytes, how many were summed up, and their checksum

    def log_hparams(self, params: dict[str, Any]) -> None:
        """Keep hyperparameters for `hparams.yaml`."""
        self.hparams.update(params)
        self._hparams_unsaved = True

    def log_metrics(self, metrics: dict[str, float], step: int | None = None) -> None:
        """Append one row.

        Raises:
            OSError: it could not be written; the file is as it was before.
        """
        row = {
            str(name): value if type(value) in (float, int) else _text(value)
            for name, value in {**metrics, "step": self._rows if step is None else step}.items()
        }
        self._unflushed.append(row)
        if len(self._unflushed) >= self._flush_every:
            try:
                self.flush()
            except BaseException:
                self._unflushed.pop()
                raise
        self._rows += 1

    def flush(self) -> None:
        """Hand the rows to the operating system, so that they outlive a killed process: all of them, or none."""
        if not self._unflushed:
            return
        size = self._open()
        while new := set().union(*self._unflushed).difference(self._columns):
            self._widen(new)
            size = self._open()
        lines = [self._line.writerow(map(row.get, self._columns)) for row in self._unflushed]
        rows = memoryview("".join(lines).encode())
        try:
            while rows:
                rows = rows[self._file.write(rows) :]
        except BaseException:
            self._file.truncate(size)
            raise
        self._unflushed.clear()

    def _open(self) -> int:
        """Open the file of that name, if it is not the open one, and read its columns; returns its size in bytes."""
        try:
            found = os.stat(self.metrics_file_path)
        except FileNotFoundError:
            os.makedirs(self.log_dir, exist_ok=True)
            found = None
        if found is None or (found.st_dev, found.st_ino) != self._open_file:
            self._close()
            _end_last_row(self.metrics_file_path)
            self._file = open(self.metrics_file_path, "ab", buffering=0)  # noqa: SIM115 - open as long as the run
            self._columns = _read_header(self.metrics_file_path)
            found = os.fstat(self._file.fileno())
            self._open_file = (found.st_dev, found.st_ino)
        return found.st_size

    def _widen(self, new: set[str]) -> None:
        """Put a file with more columns in place of the open one, unless another process has just done so."""
        before = self._open_file
        with _locked(self.log_dir):
            size = self._open()
            if self._open_file != before:
                return
            first = [name for name in ("epoch", "step") if name in new]
            self._rewrite([*self._columns, *first, *sorted(new.difference(first))], size - self._header_size())

    def _rewrite(self, columns: list[str], length: int) -> None:
        """Put a file in place of the open one that has these columns and the first `length` bytes of its rows."""
        header_size = self._header_size()
        self._close()
        with (
            open(self.metrics_file_path, "rb") as source,
            replaced_whole(self.metrics_file_path, flush=False) as target,
        ):
            source.seek(header_size)
            writer = io.BufferedWriter(target)
            writer.write(self._line.writerow(columns).encode())
            _copy(source, length, writer.write)
            writer.flush()
            writer.detach()

    def _header_size(self) -> int:
        """How many bytes of the file are its header."""
        size = quotes = 0
        with open(self.metrics_file_path, "rb") as file:
            for line in file:  # somebody else may have written it, in another style
                size += len(line)
                quotes += line.count(b'"')
                if quotes % 2 == 0:
                    break
        return size

    def state_dict(self) -> dict[str, Any]:
        """The file as it is now: its columns, and how many bytes of rows it has, with a checksum to know them by."""
        self.flush()
        if not os.path.exists(self.metrics_file_path):
            return {"columns": [], "bytes": 0, "checksum": 0}
        length = self._open() - self._header_size()
        if length < self._summed:
            self._summed = self._checksum = 0
        self._checksum = self._sum_rows(self._summed, length, self._checksum)
        self._summed = length
        return {"columns": list(self._columns), "bytes": length, "checksum": self._checksum}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Make the file again what it was when `state_dict` was called, if it begins with the same rows.

        The rows that came after are dropped, for a resumed run writes them anew. The file of another run, which begins
        otherwise, is left as it is. Without a state the run begins anew: the file is put aside.
        """
        if not os.path.exists(self.metrics_file_path):
            return
        if not state:
            self._close()
            aside = next(path for path in map(self._aside, count()) if not os.path.exists(path))
            os.replace(self.metrics_file_path, aside)
            rank_zero_info("%s is of a run that left no checkpoint; it is %s now.", self.metrics_file_path, aside)
            return
        with _locked(self.log_dir):
            length = self._open() - self._header_size()
            same = self._columns[: len(state["columns"])] == state["columns"] and length >= state["bytes"]
            if not same or self._sum_rows(0, state["bytes"], 0) != state["checksum"]:
                return
            if length == state["bytes"] and self._columns == state["columns"]:
                return
            with open(self.metrics_file_path, "rb") as file:
                file.seek(self._header_size() + state["bytes"])
                dropped = file.read().count(b"\n")
            self._rewrite(state["columns"], state["bytes"])
        rank_zero_info("Dropped %d rows of %s that came after the checkpoint.", dropped, self.metrics_file_path)

    def _aside(self, number: int) -> str:
        """Where the file of a run goes that begins anew: the first free one of these paths."""
        return os.path.join(self.log_dir, f"metrics_before{f'-{number}' if number else ''}.csv")

    def _sum_rows(self, start: int, end: int, checksum: int) -> int:
        """The checksum of the rows up to byte `end`, given that of those before byte `start`."""
        sums = [checksum]
        with open(self.metrics_file_path, "rb") as file:
            file.seek(self._header_size() + start)
            _copy(file, end - start, lambda part: sums.append(zlib.crc32(part, sums[-1])))
        return sums[-1]

    def save(self) -> None:
        """Write `hparams.yaml`, if there are hyperparameters that it lacks, and flush the rows."""
        if self._hparams_unsaved:
            save_hparams(os.path.join(self.log_dir, self.NAME_HPARAMS_FILE), self.hparams)
            self._hparams_unsaved = False
        self.flush()

    def __del__(self) -> None:
        with suppress(Exception):  # nobody could catch it here; `close` and `save` raise it
            self.close()

    def close(self) -> None:
        """Write what is left and close the file; the next row opens it again."""
        self.flush()
        self._close()

    def _close(self) -> None:
        self._open_file = None
        if self._file is not None:
            self._file.close()
            self._file = None


def _copy(source: IO[bytes], length: int, write: Callable[[bytes], Any]) -> None:
    """Give `write` the next `length` bytes, in parts."""
    while part := source.read(min(length, 1 << 20)):
        write(part)
        length -= len(part)


def _text(value: Any) -> Any:
    """What the cell will hold, whatever becomes of the value until it is written."""
    return value.item() if isinstance(value, Tensor) else "" if value is None else str(value)


@contextmanager
def _locked(folder: str) -> Iterator[None]:
    """Holds all other processes up that want the same, where the system can lock a folder."""
    if fcntl is None:
        yield
        return
    handle = os.open(folder, os.O_RDONLY)
    try:
        with suppress(OSError):  # some network file systems have no locks
            fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)


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


class CSVLogger(FolderLogger):
    """Writes `metrics.csv` (a row for each time that values are logged) and `hparams.yaml`.

    Args:
        save_dir: the folder of all experiments.
        name: the folder of this experiment in it; None for none.
        version: this run's folder: a number for `version_<number>`, or a name. Default: the next free number.
        prefix: put before each metric's name, with a "-".
        flush_logs_every_n_steps: rows are handed to the operating system every so many rows; with 1 a killed process
            loses none.
    """

    def __init__(
        self,
        save_dir: Path,
        name: str | None = "lightning_logs",
        version: int | str | None = None,
        prefix: str = "",
        flush_logs_every_n_steps: int = 1,
    ) -> None:
        super().__init__(save_dir, name, version, prefix)
        self._flush_every = flush_logs_every_n_steps
        self._experiment: ExperimentWriter | None = None

    @property
    @rank_zero_experiment
    def experiment(self) -> ExperimentWriter:
        if self._experiment is None:
            self._experiment = ExperimentWriter(self.folder, self._flush_every)
        return self._experiment

    @rank_zero_only
    def log_metrics(self, metrics: dict[str, float], step: int | None = None) -> None:
        self.experiment.log_metrics(self._prefixed(metrics), step)

    @rank_zero_only
    def log_hyperparams(self, params: dict[str, Any] | Namespace, *args: Any, **kwargs: Any) -> None:
        self.experiment.log_hparams(vars(params) if isinstance(params, Namespace) else dict(params))

    @rank_zero_only
    def save(self) -> None:
        self.experiment.save()

    def state_dict(self) -> dict[str, Any]:
        state: dict[str, Any] = {} if rank_zero_only.rank else self.experiment.state_dict()
        return state

    @rank_zero_only
    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        if state_dict or self.cut_off:
            self.experiment.load_state_dict(state_dict)

    @rank_zero_only
    def finalize(self, status: str) -> None:
        if self._experiment is not None:
            self._experiment.save()
            self._experiment.close()

    def __getstate__(self) -> dict[str, Any]:
        return {**super().__getstate__(), "_experiment": None}  # it has an open file

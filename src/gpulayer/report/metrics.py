"""metrics.csv as one series of numbers for each metric."""

from __future__ import annotations

import csv
from bisect import bisect_left
from collections.abc import Iterator
from dataclasses import dataclass, field
from math import isfinite
from pathlib import Path

AXES = ("step", "epoch")  # columns that say where a row belongs


@dataclass
class Series:
    """The values of one metric at steps that never fall; None stands for NaN and infinities."""

    steps: list[int] = field(default_factory=list)
    values: list[float | None] = field(default_factory=list)

    def finite(self) -> list[float]:
        """The values that are numbers."""
        return [value for value in self.values if value is not None]


@dataclass
class Metrics:
    """All of a metrics.csv.

    Attributes:
        series: a metric's values, in the order of the columns.
        rows: how many rows were read.
        epoch_ends: the step before the first, and the last step of each epoch, as (step, epochs done).
    """

    series: dict[str, Series] = field(default_factory=dict)
    rows: int = 0
    epoch_ends: list[tuple[int, float]] = field(default_factory=list)

    @property
    def last_step(self) -> int | None:
        """The highest step of any value."""
        return max((series.steps[-1] for series in self.series.values()), default=None)

    def epochs_done(self, step: int) -> float | None:
        """How many epochs were done after a step, in parts of epochs; None if epochs were not logged."""
        if not self.epoch_ends:
            return None
        right = min(max(bisect_left(self.epoch_ends, (step, 0.0)), 1), len(self.epoch_ends) - 1)
        (step_0, done_0), (step_1, done_1) = self.epoch_ends[right - 1 : right + 1]
        return done_0 + (done_1 - done_0) * min((step - step_0) / (step_1 - step_0), 1.0)


def read_metrics(file: Path, notes: list[str]) -> Metrics:
    """Read metrics.csv as far as it can be read.

    A run that was resumed from an older checkpoint logs steps again. Of each metric the later row counts: it belongs to
    the weights that the run went on with.

    Args:
        file: the file.
        notes: gets a sentence for each thing that is missing or damaged.
    """
    try:
        with open(file, newline="", encoding="utf-8-sig", errors="replace") as opened:
            return _read_rows(opened, notes)
    except FileNotFoundError:
        notes.append(f"There is no {file.name}.")
    except OSError as error:
        notes.append(f"{file.name} could not be read: {error.strerror}.")
    return Metrics()


class _Lines:
    """Lines that were written to their end; a last one without is still being written, or its process was killed."""

    def __init__(self, file: Iterator[str]) -> None:
        self._file = file
        self.torn = False

    def __iter__(self) -> Iterator[str]:
        for line in self._file:
            if line.endswith(("\n", "\r")):
                yield line.replace("\0", "")  # what a power cut leaves
            else:
                self.torn = True


def _read_rows(file: Iterator[str], notes: list[str]) -> Metrics:
    lines = _Lines(file)
    reader = csv.reader(lines)
    metrics = Metrics()
    found = _Table()
    try:
        found.read_header(next(reader, []))
        for row in reader:
            if row:
                metrics.rows += 1
                found.read_row(row, metrics.rows - 1)
    except csv.Error as error:
        notes.append(f"metrics.csv is damaged after row {metrics.rows:,} ({error}); what follows is left out.")
    epochs = found.columns.pop("epoch", Series())
    metrics.series = {name: series for name, series in found.columns.items() if series.steps}
    metrics.epoch_ends = _epoch_ends(epochs)
    if lines.torn:
        notes.append("The last row of metrics.csv has no end, as if it is just being written; it is left out.")
    if not metrics.rows:
        notes.append("metrics.csv has no rows yet.")
    notes += found.notes()
    return metrics


class _Table:
    """Sorts cells into series while rows go by."""

    def __init__(self) -> None:
        self.columns: dict[str, Series] = {}
        self._step_column = -1
        self._width = 0
        self._cut = self._homeless = self._replaced = 0
        self._texts: dict[str, str] = {}

    def read_header(self, names: list[str]) -> None:
        self._step_column = names.index("step") if "step" in names else -1
        self.columns = {name: Series() for name in names if name}
        self._cells = [
            (index, name, self.columns[name].steps, self.columns[name].values)
            for index, name in enumerate(names)
            if name and index != self._step_column
        ]

    def read_row(self, row: list[str], number: int) -> None:
        if len(row) < self._width:  # columns are only ever added: this row was cut, and its last cell is half a number
            self._cut += 1
            row = row[:-1]
        else:
            self._width = len(row)
        try:
            step = int(float(row[self._step_column])) if self._step_column >= 0 else number
        except (ValueError, IndexError, OverflowError):
            self._homeless += 1
            return
        end = len(row)
        for index, name, steps, values in self._cells:
            cell = row[index] if index < end else ""
            if not cell:
                continue
            try:
                value = float(cell)
            except ValueError:
                self._texts.setdefault(name, cell)
                continue
            if steps and steps[-1] > step:  # equal is no step back: a validation logs its batches at one step
                while steps and steps[-1] >= step:
                    steps.pop()
                    values.pop()
                    self._replaced += name != "epoch"
            steps.append(step)
            values.append(value if isfinite(value) else None)

    def notes(self) -> Iterator[str]:
        if self.columns and self._step_column < 0:
            yield "metrics.csv has no column `step`; rows are numbered instead."
        if self._cut:
            yield f"{_count(self._cut, 'row')} cut short in metrics.csv; the cell at the cut is left out."
        if self._homeless:
            yield f"{_count(self._homeless, 'row')} without a step in metrics.csv; left out."
        if self._replaced:
            yield (
                f"{_count(self._replaced, 'value')} logged again at steps that were there already, as after a resume; "
                "the later ones are drawn."
            )
        for name, cell in self._texts.items():
            yield f"Column {name[:80]!r} holds text, such as {cell[:40]!r}, which is not drawn."


def _count(number: int, noun: str) -> str:
    return f"{number:,} {noun} was" if number == 1 else f"{number:,} {noun}s were"


def _epoch_ends(epochs: Series) -> list[tuple[int, float]]:
    """Where each epoch ended, for an axis in epochs.

    Of the last epoch it is not known whether it ended: it is taken to be as long as the one before, or longer.
    """
    last: dict[int, int] = {}
    for step, epoch in zip(epochs.steps, epochs.values, strict=True):
        if epoch is not None:
            last[int(epoch)] = step
    if not last:
        return []
    seen = sorted(last)
    first = seen[0]
    ends = [(-1 if first == 0 else epochs.steps[0] - 1, float(first))]
    for epoch in seen:
        if last[epoch] > ends[-1][0]:
            ends.append((last[epoch], epoch + 1.0))
    if len(ends) < 2:
        return []
    if len(ends) > 2:
        (before, _), (step, done), (end, _) = ends[-3:]
        ends[-1] = (end, done + min((end - step) / (step - before), 1.0))
    return ends

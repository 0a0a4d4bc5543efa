"""RichProgressBar: coloured bars, drawn by rich."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from math import inf
from time import monotonic
from typing import TYPE_CHECKING, Any

from gpulayer.fabric.utilities.exceptions import MisconfigurationException
from gpulayer.pytorch.callbacks.progress.drawn import (
    DESCRIPTIONS,
    PREDICT,
    SANITY,
    TEST,
    TRAIN,
    VALIDATION,
    DrawnProgressBar,
)
from gpulayer.pytorch.callbacks.progress.streams import MARGIN, can_draw, is_terminal, switch_handlers

if TYPE_CHECKING:
    from gpulayer.pytorch.trainer.trainer import Trainer

LEAST_BAR = 10  # columns; where there are fewer beside it, the metrics stand below
MOST_LINES = 3  # of metrics
WIDTH_FOR_TIME, WIDTH_FOR_SPEED = 60, 75  # columns from which on the time gone by, and the rate, are shown


@dataclass
class RichProgressBarTheme:
    """Styles of rich for the parts of a bar, and how its metrics are written.

    Args:
        description: of the name.
        progress_bar: of the bar.
        progress_bar_finished: of a bar that is full.
        progress_bar_pulse: of a bar whose total is not known.
        batch_progress: of the number of batches.
        time: of the time gone by and left.
        processing_speed: of the rate.
        metrics: of the metrics.
        metrics_text_delimiter: stands between two metrics.
        metrics_format: how a number is written, as in `format`.
    """

    description: Any = ""
    progress_bar: Any = "#6206E0"
    progress_bar_finished: Any = "#6206E0"
    progress_bar_pulse: Any = "#6206E0"
    batch_progress: Any = ""
    time: Any = "dim"
    processing_speed: Any = "dim underline"
    metrics: Any = "italic"
    metrics_text_delimiter: str = " "
    metrics_format: str = ".3f"


@dataclass
class _Count:
    """What a task counts."""

    description: str
    total: int | float | None
    start: int
    began: float


class RichProgressBar(DrawnProgressBar):
    """Coloured bars, with the metrics beside them or, where these are long, below.

    It is drawn on standard output, ten times a second at most. Lines that are printed or logged meanwhile come out
    above it. In a file or a pipe there are lines in its place. To change its looks, pass a theme, or override
    `configure_columns`. It needs the package `rich`.

    Args:
        refresh_rate: the bar looks at the clock after every so many batches; 0 shows nothing.
        leave: each epoch's finished bar stays on the screen, and the next one begins below it.
        theme: styles.
        console_kwargs: arguments of rich's `Console`.

    Raises:
        ModuleNotFoundError: rich is not installed.
        MisconfigurationException: a value that cannot be used.
    """

    def __init__(
        self,
        refresh_rate: int = 1,
        leave: bool = False,
        theme: RichProgressBarTheme | None = None,
        console_kwargs: dict[str, Any] | None = None,
    ) -> None:
        try:
            import rich.progress  # noqa: F401
        except ModuleNotFoundError:
            raise ModuleNotFoundError(
                "`RichProgressBar` needs the package rich: `pip install gpulayer[rich]`, or use `TQDMProgressBar`."
            ) from None
        super().__init__(refresh_rate, leave)
        if theme is not None and not isinstance(theme, RichProgressBarTheme):
            raise MisconfigurationException(f"`RichProgressBar(theme={theme!r})`: give a RichProgressBarTheme.")
        self.theme = theme or RichProgressBarTheme()
        self.progress: Any = None  # rich's, while something is drawn
        self._console_kwargs = console_kwargs or {}
        self._console: Any = None
        self._tasks: dict[str, Any] = {}  # the id of each stage's task
        self._counts: dict[str, _Count] = {}
        self._metrics_text = ""

    def _task(self, stage: str) -> Any:
        if self.progress is None or stage not in self._tasks:
            return None
        return self.progress.tasks[self.progress.task_ids.index(self._tasks[stage])]

    @property
    def train_progress_bar(self) -> Any:
        """rich's Task of training, while it is drawn; else None."""
        return self._task(TRAIN)

    @property
    def val_sanity_check_bar(self) -> Any:
        """rich's Task of the sanity check, while it is drawn; else None."""
        return self._task(SANITY)

    @property
    def val_progress_bar(self) -> Any:
        """rich's Task of a validation, while it is drawn; else None."""
        return self._task(VALIDATION)

    @property
    def test_progress_bar(self) -> Any:
        """rich's Task of a test, while it is drawn; else None."""
        return self._task(TEST)

    @property
    def predict_progress_bar(self) -> Any:
        """rich's Task of a prediction, while it is drawn; else None."""
        return self._task(PREDICT)

    def configure_columns(self, trainer: Trainer) -> list[Any]:
        """The columns of rich that stand before the metrics; override it to choose others.

        A task's fields "count", "time" and "speed" hold texts.
        """
        from rich.progress import BarColumn, TextColumn

        theme = self.theme
        return [
            TextColumn("{task.description}", style=theme.description, markup=False),
            BarColumn(
                bar_width=None,
                complete_style=theme.progress_bar,
                finished_style=theme.progress_bar_finished,
                pulse_style=theme.progress_bar_pulse,
            ),
            TextColumn("{task.fields[count]}", style=theme.batch_progress, markup=False),
            TextColumn("{task.fields[time]}", style=theme.time, markup=False),
            TextColumn("{task.fields[speed]}", style=theme.processing_speed, markup=False),
        ]

    # -- drawing -----------------------------------------------------------------------------------------------------

    def _can_draw(self) -> bool:
        from rich.console import Console

        self._console = Console(**self._console_kwargs)
        return bool(self._console_kwargs.get("force_terminal")) or can_draw(self._console.file)

    def _begin(self, stage: str, description: str | None, total: int | float, done: int) -> None:
        name = description or getattr(self, DESCRIPTIONS[stage])
        self._counts[stage] = _Count(name, None if total == inf else total, done, monotonic())

    def _draw(self, stage: str, done: int, metrics: dict[str, Any] | None) -> None:
        if self.progress is None:
            self._start_drawing()
        if metrics is not None:
            self._metrics_text = self.theme.metrics_text_delimiter.join(
                f"{name}: {value:{self.theme.metrics_format}}" if isinstance(value, float) else f"{name}: {value}"
                for name, value in metrics.items()
            )
        count = self._counts[stage]
        texts = self._texts(count, done)
        task = self._task(stage)
        if task is None:
            self._tasks[stage] = self.progress.add_task(count.description, total=count.total, completed=done, **texts)
            return  # it is drawn
        task.description, task.total = count.description, count.total  # of a new epoch or loader
        self.progress.update(task.id, completed=done, **texts)
        self.progress.refresh()

    def _texts(self, count: _Count, done: int) -> dict[str, str]:
        """What stands in the columns."""
        seconds, batches, width = monotonic() - count.began, done - count.start, self._console.width
        left = "-:--:--"
        if count.total is not None and batches:
            left = _clock(max(count.total - done, 0) * seconds / batches)
        rate = batches / seconds if seconds else 0.0
        speed = f"{1 / rate:.2f}s/it" if 0 < rate < 1 else f"{rate:.2f}it/s"
        return {
            "count": f"{done}/{'?' if count.total is None else count.total}",
            "time": f"{_clock(seconds)} • {left}" if width >= WIDTH_FOR_TIME else left,
            "speed": speed if width >= WIDTH_FOR_SPEED else "",
        }

    def _start_drawing(self) -> None:
        self.progress = _progress(
            self.configure_columns(self.trainer),
            lambda: (self._metrics_text, self.theme.metrics),
            self._console,
            auto_refresh=False,
            redirect_stdout=is_terminal(sys.stdout),
            redirect_stderr=is_terminal(sys.stderr),
        )
        before = sys.stdout, sys.stderr
        self.progress.start()
        for stream, above in zip(before, (sys.stdout, sys.stderr), strict=True):
            if above is not stream:
                switch_handlers(stream, above)

    def _stop_drawing(self) -> None:
        if self.progress is not None:
            before = sys.stdout, sys.stderr
            self.progress.stop()
            for above, stream in zip(before, (sys.stdout, sys.stderr), strict=True):
                if above is not stream:
                    switch_handlers(above, stream)
        self.progress = None
        self._tasks.clear()

    def _close(self, stage: str) -> None:
        if stage not in self._tasks:
            return
        if stage == TRAIN or self._alone:
            self._stop_drawing()
        else:
            self.progress.remove_task(self._tasks.pop(stage))
            self.progress.refresh()

    def _close_all(self) -> None:
        for stage in (SANITY, VALIDATION):
            if stage in self._tasks and not self._alone:
                self._close(stage)
        self._stop_drawing()
        self._metrics_text = ""

    def __getstate__(self) -> dict[str, Any]:
        empty: dict[str, Any] = {"progress": None, "_console": None, "_tasks": {}, "_counts": {}, "_metrics_text": ""}
        return {**super().__getstate__(), **empty}


def _clock(seconds: float) -> str:
    """H:MM:SS."""
    whole = int(seconds)
    return f"{whole // 3600}:{whole % 3600 // 60:02d}:{whole % 60:02d}"


def _progress(columns: list[Any], metrics: Callable[[], tuple[str, Any]], console: Any, **arguments: Any) -> Any:
    """rich's Progress, with metrics beside it where they fit, and below it where they do not.

    Args:
        columns: of the table of tasks.
        metrics: gives their text and its style.
        console: rich's Console.
        arguments: of rich's Progress.
    """
    from rich.console import Group
    from rich.constrain import Constrain
    from rich.measure import Measurement
    from rich.progress import Progress
    from rich.table import Table
    from rich.text import Text

    class BarsAndMetrics(Progress):
        def get_renderables(self) -> Iterable[Any]:
            table = self.make_tasks_table(self.tasks)
            text = Text(*metrics(), overflow="ellipsis")
            width = console.width - MARGIN
            room = width - Measurement.get(console, console.options, table).minimum - LEAST_BAR
            if text.cell_len <= room:
                beside = Table.grid(expand=True, padding=(0, 1))
                beside.add_column(ratio=1)
                beside.add_column(no_wrap=True)
                beside.add_row(table, text)
                yield Constrain(beside, width)
            else:
                text.truncate(width * MOST_LINES, overflow="ellipsis")
                yield Constrain(Group(table, text), width)

    return BarsAndMetrics(*columns, console=console, expand=True, **arguments)

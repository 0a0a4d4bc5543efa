"""TQDMProgressBar: bars of text, or of a notebook's widgets, drawn by tqdm."""

from __future__ import annotations

import os
import sys
import warnings
from collections.abc import Callable
from time import monotonic
from typing import TYPE_CHECKING, Any, TextIO

from tqdm import std
from tqdm.utils import disp_len, disp_trim

from gpulayer.fabric.utilities.exceptions import MisconfigurationException
from gpulayer.pytorch.callbacks.progress.drawn import (
    PREDICT,
    SANITY,
    TEST,
    TRAIN,
    VALIDATION,
    DrawnProgressBar,
    whole_number,
)
from gpulayer.pytorch.callbacks.progress.streams import MARGIN, Screen, can_draw, is_terminal

if TYPE_CHECKING:
    from tqdm.std import tqdm
else:
    with warnings.catch_warnings():  # in a notebook: that this module is new, or that ipywidgets is missing
        warnings.simplefilter("ignore", std.TqdmWarning)
        from tqdm.autonotebook import tqdm

SHAPES = (  # from wide to narrow: first the rate gives way to the metrics, then the bar, then the time
    "{l_bar}{bar}{r_bar}",
    "{l_bar}{bar}| {n_fmt}/{total_fmt} [{elapsed}<{remaining}{postfix}]",
    "{desc}{percentage:3.0f}% {n_fmt}/{total_fmt} [{elapsed}<{remaining}{postfix}]",
    "{desc}{percentage:3.0f}% {n_fmt}/{total_fmt} [<{remaining}{postfix}]",
    "{desc}{percentage:3.0f}% {n_fmt}/{total_fmt}{postfix}",
)
SHAPES_WITHOUT_TOTAL = (
    "{desc}{n_fmt}{unit} [{elapsed}, {rate_fmt}{postfix}]",
    "{desc}{n_fmt}{unit} [{elapsed}{postfix}]",
)
LEAST_BAR = "{bar:6}"
ERASE_REST_OF_LINE = "\x1b[K"


class Tqdm(tqdm):  # type: ignore[type-arg]
    """tqdm's bar; but it draws only where a bar can move, fits any width, and its numbers keep theirs.

    It takes tqdm's arguments.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        if not can_draw(kwargs.get("file") or sys.stderr):
            kwargs["disable"] = True
        super().__init__(*args, **kwargs)

    @staticmethod
    def format_num(n: float | str) -> str:
        """A number as tqdm writes it; with a point it has five characters at least, so that the bar stands still."""
        text = tqdm.format_num(n) if isinstance(n, (int, float)) else str(n)
        if not isinstance(n, float) or not text.lstrip("-").replace(".", "").isdigit():  # 1e-5, inf, nan
            return text
        return (text if "." in text else f"{text}.").ljust(5, "0")

    if tqdm is std.tqdm:  # which draws text

        @staticmethod
        def status_printer(file: TextIO) -> Callable[[str], None]:  # type: ignore[override]
            """What puts a text on the line; tqdm's pads it with blanks, which a window made narrower would wrap."""
            if os.name == "nt" or not is_terminal(file):
                return std.tqdm.status_printer(file)

            def put(text: str) -> None:
                file.write(f"\r{text}{ERASE_REST_OF_LINE}")
                file.flush()

            return put

    def __str__(self) -> str:
        facts = self.format_dict
        if not self.dynamic_ncols or not facts["ncols"]:
            return super().__str__()
        facts["prefix"] = f"{name}: " if (name := facts["prefix"].removesuffix(": ")) else ""
        facts["ncols"] = columns = max(facts["ncols"] - MARGIN, 1)
        if facts["bar_format"]:  # the user's
            shapes: tuple[str, ...] = (facts["bar_format"],)
        else:
            shapes = SHAPES if facts["total"] else SHAPES_WITHOUT_TOTAL
        mark = "..." if self.ascii else "…"
        postfix = facts["postfix"] or ""
        for facts["postfix"] in (postfix, _cut(postfix, columns // 2, mark)):
            for shape in shapes:
                least = self.format_meter(**{**facts, "ncols": None, "bar_format": shape.replace("{bar}", LEAST_BAR)})
                if disp_len(least) <= columns:
                    return self.format_meter(**{**facts, "bar_format": shape})
        return _cut(least, columns, mark)


def _cut(text: str, columns: int, mark: str) -> str:
    """The text, or as much of it as the columns hold, with a mark that there was more."""
    if disp_len(text) <= columns:
        return text
    return disp_trim(text, columns - len(mark)) + mark if columns > len(mark) else mark[:columns]


def _bar_of(stage: str, about: str) -> Any:
    """A property: the bar of a stage."""

    def get(self: TQDMProgressBar) -> tqdm:  # type: ignore[type-arg]
        return self._bar(SANITY if stage == VALIDATION and self._stage == SANITY else stage)

    def put(self: TQDMProgressBar, bar: tqdm) -> None:  # type: ignore[type-arg]
        self._bars[stage] = bar

    return property(get, put, doc=about)


class TQDMProgressBar(DrawnProgressBar):
    """A line of text for what is running, and in a notebook a widget if `ipywidgets` is installed.

    It is drawn on standard output, ten times a second at most. Lines that are printed or logged meanwhile come out
    above it. In a file or a pipe there are lines in its place. To change its looks, override the `init_*_tqdm` methods:

        class Ascii(TQDMProgressBar):
            def init_train_tqdm(self):
                bar = super().init_train_tqdm()
                bar.ascii = True
                return bar

    Args:
        refresh_rate: the bar looks at the clock after every so many batches; 0 shows nothing. The environment variable
            TQDM_MINITERS raises it.
        process_position: draw so many pairs of lines further down, below the bars of other processes.
        leave: each epoch's finished bar stays on the screen, and the next one begins below it.

    Raises:
        MisconfigurationException: a value that cannot be used.
    """

    BAR_FORMAT: str | None = None  # tqdm's `bar_format`; None: its own

    def __init__(self, refresh_rate: int = 1, process_position: int = 0, leave: bool = False) -> None:
        super().__init__(refresh_rate, leave)
        whole_number("TQDMProgressBar(process_position", process_position)
        self._process_position = process_position
        self._every = max(self._every, _miniters())
        self._bars: dict[str, tqdm] = {}  # type: ignore[type-arg]  # the newest of each stage
        self._counts: dict[str, tuple[str | None, int | float, int, float]] = {}  # what a bar does not know yet
        self._screen: Screen | None = None
        self._on_screen = False

    @property
    def process_position(self) -> int:
        """How many pairs of lines stand above."""
        return self._process_position

    train_progress_bar = _bar_of(TRAIN, "The bar of training.")
    val_progress_bar = _bar_of(VALIDATION, "The bar of a validation, or of the sanity check while that runs.")
    test_progress_bar = _bar_of(TEST, "The bar of a test.")
    predict_progress_bar = _bar_of(PREDICT, "The bar of a prediction.")

    # -- the bars: override these to change them ---------------------------------------------------------------------

    def init_sanity_tqdm(self) -> Tqdm:
        """The bar of the sanity check."""
        return self._make(self.sanity_check_description, leave=False)

    def init_train_tqdm(self) -> Tqdm:
        """The bar of training."""
        return self._make(self.train_description)

    def init_validation_tqdm(self) -> Tqdm:
        """The bar of a validation: below that of training, or alone."""
        return self._make(self.validation_description, below=not self._alone, leave=self._alone)

    def init_test_tqdm(self) -> Tqdm:
        """The bar of a test."""
        return self._make(self.test_description)

    def init_predict_tqdm(self) -> Tqdm:
        """The bar of a prediction."""
        return self._make(self.predict_description)

    def _make(self, description: str, below: bool = False, leave: bool = True) -> Tqdm:
        return Tqdm(
            desc=description,
            position=2 * self.process_position + below,
            leave=leave,
            disable=self.is_disabled,
            dynamic_ncols=True,
            file=sys.stdout,
            bar_format=self.BAR_FORMAT,
            smoothing=0,  # the rate is the mean of the epoch
            mininterval=0,  # when to draw is decided here
            miniters=0,
            delay=1e-3,  # a bar is first drawn when it knows its total
        )

    # -- drawing -----------------------------------------------------------------------------------------------------

    def _can_draw(self) -> bool:
        return can_draw(sys.stdout)

    def _begin(self, stage: str, description: str | None, total: int | float, done: int) -> None:
        self._counts[stage] = description, total, done, monotonic()

    def _bar(self, stage: str) -> tqdm:  # type: ignore[type-arg]
        """The bar of a stage; it is made when it is first needed, so that one that ends at once never flashes up.

        Raises:
            TypeError: the stage has not run yet.
        """
        if stage in self._counts:
            description, total, done, began = self._counts.pop(stage)
            if stage not in self._bars or self._bars[stage].disable:
                self._bars[stage] = self._init(stage)
            bar = self._bars[stage]
            if description is not None:
                bar.set_description(description, refresh=False)
            bar.reset(total=total)
            bar.n = bar.last_print_n = bar.initial = done
            bar.delay = 0
            if not bar.disable:
                bar.start_t -= monotonic() - began
        if stage not in self._bars:
            raise TypeError(f"`{type(self).__name__}` has no bar for {stage!r} yet: it has not run.")
        return self._bars[stage]

    def _init(self, stage: str) -> tqdm:  # type: ignore[type-arg]
        """Call the method that makes the bar; `sys.stdout` is the terminal itself meanwhile."""
        if self._screen is not None:
            self._screen.give_back()
        bar = {
            SANITY: self.init_sanity_tqdm,
            TRAIN: self.init_train_tqdm,
            VALIDATION: self.init_validation_tqdm,
            TEST: self.init_test_tqdm,
            PREDICT: self.init_predict_tqdm,
        }[stage]()
        if self._is_drawn:
            self._screen = self._screen or Screen(self._take_off, self._put_back)
            self._screen.take()
        return bar

    def _draw(self, stage: str, done: int, metrics: dict[str, Any] | None) -> None:
        if self._screen is not None:
            self._screen.end_line()
        bar = self._bar(stage)
        if metrics is not None:
            bar.set_postfix(metrics, refresh=False)
        if not bar.update(done - bar.n):
            bar.refresh()
        self._on_screen = True

    def _take_off(self) -> None:
        if self._on_screen:
            self._on_screen = False
            for bar in self._bars.values():
                bar.clear()

    def _put_back(self) -> None:
        self._on_screen = True
        for bar in self._bars.values():
            bar.refresh()

    def _close(self, stage: str) -> None:
        self._counts.pop(stage, None)
        if stage in self._bars:
            self._bars[stage].close()

    def _close_all(self) -> None:
        for stage in (SANITY, VALIDATION, TEST, PREDICT, TRAIN):
            self._close(stage)
        if self._screen is not None:
            self._screen.give_back()
        self._screen, self._on_screen = None, False

    def __getstate__(self) -> dict[str, Any]:
        return {**super().__getstate__(), "_bars": {}, "_counts": {}, "_screen": None, "_on_screen": False}


def _miniters() -> int:
    """The environment variable TQDM_MINITERS.

    Raises:
        MisconfigurationException: it is no number.
    """
    text = os.environ.get("TQDM_MINITERS", "1")
    try:
        return max(int(float(text)), 1)
    except ValueError:
        raise MisconfigurationException(
            f"The environment variable TQDM_MINITERS is {text!r}: set it to a number of batches, or unset it."
        ) from None

"""Delivery: brings a run's rows to its loggers. A logger that fails costs its own rows at most, never the run."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from time import monotonic
from traceback import extract_tb
from typing import TYPE_CHECKING, Any

from gpulayer.fabric.utilities.rank_zero import log
from gpulayer.pytorch.core.hooks import overridden
from gpulayer.pytorch.loggers.logger import Logger

if TYPE_CHECKING:
    from gpulayer.pytorch.core.callback import Checkpoint
    from gpulayer.pytorch.trainer.trainer import Trainer

MOST_WAITING = 10_000  # rows kept for a logger; at ten numbers a row about 10 MB
FIRST_PAUSE, LONGEST_PAUSE = 1.0, 60.0  # seconds from a failure to the next try; the pause doubles from try to try
MOST_FAILURES = 8  # in a row, of a logger that has taken something a moment ago
MOST_TRIES = 5  # after which the rows behind a row are tried, too: it may be the row, and not the logger
LONGEST_FAILING = 1.0  # seconds of failing calls in one try, for a server that hangs


class Delivery:
    """What stands between a run and the Trainer's loggers.

    A row goes straight to each logger. When one raises, the log says so once; what it did not take is kept and tried
    again, in order, after pauses that grow, and once more at the end of the run, where a line says what it lacks. A row
    that is refused time and again, where a later one is taken, is given up.

    Args:
        trainer: whose loggers; they are looked up each time, for they can be changed.
    """

    def __init__(self, trainer: Trainer) -> None:
        self._trainer = trainer
        self._outlets: dict[int, Outlet] = {}

    def row(self, metrics: dict[str, float], step: int) -> None:
        """Give every logger a row: numbers by name, and their step."""
        for outlet in self._current():
            outlet.give("row", partial(outlet.logger.log_metrics, metrics=dict(metrics), step=step))

    def checkpoint_saved(self, callback: Checkpoint) -> None:
        """Tell every logger that cares that a checkpoint was written."""
        for outlet in self._current():
            if overridden("after_save_checkpoint", outlet.logger, Logger):
                outlet.give("checkpoint", partial(outlet.logger.after_save_checkpoint, callback))

    def state_dict(self) -> list[dict[str, Any]]:
        """How far each logger is, for a checkpoint."""
        return [outlet.state_dict() for outlet in self._current()]

    def load_state_dict(self, states: list[dict[str, Any]]) -> None:
        """Bring the loggers back to where they were when a checkpoint was written."""
        for outlet, state in zip(self._current(), states, strict=False):
            outlet.attempt(partial(outlet.logger.load_state_dict, state))

    def begin_anew(self) -> None:
        """Tell the loggers that the run that went before left no checkpoint, and is done again."""
        self.load_state_dict([{} for _ in self._trainer.loggers])

    def finalize(self, status: str) -> None:
        """The run is over: give the loggers what still waits, finalize them, and say what they lack."""
        outlets = {**self._outlets, **{id(outlet.logger): outlet for outlet in self._current()}}
        self._outlets.clear()
        for outlet in outlets.values():
            outlet.finalize(status)

    def _current(self) -> Iterator[Outlet]:
        for logger in self._trainer.loggers:
            outlet = self._outlets.get(id(logger))
            if outlet is None:
                outlet = self._outlets[id(logger)] = Outlet(logger)
            yield outlet


@dataclass(slots=True)
class Parcel:
    """One call that a logger has yet to take.

    Args:
        kind: "row" or "checkpoint".
        call: does it.
        tries: how often it failed.
    """

    kind: str
    call: Callable[[], Any]
    tries: int = 0


class Outlet:
    """One logger, and what it has yet to take."""

    def __init__(self, logger: Logger) -> None:
        self.logger = logger
        self.waiting: deque[Parcel] = deque()
        self.unsaved: Counter[str] = Counter()  # taken since it last saved
        self.lost: Counter[str] = Counter()
        self.error = ""  # the last one, in words: the exception itself would keep the step's tensors
        self.failing = 0.0  # seconds that calls which failed have taken in this try
        self.pause = FIRST_PAUSE
        self.next_try = 0.0  # 0 as long as nothing failed

    def give(self, kind: str, call: Callable[[], Any]) -> None:
        """Make a call to the logger: now, or later if it has failed lately."""
        self.waiting.append(Parcel(kind, call))
        if self.next_try == 0.0 or monotonic() >= self.next_try:
            self.deliver()
        if len(self.waiting) > MOST_WAITING:
            self.lost[self.waiting.popleft().kind] += 1

    def state_dict(self) -> dict[str, Any]:
        """How far the logger is; nothing if it cannot say."""
        state: dict[str, Any] = {}
        self.attempt(lambda: state.update(self.logger.state_dict()))
        return state

    def deliver(self, at_end: bool = False) -> bool:
        """One try: give the logger what waits, oldest first, until nothing waits or it fails.

        Args:
            at_end: there is no later try, so it may fail more often.

        Returns:
            Whether it took anything.
        """
        at = failures = 0  # those before `at` are stepped over: they have been refused too often
        taken, self.failing = False, 0.0
        while at < len(self.waiting) and self.failing < LONGEST_FAILING:
            parcel = self.waiting[at]
            if self.attempt(parcel.call):
                del self.waiting[at]
                self.unsaved[parcel.kind] += 1
                self.give_up(at)
                at, failures, taken = 0, 0, True
                continue
            parcel.tries += 1
            if parcel.tries >= MOST_TRIES:
                at += 1
                continue
            failures += 1
            if failures == (MOST_FAILURES if taken or at_end else 1):
                break
        if self.unsaved and self.attempt(self.logger.save):
            self.unsaved.clear()
        if self.waiting or self.unsaved:
            # A server that hangs for half a minute at each try is tried rarely, so that training gets most of the time.
            self.next_try = monotonic() + max(self.pause, 9 * self.failing)
            self.pause = FIRST_PAUSE if taken else min(2 * self.pause, LONGEST_PAUSE)
        else:
            self.next_try, self.pause = 0.0, FIRST_PAUSE
        return taken

    def give_up(self, count: int) -> None:
        """Try the first `count` once more, as the logger has just taken a later one, and drop those that it refuses."""
        for _ in range(count):
            kept = self.unsaved if self.attempt(self.waiting[0].call) else self.lost
            kept[self.waiting.popleft().kind] += 1

    def attempt(self, call: Callable[[], Any]) -> bool:
        """Make a call; False if it failed, of which the log has a line the first time."""
        began = monotonic()
        try:
            call()
        except Exception as error:
            self.failing += monotonic() - began
            name, before, self.error = type(self.logger).__name__, self.error, describe(error)
            if not before:
                # A line of the log, not a Python warning: under `-W error` that would end the run.
                log.warning(
                    "%s failed (%s). The run goes on: what this logger did not take is kept, up to %s rows, and tried "
                    "again from time to time and at the end.",
                    name,
                    self.error,
                    f"{MOST_WAITING:,}",
                )
            log.debug("%s failed:", name, exc_info=error)
            return False
        return True

    def finalize(self, status: str) -> None:
        """Try what waits once more, finalize the logger, and say what it lacks."""
        while (self.waiting or self.unsaved) and self.deliver(at_end=True):
            pass
        self.lost.update(parcel.kind for parcel in self.waiting)
        self.waiting.clear()
        name = type(self.logger).__name__
        try:
            self.logger.finalize(status)
            self.unsaved.clear()
        except Exception as error:
            log.warning("%s could not end its run (%s).", name, describe(error))
            log.debug("%s failed:", name, exc_info=error)
        if self.lost:
            log.warning("%s lacks %s of this run. Its last error: %s", name, in_words(self.lost), self.error)
        if self.unsaved:
            log.warning("%s took %s that it could not save; it may lack them.", name, in_words(self.unsaved))
        if self.error and not self.lost and not self.unsaved:
            log.info("%s has taken all rows of this run after all.", name)


def in_words(counts: Counter[str]) -> str:
    """How many of each kind, as "2 checkpoints and 1 row"."""
    return " and ".join(f"{count:,} {kind}{'s' * (count > 1)}" for kind, count in sorted(counts.items()))


def describe(error: Exception) -> str:
    """An error and where it was raised, on one line."""
    text = " ".join(f"{type(error).__name__}: {error}".split())
    place = extract_tb(error.__traceback__)[-1]
    return f"{text}, at {place.filename}:{place.lineno}"

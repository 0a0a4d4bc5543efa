"""Timer: bounds the time of a run, and tells how much each stage took."""

from __future__ import annotations

import re
import time
from contextlib import suppress
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from gpulayer.fabric.utilities.exceptions import MisconfigurationException
from gpulayer.fabric.utilities.rank_zero import rank_zero_info
from gpulayer.pytorch.core.callback import Callback
from gpulayer.pytorch.core.hooks import StepOutput

if TYPE_CHECKING:
    from gpulayer.pytorch.core.module import Module
    from gpulayer.pytorch.trainer.trainer import Trainer

_UNITS = {"weeks", "days", "hours", "minutes", "seconds", "milliseconds", "microseconds"}
STAGES = ("train", "sanity_check", "validate", "test", "predict")


def read_duration(duration: str | timedelta | dict[str, int], argument: str = "duration={!r}") -> timedelta:
    """A duration from "DD:HH:MM:SS", a timedelta, or a dict of its arguments; `argument` is how an error shows it.

    Raises:
        MisconfigurationException: it is none of these.
    """
    read: Any = duration
    if isinstance(read, str) and (match := re.fullmatch(r"(\d+):(\d\d):(\d\d):(\d\d)", read.strip())):
        read = dict(zip(("days", "hours", "minutes", "seconds"), map(int, match.groups()), strict=True))
    if (
        isinstance(read, dict)
        and read
        and set(read) <= _UNITS
        and not any(isinstance(one, bool) for one in read.values())
    ):
        with suppress(TypeError, ValueError, OverflowError):  # not numbers, or beyond what a timedelta can hold
            read = timedelta(**read)
    if isinstance(read, timedelta) and read >= timedelta(0):
        return read
    raise MisconfigurationException(
        f"`{argument.format(duration)}` is no duration: give 'DD:HH:MM:SS' such as '00:12:00:00', a timedelta, or "
        "a dict such as {'hours': 12}."
    )


class Timer(Callback):
    """Stop training when its time is over; time spent before a resume counts.

    Args:
        duration: the time that training may take; None for no bound.
        interval: look at the clock after each "step" or each "epoch".
        verbose: log a line when the time is over.

    Raises:
        MisconfigurationException: no duration, or an unknown interval.
    """

    def __init__(
        self, duration: str | timedelta | dict[str, int] | None = None, interval: str = "step", verbose: bool = True
    ) -> None:
        super().__init__()
        if interval not in ("step", "epoch"):
            raise MisconfigurationException(f"`Timer(interval={interval!r})`: choose 'step' or 'epoch'.")
        if not isinstance(verbose, bool):
            raise MisconfigurationException(f"`Timer(verbose={verbose!r})`: choose True or False.")
        self._duration = None if duration is None else read_duration(duration).total_seconds()
        self._interval = interval
        self._verbose = verbose
        self._begun: dict[str, float] = {}
        self._ended: dict[str, float] = {}
        self._before = 0.0  # training time of the runs that this one resumes
        self._over = False  # whether the time was over when it last looked

    @property
    def asked_to_stop(self) -> bool:
        return self._over

    def start_time(self, stage: str = "train") -> float | None:
        """When the stage began, on the monotonic clock; None if it has not."""
        return self._begun.get(_known(stage))

    def end_time(self, stage: str = "train") -> float | None:
        """When the stage ended; None if it has not."""
        return self._ended.get(_known(stage))

    def time_elapsed(self, stage: str = "train") -> float:
        """Seconds that the stage has taken, runs before a resume included."""
        before = self._before if stage == "train" else 0.0
        begun = self.start_time(stage)
        if begun is None:
            return before
        return before + (self.end_time(stage) or time.monotonic()) - begun

    def time_remaining(self, stage: str = "train") -> float | None:
        """Seconds that are left of the duration; None without one."""
        return None if self._duration is None else self._duration - self.time_elapsed(stage)

    def on_train_start(self, trainer: Trainer, pl_module: Module) -> None:
        """A resumed run may have no time left; by epochs it goes on to the end of the one that it is in."""
        self._begin("train")
        if self._interval == "step" or self._over or not trainer.progress.mid_epoch:
            self._check(trainer)

    def on_train_end(self, trainer: Trainer, pl_module: Module) -> None:
        self._ended["train"] = time.monotonic()

    def on_validation_start(self, trainer: Trainer, pl_module: Module) -> None:
        self._begin("sanity_check" if trainer.sanity_checking else "validate")

    def on_validation_end(self, trainer: Trainer, pl_module: Module) -> None:
        self._ended["sanity_check" if trainer.sanity_checking else "validate"] = time.monotonic()

    def on_test_start(self, trainer: Trainer, pl_module: Module) -> None:
        self._begin("test")

    def on_test_end(self, trainer: Trainer, pl_module: Module) -> None:
        self._ended["test"] = time.monotonic()

    def on_predict_start(self, trainer: Trainer, pl_module: Module) -> None:
        self._begin("predict")

    def on_predict_end(self, trainer: Trainer, pl_module: Module) -> None:
        self._ended["predict"] = time.monotonic()

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: Module, outputs: StepOutput, batch: Any, batch_idx: int
    ) -> None:
        if self._interval == "step":
            self._check(trainer)

    def on_train_epoch_end(self, trainer: Trainer, pl_module: Module) -> None:
        if self._interval == "epoch":
            self._check(trainer)

    def _begin(self, stage: str) -> None:
        self._begun[stage] = time.monotonic()
        self._ended.pop(stage, None)

    def _check(self, trainer: Trainer) -> None:
        remaining = self.time_remaining("train")
        self._over = remaining is not None and remaining <= 0
        if self._over and not trainer.should_stop:
            trainer.should_stop = True
            if self._verbose:
                rank_zero_info("The time of %s is over; training stops.", timedelta(seconds=self._duration or 0))

    def state_dict(self) -> dict[str, Any]:
        return {"time_elapsed": {stage: self.time_elapsed(stage) for stage in STAGES}, "over": self._over}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self._before = float(state_dict.get("time_elapsed", {}).get("train", 0.0))
        self._over = bool(state_dict.get("over", False))


def _known(stage: str) -> str:
    name = str(getattr(stage, "value", stage))
    if name not in STAGES:
        raise ValueError(f"unknown stage {stage!r}; choose one of {', '.join(STAGES)}.")
    return name

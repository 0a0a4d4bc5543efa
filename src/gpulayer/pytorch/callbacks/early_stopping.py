"""EarlyStopping: ends training when a metric no longer gets better."""

from __future__ import annotations

from enum import IntEnum
from math import isfinite, isnan
from numbers import Integral, Real
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from gpulayer.fabric.utilities.exceptions import MisconfigurationException
from gpulayer.fabric.utilities.rank_zero import log, rank_zero_info, rank_zero_warn
from gpulayer.pytorch.core.callback import Monitor

if TYPE_CHECKING:
    from gpulayer.pytorch.core.module import Module
    from gpulayer.pytorch.trainer.trainer import Trainer


class EarlyStoppingReason(IntEnum):
    """Why it asked to stop."""

    NOT_STOPPED = 0
    STOPPING_THRESHOLD = 1
    DIVERGENCE_THRESHOLD = 2
    PATIENCE_EXHAUSTED = 3
    NON_FINITE_METRIC = 4


class EarlyStopping(Monitor):
    """Stop when the monitored metric has not become better for `patience` checks.

    A run that is resumed from a checkpoint of the moment in which this one stopped stops again, unless the arguments
    are others now: with more patience it trains on.

    Args:
        monitor: the metric.
        min_delta: by how much it must change to count as better.
        patience: how many checks without a better value it takes to stop.
        verbose: log a line for each better value.
        mode: "min" if lower is better, "max" if higher is.
        strict: whether a metric that was not logged is an error, or ignored with a warning.
        check_finite: stop when the metric is NaN or infinite.
        stopping_threshold: stop at once when the metric is better than this.
        divergence_threshold: stop at once when the metric is worse than this.
        check_on_train_epoch_end: check at the end of the training epoch, or after validation. Default: at the end of
            the epoch if there is one validation an epoch.
        log_rank_zero_only: with several processes, log lines on rank 0 alone.

    Attributes:
        best_score: the best value so far.
        wait_count: checks since then.
        stopped_epoch: the epoch in which it asked to stop; 0 if it did not.
        stopping_reason: why, as an `EarlyStoppingReason`.
        stopping_reason_message: why, as a sentence; None if it did not.

    Raises:
        MisconfigurationException: a value that cannot be used.
    """

    def __init__(
        self,
        monitor: str,
        min_delta: float = 0.0,
        patience: int = 3,
        verbose: bool = False,
        mode: str = "min",
        strict: bool = True,
        check_finite: bool = True,
        stopping_threshold: float | None = None,
        divergence_threshold: float | None = None,
        check_on_train_epoch_end: bool | None = None,
        log_rank_zero_only: bool = False,
    ) -> None:
        super().__init__()
        _check_arguments(
            monitor,
            patience,
            mode,
            numbers={
                "min_delta": min_delta,
                "stopping_threshold": stopping_threshold,
                "divergence_threshold": divergence_threshold,
            },
            flags={
                "verbose": verbose,
                "strict": strict,
                "check_finite": check_finite,
                "check_on_train_epoch_end": check_on_train_epoch_end,
                "log_rank_zero_only": log_rank_zero_only,
            },
        )
        self.monitor = monitor
        self.min_delta = abs(min_delta)
        self.patience = patience
        self.verbose = verbose
        self.mode = mode
        self.strict = strict
        self.check_finite = check_finite
        self.stopping_threshold = stopping_threshold
        self.divergence_threshold = divergence_threshold
        self.log_rank_zero_only = log_rank_zero_only
        self._check_on_train_epoch_end = check_on_train_epoch_end
        self.wait_count = 0
        self.stopped_epoch = 0
        self.best_score = torch.tensor(float("inf") if mode == "min" else float("-inf"))
        self.stopping_reason = EarlyStoppingReason.NOT_STOPPED
        self.stopping_reason_message: str | None = None
        self._last_score: float | None = None  # of the last check
        self._asked = False  # whether it was this callback that asked the Trainer to stop

    @property
    def asked_to_stop(self) -> bool:
        return self._asked

    @property
    def state_key(self) -> str:
        return self._generate_state_key(monitor=self.monitor, mode=self.mode)

    def state_dict(self) -> dict[str, Any]:
        return {
            "wait_count": self.wait_count,
            "stopped_epoch": self.stopped_epoch,
            "best_score": self.best_score,
            "patience": self.patience,
            "stopping_reason": int(self.stopping_reason),
            "stopping_reason_message": self.stopping_reason_message,
            "last_score": self._last_score,
        }

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Take the counts back; `patience` stays what it was made with, so that a run can be given more."""
        self.wait_count = state_dict["wait_count"]
        self.stopped_epoch = state_dict["stopped_epoch"]
        self.best_score = state_dict["best_score"]
        self.stopping_reason = EarlyStoppingReason(state_dict.get("stopping_reason", 0))
        self.stopping_reason_message = state_dict.get("stopping_reason_message")
        self._last_score = state_dict.get("last_score")

    def setup(self, trainer: Trainer, pl_module: Module, stage: str) -> None:
        if self._check_on_train_epoch_end is None:
            self._check_on_train_epoch_end = trainer.val_check_interval == 1.0 and trainer.check_val_every_n_epoch == 1

    def on_train_start(self, trainer: Trainer, pl_module: Module) -> None:
        """A resumed run is asked again what it was asked when its checkpoint was written."""
        self._asked = False
        if trainer.ckpt_path is not None and not trainer.fast_dev_run:
            self._decide(trainer, self.stopped_epoch)

    def on_train_epoch_end(self, trainer: Trainer, pl_module: Module) -> None:
        if self._check_on_train_epoch_end:
            self._check(trainer)

    def on_validation_end(self, trainer: Trainer, pl_module: Module) -> None:
        if not self._check_on_train_epoch_end:
            self._check(trainer)

    def _check(self, trainer: Trainer) -> None:
        if trainer.fast_dev_run or trainer.state.fn != "fit" or trainer.sanity_checking:
            return
        metrics = trainer.callback_metrics
        if self.monitor not in metrics:
            self._missing(sorted(metrics))
            return
        self._count(metrics[self.monitor].detach().cpu(), trainer)
        self._decide(trainer, trainer.current_epoch)

    def _missing(self, names: list[str]) -> None:
        message = (
            f"`EarlyStopping(monitor={self.monitor!r})`: no such metric was logged; there are {names or 'none'}. "
            f"Log it with `self.log({self.monitor!r}, ...)`, or monitor one of those."
        )
        if self.strict:
            raise MisconfigurationException(message)
        rank_zero_warn(message)

    def _better(self, one: float, other: float) -> bool:
        return one < other if self.mode == "min" else one > other

    def _count(self, score: Tensor, trainer: Trainer) -> None:
        """Note the score of a check: whether it is the best so far, or how many checks there were since that."""
        value, best = float(score), float(self.best_score)
        self._last_score = value
        if self.check_finite and not isfinite(value):
            return
        if self._better(value, best - self.min_delta if self.mode == "min" else best + self.min_delta):
            self.best_score, self.wait_count = score, 0
            if self.verbose:
                self._say(trainer, f"{self.monitor} {value:.5g} is the best so far.")
        else:
            self.wait_count += 1

    def _verdict(self) -> tuple[EarlyStoppingReason, str | None]:
        """Whether the last score, or how long there was none better, is a reason to stop; and a sentence about it."""
        value = self._last_score
        if value is not None:
            if self.check_finite and not isfinite(value):
                return EarlyStoppingReason.NON_FINITE_METRIC, f"{self.monitor} is {value}."
            if self.stopping_threshold is not None and self._better(value, self.stopping_threshold):
                return (
                    EarlyStoppingReason.STOPPING_THRESHOLD,
                    f"{self.monitor} {value:.5g} has reached the threshold {self.stopping_threshold}.",
                )
            if self.divergence_threshold is not None and self._better(self.divergence_threshold, value):
                return (
                    EarlyStoppingReason.DIVERGENCE_THRESHOLD,
                    f"{self.monitor} {value:.5g} is beyond the threshold {self.divergence_threshold}.",
                )
        if self.wait_count and self.wait_count >= self.patience:
            return (
                EarlyStoppingReason.PATIENCE_EXHAUSTED,
                f"{self.monitor} was not better than {float(self.best_score):.5g} for {self.wait_count} checks.",
            )
        return EarlyStoppingReason.NOT_STOPPED, None

    def _decide(self, trainer: Trainer, epoch: int) -> None:
        self.stopping_reason, self.stopping_reason_message = self._verdict()
        if self.stopping_reason_message is not None:
            self.stopped_epoch = epoch
            self._asked = not trainer.should_stop or self._asked
            trainer.should_stop = True
            self._say(trainer, self.stopping_reason_message)
            return
        self.stopped_epoch = 0
        if self._asked:
            # It asked before `min_epochs` or `min_steps` were reached, and the metric has recovered since
            # (Lightning's issue 19966).
            self._asked = trainer.should_stop = False

    def _say(self, trainer: Trainer, message: str) -> None:
        if trainer.world_size == 1 or self.log_rank_zero_only:
            rank_zero_info("EarlyStopping: %s", message)
        else:
            log.info("[rank %d] EarlyStopping: %s", trainer.global_rank, message)


def _check_arguments(monitor: Any, patience: Any, mode: Any, numbers: dict[str, Any], flags: dict[str, Any]) -> None:
    if not isinstance(monitor, str) or not monitor:
        raise MisconfigurationException(f"`EarlyStopping(monitor={monitor!r})`: give the name of a logged metric.")
    if mode not in ("min", "max"):
        raise MisconfigurationException(f"`EarlyStopping(mode={mode!r})`: choose 'min' or 'max'.")
    if isinstance(patience, bool) or not isinstance(patience, Integral) or patience < 0:
        raise MisconfigurationException(f"`EarlyStopping(patience={patience!r})`: give a number of checks from 0.")
    for name, value in numbers.items():
        number = isinstance(value, Real) and not isinstance(value, bool) and not isnan(value)
        if not number and (value is not None or name == "min_delta"):
            raise MisconfigurationException(f"`EarlyStopping({name}={value!r})`: give a number.")
    if not isfinite(numbers["min_delta"]):
        raise MisconfigurationException(f"`EarlyStopping(min_delta={numbers['min_delta']!r})`: give a finite number.")
    for name, value in flags.items():
        if not isinstance(value, bool) and (value is not None or name != "check_on_train_epoch_end"):
            raise MisconfigurationException(f"`EarlyStopping({name}={value!r})`: choose True or False.")
    stop, diverged = numbers["stopping_threshold"], numbers["divergence_threshold"]
    if stop is not None and diverged is not None and not (stop < diverged if mode == "min" else stop > diverged):
        raise MisconfigurationException(
            f"`EarlyStopping(mode={mode!r}, stopping_threshold={stop!r}, divergence_threshold={diverged!r})` stops "
            f"whatever the metric is: the threshold to stop at must be {'below' if mode == 'min' else 'above'} that of "
            "divergence."
        )

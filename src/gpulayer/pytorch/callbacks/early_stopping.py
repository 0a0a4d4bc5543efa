"""EarlyStopping: ends training when a metric no longer gets better."""

from __future__ import annotations

from enum import IntEnum
from math import isfinite
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from gpulayer.fabric.utilities.exceptions import MisconfigurationException
from gpulayer.fabric.utilities.rank_zero import rank_zero_info, rank_zero_warn
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
    NON_FINITE = 4


class EarlyStopping(Monitor):
    """Stop when the monitored metric has not become better for `patience` checks.

    Args:
        monitor: the metric.
        min_delta: by how much it must change to count as better.
        patience: how many checks without a better value it takes to stop.
        verbose: log a line for each better value.
        mode: "min" if lower is better, "max" if higher is.
        strict: whether a metric that was not logged is an error, or ignored.
        check_finite: stop when the metric is NaN or infinite.
        stopping_threshold: stop at once when the metric is better than this.
        divergence_threshold: stop at once when the metric is worse than this.
        check_on_train_epoch_end: check at the end of the training epoch, or after validation. Default: at the end of
            the epoch if there is one validation an epoch.
        log_rank_zero_only: log lines on rank 0 alone.

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
        if mode not in ("min", "max"):
            raise MisconfigurationException(f"`EarlyStopping(mode={mode!r})`: choose 'min' or 'max'.")
        if isinstance(patience, bool) or not isinstance(patience, int) or patience < 0:
            raise MisconfigurationException(f"`EarlyStopping(patience={patience!r})`: give a number of checks from 0.")
        if not isinstance(monitor, str):
            raise MisconfigurationException(f"`EarlyStopping(monitor={monitor!r})`: give the name of a logged metric.")
        for name, value in (
            ("min_delta", min_delta),
            ("stopping_threshold", stopping_threshold),
            ("divergence_threshold", divergence_threshold),
        ):
            if value is not None and (isinstance(value, bool) or not isinstance(value, (int, float))):
                raise MisconfigurationException(f"`EarlyStopping({name}={value!r})`: give a number.")
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
        self._asked = False  # whether it was this callback that asked the Trainer to stop

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
        }

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.wait_count = state_dict["wait_count"]
        self.stopped_epoch = state_dict["stopped_epoch"]
        self.best_score = state_dict["best_score"]
        self.patience = state_dict["patience"]
        self.stopping_reason = EarlyStoppingReason(state_dict.get("stopping_reason", 0))
        self.stopping_reason_message = state_dict.get("stopping_reason_message")

    def setup(self, trainer: Trainer, pl_module: Module, stage: str) -> None:
        if self._check_on_train_epoch_end is None:
            self._check_on_train_epoch_end = trainer.val_check_interval == 1.0 and trainer.check_val_every_n_epoch == 1

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
        reason, message = self._judge(metrics[self.monitor].detach().cpu())
        if reason is not EarlyStoppingReason.NOT_STOPPED:
            self.stopped_epoch = trainer.current_epoch
            self.stopping_reason, self.stopping_reason_message = reason, message
            self._asked = not trainer.should_stop or self._asked
            trainer.should_stop = True
        elif self._asked:
            # It asked before `min_epochs` or `min_steps` were reached, and the metric has recovered since
            # (Lightning's issue 19966).
            self._asked = trainer.should_stop = False
            self.stopping_reason, self.stopping_reason_message = reason, None
        if message and (self.verbose or reason is not EarlyStoppingReason.NOT_STOPPED):
            rank_zero_info("EarlyStopping: %s", message)

    def _missing(self, names: list[str]) -> None:
        message = (
            f"`EarlyStopping(monitor={self.monitor!r})`: no such metric was logged; there are {names or 'none'}. "
            f"Log it with `self.log({self.monitor!r}, ...)`, or monitor one of those."
        )
        if self.strict:
            raise MisconfigurationException(message)
        rank_zero_warn(message)

    def _judge(self, score: Tensor) -> tuple[EarlyStoppingReason, str]:
        """Whether the score is a reason to stop, and a sentence about it."""
        value, best = float(score), float(self.best_score)
        lower = self.mode == "min"

        def better(a: float, b: float) -> bool:
            return a < b if lower else a > b

        if self.check_finite and not isfinite(value):
            return EarlyStoppingReason.NON_FINITE, f"{self.monitor} is {value}."
        if self.stopping_threshold is not None and better(value, self.stopping_threshold):
            self.best_score = score
            return (
                EarlyStoppingReason.STOPPING_THRESHOLD,
                f"{self.monitor} {value:.5g} has reached the threshold {self.stopping_threshold}.",
            )
        if self.divergence_threshold is not None and better(self.divergence_threshold, value):
            return (
                EarlyStoppingReason.DIVERGENCE_THRESHOLD,
                f"{self.monitor} {value:.5g} is beyond the threshold {self.divergence_threshold}.",
            )
        if better(value, best - self.min_delta if lower else best + self.min_delta):
            self.best_score = score
            self.wait_count = 0
            return EarlyStoppingReason.NOT_STOPPED, f"{self.monitor} {value:.5g} is the best so far."
        self.wait_count += 1
        if self.wait_count >= self.patience:
            return (
                EarlyStoppingReason.PATIENCE_EXHAUSTED,
                f"{self.monitor} was not better than {best:.5g} for {self.wait_count} checks.",
            )
        return EarlyStoppingReason.NOT_STOPPED, ""

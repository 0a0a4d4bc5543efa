"""Log points: the steps at which monitors write to the loggers, which are those at which `self.log` does."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpulayer.fabric.utilities.exceptions import MisconfigurationException
from gpulayer.pytorch.core.callback import Callback

if TYPE_CHECKING:
    from gpulayer.pytorch.trainer.trainer import Trainer


def require_logger(trainer: Trainer, callback: Callback) -> None:
    """A monitor without a logger is a mistake, but in `fast_dev_run`, which takes the loggers away.

    Raises:
        MisconfigurationException: the Trainer has no logger.
    """
    if not trainer.loggers and not trainer.fast_dev_run:
        raise MisconfigurationException(
            f"{type(callback).__name__} writes to loggers, and `Trainer(logger=False)` has none: give one, or leave "
            "it out."
        )


def every_nth(trainer: Trainer, count: int) -> bool:
    """Whether the `count`-th batch of an evaluation, counted from 1, is a log point."""
    every = trainer.log_every_n_steps
    return bool(every) and count % every == 0


def at_start(trainer: Trainer) -> bool:
    """Asked before a training batch: whether it opens the window of batches of a step that is a log point.

    Someone who asks training to stop makes every further step one, for it may be the last.
    """
    at = trainer.progress
    opens = at.batch_in_epoch % trainer.accumulate_grad_batches == 0
    return opens and (every_nth(trainer, at.window + 1) or _stopping(trainer))


def at_end(trainer: Trainer) -> bool:
    """Asked after a training batch: whether it ended a step that is a log point."""
    return stepped(trainer) and (every_nth(trainer, trainer.progress.window) or _stopping(trainer))


def stepped(trainer: Trainer) -> bool:
    """Asked after a training batch, or in the validation that follows it: whether an optimizer step ended with it."""
    at = trainer.progress
    return at.last_batch or at.batch_in_epoch % trainer.accumulate_grad_batches == 0


def step_before(trainer: Trainer) -> int:
    """The loggers' number of the step that the last training batch ended, or is part of."""
    return trainer.progress.window - stepped(trainer)


def _stopping(trainer: Trainer) -> bool:
    return trainer.should_stop and bool(trainer.log_every_n_steps)

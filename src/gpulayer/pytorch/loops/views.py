"""`trainer.fit_loop.epoch_loop.batch_progress ...`: where code written for Lightning looks the counters up.

Views on `Progress` and on the Trainer's limits. The limits can be set, which people do to extend a run; the rest is
read-only.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Counts:
    """Lightning's four counters; here they are one number, for a batch counts when it is done."""

    ready: int
    started: int
    processed: int
    completed: int


@dataclass(frozen=True)
class CountsView:
    """`total` over the whole run, `current` in this epoch."""

    total: Counts
    current: Counts
    is_last_batch: bool = False


def _view(total: int, current: int, last: bool = False) -> CountsView:
    return CountsView(Counts(total, total, total, total), Counts(current, current, current, current), last)


class _Limits:
    """The names of the Trainer's limits that a loop view lets one set."""

    _settable: tuple[str, ...] = ()

    def __init__(self, trainer: Any) -> None:
        object.__setattr__(self, "_trainer", trainer)

    def __setattr__(self, name: str, value: Any) -> None:
        if name not in self._settable:
            raise AttributeError(f"{name!r} is read-only here; {', '.join(self._settable) or 'nothing'} can be set.")
        setattr(self._trainer, name, value)

    def __getattr__(self, name: str) -> Any:
        if name in self._settable:
            return getattr(object.__getattribute__(self, "_trainer"), name)
        raise AttributeError(f"{type(self).__name__} has no attribute {name!r}")


class FitLoopView(_Limits):
    """`trainer.fit_loop`."""

    _settable = ("max_epochs", "min_epochs")

    @property
    def epoch_loop(self) -> EpochLoopView:
        return EpochLoopView(self._trainer)

    @property
    def epoch_progress(self) -> CountsView:
        epoch = self._trainer.progress.epoch
        return _view(epoch, epoch)

    @property
    def max_batches(self) -> int | float:
        count: int | float = self._trainer.num_training_batches
        return count


class EpochLoopView(_Limits):
    """`trainer.fit_loop.epoch_loop`."""

    _settable = ("max_steps", "min_steps")

    @property
    def batch_progress(self) -> CountsView:
        at = self._trainer.progress
        return _view(at.batch, at.batch_in_epoch, at.last_batch)

    @property
    def global_step(self) -> int:
        step: int = self._trainer.progress.step
        return step

    @property
    def batch_idx(self) -> int:
        """The number of the batch that was last finished, -1 before the first."""
        number: int = self._trainer.progress.batch_in_epoch - 1
        return number

    @property
    def total_batch_idx(self) -> int:
        number: int = self._trainer.progress.batch - 1
        return number

    @property
    def val_loop(self) -> EvaluationLoopView:
        return EvaluationLoopView(self._trainer, "validation")

    @property
    def _batches_that_stepped(self) -> int:
        window: int = self._trainer.progress.window
        return window


class EvaluationLoopView(_Limits):
    """`trainer.validate_loop`, `test_loop`, `predict_loop` and `fit_loop.epoch_loop.val_loop`."""

    def __init__(self, trainer: Any, name: str) -> None:
        super().__init__(trainer)
        object.__setattr__(self, "_name", name)

    @property
    def batch_progress(self) -> CountsView:
        counts = getattr(self._trainer.progress, object.__getattribute__(self, "_name"))
        return _view(counts.total, counts.current)


class PredictLoopView(EvaluationLoopView):
    """`trainer.predict_loop`: also what callbacks that write predictions read."""

    def __init__(self, trainer: Any, evaluation: Any) -> None:
        super().__init__(trainer, "predict")
        object.__setattr__(self, "_evaluation", evaluation)

    @property
    def predictions(self) -> list[Any]:
        """Those kept so far; with several loaders, a list for each."""
        evaluation = object.__getattribute__(self, "_evaluation")
        kept: list[Any] = [] if evaluation is None else evaluation.predictions
        return kept[0] if len(kept) == 1 else kept

    @property
    def epoch_batch_indices(self) -> list[list[Sequence[Any]]]:
        """For each loader the indices of each batch's samples, where a writer is given them at the end."""
        evaluation = object.__getattribute__(self, "_evaluation")
        return [] if evaluation is None else evaluation.batch_indices

    @property
    def current_batch_indices(self) -> Sequence[Any]:
        """The indices of the samples of the batch that was just predicted, where there is a writer."""
        evaluation = object.__getattribute__(self, "_evaluation")
        return [] if evaluation is None else evaluation.current_batch_indices

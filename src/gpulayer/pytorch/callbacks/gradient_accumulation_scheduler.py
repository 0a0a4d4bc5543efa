"""GradientAccumulationScheduler: how many batches an optimizer step has, by epoch."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from gpulayer.fabric.utilities.exceptions import MisconfigurationException
from gpulayer.pytorch.core.callback import Callback

if TYPE_CHECKING:
    from gpulayer.pytorch.core.module import Module
    from gpulayer.pytorch.trainer.trainer import Trainer


class GradientAccumulationScheduler(Callback):
    """Sets `accumulate_grad_batches` at the start of epochs: `{0: 8, 4: 2}` is 8, and 2 from the fifth epoch on.

    `trainer.estimated_stepping_batches` takes it into account.

    Args:
        scheduling: batches an optimizer step, by the number of the epoch from which on, counted from 0. Before the
            first of them it is 1.

    Raises:
        MisconfigurationException: numbers that cannot be used.
    """

    def __init__(self, scheduling: dict[int, int]) -> None:
        super().__init__()
        _check(scheduling)
        self.scheduling = {0: 1, **scheduling}
        self.epochs = sorted(self.scheduling)
        self._set = 1  # what it last told the Trainer

    def going_to_accumulate_grad_batches(self) -> bool:
        """Whether any epoch has steps of several batches."""
        return any(count > 1 for count in self.scheduling.values())

    def get_accumulate_grad_batches(self, epoch: int) -> int:
        """Batches an optimizer step in an epoch."""
        return self.scheduling[max(begin for begin in self.epochs if begin <= epoch)]

    def setup(self, trainer: Trainer, pl_module: Module, stage: str) -> None:
        """Refuse what it cannot work with.

        Raises:
            MisconfigurationException: the module steps its optimizers itself, or the Trainer has a number, too.
        """
        if stage != "fit":
            return
        if not pl_module.automatic_optimization:
            raise MisconfigurationException(
                "GradientAccumulationScheduler works in automatic optimization only: "
                f"{type(pl_module).__name__} steps its optimizers itself. Leave the callback out, and step every so "
                "many batches in `training_step`."
            )
        if trainer.accumulate_grad_batches not in (1, self._set):
            raise MisconfigurationException(
                f"`Trainer(accumulate_grad_batches={trainer.accumulate_grad_batches})` and a "
                "GradientAccumulationScheduler both say how many batches a step has: leave one out."
            )

    def on_train_start(self, trainer: Trainer, pl_module: Module) -> None:
        """Also for a resumed epoch that is at its end, and so does not start again."""
        self._tell(trainer)

    def on_train_epoch_start(self, trainer: Trainer, pl_module: Module) -> None:
        self._tell(trainer)

    def _tell(self, trainer: Trainer) -> None:
        trainer.accumulate_grad_batches = self._set = self.get_accumulate_grad_batches(trainer.current_epoch)


def _check(scheduling: Any) -> None:
    if not isinstance(scheduling, dict) or not scheduling:
        raise MisconfigurationException(
            f"`GradientAccumulationScheduler({scheduling!r})`: give a dict of epochs and numbers of batches, such as "
            "{0: 8, 4: 2}."
        )
    for number, least, what in (
        *((epoch, 0, "epochs are whole numbers from 0") for epoch in scheduling),
        *((count, 1, "numbers of batches are whole numbers from 1") for count in scheduling.values()),
    ):
        if isinstance(number, bool) or not isinstance(number, int) or number < least:
            raise MisconfigurationException(f"`GradientAccumulationScheduler({scheduling!r})`: {what}, not {number!r}.")

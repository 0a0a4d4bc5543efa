"""WeightAveraging, EMAWeightAveraging: averages of the weights, which are validated and saved in their place."""

from __future__ import annotations

from copy import copy
from numbers import Integral, Real
from typing import TYPE_CHECKING, Any

import torch

from gpulayer.fabric.utilities.exceptions import MisconfigurationException
from gpulayer.fabric.utilities.rank_zero import rank_zero_info, rank_zero_warn
from gpulayer.pytorch.callbacks.averages import (
    AverageFunction,
    Averages,
    AveragesFunction,
    Device,
    check_device,
    require_device,
)
from gpulayer.pytorch.core.callback import Callback
from gpulayer.pytorch.core.hooks import StepOutput
from gpulayer.pytorch.core.saving import load_weights

if TYPE_CHECKING:
    from torch import Tensor

    from gpulayer.pytorch.core.module import Module
    from gpulayer.pytorch.trainer.trainer import Trainer


class WeightAveraging(Callback):
    """Average the weights over training, by default those after each step, each counting the same.

    Training goes on with the trained weights. Validations inside `fit` use the averages, checkpoints hold them as their
    weights, and at the end the module gets them. Before the first update there is no average, and everything uses the
    trained weights. What has 16 bits is averaged in 32. Buffers of integers and booleans are not averaged.

    Override `should_update` to choose when to update.

    Args:
        device: where the averages lie; None: beside the weights. With "cpu" for a model on a GPU, each update waits for
            the copy.
        use_buffers: average the buffers, too, such as the statistics of BatchNorm. If False, they stay those of the
            trained weights, and `torch.optim.swa_utils.update_bn` can compute the statistics after training.
        avg_fn: gives the new average from the old one, the weight, and how many weights it is of, as
            `torch.optim.swa_utils.AveragedModel` takes it.
        multi_avg_fn: the same for lists of tensors; changes the averages in place.

    Raises:
        MisconfigurationException: a value that cannot be used.
    """

    changes_saved_weights = True
    comes_first = True  # what the others see, prune and save in a validation or at the end is the average

    def __init__(
        self,
        device: Device = None,
        use_buffers: bool = True,
        *,
        avg_fn: AverageFunction | None = None,
        multi_avg_fn: AveragesFunction | None = None,
    ) -> None:
        super().__init__()
        name = type(self).__name__
        if avg_fn is not None and multi_avg_fn is not None:
            raise MisconfigurationException(f"`{name}` takes `avg_fn` or `multi_avg_fn`, and was given both.")
        for argument, function in (("avg_fn", avg_fn), ("multi_avg_fn", multi_avg_fn)):
            if function is not None and not callable(function):
                raise MisconfigurationException(f"`{name}({argument}={function!r})`: give a function, or None.")
        if not isinstance(use_buffers, bool):
            raise MisconfigurationException(f"`{name}(use_buffers={use_buffers!r})`: choose True or False.")
        self._device = check_device(name, device)
        self._use_buffers = use_buffers
        self._avg_fn = avg_fn
        self._multi_avg_fn = multi_avg_fn
        self._latest_update_step = 0
        self._forget()

    def _forget(self) -> None:
        self._averages: Averages | None = None  # from the first update on
        self._count = 0  # how many weights they are of
        self._trained: list[Tensor] | None = None  # the trained weights, while the averages are in the module
        self._asked = 0  # for how many optimizer steps it was asked whether to update
        self._begun = False  # whether there is a `fit` that checkpoints tell of

    def should_update(self, step_idx: int | None = None, epoch_idx: int | None = None) -> bool:
        """Whether to update now; asked after each optimizer step and at the end of each epoch.

        Args:
            step_idx: the number of the step, from 0; None at the end of an epoch.
            epoch_idx: the number of the epoch, from 0; None after a step.
        """
        return step_idx is not None

    def _weight(self) -> float:
        """The share of the new weights in the average: here that of one among all."""
        return 1 / (self._count + 1)

    # -- training ------------------------------------------------------------------------------------------------------

    def setup(self, trainer: Trainer, pl_module: Module, stage: str) -> None:
        if stage != "fit":
            return
        others = [other for other in trainer.callbacks if isinstance(other, WeightAveraging)]
        if len(others) > 1:
            raise MisconfigurationException(
                f"The Trainer has several callbacks that average weights, {[type(one).__name__ for one in others]}: "
                "validations and checkpoints can use the averages of one."
            )
        self._forget()
        self._begun = True

    def on_fit_start(self, trainer: Trainer, pl_module: Module) -> None:
        require_device(type(self).__name__, self._device)
        if self._averages is not None:  # from a checkpoint, before the module was on its device
            self._averages.to(self._device)

    def on_train_start(self, trainer: Trainer, pl_module: Module) -> None:
        self._asked = trainer.global_step

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: Module, outputs: StepOutput, batch: Any, batch_idx: int
    ) -> None:
        steps, self._asked = range(self._asked, trainer.global_step), trainer.global_step
        if any(self.should_update(step_idx=step) for step in steps):
            self._update(pl_module)
            self._latest_update_step = trainer.global_step

    def on_train_epoch_end(self, trainer: Trainer, pl_module: Module) -> None:
        if self.should_update(epoch_idx=trainer.current_epoch):
            self._update(pl_module)

    def _update(self, pl_module: Module) -> None:
        if self._averages is None:
            self._averages = Averages(pl_module, self._use_buffers, self._device)
        elif self._avg_fn is not None or self._multi_avg_fn is not None:
            self._averages.combine(self._count, self._avg_fn, self._multi_avg_fn)
        else:
            self._averages.approach(self._weight())
        self._count += 1

    def on_train_end(self, trainer: Trainer, pl_module: Module) -> None:
        if self._averages is not None:
            self._trained = self._averages.swap_in()  # kept for checkpoints that are written from now on
        else:
            rank_zero_warn(
                f"{type(self).__name__} made no update in {trainer.global_step} steps: the module keeps its trained "
                "weights. Let averaging start earlier, or train for longer."
            )

    def on_fit_end(self, trainer: Trainer, pl_module: Module) -> None:
        if self._averages is not None and self._trained is None:  # resumed where nothing was left to train
            self._trained = self._averages.swap_in()

    def teardown(self, trainer: Trainer, pl_module: Module, stage: str) -> None:
        if stage == "fit" and self._averages is not None:  # the module goes there, too
            self._averages.to("cpu")
            self._trained = None if self._trained is None else [weight.cpu() for weight in self._trained]

    # -- validation ----------------------------------------------------------------------------------------------------

    def on_validation_epoch_start(self, trainer: Trainer, pl_module: Module) -> None:
        if self._averages is not None and trainer.state.fn == "fit":
            self._trained = self._averages.swap_in()

    def on_validation_end(self, trainer: Trainer, pl_module: Module) -> None:
        if trainer.state.fn == "fit":
            self._put_back()

    def on_exception(self, trainer: Trainer, pl_module: Module, exception: BaseException) -> None:
        if trainer.state.fn == "fit":
            self._put_back()

    def _put_back(self) -> None:
        if self._averages is not None and self._trained is not None:
            self._averages.put(self._trained)
            self._trained = None

    # -- checkpoints ---------------------------------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        return {"latest_update_step": self._latest_update_step}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self._latest_update_step = state_dict["latest_update_step"]

    def on_save_checkpoint(self, trainer: Trainer, pl_module: Module, checkpoint: dict[str, Any]) -> None:
        if not self._begun:
            return
        state, averages = checkpoint["state_dict"], self._averages
        if "callbacks" in checkpoint:  # more than weights, to go on from
            checkpoint["current_model_state"] = copy(state)
            if averages is not None and self._trained is not None:
                checkpoint["current_model_state"] = averages.in_state(state, self._trained)
            checkpoint["averaging_state"] = {"n_averaged": torch.tensor(self._count)}
        if averages is not None:
            checkpoint["state_dict"] = averages.in_state(state, averages.values)

    def on_load_checkpoint(self, trainer: Trainer, pl_module: Module, checkpoint: dict[str, Any]) -> None:
        """The module holds the checkpoint's "state_dict", the averages: keep them, and load the trained weights."""
        if trainer.state.fn != "fit":
            self._forget()  # what this callback averaged is gone from the module
            return
        if "averaging_state" not in checkpoint or "current_model_state" not in checkpoint:
            rank_zero_info("%s: the checkpoint holds no averages, so they begin anew.", type(self).__name__)
            return
        self._count = int(checkpoint["averaging_state"]["n_averaged"])
        if self._count:
            self._averages = Averages(pl_module, self._use_buffers)
            self._averages.take(pl_module.state_dict(), checkpoint["state_dict"])  # which may hold them in 32 bits
        trained = checkpoint["current_model_state"]
        load_weights(pl_module, trained, pl_module.strict_loading, str(trainer.ckpt_path))


class EMAWeightAveraging(WeightAveraging):
    """An exponential moving average: `average = decay * average + (1 - decay) * weight`, beginning with the weights
    after the first step that counts.

    Args:
        device: as in `WeightAveraging`.
        use_buffers: as in `WeightAveraging`.
        decay: how much of the average stays at an update, from 0 to 1.
        update_every_n_steps: update after steps whose number, from 0, this divides; 0: at the end of epochs instead.
        update_starting_at_step: no update before this step, from 0.
        update_starting_at_epoch: no update before this epoch, from 0.

    Raises:
        MisconfigurationException: a value that cannot be used.
    """

    def __init__(
        self,
        device: Device = None,
        use_buffers: bool = True,
        decay: float = 0.999,
        update_every_n_steps: int = 1,
        update_starting_at_step: int | None = None,
        update_starting_at_epoch: int | None = None,
    ) -> None:
        super().__init__(device, use_buffers)
        counts = {
            "update_every_n_steps": update_every_n_steps,
            "update_starting_at_step": update_starting_at_step,
            "update_starting_at_epoch": update_starting_at_epoch,
        }
        _check_moving(type(self).__name__, decay, counts)
        self.decay = decay
        self.update_every_n_steps = update_every_n_steps
        self.update_starting_at_step = update_starting_at_step
        self.update_starting_at_epoch = update_starting_at_epoch
        self._epoch = 0

    def on_train_epoch_start(self, trainer: Trainer, pl_module: Module) -> None:
        self._epoch = trainer.current_epoch

    def should_update(self, step_idx: int | None = None, epoch_idx: int | None = None) -> bool:
        first_step, first_epoch = self.update_starting_at_step or 0, self.update_starting_at_epoch or 0
        if step_idx is None:
            return self.update_every_n_steps == 0 and epoch_idx is not None and epoch_idx >= first_epoch
        due = self.update_every_n_steps > 0 and step_idx % self.update_every_n_steps == 0
        return due and step_idx >= first_step and self._epoch >= first_epoch

    def _weight(self) -> float:
        return 1 - self.decay


def _check_moving(name: str, decay: Any, counts: dict[str, Any]) -> None:
    if isinstance(decay, bool) or not isinstance(decay, Real) or not 0 <= float(decay) <= 1:
        raise MisconfigurationException(f"`{name}(decay={decay!r})`: give a number from 0 to 1, such as 0.999.")
    for argument, value in counts.items():
        optional = argument != "update_every_n_steps"
        whole = isinstance(value, Integral) and not isinstance(value, bool) and int(value) >= 0
        if not whole and not (optional and value is None):
            allowed = "from 0, or None" if optional else "from 1"
            raise MisconfigurationException(f"`{name}({argument}={value!r})`: give a whole number {allowed}.")
    if counts["update_every_n_steps"] == 0 and counts["update_starting_at_epoch"] is None:
        raise MisconfigurationException(
            f"`{name}(update_every_n_steps=0)`: give a number of steps from 1; or 0 with `update_starting_at_epoch`, "
            "to update at the end of epochs."
        )

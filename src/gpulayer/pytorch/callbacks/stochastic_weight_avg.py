"""StochasticWeightAveraging: the average of the weights of the last epochs, trained at a constant learning rate."""

from __future__ import annotations

from numbers import Real
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.optim.swa_utils import SWALR

from gpulayer.fabric.utilities.exceptions import MisconfigurationException
from gpulayer.fabric.utilities.rank_zero import rank_zero_info, rank_zero_warn
from gpulayer.pytorch.callbacks.averages import AverageFunction, Averages, check_device, require_device
from gpulayer.pytorch.callbacks.weight_averaging import WeightAveraging
from gpulayer.pytorch.core.callback import Callback
from gpulayer.pytorch.core.hooks import StepOutput
from gpulayer.pytorch.core.optimizer import LRSchedulerConfig

if TYPE_CHECKING:
    from gpulayer.pytorch.core.module import Module
    from gpulayer.pytorch.trainer.trainer import Trainer


class StochasticWeightAveraging(Callback):
    """Average the weights with which the last epochs begin; after the last batch the module gets the average.

    From the first of these epochs on the learning rate is annealed to `swa_lrs`, in place of the module's scheduler.
    After the last batch of the last epoch the training batches go once more through `training_step`, without gradients,
    for BatchNorm's statistics to be those of the averaged weights. The validation and the checkpoints that follow are
    of the average; those before are of the trained weights (with `WeightAveraging` all are of the average). A run that
    is stopped before its last epoch gives the module the average at its end; if one epoch has counted only, which is no
    average, the trained weights stay.

    After Izmailov et al., Averaging Weights Leads to Wider Optima and Better Generalization, 2018,
    https://arxiv.org/abs/1803.05407.

    Args:
        swa_lrs: the learning rate to anneal to, or one for each parameter group.
        swa_epoch_start: the first epoch that counts, from 1; or, as a fraction, `int(swa_epoch_start * max_epochs)`.
        annealing_epochs: how many epochs it takes until the learning rate is there.
        annealing_strategy: "cos" or "linear".
        avg_fn: gives the new average from the old one, the weight, and how many weights it is of. Default: all count
            the same.
        device: where the average lies; None: beside the weights.

    Raises:
        MisconfigurationException: a value that cannot be used.
    """

    comes_first = True  # what the others prune and save at the end is the average

    def __init__(
        self,
        swa_lrs: float | list[float],
        swa_epoch_start: int | float = 0.8,
        annealing_epochs: int = 10,
        annealing_strategy: str = "cos",
        avg_fn: AverageFunction | None = None,
        device: torch.device | str | None = torch.device("cpu"),  # noqa: B008 - no state
    ) -> None:
        super().__init__()
        name = type(self).__name__
        rates = swa_lrs if isinstance(swa_lrs, list) else [swa_lrs]
        if not rates or not all(_is_number(rate) and 0 < rate < float("inf") for rate in rates):
            raise MisconfigurationException(
                f"`{name}(swa_lrs={swa_lrs!r})`: give a learning rate above 0, or a list of them."
            )
        fraction = isinstance(swa_epoch_start, float)
        if not _is_number(swa_epoch_start) or not (0 <= swa_epoch_start <= 1 if fraction else swa_epoch_start >= 1):
            raise MisconfigurationException(
                f"`{name}(swa_epoch_start={swa_epoch_start!r})`: give the number of an epoch from 1, as an integer, or "
                "a fraction of the epochs from 0.0 to 1.0."
            )
        if isinstance(annealing_epochs, bool) or not isinstance(annealing_epochs, int) or annealing_epochs < 0:
            raise MisconfigurationException(
                f"`{name}(annealing_epochs={annealing_epochs!r})`: give a number of epochs from 0."
            )
        if annealing_strategy not in ("cos", "linear"):
            raise MisconfigurationException(
                f"`{name}(annealing_strategy={annealing_strategy!r})`: choose 'cos' or 'linear'."
            )
        if avg_fn is not None and not callable(avg_fn):
            raise MisconfigurationException(f"`{name}(avg_fn={avg_fn!r})`: give a function, or None.")
        self._swa_lrs = swa_lrs
        self._swa_epoch_start = swa_epoch_start
        self._annealing_epochs = annealing_epochs
        self._annealing_strategy = annealing_strategy
        self._avg_fn = avg_fn or self.avg_fn
        self._device = check_device(name, device)
        self._max_epochs = -1
        self._forget()

    def _forget(self) -> None:
        self._averages: Averages | None = None
        self._n_averaged = 0
        self._latest_update_epoch = -1
        self._swa_scheduler: SWALR | None = None
        self._loaded: dict[str, Any] | None = None  # the state in a checkpoint, until the optimizers are there
        self._begun = False
        self._transferred = False  # whether the module has the average, which is the end

    @property
    def swa_start(self) -> int:
        """The first epoch that counts, from 0."""
        start = self._swa_epoch_start
        return max((int(self._max_epochs * start) if isinstance(start, float) else start) - 1, 0)

    @property
    def swa_end(self) -> int | float:
        """The last epoch, from 0; inf where nothing limits them."""
        return float("inf") if self._max_epochs == -1 else self._max_epochs - 1

    @staticmethod
    def avg_fn(averaged_model_parameter: Tensor, model_parameter: Tensor, num_averaged: Tensor) -> Tensor:
        """The average in which all weights count the same."""
        return averaged_model_parameter + (model_parameter - averaged_model_parameter) / (num_averaged + 1)

    # -- training ------------------------------------------------------------------------------------------------------

    def setup(self, trainer: Trainer, pl_module: Module, stage: str) -> None:
        if stage != "fit":
            return
        if any(isinstance(other, WeightAveraging) for other in trainer.callbacks):
            raise MisconfigurationException(
                f"`{type(self).__name__}` and `WeightAveraging` both give the module their averages at the end: use "
                "one of them."
            )
        self._forget()
        self._begun = True

    def on_fit_start(self, trainer: Trainer, pl_module: Module) -> None:
        self._max_epochs = trainer.max_epochs
        self._check(trainer, pl_module)
        require_device(type(self).__name__, self._device)
        if self._loaded is not None and self._loaded["scheduler_state"] is not None:
            self._install_scheduler(trainer)  # before it is given its state
        if self._loaded is not None and self._n_averaged:
            self._averages = Averages(pl_module, use_buffers=False, device=self._device)
            self._averages.take(pl_module.state_dict(), self._loaded["average_model_state"])
        self._loaded = None

    def _check(self, trainer: Trainer, pl_module: Module) -> None:
        name = type(self).__name__
        if len(trainer.optimizers) != 1 or len(trainer.lr_scheduler_configs) > 1:
            raise MisconfigurationException(
                f"`{name}` takes over the learning rate of one optimizer, but `configure_optimizers` returned "
                f"{len(trainer.optimizers)} optimizers and {len(trainer.lr_scheduler_configs)} schedulers: return one "
                "optimizer and at most one scheduler, or use `WeightAveraging`."
            )
        groups = len(trainer.optimizers[0].param_groups)
        if isinstance(self._swa_lrs, list) and len(self._swa_lrs) != groups:
            raise MisconfigurationException(
                f"`{name}(swa_lrs={self._swa_lrs!r})` has {len(self._swa_lrs)} learning rates, but the optimizer has "
                f"{groups} parameter groups: give one for each, or a single number."
            )
        if isinstance(self._swa_epoch_start, float) and self._max_epochs == -1:
            raise MisconfigurationException(
                f"`{name}(swa_epoch_start={self._swa_epoch_start})` is a fraction of the epochs, which "
                "`Trainer(max_epochs=-1)` does not limit: give the number of an epoch, such as 10."
            )
        if self.swa_start > self.swa_end:
            rank_zero_warn(
                f"`{name}(swa_epoch_start={self._swa_epoch_start})`: with `Trainer(max_epochs={self._max_epochs})` "
                "averaging never begins."
            )
        if not pl_module.automatic_optimization and batch_norms(pl_module):
            raise MisconfigurationException(
                f"`{name}` computes BatchNorm's statistics by calling `training_step`, which in manual optimization "
                "changes the weights: use `WeightAveraging`, which averages the statistics."
            )

    def _install_scheduler(self, trainer: Trainer) -> None:
        optimizer, rates = trainer.optimizers[0], self._swa_lrs
        for group, rate in zip(
            optimizer.param_groups,
            rates if isinstance(rates, list) else [rates] * len(optimizer.param_groups),
            strict=True,
        ):
            group["initial_lr"] = rate
        self._swa_scheduler = SWALR(
            optimizer,
            swa_lr=rates,  # type: ignore[arg-type]
            anneal_epochs=self._annealing_epochs,
            anneal_strategy=self._annealing_strategy,  # type: ignore[arg-type]
            last_epoch=self._max_epochs if self._annealing_strategy == "cos" else -1,
        )
        optimizer.defaults["swa_lr"] = optimizer.param_groups[-1]["swa_lr"]  # of groups that finetuning adds later
        for config in trainer.lr_scheduler_configs:
            rank_zero_info("SWALR takes the place of %s.", type(config.scheduler).__name__)
        trainer.lr_scheduler_configs = [LRSchedulerConfig(self._swa_scheduler)]

    def on_train_epoch_start(self, trainer: Trainer, pl_module: Module) -> None:
        epoch = trainer.current_epoch
        if not self.swa_start <= epoch <= self.swa_end or epoch <= self._latest_update_epoch:
            return
        if self._swa_scheduler is None:
            self._install_scheduler(trainer)
        if self._averages is None:
            self._averages = Averages(pl_module, use_buffers=False, device=self._device)
        else:
            self._averages.combine(self._n_averaged, self._avg_fn, None)
        self._n_averaged += 1
        self._latest_update_epoch = epoch

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: Module, outputs: StepOutput, batch: Any, batch_idx: int
    ) -> None:
        if trainer.is_last_batch and trainer.current_epoch == self.swa_end:
            self._transfer(trainer, pl_module)

    def on_train_end(self, trainer: Trainer, pl_module: Module) -> None:
        if self._n_averaged > 1:  # one alone are those from before this epoch, whose training would be lost
            self._transfer(trainer, pl_module)

    def _transfer(self, trainer: Trainer, pl_module: Module) -> None:
        if self._averages is None or self._transferred:
            return
        self._averages.put(self._averages.values)
        if norms := batch_norms(pl_module):
            update_batch_norms(trainer, norms)
        self._transferred = True

    # -- checkpoints ---------------------------------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        if not self._begun or self._module_of_run is None:
            return {}
        state, averages = self._module_of_run.state_dict(), self._averages
        return {
            "n_averaged": self._n_averaged,
            "latest_update_epoch": self._latest_update_epoch,
            "scheduler_state": None if self._swa_scheduler is None else self._swa_scheduler.state_dict(),
            "average_model_state": state if averages is None else averages.in_state(state, averages.values),
            "transferred": self._transferred,
        }

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self._loaded = state_dict
        self._n_averaged = state_dict["n_averaged"]
        self._latest_update_epoch = state_dict["latest_update_epoch"]
        self._transferred = state_dict.get("transferred", False)  # Lightning does not say


def _is_number(value: Any) -> bool:
    return isinstance(value, Real) and not isinstance(value, bool)


def batch_norms(module: nn.Module) -> list[_BatchNorm]:
    """The layers in training mode that keep statistics of their batches."""
    return [
        child
        for child in module.modules()
        if isinstance(child, _BatchNorm)
        and child.training
        and child.track_running_stats
        and child.running_mean is not None
    ]


def update_batch_norms(trainer: Trainer, norms: list[_BatchNorm]) -> None:
    """Let these layers' statistics be the means over the training batches, with the weights as they are."""
    run, before = trainer._run, [(norm.momentum, norm.num_batches_tracked) for norm in norms]
    assert run is not None
    for norm in norms:
        norm.reset_running_stats()
        norm.momentum = None  # every batch counts the same
        norm.num_batches_tracked = torch.zeros((), dtype=torch.long)  # on the host, where it is read at each batch
    try:
        run.pass_over_training()
    finally:
        for norm, (momentum, tracked) in zip(norms, before, strict=True):
            norm.momentum = momentum
            norm.num_batches_tracked = tracked.copy_(norm.num_batches_tracked)  # type: ignore[union-attr, arg-type]

"""Callback: code that runs at moments of a run without being part of the model."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from torch import Tensor
from torch.optim import Optimizer

from gpulayer.pytorch.core.hooks import StepOutput

if TYPE_CHECKING:
    from gpulayer.pytorch.core.module import Module
    from gpulayer.pytorch.trainer.trainer import Trainer


class Callback:
    """Override the hooks you need; the others cost nothing. See `ModelHooks` for when each is called."""

    # Whether it changes the weights that are saved: then `on_save_checkpoint` is called for files of weights only, too.
    changes_saved_weights: bool = False
    # Whether it runs before all others: it finds a setting out, or puts weights there that the others look at.
    comes_first: bool = False
    _module_of_run: Module | None = None

    @property
    def asked_to_stop(self) -> bool:
        """Whether this callback set `trainer.should_stop`, and will judge for itself when the run goes on."""
        return False

    def log(self, *args: Any, **kwargs: Any) -> None:
        """`Module.log`, from a hook of this callback."""
        self._running_module("log").log(*args, **kwargs)

    def log_dict(self, *args: Any, **kwargs: Any) -> None:
        """`Module.log_dict`, from a hook of this callback."""
        self._running_module("log_dict").log_dict(*args, **kwargs)

    def _running_module(self, what: str) -> Module:
        if self._module_of_run is None:
            raise RuntimeError(f"`{type(self).__name__}.{what}` works only during a Trainer's run.")
        return self._module_of_run

    def __getstate__(self) -> dict[str, Any]:
        """A copy belongs to no run."""
        return {name: value for name, value in vars(self).items() if name != "_module_of_run"}

    @property
    def state_key(self) -> str:
        """The name under which the state lies in a checkpoint; distinct for several instances of a class."""
        return type(self).__qualname__

    def _generate_state_key(self, **settings: Any) -> str:
        """A state key made of the class's name and the settings that tell its instances apart."""
        return f"{type(self).__qualname__}{settings!r}"

    def state_dict(self) -> dict[str, Any]:
        """What a checkpoint is to keep of this callback."""
        return {}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Put back what `state_dict` returned."""

    def setup(self, trainer: Trainer, pl_module: Module, stage: str) -> None:
        """Before `stage`: "fit", "validate", "test" or "predict"."""

    def teardown(self, trainer: Trainer, pl_module: Module, stage: str) -> None:
        """After `stage`."""

    def on_fit_start(self, trainer: Trainer, pl_module: Module) -> None:
        """At the very start of `fit`, after set-up."""

    def on_fit_end(self, trainer: Trainer, pl_module: Module) -> None:
        """At the very end of `fit`."""

    def on_sanity_check_start(self, trainer: Trainer, pl_module: Module) -> None:
        """Before the validation that checks, ahead of training, that validating works."""

    def on_sanity_check_end(self, trainer: Trainer, pl_module: Module) -> None:
        """After the sanity check."""

    def on_train_start(self, trainer: Trainer, pl_module: Module) -> None:
        """Before the first epoch."""

    def on_train_end(self, trainer: Trainer, pl_module: Module) -> None:
        """After the last epoch."""

    def on_train_epoch_start(self, trainer: Trainer, pl_module: Module) -> None:
        """At the start of each training epoch."""

    def on_train_epoch_end(self, trainer: Trainer, pl_module: Module) -> None:
        """At the end of each training epoch, with its metrics in `trainer.callback_metrics`."""

    def on_train_batch_start(self, trainer: Trainer, pl_module: Module, batch: Any, batch_idx: int) -> None:
        """Before anything happens to a batch."""

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: Module, outputs: StepOutput, batch: Any, batch_idx: int
    ) -> None:
        """After a batch, its optimizer step included; the counters already count it."""

    def on_validation_start(self, trainer: Trainer, pl_module: Module) -> None:
        """At the start of a validation."""

    def on_validation_end(self, trainer: Trainer, pl_module: Module) -> None:
        """At the end of a validation, with its metrics in `trainer.callback_metrics`."""

    def on_validation_epoch_start(self, trainer: Trainer, pl_module: Module) -> None:
        """Before the first batch of a validation."""

    def on_validation_epoch_end(self, trainer: Trainer, pl_module: Module) -> None:
        """After the last batch of a validation."""

    def on_validation_batch_start(
        self, trainer: Trainer, pl_module: Module, batch: Any, batch_idx: int, dataloader_idx: int = 0
    ) -> None:
        """Before `validation_step`."""

    def on_validation_batch_end(
        self,
        trainer: Trainer,
        pl_module: Module,
        outputs: StepOutput,
        batch: Any,
        batch_idx: int,
        dataloader_idx: int = 0,
    ) -> None:
        """After `validation_step`."""

    def on_test_start(self, trainer: Trainer, pl_module: Module) -> None:
        """At the start of a test."""

    def on_test_end(self, trainer: Trainer, pl_module: Module) -> None:
        """At the end of a test."""

    def on_test_epoch_start(self, trainer: Trainer, pl_module: Module) -> None:
        """Before the first batch of a test."""

    def on_test_epoch_end(self, trainer: Trainer, pl_module: Module) -> None:
        """After the last batch of a test."""

    def on_test_batch_start(
        self, trainer: Trainer, pl_module: Module, batch: Any, batch_idx: int, dataloader_idx: int = 0
    ) -> None:
        """Before `test_step`."""

    def on_test_batch_end(
        self,
        trainer: Trainer,
        pl_module: Module,
        outputs: StepOutput,
        batch: Any,
        batch_idx: int,
        dataloader_idx: int = 0,
    ) -> None:
        """After `test_step`."""

    def on_predict_start(self, trainer: Trainer, pl_module: Module) -> None:
        """At the start of a prediction."""

    def on_predict_end(self, trainer: Trainer, pl_module: Module) -> None:
        """At the end of a prediction."""

    def on_predict_epoch_start(self, trainer: Trainer, pl_module: Module) -> None:
        """Before the first batch of a prediction."""

    def on_predict_epoch_end(self, trainer: Trainer, pl_module: Module) -> None:
        """After the last batch of a prediction."""

    def on_predict_batch_start(
        self, trainer: Trainer, pl_module: Module, batch: Any, batch_idx: int, dataloader_idx: int = 0
    ) -> None:
        """Before `predict_step`."""

    def on_predict_batch_end(
        self, trainer: Trainer, pl_module: Module, outputs: Any, batch: Any, batch_idx: int, dataloader_idx: int = 0
    ) -> None:
        """After `predict_step`."""

    def on_exception(self, trainer: Trainer, pl_module: Module, exception: BaseException) -> None:
        """When the run ends by an error or by Ctrl+C."""

    def on_save_checkpoint(self, trainer: Trainer, pl_module: Module, checkpoint: dict[str, Any]) -> None:
        """Add to a checkpoint before it is written."""

    def on_load_checkpoint(self, trainer: Trainer, pl_module: Module, checkpoint: dict[str, Any]) -> None:
        """Take from a checkpoint."""

    def on_before_zero_grad(self, trainer: Trainer, pl_module: Module, optimizer: Optimizer) -> None:
        """Before the gradients are zeroed."""

    def on_before_backward(self, trainer: Trainer, pl_module: Module, loss: Tensor) -> None:
        """Before the backward pass."""

    def on_after_backward(self, trainer: Trainer, pl_module: Module) -> None:
        """After the backward pass, before the optimizer steps."""

    def on_before_optimizer_step(self, trainer: Trainer, pl_module: Module, optimizer: Optimizer) -> None:
        """When the gradients are complete, before they are clipped and used."""


class Monitor(Callback):
    """A callback that decides on an epoch's metrics: in `on_train_epoch_end` it runs after all others and the module,
    so that it sees what they logged there."""


class Checkpoint(Monitor):
    """Base of all callbacks that save checkpoints; they run after every other callback, and at the end of a batch, a
    validation or an epoch after the module, too, so that they save what these have done."""

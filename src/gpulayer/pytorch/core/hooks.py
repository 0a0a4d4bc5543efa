"""The hooks as documented no-ops: override the ones you need. Their order is the loop itself: read `loops/fit.py`.

A hook that is not overridden is never called.
"""

from collections.abc import Mapping
from typing import Any, TypeAlias

import torch
from torch import Tensor
from torch.optim import Optimizer

from gpulayer.fabric.utilities.apply import move_data_to_device

StepOutput: TypeAlias = Tensor | Mapping[str, Any] | None


class ModelHooks:
    """What a Module may do at each moment of a run."""

    def on_fit_start(self) -> None:
        """At the very start of `fit`, after set-up."""

    def on_fit_end(self) -> None:
        """At the very end of `fit`."""

    def on_train_start(self) -> None:
        """Before the first epoch, after the sanity check."""

    def on_train_end(self) -> None:
        """After the last epoch, before the end of `fit`."""

    def on_validation_start(self) -> None:
        """At the start of a validation."""

    def on_validation_end(self) -> None:
        """At the end of a validation."""

    def on_test_start(self) -> None:
        """At the start of a test."""

    def on_test_end(self) -> None:
        """At the end of a test."""

    def on_predict_start(self) -> None:
        """At the start of a prediction."""

    def on_predict_end(self) -> None:
        """At the end of a prediction."""

    def on_train_batch_start(self, batch: Any, batch_idx: int) -> int | None:
        """Before anything happens to a batch. Return -1 to skip the rest of the epoch, this batch included.

        Args:
            batch: the batch, on the device.
            batch_idx: its number in the epoch, from 0.
        """
        return None

    def on_train_batch_end(self, outputs: StepOutput, batch: Any, batch_idx: int) -> None:
        """After a batch, its optimizer step included.

        Args:
            outputs: what `training_step` returned, as a dict whose "loss" is detached and divided by the number of
                batches that the step accumulates.
            batch: the batch, on the device.
            batch_idx: its number in the epoch, from 0.
        """

    def on_validation_batch_start(self, batch: Any, batch_idx: int, dataloader_idx: int = 0) -> None:
        """Before `validation_step`. `dataloader_idx` is passed when there are several loaders."""

    def on_validation_batch_end(self, outputs: StepOutput, batch: Any, batch_idx: int, dataloader_idx: int = 0) -> None:
        """After `validation_step`; `outputs` is what it returned."""

    def on_test_batch_start(self, batch: Any, batch_idx: int, dataloader_idx: int = 0) -> None:
        """Before `test_step`. `dataloader_idx` is passed when there are several loaders."""

    def on_test_batch_end(self, outputs: StepOutput, batch: Any, batch_idx: int, dataloader_idx: int = 0) -> None:
        """After `test_step`; `outputs` is what it returned."""

    def on_predict_batch_start(self, batch: Any, batch_idx: int, dataloader_idx: int = 0) -> None:
        """Before `predict_step`. `dataloader_idx` is passed when there are several loaders."""

    def on_predict_batch_end(self, outputs: Any, batch: Any, batch_idx: int, dataloader_idx: int = 0) -> None:
        """After `predict_step`; `outputs` is what it returned."""

    def on_validation_model_zero_grad(self) -> None:
        """Free the gradients before a validation inside `fit`."""
        self.zero_grad()  # type: ignore[attr-defined]

    def on_validation_model_eval(self) -> None:
        """Put the model into evaluation mode before a validation."""
        self.eval()  # type: ignore[attr-defined]

    def on_validation_model_train(self) -> None:
        """Put the model back after a validation. Not overridden: each submodule to the mode that it was in."""
        self.train()  # type: ignore[attr-defined]

    def on_test_model_eval(self) -> None:
        """Put the model into evaluation mode before a test."""
        self.eval()  # type: ignore[attr-defined]

    def on_test_model_train(self) -> None:
        """Put the model back after a test. Not overridden: each submodule to the mode that it was in."""
        self.train()  # type: ignore[attr-defined]

    def on_predict_model_eval(self) -> None:
        """Put the model into evaluation mode before a prediction."""
        self.eval()  # type: ignore[attr-defined]

    def on_train_epoch_start(self) -> None:
        """At the start of each training epoch."""

    def on_train_epoch_end(self) -> None:
        """At the end of each training epoch, with its metrics; values logged here still reach the monitors."""

    def on_validation_epoch_start(self) -> None:
        """Before the first batch of a validation."""

    def on_validation_epoch_end(self) -> None:
        """After the last batch of a validation, with its metrics."""

    def on_test_epoch_start(self) -> None:
        """Before the first batch of a test."""

    def on_test_epoch_end(self) -> None:
        """After the last batch of a test, with its metrics."""

    def on_predict_epoch_start(self) -> None:
        """Before the first batch of a prediction."""

    def on_predict_epoch_end(self) -> None:
        """After the last batch of a prediction."""

    def on_before_zero_grad(self, optimizer: Optimizer) -> None:
        """Before the gradients are zeroed."""

    def on_before_backward(self, loss: Tensor) -> None:
        """Before the backward pass; `loss` is already divided for accumulation."""

    def on_after_backward(self) -> None:
        """After the backward pass, before the optimizer steps."""

    def on_before_optimizer_step(self, optimizer: Optimizer) -> None:
        """When the gradients are complete, before they are clipped and used."""

    def configure_model(self) -> None:
        """Make layers here, once the device and the strategy are known. May be called twice: make nothing twice."""


class DataHooks:
    """Where data comes from and how a batch gets to the device; a Module and a DataModule both have these."""

    def prepare_data(self) -> None:
        """Download and write to disk. Called once per machine, so set no attributes here."""

    def setup(self, stage: str) -> None:
        """Called on every process before `stage`: "fit", "validate", "test" or "predict"."""

    def teardown(self, stage: str) -> None:
        """Called on every process after `stage`."""

    def train_dataloader(self) -> Any:
        """The loader of training batches: a DataLoader or any iterable."""
        raise NotImplementedError("`train_dataloader` is not defined")

    def val_dataloader(self) -> Any:
        """One or several loaders of validation batches."""
        raise NotImplementedError("`val_dataloader` is not defined")

    def test_dataloader(self) -> Any:
        """One or several loaders of test batches."""
        raise NotImplementedError("`test_dataloader` is not defined")

    def predict_dataloader(self) -> Any:
        """One or several loaders of batches to predict."""
        raise NotImplementedError("`predict_dataloader` is not defined")

    def on_before_batch_transfer(self, batch: Any, dataloader_idx: int) -> Any:
        """Change a batch before it goes to the device; return it."""
        return batch

    def transfer_batch_to_device(self, batch: Any, device: torch.device, dataloader_idx: int) -> Any:
        """Move a batch to `device`; return it."""
        return move_data_to_device(batch, device)

    def on_after_batch_transfer(self, batch: Any, dataloader_idx: int) -> Any:
        """Change a batch on the device; return it."""
        return batch


class CheckpointHooks:
    """What a Module may add to a checkpoint."""

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Add to the checkpoint before it is written."""

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Take from the checkpoint, before the weights are loaded."""


def overridden(name: str, instance: object, base: type) -> bool:
    """Whether `instance` has a method `name` of its own: its class's, a parent's below `base`, or set on the object."""
    method = getattr(instance, name, None)
    return method is not None and getattr(method, "__func__", method) is not getattr(base, name, None)

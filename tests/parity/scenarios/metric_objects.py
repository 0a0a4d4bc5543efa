"""Scenarios of `self.log` with objects of torchmetrics: what is logged in steps and epochs, and when they are reset."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
import torchmetrics

from tests.parity.recorder import FEATURES, Lab, Outcome, loader, loss_of
from tests.parity.scenarios.logging import logged_fit, on_flags, recording_logger
from tests.parity.scenarios.registry import log_scenario, log_variants


def measured_net(lab: Lab, seen: list[Any], **methods: Callable[..., Any]) -> Any:
    """A network that holds metrics, of which it notes how often they were updated when an epoch begins."""

    class Net(lab.L.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.net = torch.nn.Linear(FEATURES, 1)
            self.mean = torchmetrics.MeanMetric()
            self.error = torchmetrics.MeanSquaredError()
            self.val_error = torchmetrics.MeanSquaredError()
            self.both = torchmetrics.MetricCollection(
                {"mse": torchmetrics.MeanSquaredError(), "mae": torchmetrics.MeanAbsoluteError()}, prefix="both_"
            )
            self.grouped = torchmetrics.MetricCollection(
                {"a": torchmetrics.MeanSquaredError(), "b": torchmetrics.MeanSquaredError(squared=False)}
            )

        def predictions(self, batch: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            return self.net(batch[:, :FEATURES])[:, 0].detach(), batch[:, FEATURES]

        def training_step(self, batch: torch.Tensor, batch_idx: int) -> Any:
            return loss_of(self.net, batch)

        def validation_step(self, batch: torch.Tensor, batch_idx: int) -> Any:
            return loss_of(self.net, batch)

        def on_train_epoch_start(self) -> None:
            counts = {
                name: metric.update_count
                for name, metric in self.named_modules()
                if hasattr(metric, "compute") and not isinstance(metric, torchmetrics.MetricCollection)
            }
            seen.append(counts)

        def configure_optimizers(self) -> Any:
            return torch.optim.SGD(self.parameters(), lr=0.1)

    return type("Net", (Net,), methods)()


def fit_measured(lab: Lab, method: Callable[..., Any], name: str = "training_step", **arguments: Any) -> Outcome:
    counts: list[Any] = []
    outcome = logged_fit(lab, measured_net(lab, counts, **{name: method}), **arguments)
    outcome.notes["counts"] = counts
    return outcome


@log_variants("metric_object_training_{}", **on_flags(("no", "no"), ("no", "unset")))
def metric_object_in_training(L: ModuleType, folder: Path, **flags: Any) -> Outcome:
    def training_step(self: Any, batch: torch.Tensor, batch_idx: int) -> Any:
        self.error(*self.predictions(batch))
        self.log("error", self.error, prog_bar=True, **flags)
        return loss_of(self.net, batch)

    return fit_measured(Lab(L, folder), training_step)


@log_variants("metric_object_validation_{}", **on_flags(("no", "no"), ("unset", "no")))
def metric_object_in_validation(L: ModuleType, folder: Path, **flags: Any) -> Outcome:
    def validation_step(self: Any, batch: torch.Tensor, batch_idx: int) -> Any:
        self.val_error(*self.predictions(batch))
        self.log("val_error", self.val_error, prog_bar=True, **flags)

    return fit_measured(Lab(L, folder), validation_step, "validation_step")


@log_variants("metric_object_updated_{}", **on_flags(("no", "no"), ("no", "unset"), ("unset", "no"), ("yes", "no")))
def metric_object_updated(L: ModuleType, folder: Path, **flags: Any) -> Outcome:
    """`update` in place of a call: no value of the step is at hand."""

    def training_step(self: Any, batch: torch.Tensor, batch_idx: int) -> Any:
        self.error.update(*self.predictions(batch))
        self.log("error", self.error, **flags)
        return loss_of(self.net, batch)

    return fit_measured(Lab(L, folder), training_step)


@log_variants(
    "metric_collection_{}",
    both={"name": "both"},
    both_epoch={"name": "both", "on_step": False, "on_epoch": True},
    both_forked={"name": "both", "on_step": True, "on_epoch": True},
    grouped_epoch={"name": "grouped", "on_step": False, "on_epoch": True},
    grouped_updated={"name": "grouped", "on_step": False, "on_epoch": True, "update": True},
    both_updated={"name": "both", "on_step": False, "on_epoch": True, "update": True},
)
def metric_collection(L: ModuleType, folder: Path, name: str, update: bool = False, **flags: Any) -> Outcome:
    def training_step(self: Any, batch: torch.Tensor, batch_idx: int) -> Any:
        collection = getattr(self, name)
        (collection.update if update else collection)(*self.predictions(batch))
        self.log_dict(collection, **flags)
        return loss_of(self.net, batch)

    return fit_measured(Lab(L, folder), training_step)


@log_scenario
def metric_object_beside_numbers(L: ModuleType, folder: Path) -> Outcome:
    def training_step(self: Any, batch: torch.Tensor, batch_idx: int) -> Any:
        loss = loss_of(self.net, batch)
        self.mean.update(loss.detach(), len(batch))
        self.log_dict({"mean": self.mean, "loss": loss, "one": 1.0}, on_step=False, on_epoch=True)
        return loss

    return fit_measured(Lab(L, folder), training_step)


@log_scenario
def metric_object_at_epoch_end(L: ModuleType, folder: Path) -> Outcome:
    """Updated in steps, logged once at the end."""

    def training_step(self: Any, batch: torch.Tensor, batch_idx: int) -> Any:
        self.error.update(*self.predictions(batch))
        return loss_of(self.net, batch)

    def on_train_epoch_end(self: Any) -> None:
        self.log("error", self.error)

    counts: list[Any] = []
    lab = Lab(L, folder)
    net = measured_net(lab, counts, training_step=training_step, on_train_epoch_end=on_train_epoch_end)
    outcome = logged_fit(lab, net)
    outcome.notes["counts"] = counts
    return outcome


@log_variants("metric_object_of_loaders_{}", forked={"on_step": True, "on_epoch": True}, epoch={})
def metric_object_of_loaders(L: ModuleType, folder: Path, **flags: Any) -> Outcome:
    """One object for each of two loaders, as torchmetrics asks."""

    def validation_step(self: Any, batch: torch.Tensor, batch_idx: int, dataloader_idx: int = 0) -> Any:
        metric = (self.val_error, self.error)[dataloader_idx]
        metric(*self.predictions(batch))
        self.log("val_error", metric, **flags)

    val = [loader(2, extra_rows=1, seed=1), loader(3, seed=2)]
    return fit_measured(Lab(L, folder), validation_step, "validation_step", val=val)


@log_scenario
def metric_object_tested(L: ModuleType, folder: Path) -> Outcome:
    lab, counts, rows = Lab(L, folder), [], None

    def test_step(self: Any, batch: torch.Tensor, batch_idx: int) -> Any:
        self.val_error(*self.predictions(batch))
        self.log("test_error", self.val_error)

    rows = recording_logger(lab)
    trainer = lab.trainer(logger=rows)
    module = measured_net(lab, counts, test_step=test_step)
    first = trainer.test(module, loader(3, extra_rows=1), verbose=False)
    second = trainer.test(module, loader(2, seed=4), verbose=False)
    return lab.outcome(trainer, module, second, rows=rows.rows, first=dict(first[0]))


@log_variants("metric_object_validated_within_{}", **{"": {}, "accumulation": {"accumulate_grad_batches": 2}})
def metric_object_validated_within(L: ModuleType, folder: Path, **arguments: Any) -> Outcome:
    """A validation in mid-epoch leaves training's metric alone, and resets its own."""

    def training_step(self: Any, batch: torch.Tensor, batch_idx: int) -> Any:
        self.error(*self.predictions(batch))
        self.log("error", self.error, on_step=True, on_epoch=True)
        return loss_of(self.net, batch)

    def validation_step(self: Any, batch: torch.Tensor, batch_idx: int) -> Any:
        self.val_error.update(*self.predictions(batch))
        self.log("val_error", self.val_error)

    counts: list[Any] = []
    lab = Lab(L, folder)
    net = measured_net(lab, counts, training_step=training_step, validation_step=validation_step)
    outcome = logged_fit(lab, net, val_check_interval=2, **arguments)
    outcome.notes["counts"] = counts
    return outcome

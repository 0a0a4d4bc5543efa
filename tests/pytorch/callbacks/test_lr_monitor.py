"""LearningRateMonitor: which rates reach metrics.csv, and when."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.optim import SGD, Adam
from torch.optim.lr_scheduler import ExponentialLR

import gpulayer.pytorch as L
from gpulayer.fabric.utilities.exceptions import MisconfigurationException
from gpulayer.pytorch.callbacks import LearningRateMonitor
from tests.pytorch.models import Line, loader, trainer


def logged(configure: Any, monitor: LearningRateMonitor, **arguments: Any) -> dict[str, list[tuple[int, int, float]]]:
    """(epoch, step, rate) by name from metrics.csv, of two epochs of four steps."""
    model = type("Rated", (Line,), {"configure_optimizers": configure, "training_step": without_logging})()
    given: dict[str, Any] = {"max_epochs": 2, "log_every_n_steps": 1, **arguments}
    trainer(logger=None, callbacks=[monitor], **given).fit(model, loader())
    with Path("runs/Rated/version_0/metrics.csv").open() as file:
        rows = list(csv.DictReader(file, restval=""))
    names = [name for name in rows[0] if name not in ("epoch", "step")]
    return {
        name: [(int(row["epoch"]), int(row["step"]), float(row[name])) for row in rows if row[name]] for name in names
    }


def without_logging(self: Line, batch: Any, batch_idx: int) -> Any:
    return self.loss(batch)


def halving(interval: str) -> Any:
    """Adam at 1.0, halved at each interval."""

    def configure_optimizers(self: Line) -> Any:
        optimizer = Adam(self.parameters(), lr=1.0)
        return [optimizer], [{"scheduler": ExponentialLR(optimizer, 0.5), "interval": interval}]

    return configure_optimizers


def test_each_epoch() -> None:
    monitor = LearningRateMonitor("epoch")
    assert logged(halving("epoch"), monitor) == {"lr-Adam": [(0, 0, 1.0), (1, 4, 0.5)]}
    assert monitor.lrs == {"lr-Adam": [1.0, 0.5]}


def test_each_step() -> None:
    rates = logged(halving("step"), LearningRateMonitor("step"))
    assert rates == {"lr-Adam": [(step // 4, step, 0.5**step) for step in range(8)]}


def test_as_the_schedulers_interval_says() -> None:
    assert logged(halving("step"), LearningRateMonitor())["lr-Adam"][1] == (0, 1, 0.5)


def test_as_the_schedulers_interval_says_by_epoch() -> None:
    assert logged(halving("epoch"), LearningRateMonitor()) == {"lr-Adam": [(0, 0, 1.0), (1, 4, 0.5)]}


def test_only_where_the_trainer_logs() -> None:
    rates = logged(halving("step"), LearningRateMonitor("step"), log_every_n_steps=3)
    assert [step for _, step, _ in rates["lr-Adam"]] == [2, 5]


def test_an_optimizer_without_a_scheduler() -> None:
    assert logged(Line.configure_optimizers, LearningRateMonitor("epoch")) == {"lr-SGD": [(0, 0, 0.05), (1, 4, 0.05)]}


def test_the_name_of_a_scheduler() -> None:
    def configure_optimizers(self: Line) -> Any:
        optimizer = Adam(self.parameters(), lr=1.0)
        return [optimizer], [{"scheduler": ExponentialLR(optimizer, 0.5), "name": "warm"}]

    assert list(logged(configure_optimizers, LearningRateMonitor())) == ["warm"]


def test_groups_of_parameters() -> None:
    def configure_optimizers(self: Line) -> Any:
        return SGD([{"params": [self.net.weight], "lr": 0.5}, {"params": [self.net.bias], "lr": 0.25}], lr=1.0)

    rates = logged(configure_optimizers, LearningRateMonitor("epoch"))
    assert {name: values[0][2] for name, values in rates.items()} == {"lr-SGD/pg1": 0.5, "lr-SGD/pg2": 0.25}


def test_groups_with_names() -> None:
    def configure_optimizers(self: Line) -> Any:
        return SGD(
            [
                {"params": [self.net.weight], "lr": 0.5, "name": "body"},
                {"params": [self.net.bias], "lr": 0.25, "name": "head"},
            ],
            lr=1.0,
        )

    assert list(logged(configure_optimizers, LearningRateMonitor("epoch"))) == ["lr-SGD/body", "lr-SGD/head"]


def test_momentum_and_weight_decay() -> None:
    def configure_optimizers(self: Line) -> Any:
        return SGD(self.parameters(), lr=0.5, momentum=0.75, weight_decay=0.125)

    monitor = LearningRateMonitor("epoch", log_momentum=True, log_weight_decay=True)
    rates = logged(configure_optimizers, monitor)
    assert {name: values[0][2] for name, values in rates.items()} == {
        "lr-SGD": 0.5,
        "lr-SGD-momentum": 0.75,
        "lr-SGD-weight_decay": 0.125,
    }


def test_several_optimizers_of_a_class() -> None:
    class Manual(Line):
        def __init__(self) -> None:
            super().__init__()
            self.automatic_optimization = False
            self.other = nn.Linear(1, 1)

        def training_step(self, batch: Any, batch_idx: int) -> None:
            pass

        def configure_optimizers(self) -> Any:
            return [Adam(self.net.parameters(), lr=1.0), Adam(self.other.parameters(), lr=2.0)]

    monitor = LearningRateMonitor("epoch")
    trainer(logger=None, callbacks=[monitor]).fit(Manual(), loader())
    assert monitor.lrs == {"lr-Adam": [1.0], "lr-Adam-1": [2.0]}


def test_a_callback_can_read_the_rate() -> None:
    used = trainer(logger=None, callbacks=[LearningRateMonitor("epoch")])
    used.fit(Line(), loader())
    assert float(used.callback_metrics["lr-SGD"]) == pytest.approx(0.05)
    assert isinstance(used.callback_metrics["lr-SGD"], torch.Tensor)


def test_an_optimizer_without_a_scheduler_at_steps_and_epochs() -> None:
    """Nobody says when its rate changes."""
    rates = logged(Line.configure_optimizers, LearningRateMonitor(), log_every_n_steps=2)
    assert [(epoch, step) for epoch, step, _ in rates["lr-SGD"]] == [(0, 0), (0, 1), (0, 3), (1, 4), (1, 5), (1, 7)]


def test_a_rate_that_is_set_by_hand() -> None:
    class Manual(Line):
        def __init__(self) -> None:
            super().__init__(lr=1.0)
            self.automatic_optimization = False

        def training_step(self, batch: Any, batch_idx: int) -> None:
            optimizer = self.optimizers()
            self.manual_backward(self.loss(batch))
            optimizer.step()
            optimizer.zero_grad()
            optimizer.param_groups[0]["lr"] /= 2

    monitor = LearningRateMonitor("step")
    trainer(logger=None, max_epochs=1, log_every_n_steps=1, callbacks=[monitor]).fit(Manual(), loader())
    assert monitor.lrs == {"lr-SGD": [1.0, 0.5, 0.25, 0.125]}


def test_accumulated_batches_once_a_step() -> None:
    arguments = {"accumulate_grad_batches": 2, "log_every_n_steps": 1}
    rates = logged(halving("step"), LearningRateMonitor("step"), **arguments)
    assert rates == {"lr-Adam": [(step // 2, step, 0.5**step) for step in range(4)]}


def test_several_schedulers_of_an_optimizer() -> None:
    """Each has its own interval, and so its own name."""

    def configure_optimizers(self: Line) -> Any:
        optimizer = SGD(self.parameters(), lr=1.0)
        by_step = {"scheduler": ExponentialLR(optimizer, 0.5), "interval": "step", "name": "warm"}
        return [optimizer], [by_step, {"scheduler": ExponentialLR(optimizer, 0.5), "interval": "epoch"}]

    monitor = LearningRateMonitor()
    logged(configure_optimizers, monitor)
    assert [len(monitor.lrs["warm"]), len(monitor.lrs["lr-SGD"])] == [8, 2]


class Unfreezing(L.Callback):
    """Adds the bias as a group of its own at the start of the second epoch, as finetuning does."""

    def __init__(self, **group: Any) -> None:
        self.group = group

    def on_train_epoch_start(self, trainer: L.Trainer, pl_module: Any) -> None:
        if trainer.current_epoch == 1:
            trainer.optimizers[0].add_param_group({"params": [pl_module.net.bias], "lr": 0.25, **self.group})


def frozen(self: Line) -> Any:
    return SGD([self.net.weight], lr=0.5, momentum=0.5)


def test_a_group_that_is_added_later() -> None:
    """What was alone has a number from then on, and its earlier rates go with it."""
    monitor = LearningRateMonitor("epoch", log_momentum=True)
    model = type("Rated", (Line,), {"configure_optimizers": frozen, "training_step": without_logging})()
    used = trainer(logger=None, max_epochs=3, log_every_n_steps=1, callbacks=[Unfreezing(), monitor])
    used.fit(model, loader())
    assert monitor.lrs == {"lr-SGD/pg1": [0.5, 0.5, 0.5], "lr-SGD/pg2": [0.25, 0.25]}
    assert monitor.last_momentum_values["lr-SGD/pg2-momentum"] == 0.5
    with Path("runs/Rated/version_0/metrics.csv").open() as file:
        rows = list(csv.DictReader(file, restval=""))
    assert [row["lr-SGD"] for row in rows] == ["0.5", "", ""]
    assert [row["lr-SGD/pg1"] for row in rows] == ["", "0.5", "0.5"]
    assert [row["lr-SGD/pg2"] for row in rows] == ["", "0.25", "0.25"]


def test_a_named_group_that_is_added_later() -> None:
    monitor = LearningRateMonitor("step")
    model = type("Rated", (Line,), {"configure_optimizers": frozen, "training_step": without_logging})()
    callbacks = [Unfreezing(name="head"), monitor]
    trainer(logger=None, max_epochs=2, log_every_n_steps=2, callbacks=callbacks).fit(model, loader())
    assert monitor.lrs == {"lr-SGD/pg1": 4 * [0.5], "lr-SGD/head": 2 * [0.25]}


def test_two_groups_of_a_name() -> None:
    def configure_optimizers(self: Line) -> Any:
        return SGD([{"params": [p], "name": "same"} for p in self.net.parameters()], lr=1.0)

    with pytest.raises(MisconfigurationException, match="several parameter groups named 'same'"):
        logged(configure_optimizers, LearningRateMonitor())


def test_a_second_fit_begins_anew() -> None:
    monitor = LearningRateMonitor("epoch")
    used = trainer(logger=None, max_epochs=1, callbacks=[monitor])
    used.fit(Line(), loader())
    used.fit_loop.max_epochs = 2
    used.fit(Line(), loader())
    assert monitor.lrs == {"lr-SGD": [0.05]}


def test_no_log_points() -> None:
    monitor = LearningRateMonitor("step")
    trainer(logger=None, max_epochs=1, log_every_n_steps=0, callbacks=[monitor]).fit(Line(), loader())
    assert monitor.lrs == {"lr-SGD": []}

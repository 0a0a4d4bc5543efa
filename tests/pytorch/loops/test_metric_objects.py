"""Objects of torchmetrics in `self.log`; that the numbers are Lightning's is tested in tests/parity."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
import torchmetrics

from gpulayer.fabric.utilities.exceptions import InvalidValueError, MisconfigurationException
from gpulayer.pytorch.callbacks import ModelCheckpoint
from gpulayer.pytorch.loggers import Logger
from tests.pytorch.models import Line, Validated, loader, trainer


class Measured(Validated):
    """Logs a metric object over the epoch, in both stages, and one of a collection whose members share their state."""

    def __init__(self, **options: Any) -> None:
        super().__init__()
        self.options = {"on_step": False, "on_epoch": True, **options}
        self.error = torchmetrics.MeanSquaredError()
        self.val_error = torchmetrics.MeanSquaredError()
        self.group = torchmetrics.MetricCollection(
            {"mse": torchmetrics.MeanSquaredError(), "rmse": torchmetrics.MeanSquaredError(squared=False)}
        )
        self.held = torchmetrics.CatMetric()  # is logged by nobody
        self.epochs: list[dict[str, float]] = []

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        x, y = batch
        prediction = self(x)
        self.error.update(prediction.detach(), y)
        self.group.update(prediction.detach(), y)
        self.held.update(y.sum())
        self.log("error", self.error, **self.options)
        self.log_dict(self.group, **self.options)
        loss = torch.nn.functional.mse_loss(prediction, y)
        self.log("loss", loss, on_step=False, on_epoch=True)
        self.log("median", loss, on_step=False, on_epoch=True, reduce_fx=torch.median)
        if batch_idx == 0:
            self.log("first", loss, on_step=False, on_epoch=True)
        return loss

    def validation_step(self, batch: Any, batch_idx: int) -> Any:
        x, y = batch
        self.val_error.update(self(x), y)
        self.log("val_error", self.val_error)

    def on_train_epoch_end(self) -> None:
        self.epochs.append({name: float(value) for name, value in self.trainer.callback_metrics.items()})
        self.epochs[-1]["held"] = float(self.held.compute().sum())
        self.held.reset()


def test_an_epoch_is_computed_once_and_reset() -> None:
    model = Measured()
    computed: list[int] = []
    compute = model.error.compute
    model.error.compute = lambda: (computed.append(model.error.update_count), compute())[1]  # type: ignore[method-assign]
    trainer(max_epochs=2).fit(model, loader(5), loader(2))
    assert computed == [5, 5]
    assert model.error.update_count == model.val_error.update_count == 0
    assert model.epochs[-1]["error"] == pytest.approx(model.epochs[-1]["loss"], rel=1e-6)
    assert model.epochs[-1]["rmse"] == pytest.approx(model.epochs[-1]["mse"] ** 0.5, rel=1e-6)


@pytest.mark.filterwarnings("ignore:The checkpoint holds the state of callbacks")
@pytest.mark.parametrize("moment", [{"every_n_train_steps": 3}, {"every_n_epochs": 1}], ids=str)
@pytest.mark.parametrize("interval", [1.0, 2])
def test_a_resumed_epoch_goes_on_with_what_was_gathered(moment: dict[str, int], interval: Any) -> None:
    """The epoch's values are those of an unbroken run, objects and sums alike, also of what is not logged again."""
    saver = ModelCheckpoint("saved", "{step}", save_top_k=-1, **moment)
    unbroken = Measured()
    torch.manual_seed(0)
    start = unbroken.net.state_dict()
    start = {name: value.clone() for name, value in start.items()}
    arguments: dict[str, Any] = {"max_epochs": 3, "val_check_interval": interval}
    trainer(callbacks=[saver], **arguments).fit(unbroken, loader(5), loader(2))
    paths = sorted(Path("saved").glob("*.ckpt"))
    compared = 0
    for path in paths:
        resumed = Measured()
        resumed.net.load_state_dict(start)
        trainer(**arguments).fit(resumed, loader(5), loader(2), ckpt_path=path)
        compared += len(resumed.epochs)
        for got, wanted in zip(reversed(resumed.epochs), reversed(unbroken.epochs), strict=False):
            assert got == wanted, path
    assert compared >= 3


@pytest.mark.filterwarnings("ignore:The checkpoint holds the state of callbacks")
def test_an_epoch_that_ended_before_the_checkpoint_is_logged_by_the_resumed_run() -> None:
    """Its last hooks ran before; its row had not been written yet."""
    saver = ModelCheckpoint("saved", "{step}", save_top_k=-1, save_on_train_epoch_end=True)
    rows: list[list[dict[str, float]]] = []
    for path in (None, "saved/step=5.ckpt"):
        kept = Rows()
        trainer(max_epochs=2, callbacks=[saver] if path is None else [], logger=kept).fit(
            Measured(), loader(5), loader(2), ckpt_path=path
        )
        rows.append([row for row in kept.rows if row.get("epoch") == 0 and "rmse" in row])
    names = {"error", "mse", "rmse", "loss", "first", "epoch"}  # a function's value needs the function
    assert len(rows[0]) == len(rows[1]) == 1
    assert {name: rows[1][0][name] for name in names} == {name: rows[0][0][name] for name in names}


class Rows(Logger):
    """Keeps its rows."""

    name, version = "rows", 0

    def __init__(self) -> None:
        self.rows: list[dict[str, float]] = []

    def log_metrics(self, metrics: dict[str, float], step: int | None = None) -> None:
        self.rows.append(dict(metrics))

    def log_hyperparams(self, params: Any, *args: Any, **kwargs: Any) -> None:
        pass


def logs(what: Any) -> type[Line]:
    class Model(Line):
        def __init__(self) -> None:
            super().__init__()
            self.error = torchmetrics.MeanSquaredError()
            self.roc = torchmetrics.ConfusionMatrix("binary")
            self.both = torchmetrics.MetricCollection([torchmetrics.MeanSquaredError()])

        def training_step(self, batch: Any, batch_idx: int) -> Any:
            x, y = batch
            what(self, self(x).detach(), y)
            return self.loss(batch)

    return Model


def test_an_object_that_is_no_attribute() -> None:
    def step(self: Any, prediction: Any, y: Any) -> None:
        self.log("error", torchmetrics.MeanSquaredError(), on_step=False, on_epoch=True)

    with pytest.raises(MisconfigurationException, match=r"no attribute of the module.*make it one in `__init__`"):
        trainer().fit(logs(step)(), loader(2))


def test_a_collection_belongs_into_log_dict() -> None:
    with pytest.raises(InvalidValueError, match=r"`self.log_dict` a dict or a MetricCollection"):
        trainer().fit(logs(lambda self, p, y: self.log("both", self.both))(), loader(2))


@pytest.mark.parametrize("number", [1.0, torch.tensor(1.0)], ids=["float", "tensor"])
def test_a_number_under_the_name_of_an_object(number: Any) -> None:
    def step(self: Any, prediction: Any, y: Any) -> None:
        self.error(prediction, y)
        self.log("error", self.error)
        self.log("error", number)

    with pytest.raises(InvalidValueError, match=r"was given a torchmetrics object before, and now .*1\."):
        trainer().fit(logs(step)(), loader(2))


def test_a_value_that_is_no_number() -> None:
    def step(self: Any, prediction: Any, y: Any) -> None:
        self.roc.update((prediction > 0).int(), (y > 0).int())
        self.log("roc", self.roc, on_step=False, on_epoch=True)

    with pytest.raises(InvalidValueError, match=r"'roc'.*shape \(2, 2\); it takes one number"):
        trainer().fit(logs(step)(), loader(2))


def test_torchmetrics_is_not_imported_for_those_who_do_not_use_it() -> None:
    program = """
import sys, torch, gpulayer.pytorch as L
from gpulayer.pytorch.demos.boring_classes import BoringModel
class Model(BoringModel):
    def training_step(self, batch, batch_idx):
        loss = super().training_step(batch, batch_idx)["loss"]
        self.log("loss", loss, on_epoch=True)
        self.log_dict({"a": 1.0})
        return loss
L.Trainer(accelerator="cpu", fast_dev_run=True).fit(Model())
assert "torchmetrics" not in sys.modules
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


class Counts(Line):
    """Counts its batches with an object, in both stages, and breaks off if told to."""

    def __init__(self, breaks: bool = False) -> None:
        super().__init__()
        self.breaks = breaks
        self.count = torchmetrics.SumMetric()

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        self.count.update(1.0)
        self.log("count", self.count, on_step=False, on_epoch=True)
        if self.breaks and batch_idx == 2:
            raise ValueError("broken off")
        return self.loss(batch)

    def validation_step(self, batch: Any, batch_idx: int) -> Any:
        return self.training_step(batch, batch_idx)


@pytest.mark.filterwarnings("ignore:`Counts` has a `validation_step`, but there is no validation loader")
@pytest.mark.parametrize("call", ["fit", "validate"])
def test_a_run_that_broke_off_is_not_counted_in_the_next(call: str) -> None:
    model, used = Counts(breaks=True), trainer()
    with pytest.raises(ValueError, match="broken off"):
        getattr(used, call)(model, loader())
    assert model.count.compute() == 3  # it is there to be looked at
    model.breaks = False
    getattr(used, call)(model, loader())
    assert used.callback_metrics["count"] == 4


@pytest.mark.filterwarnings("ignore:The checkpoint holds the state of callbacks")
@pytest.mark.filterwarnings("ignore:The ``compute`` method of metric SumMetric was called before")
def test_an_object_of_two_stages_goes_on_where_only_training_used_it() -> None:
    """Saved in the third epoch, which has no validation; the second had one, which takes training's value away."""
    saver = ModelCheckpoint("saved", "{step}", save_top_k=-1, every_n_train_steps=10)
    for path in (None, "saved/step=10.ckpt"):
        used = trainer(max_epochs=3, check_val_every_n_epoch=2, callbacks=[] if path else [saver])
        used.fit(Counts(), loader(), loader(2), ckpt_path=path)
        assert used.callback_metrics["count"] == 4


@pytest.mark.filterwarnings("ignore:The checkpoint holds the state of callbacks")
def test_what_an_object_counts_beside_its_state_is_kept() -> None:
    """`Running` has a place in its window."""

    class Runs(Line):
        def __init__(self) -> None:
            super().__init__()
            self.mean = torchmetrics.wrappers.Running(torchmetrics.MeanMetric(), window=3)

        def training_step(self, batch: Any, batch_idx: int) -> Any:
            self.mean(float(batch_idx))
            self.log("mean", self.mean, on_step=False, on_epoch=True)
            return self.loss(batch)

    saver = ModelCheckpoint("saved", "{step}", save_top_k=-1, every_n_train_steps=1)
    trainer(callbacks=[saver]).fit(Runs(), loader(7))
    for step in range(1, 7):
        used = trainer()
        used.fit(Runs(), loader(7), ckpt_path=f"saved/step={step}.ckpt")
        assert used.callback_metrics["mean"] == 5.0, step


def test_a_value_that_cannot_be_computed_is_an_error_once() -> None:
    """And a checkpoint is written all the same."""

    def step(self: Any, prediction: Any, y: Any) -> None:
        self.roc.update((prediction > 0).int(), (y > 0).int())
        self.log("roc", self.roc, on_step=False, on_epoch=True)

    used = trainer(callbacks=[ModelCheckpoint("saved", "kept", save_on_exception=True)])
    with pytest.raises(InvalidValueError, match="'roc'"):
        used.fit(logs(step)(), loader(2))
    assert Path("saved/kept.ckpt").is_file()
    assert "roc" not in used.callback_metrics

"""The average of the last epochs: what is averaged, learning rates, BatchNorm's statistics, resumed bit for bit."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import gpulayer.pytorch as L
from gpulayer.fabric.utilities.exceptions import MisconfigurationException
from gpulayer.pytorch.callbacks import LearningRateMonitor, ModelCheckpoint, StochasticWeightAveraging
from gpulayer.pytorch.loggers import CSVLogger
from tests.pytorch.models import FEATURES, Line, loader, same, trainer, weights

BATCHES = 4


class Net(Line):
    """Notes the weights at the start of each epoch, and the learning rates."""

    def __init__(self, norm: bool = False, scheduler: str | None = None) -> None:
        super().__init__()
        self.norm, self.scheduler = norm, scheduler
        middle = [nn.BatchNorm1d(3)] if norm else []
        self.net = nn.Sequential(nn.Linear(FEATURES, 3), *middle, nn.Linear(3, 1))  # type: ignore[assignment]
        self.begun: list[dict[str, Tensor]] = []
        self.rates: list[tuple[float, ...]] = []
        self.steps = 0

    def on_train_epoch_start(self) -> None:
        self.begun.append(weights(self))
        self.rates.append(tuple(group["lr"] for group in self.trainer.optimizers[0].param_groups))

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        self.steps += 1
        return super().training_step(batch, batch_idx)

    def configure_optimizers(self) -> Any:
        first, *others = self.net
        groups = [{"params": first.parameters()}, {"params": [p for one in others for p in one.parameters()]}]
        optimizer = torch.optim.SGD(groups, lr=0.02, momentum=0.5)
        if self.scheduler is None:
            return optimizer
        scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.9)
        return [optimizer], [{"scheduler": scheduler, "interval": self.scheduler}]


def fit(callback: Any, path: str | None = None, model: Any = None, **arguments: Any) -> Any:
    L.seed_everything(1, verbose=False)
    model = model or Net()
    if path is not None:
        L.seed_everything(99, verbose=False)
    callbacks = [callback, *arguments.pop("callbacks", [])]
    val = arguments.pop("val", None)
    used = trainer(**{"max_epochs": 4, "callbacks": callbacks, **arguments})
    used.fit(model, loader(BATCHES, 4, shuffle=True), val, ckpt_path=path)
    return used, model


def mean_of(states: list[dict[str, Tensor]]) -> dict[str, Tensor]:
    return {name: torch.stack([state[name].double() for state in states]).mean(0) for name in states[0]}


def close(model: Any, expected: dict[str, Tensor], names: Any = None) -> bool:
    state = weights(model)
    return all(torch.allclose(state[name].double(), expected[name], atol=1e-7) for name in names or expected)


@pytest.mark.parametrize(("start", "first"), [(1, 0), (2, 1), (4, 3), (0.0, 0), (0.5, 1), (1.0, 3), (0.8, 2)])
def test_which_epochs_count(start: float, first: int) -> None:
    callback = StochasticWeightAveraging(0.01, start)
    _, model = fit(callback)
    assert (callback.swa_start, callback.swa_end) == (first, 3)
    assert close(model, mean_of(model.begun[first:]))


def test_a_function_of_the_user() -> None:
    _, model = fit(StochasticWeightAveraging(0.01, 2, avg_fn=lambda old, new, count: new, device=None))
    assert same(weights(model), model.begun[-1])

    class Own(StochasticWeightAveraging):
        @staticmethod
        def avg_fn(old: Tensor, new: Tensor, count: Tensor) -> Tensor:
            return old

    _, model = fit(Own(0.01, 2))
    assert same(weights(model), model.begun[1])


@pytest.mark.parametrize("strategy", ["cos", "linear"])
@pytest.mark.parametrize("scheduler", [None, "epoch", "step"])
def test_the_learning_rates_go_to_those_that_were_given(scheduler: str | None, strategy: str) -> None:
    callback = StochasticWeightAveraging([0.1, 0.001], 2, annealing_epochs=2, annealing_strategy=strategy)
    used, model = fit(callback, model=Net(scheduler=scheduler), max_epochs=6)
    assert model.rates[4] == model.rates[5] == pytest.approx((0.1, 0.001))
    assert 0.001 < model.rates[2][1] < model.rates[0][1] < model.rates[2][0] < 0.1 or strategy == "cos"
    assert [type(config.scheduler).__name__ for config in used.lr_scheduler_configs] == ["SWALR"]


def test_batch_norm_has_the_statistics_of_the_averaged_weights() -> None:
    used, model = fit(StochasticWeightAveraging(0.01, 2), model=Net(norm=True))
    names = [name for name, _ in model.named_parameters()]
    assert close(model, mean_of(model.begun[1:]), names)
    assert (used.current_epoch, used.global_step, model.steps) == (4, 16, 20)
    norm = model.net[1]
    assert (norm.momentum, int(norm.num_batches_tracked)) == (0.1, BATCHES)
    rows = torch.cat([batch[0] for batch in loader(BATCHES, 4)])
    with torch.no_grad():
        assert torch.allclose(norm.running_mean, model.net[0](rows).mean(0), atol=1e-6)


class Judged(Net):
    """Notes the weights that each validation has."""

    def __init__(self, norm: bool) -> None:
        super().__init__(norm)
        self.judged: list[dict[str, Tensor]] = []

    def on_validation_start(self) -> None:
        self.judged.append(weights(self))

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        self.log("val_loss", self.loss(batch))


@pytest.mark.filterwarnings("ignore:The checkpoint holds the state of callbacks")
@pytest.mark.parametrize("norm", [False, True])
def test_the_last_validation_and_what_is_saved_then_are_of_the_average(norm: bool) -> None:
    def run(path: str | None = None, saver: Any = None) -> Any:
        callbacks = [] if saver is None else [saver]
        model, callback = Judged(norm), StochasticWeightAveraging(0.01, 2)
        return fit(callback, path, model, val=loader(2, 2), callbacks=callbacks, val_check_interval=2)

    every = ModelCheckpoint("saved", "{epoch}-{step}", monitor="val_loss", save_top_k=-1, every_n_train_steps=2)
    _, model = run(saver=every)
    end = weights(model)
    assert len(model.judged) == 8
    assert close(model, mean_of(model.begun[1:]), [name for name, _ in model.named_parameters()])
    assert same(model.judged[-1], end)
    assert not same(model.judged[-2], end)
    assert same(torch.load("saved/epoch=3-step=16.ckpt", weights_only=True)["state_dict"], end)
    files = sorted(Path("saved").glob("*.ckpt"))
    assert len(files) == 8
    for file in files:
        assert same(weights(run(str(file))[1]), end), file


def test_frozen_batch_norm_keeps_its_statistics() -> None:
    class Frozen(Net):
        def on_train_start(self) -> None:
            self.net[1].eval()

    model = Frozen(norm=True)
    model.net[1].running_mean.fill_(3)
    fit(StochasticWeightAveraging(0.01, 2), model=model)
    assert torch.equal(model.net[1].running_mean, torch.full((3,), 3.0))
    assert model.steps == 16


def test_the_pass_for_batch_norm_logs_nothing_and_moves_no_random_state() -> None:
    used, _ = fit(StochasticWeightAveraging(0.01, 2), model=Net(norm=True))
    logged, drawn = used.callback_metrics, torch.rand(())
    plain, _ = fit(StochasticWeightAveraging(0.01, 2), model=Net())
    assert set(logged) == {"train_loss"}
    with torch.random.fork_rng():
        assert logged["train_loss"] != plain.callback_metrics["train_loss"]
    fit(L.Callback(), model=Net(norm=True))
    assert drawn == torch.rand(())


def test_a_run_that_stops_early_gets_its_average() -> None:
    """Lightning drops it, and with `max_epochs=-1` before the first one gives the module its weights from before."""
    _, model = fit(StochasticWeightAveraging(0.01, 2), max_steps=10)
    assert close(model, mean_of(model.begun[1:]))
    _, plain = fit(L.Callback(), max_steps=10)
    for first, epochs in ((9, -1), (3, 4)):  # not begun, or in the first epoch that counts
        _, model = fit(StochasticWeightAveraging(0.02, first), max_epochs=epochs, max_steps=10)
        assert same(weights(model), weights(plain))


def test_the_learning_rate_is_monitored_on() -> None:
    """Under the new scheduler's name, for the old one is gone."""
    callbacks = [LearningRateMonitor()]
    arguments = {"callbacks": callbacks, "logger": CSVLogger("runs"), "log_every_n_steps": 1}
    fit(StochasticWeightAveraging(0.01, 2), model=Net(scheduler="epoch"), **arguments)
    rows = Path("runs/lightning_logs/version_0/metrics.csv").read_text()
    assert "lr-SGD/pg1" in rows


def test_it_never_begins() -> None:
    with pytest.warns(UserWarning, match=r"swa_epoch_start=9.*max_epochs=4.*never begins"):
        _, model = fit(StochasticWeightAveraging(0.01, 9))
    _, plain = fit(L.Callback())
    assert same(weights(model), weights(plain))


@pytest.mark.filterwarnings("ignore:The checkpoint holds the state of callbacks")
@pytest.mark.parametrize("scheduler", [None, "epoch", "step"])
@pytest.mark.parametrize("norm", [False, True])
def test_a_resumed_run_ends_the_same_bit_for_bit(norm: bool, scheduler: str | None) -> None:
    def callback() -> StochasticWeightAveraging:
        return StochasticWeightAveraging([0.1, 0.01], 2, annealing_epochs=2)

    savers = [
        ModelCheckpoint("saved", "{step}", every_n_train_steps=3, save_top_k=-1),
        ModelCheckpoint("saved", "epoch-{epoch}", save_top_k=-1, save_on_train_epoch_end=True),
    ]
    used, whole = fit(callback(), model=Net(norm, scheduler), callbacks=savers)
    files = sorted(Path("saved").glob("*.ckpt"))
    assert len(files) == 9
    for file in files:
        other, resumed = fit(callback(), str(file), Net(norm, scheduler))
        assert same(weights(resumed), weights(whole)), file
        rates = [[group["lr"] for group in one.optimizers[0].param_groups] for one in (used, other)]
        assert rates[0] == rates[1]


def test_16_bits_are_averaged_in_32() -> None:
    _, model = fit(StochasticWeightAveraging(0.01, 1), precision="bf16-true")
    assert same(weights(model), {name: value.bfloat16() for name, value in mean_of(model.begun).items()})


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"swa_lrs": 0.0}, r"swa_lrs=0\.0.*above 0"),
        ({"swa_lrs": [0.1, "a"]}, "swa_lrs="),
        ({"swa_lrs": []}, "swa_lrs="),
        ({"swa_lrs": float("inf")}, "swa_lrs=inf"),
        ({"swa_epoch_start": 0}, "swa_epoch_start=0.*from 1"),
        ({"swa_epoch_start": 1.5}, r"swa_epoch_start=1\.5"),
        ({"swa_epoch_start": "late"}, "swa_epoch_start='late'"),
        ({"annealing_epochs": -1}, "annealing_epochs=-1"),
        ({"annealing_strategy": "exp"}, "annealing_strategy='exp'.*'cos' or 'linear'"),
        ({"avg_fn": 3}, "avg_fn=3"),
        ({"device": "gpu"}, "device='gpu'"),
    ],
)
def test_bad_values(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(MisconfigurationException, match=message):
        StochasticWeightAveraging(**{"swa_lrs": 0.1, **arguments})


class Manual(Net):
    def __init__(self) -> None:
        super().__init__(norm=True)
        self.automatic_optimization = False


class Two(Net):
    def configure_optimizers(self) -> Any:
        return [torch.optim.SGD(self.net[0].parameters(), 0.1), torch.optim.SGD(self.net[1].parameters(), 0.1)]

    def __init__(self) -> None:
        super().__init__()
        self.automatic_optimization = False


@pytest.mark.parametrize(
    ("model", "callback", "epochs", "message"),
    [
        (Net, StochasticWeightAveraging([0.1, 0.1, 0.1]), 4, "3 learning rates.*2 parameter groups"),
        (Net, StochasticWeightAveraging(0.1, 0.5), -1, "fraction of the epochs.*max_epochs=-1"),
        (Manual, StochasticWeightAveraging(0.1), 4, "manual optimization.*WeightAveraging"),
        (Two, StochasticWeightAveraging(0.1), 4, "returned 2 optimizers"),
    ],
)
def test_what_does_not_go_together(model: Any, callback: Any, epochs: int, message: str) -> None:
    with pytest.raises(MisconfigurationException, match=message):
        fit(callback, model=model(), max_epochs=epochs)

"""The learning rate finder: what it finds, and that it leaves no trace."""

from __future__ import annotations

from collections.abc import Iterator
from copy import deepcopy
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset, IterableDataset, TensorDataset

import gpulayer.pytorch as L
from gpulayer.fabric.utilities.exceptions import MisconfigurationException
from gpulayer.fabric.utilities.seed import collect_rng_states
from gpulayer.pytorch.callbacks import LearningRateFinder
from gpulayer.pytorch.tuner import Tuner
from gpulayer.pytorch.tuner.lr_finder import _LRFinder

QUIET: dict[str, Any] = {
    "accelerator": "cpu",
    "logger": False,
    "enable_checkpointing": False,
    "enable_progress_bar": False,
    "enable_model_summary": False,
    "max_epochs": 2,
}


class Net(L.Module):
    """Dropout, BatchNorm, an optimizer with a state, and a learning rate among the hyperparameters."""

    def __init__(self, lr: float = 0.01) -> None:
        super().__init__()
        self.save_hyperparameters()
        self.layers = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Dropout(0.3), nn.Linear(8, 1))
        self.noise = torch.Generator().manual_seed(3)

    def training_step(self, batch: list[Tensor], batch_idx: int) -> Tensor:
        x, y = batch
        if not self.trainer.checkpoint_callbacks:  # a checkpoint does not hold the module's own generators
            x = x + 0.01 * torch.randn(x.shape, generator=self.noise)
        loss = (self.layers(x) - y).pow(2).mean()
        self.log("loss", loss, on_epoch=True)
        return loss

    def configure_optimizers(self) -> Any:
        return torch.optim.Adam(self.parameters(), lr=self.hparams.lr)


def data(number: int = 64) -> TensorDataset:
    x = torch.randn(number, 4, generator=torch.Generator().manual_seed(1))
    return TensorDataset(x, x.sum(1, keepdim=True))


def loader(**options: Any) -> DataLoader[Any]:
    return DataLoader(data(), **{"batch_size": 8, **options})


def seeded(**arguments: Any) -> Net:
    torch.manual_seed(0)
    return Net(**arguments)


def find(trainer: L.Trainer, model: L.Module, loaders: Any, **options: Any) -> _LRFinder:
    found = Tuner(trainer).lr_find(model, loaders, **{"num_training": 30, **options})
    assert found is not None
    return found


# -- what it finds -----------------------------------------------------------------------------------------------------


def test_rates_rise_and_losses_are_smoothed_without_bias() -> None:
    raw: list[float] = []

    class Noting(Net):
        def training_step(self, batch: list[Tensor], batch_idx: int) -> Tensor:
            loss = super().training_step(batch, batch_idx)
            raw.append(loss.item())
            return loss

    found = find(L.Trainer(**QUIET), Noting(), loader(), num_training=20, min_lr=1e-5, max_lr=0.1)
    rates, losses = found.results["lr"], found.results["loss"]
    assert len(rates) == len(losses) == len(raw) == 20
    assert rates[0] == 1e-5
    assert rates[-1] == pytest.approx(0.1)
    assert rates[9] == pytest.approx(1e-5 * 1e4 ** (10 / 20))
    average = 0.0
    for step, (loss, smoothed) in enumerate(zip(raw, losses, strict=True)):
        average = 0.98 * average + 0.02 * loss
        assert smoothed == pytest.approx(average / (1 - 0.98 ** (step + 1)))


def test_the_suggestion_is_where_the_picture_is_steepest() -> None:
    found = _LRFinder("exponential", 1e-4, 1.0, 40)
    rates = [10 ** (-4 + step / 10) for step in range(40)]
    found.results = {"lr": rates, "loss": [-(2 / (1 + 10 ** (-(step - 25) / 5))) for step in range(40)]}
    assert found.suggestion() == rates[25]
    assert found.suggestion(skip_begin=28) == rates[28]
    found.mode = "linear"  # over the rate itself it falls fastest before
    assert found.suggestion() < rates[25]


def test_losses_that_are_not_finite_do_not_count() -> None:
    found = _LRFinder("linear", 0.1, 1.0, 5)
    found.results = {"lr": [0.1, 0.2, 0.3, 0.4, 0.5], "loss": [3.0, 2.5, 1.0, float("nan"), float("inf")]}
    assert found.suggestion(skip_begin=0, skip_end=0) in (0.2, 0.3)
    with pytest.warns(UserWarning, match="5 steps are too few"):
        assert found.suggestion() is None


def test_it_ends_when_the_loss_diverges() -> None:
    class Exploding(Net):
        def configure_optimizers(self) -> Any:
            return torch.optim.SGD(self.parameters(), lr=self.hparams.lr)

    found = find(L.Trainer(**QUIET), Exploding(), loader(), num_training=200, max_lr=1e4)
    assert len(found.results["lr"]) < 200
    assert found.results["loss"][-1] > 4 * min(found.results["loss"])
    everything = find(
        L.Trainer(**QUIET), Exploding(), loader(), num_training=40, max_lr=10.0, early_stop_threshold=None
    )
    assert len(everything.results["lr"]) == 40


def test_it_is_not_ended_by_the_trainers_own_limits() -> None:
    assert len(find(L.Trainer(**{**QUIET, "max_epochs": 1}), Net(), loader()).results["lr"]) == 30
    assert len(find(L.Trainer(**QUIET, max_steps=3), Net(), loader()).results["lr"]) == 30


def test_the_batches_of_a_step_count_together() -> None:
    options = {"num_training": 12, "early_stop_threshold": None, "update_attr": False}
    found = find(L.Trainer(**QUIET, accumulate_grad_batches=2), seeded(), loader(), **options)
    assert len(found.results["lr"]) == 12
    alone = find(L.Trainer(**QUIET), seeded(), loader(), **options)
    assert found.results["loss"][0] == pytest.approx(alone.results["loss"][0], rel=0.5)  # not a half of it


@pytest.mark.parametrize("precision", ["bf16-mixed", "64-true"])
def test_precisions(precision: Any) -> None:
    class Converted(Net):
        def training_step(self, batch: list[Tensor], batch_idx: int) -> Tensor:
            x, y = batch
            return (self.layers(x) - y).pow(2).mean()

    assert len(find(L.Trainer(**QUIET, precision=precision), Converted(), loader()).results["lr"]) == 30


def test_a_loader_without_length() -> None:
    class Stream(IterableDataset[Any]):
        def __iter__(self) -> Iterator[Any]:
            yield from (data()[index] for index in range(24))

    assert len(find(L.Trainer(**QUIET), Net(), DataLoader(Stream(), 8)).results["lr"]) == 30


def test_losses_below_zero_do_not_count_as_divergence() -> None:
    class Likelihood(Net):
        def training_step(self, batch: list[Tensor], batch_idx: int) -> Tensor:
            return super().training_step(batch, batch_idx) - 20

    found = find(L.Trainer(**QUIET), Likelihood(), loader())
    assert len(found.results["lr"]) == 30
    assert max(found.results["loss"]) < 0


def test_losses_below_zero_that_rise_as_far_end_it() -> None:
    class Rising(Net):
        def training_step(self, batch: list[Tensor], batch_idx: int) -> Tensor:
            return 0 * super().training_step(batch, batch_idx) - 2 + self.global_step

    found = find(L.Trainer(**QUIET), Rising(), loader(), update_attr=False)
    assert found.results["loss"][-2] <= -2 + 3 * 2 < found.results["loss"][-1]


def test_a_step_without_a_loss_does_not_count() -> None:
    class Skipping(Net):
        def training_step(self, batch: list[Tensor], batch_idx: int) -> Any:
            return None if self.global_step == 5 else super().training_step(batch, batch_idx)

    with pytest.warns(UserWarning, match="returned None"):
        losses = find(L.Trainer(**QUIET), Skipping(), loader()).results["loss"]
    assert len(losses) == 30
    assert [index for index, loss in enumerate(losses) if loss != loss] == [5]


def test_a_loss_that_is_nan_ends_it() -> None:
    class Broken(Net):
        def training_step(self, batch: list[Tensor], batch_idx: int) -> Tensor:
            return super().training_step(batch, batch_idx) * (float("nan") if self.global_step == 20 else 1)

    model = seeded(lr=0.1)
    before = deepcopy(model.state_dict())
    model.__class__ = Broken
    assert len(find(L.Trainer(**QUIET), model, loader()).results["lr"]) == 21
    assert same(dict(before), dict(model.state_dict()))


def test_a_loader_that_can_be_read_once() -> None:
    found = find(L.Trainer(**QUIET), Net(), (batch for batch in loader()), update_attr=False)
    assert len(found.results["lr"]) == 8


# -- where it goes -----------------------------------------------------------------------------------------------------


def test_the_attribute_is_set() -> None:
    model = Net()
    found = find(L.Trainer(**QUIET), model, loader())
    assert model.hparams.lr == found.suggestion()


def test_it_is_left_alone_if_the_user_wants_that() -> None:
    model = Net(lr=0.5)
    find(L.Trainer(**QUIET), model, loader(), update_attr=False)
    assert model.hparams.lr == 0.5


def test_an_attribute_of_another_name_and_in_a_part() -> None:
    class Nested(Net):
        def __init__(self) -> None:
            super().__init__()
            self.rate, self.settings = 0.1, {"optimizer": {"rate": 0.1}}

    model = Nested()
    found = find(L.Trainer(**QUIET), model, loader(), attr_name="rate")
    assert model.rate == found.suggestion()
    found = find(L.Trainer(**QUIET), model, loader(), attr_name="settings.optimizer.rate")
    assert model.settings["optimizer"]["rate"] == found.suggestion()
    assert model.hparams.lr == 0.01


def test_both_the_module_and_its_hyperparameters() -> None:
    model = Net()
    model.lr = 0.3
    with pytest.warns(UserWarning, match="both are set"):
        found = find(L.Trainer(**QUIET), model, loader())
    assert model.lr == model.hparams.lr == found.suggestion()


def test_an_attribute_of_the_datamodule() -> None:
    class Data(L.DataModule):
        lr = 0.1

        def train_dataloader(self) -> DataLoader[Any]:
            return loader()

    class Reading(Net):
        def __init__(self) -> None:
            L.Module.__init__(self)
            self.layers, self.noise = nn.Linear(4, 1), torch.Generator()

        def configure_optimizers(self) -> Any:
            return torch.optim.SGD(self.parameters(), lr=self.trainer.datamodule.lr)

    datamodule = Data()
    found = Tuner(L.Trainer(**QUIET)).lr_find(Reading(), datamodule=datamodule, num_training=30)
    assert found is not None
    assert datamodule.lr == found.suggestion()


# -- it leaves no trace ------------------------------------------------------------------------------------------------


def everything(model: L.Module, trainer: L.Trainer) -> dict[str, Any]:
    return {
        "weights": deepcopy(model.state_dict()),
        "random": collect_rng_states(),
        "noise": model.noise.get_state(),  # type: ignore[union-attr]
        "trained": [child.training for child in model.modules()],
        "gradients": [parameter.grad for parameter in model.parameters()],
        "limits": (trainer.max_epochs, trainer.max_steps, trainer.min_epochs, trainer.limit_val_batches),
        "counts": (trainer.global_step, trainer.current_epoch, trainer.should_stop),
        "metrics": dict(trainer.callback_metrics),
        "callbacks": list(trainer.callbacks),
    }


def same(one: Any, other: Any) -> bool:
    if isinstance(one, Tensor):
        return torch.equal(one, other)
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(same(one[key], other[key]) for key in one)
    if isinstance(one, (list, tuple)):
        return len(one) == len(other) and all(map(same, one, other))
    return bool((one == other) if not hasattr(one, "dtype") else (one == other).all())


def test_weights_random_states_and_trainer_are_as_before(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    model, own = seeded(), torch.Generator().manual_seed(4)
    trainer = L.Trainer(**{**QUIET, "logger": None, "enable_checkpointing": True})
    before, order = everything(model, trainer), own.get_state()
    find(trainer, model, loader(shuffle=True, generator=own))
    assert same(before, everything(model, trainer))
    assert torch.equal(order, own.get_state())
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("error", [ValueError("broken"), KeyboardInterrupt()])
def test_they_are_after_an_error_too(error: BaseException) -> None:
    class Breaking(Net):
        def training_step(self, batch: list[Tensor], batch_idx: int) -> Tensor:
            if self.global_step == 20:
                raise error
            return super().training_step(batch, batch_idx)

    torch.manual_seed(0)
    model, trainer = Breaking(), L.Trainer(**QUIET)
    before = everything(model, trainer)
    with pytest.raises(type(error)):
        find(trainer, model, loader(shuffle=True), early_stop_threshold=None)
    assert same(before, everything(model, trainer))
    assert model.hparams.lr == 0.01


class Noise(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.generator = torch.Generator().manual_seed(6)

    def forward(self, x: Tensor) -> Tensor:
        return x + 0.1 * torch.randn(x.shape, generator=self.generator)


def test_what_is_frozen_and_the_generators_of_layers_are_as_before() -> None:
    class Thawing(Net):
        def __init__(self) -> None:
            super().__init__()
            self.layers = nn.Sequential(Noise(), *self.layers)
            self.layers[1].requires_grad_(False)

        def on_train_epoch_start(self) -> None:
            if self.current_epoch == 2:
                self.layers[1].requires_grad_(True)

    model = Thawing()
    state = model.layers[0].generator.get_state()
    find(L.Trainer(**QUIET), model, loader())
    assert not model.layers[1].weight.requires_grad
    assert torch.equal(model.layers[0].generator.get_state(), state)


@pytest.mark.parametrize("automatic", [True, False])
def test_a_module_may_use_its_schedulers_and_its_logger(automatic: bool, tmp_path: Path) -> None:
    class Using(Net):
        def __init__(self) -> None:
            super().__init__()
            self.automatic_optimization = automatic

        def setup(self, stage: str) -> None:
            self.logger.log_hyperparams({"seen": stage})

        def training_step(self, batch: list[Tensor], batch_idx: int) -> Tensor:
            loss, optimizer = super().training_step(batch, batch_idx), self.optimizers()
            self.log("rate", self.lr_schedulers().get_last_lr()[0])
            self.logger.log_metrics({"loss": loss.item()}, step=self.global_step)
            self.logger.experiment.add_histogram("loss", loss)
            assert self.trainer.max_epochs == 2
            if not automatic:
                self.manual_backward(loss)
                optimizer.step()
                optimizer.zero_grad()
                self.lr_schedulers().step()
            return loss

        def configure_optimizers(self) -> Any:
            optimizer = super().configure_optimizers()
            return [optimizer], [torch.optim.lr_scheduler.StepLR(optimizer, 2)]

    trainer = L.Trainer(**{**QUIET, "logger": L.loggers.CSVLogger(tmp_path)})
    assert len(find(trainer, Using(), loader()).results["lr"]) == 30
    assert list(tmp_path.iterdir()) == []


class WithRandomness(Dataset[Any]):
    def __len__(self) -> int:
        return 32

    def __getitem__(self, index: int) -> Any:
        return data()[index][0] + torch.randn(4), data()[index][1]


class Amid(LearningRateFinder):
    """Searches before the second epoch, or within a window of accumulated batches."""

    def on_fit_start(self, trainer: L.Trainer, pl_module: L.Module) -> None:
        """Not before the first epoch."""

    def on_train_epoch_start(self, trainer: L.Trainer, pl_module: L.Module) -> None:
        if trainer.current_epoch == 1 and trainer.accumulate_grad_batches == 1:
            self.lr_find(trainer, pl_module)

    def on_train_batch_start(self, trainer: L.Trainer, pl_module: L.Module, batch: Any, batch_idx: int) -> None:
        if trainer.global_step == 1 and batch_idx == 3:
            self.lr_find(trainer, pl_module)


@pytest.mark.parametrize(("accumulated", "workers"), [(1, 0), (2, 0), (1, 1)])
def test_training_goes_on_as_if_it_had_not_been_broken_off(accumulated: int, workers: int) -> None:
    def trained(callbacks: list[L.Callback]) -> dict[str, Any]:
        L.seed_everything(3, workers=True, verbose=False)

        class Plateau(Net):
            def configure_optimizers(self) -> Any:
                optimizer = super().configure_optimizers()
                scheduler = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, patience=0)
                return {"optimizer": optimizer, "lr_scheduler": {"scheduler": scheduler, "monitor": "loss"}}

        model = Plateau()
        options: dict[str, Any] = {"num_workers": workers, "persistent_workers": workers > 0}
        trainer = L.Trainer(**{**QUIET, "max_epochs": 3}, accumulate_grad_batches=accumulated, callbacks=callbacks)
        loader = DataLoader(WithRandomness(), 8, shuffle=True, **options)
        trainer.fit(model, loader)
        loader._iterator = None  # which ends its workers now: the garbage collector takes seconds
        return {**everything(model, trainer), "callbacks": None, "gradients": None}

    assert same(trained([]), trained([Amid(num_training_steps=12, update_attr=False)]))


def weights_after_fit(model: L.Module, **arguments: Any) -> Tensor:
    torch.manual_seed(5)
    trainer = L.Trainer(**{**QUIET, **arguments})
    trainer.fit(model, loader(shuffle=True, drop_last=True))
    return torch.cat([parameter.detach().flatten() for parameter in model.parameters()])


class Scheduled(Net):
    """Two groups and a schedule that begins low: made from the learning rate."""

    def configure_optimizers(self) -> Any:
        groups = [{"params": self.layers[0].parameters(), "lr": self.hparams.lr / 10}]
        groups.append({"params": self.layers[1:].parameters(), "lr": self.hparams.lr})
        optimizer = torch.optim.SGD(groups, momentum=0.9)
        warm_up = torch.optim.lr_scheduler.LinearLR(optimizer, 0.1, total_iters=8)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": warm_up, "interval": "step"}}


@pytest.mark.parametrize("kind", [Net, Scheduled])
def test_training_is_then_that_of_a_module_made_with_the_rate(kind: type[Net]) -> None:
    torch.manual_seed(0)
    finder = LearningRateFinder(num_training_steps=30)
    found = weights_after_fit(kind(), callbacks=[finder])
    assert finder.optimal_lr is not None
    rate = finder.optimal_lr.suggestion()
    torch.manual_seed(0)
    assert rate is not None
    assert torch.equal(found, weights_after_fit(kind(lr=rate)))


def test_other_callbacks_and_loggers_do_not_hear_of_it(tmp_path: Path) -> None:
    steps: list[int] = []

    class Noting(L.Callback):
        def on_train_batch_end(self, trainer: L.Trainer, *_: Any) -> None:
            steps.append(trainer.global_step)

    logger = L.loggers.CSVLogger(tmp_path)
    trainer = L.Trainer(**{**QUIET, "logger": logger}, callbacks=[Noting(), LearningRateFinder()], log_every_n_steps=1)
    trainer.fit(Net(), loader())
    assert steps == list(range(1, 17))
    assert len((Path(logger.log_dir) / "metrics.csv").read_text().splitlines()) == 1 + 16 + 2


def test_a_run_that_goes_on_keeps_the_rate_that_was_found(tmp_path: Path) -> None:
    def train(ckpt_path: str | None = None, **arguments: Any) -> tuple[Net, LearningRateFinder]:
        torch.manual_seed(0)
        model, finder = Scheduled(), LearningRateFinder(num_training_steps=30)
        torch.manual_seed(5)
        saver = L.callbacks.ModelCheckpoint(dirpath=tmp_path, filename="cut", every_n_train_steps=6)
        trainer = L.Trainer(**{**QUIET, "enable_checkpointing": True, **arguments}, callbacks=[finder, saver])
        trainer.fit(model, loader(shuffle=True), ckpt_path=ckpt_path)
        return model, finder

    whole, finder = train()
    (tmp_path / "cut.ckpt").unlink()
    for path in tmp_path.iterdir():
        path.unlink()
    train(max_steps=7)
    resumed, again = train(ckpt_path=str(tmp_path / "cut.ckpt"))
    assert finder.optimal_lr is not None
    assert again.optimal_lr is not None
    assert again.optimal_lr.results == finder.optimal_lr.results
    assert resumed.hparams.lr == whole.hparams.lr
    assert same(dict(resumed.state_dict()), dict(whole.state_dict()))


def test_a_run_that_goes_on_from_one_without_a_finder_trains_with_the_rate(tmp_path: Path) -> None:
    trainer, path = L.Trainer(**QUIET), str(tmp_path / "one.ckpt")
    trainer.fit(Net(), loader())
    trainer.save_checkpoint(path)
    model, finder = Net(), LearningRateFinder(num_training_steps=30)
    trainer = L.Trainer(**{**QUIET, "max_epochs": 3}, callbacks=[finder])
    trainer.fit(model, loader(), ckpt_path=path)
    assert finder.optimal_lr is not None
    assert trainer.global_step == 24
    assert model.hparams.lr == trainer.optimizers[0].param_groups[0]["lr"] == finder.optimal_lr.suggestion()


def test_a_search_that_was_broken_off_does_not_lose_the_optimizers_of_a_checkpoint(tmp_path: Path) -> None:
    class Breaking(Net):
        breaks = True

        def training_step(self, batch: list[Tensor], batch_idx: int) -> Tensor:
            if self.breaks:
                raise ValueError("broken")
            return super().training_step(batch, batch_idx)

    class Counting(L.Callback):
        def on_train_batch_start(self, trainer: L.Trainer, *_: Any) -> None:
            steps.append(int(next(iter(trainer.optimizers[0].state_dict()["state"].values()))["step"]))

    trainer, path, steps = L.Trainer(**QUIET), str(tmp_path / "one.ckpt"), []
    trainer.fit(Net(), loader())
    trainer.save_checkpoint(path)
    model = Breaking()
    callbacks = [LearningRateFinder(num_training_steps=30), Counting()]
    trainer = L.Trainer(**{**QUIET, "max_epochs": 3}, callbacks=callbacks)
    with pytest.raises(ValueError, match="broken"):
        trainer.fit(model, loader())
    model.breaks = False
    trainer.fit(model, loader(), ckpt_path=path)
    assert steps == list(range(16, 24))


def test_it_may_look_again_while_training() -> None:
    class Twice(LearningRateFinder):
        rates: ClassVar[list[float]] = []

        def on_fit_start(self, trainer: L.Trainer, pl_module: L.Module) -> None:
            """Not before the first epoch."""

        def on_train_epoch_start(self, trainer: L.Trainer, pl_module: L.Module) -> None:
            if trainer.current_epoch in (1, 2):
                moments = deepcopy(trainer.optimizers[0].state_dict()["state"])
                self.lr_find(trainer, pl_module)
                assert same(moments, trainer.optimizers[0].state_dict()["state"])
                self.rates.append(trainer.optimizers[0].param_groups[0]["lr"])

    model = Net()
    trainer = L.Trainer(**{**QUIET, "max_epochs": 3}, callbacks=[Twice(num_training_steps=30)])
    trainer.fit(model, loader())
    assert trainer.global_step == 24
    assert model.hparams.lr == Twice.rates[-1]
    assert len(Twice.rates) == 2


# -- pictures ----------------------------------------------------------------------------------------------------------


def test_a_picture(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib").use("agg")
    import matplotlib.pyplot as plt

    found = find(L.Trainer(**QUIET), Net(), loader())
    figure = found.plot(suggest=True)
    axes = figure.axes[0]
    assert axes.get_xscale() == "log"
    assert list(axes.lines[0].get_xdata()) == found.results["lr"]
    assert axes.lines[1].get_xdata()[0] == found.suggestion()
    figure.savefig(tmp_path / "rate.png")
    _, own = plt.subplots()
    assert found.plot(ax=own) is own.figure
    plt.close("all")


# -- mistakes ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ({"mode": "quadratic"}, "choose 'exponential' or 'linear'"),
        ({"mode": None}, "choose 'exponential' or 'linear'"),
        ({"min_lr": 0.0}, "two learning rates above 0"),
        ({"min_lr": 1.0, "max_lr": 0.1}, "the smaller one first"),
        ({"max_lr": float("inf")}, "two learning rates above 0"),
        ({"num_training_steps": 0}, "at least 1"),
        ({"num_training_steps": 10.0}, "at least 1"),
        ({"early_stop_threshold": -1.0}, "above 0"),
    ],
)
def test_wrong_values(arguments: dict[str, Any], says: str) -> None:
    with pytest.raises(MisconfigurationException, match=says):
        LearningRateFinder(**arguments)


def test_no_attribute_to_set() -> None:
    class Fixed(Net):
        def __init__(self) -> None:
            L.Module.__init__(self)
            self.layers = nn.Sequential(nn.Linear(4, 1))

        def configure_optimizers(self) -> Any:
            return torch.optim.SGD(self.parameters(), lr=0.1)

    with pytest.raises(MisconfigurationException, match="neither `lr` nor `learning_rate`"):
        find(L.Trainer(**QUIET), Fixed(), loader())
    with pytest.raises(MisconfigurationException, match="have a 'rate'"):
        find(L.Trainer(**QUIET), Fixed(), loader(), attr_name="rate")


def test_an_attribute_that_cannot_be_set_is_an_error_before_the_search() -> None:
    class Fixed(Net):
        lr = property(lambda self: 0.1)

        def __init__(self) -> None:
            L.Module.__init__(self)
            self.layers = nn.Sequential(nn.Linear(4, 1))

        def training_step(self, batch: list[Tensor], batch_idx: int) -> Tensor:
            raise AssertionError("the search began")

        def configure_optimizers(self) -> Any:
            return torch.optim.SGD(self.parameters(), lr=self.lr)

    with pytest.raises(MisconfigurationException, match=r"cannot set `model\.lr`.*no setter"):
        find(L.Trainer(**QUIET), Fixed(), loader())


def test_a_layer_without_a_shape() -> None:
    class Lazy(Net):
        def __init__(self) -> None:
            super().__init__()
            self.layers = nn.Sequential(nn.LazyLinear(1))

    with pytest.raises(MisconfigurationException, match=r"shape of 'layers\.0\.weight' is known from the first batch"):
        find(L.Trainer(**QUIET), Lazy(), loader())


def test_several_optimizers() -> None:
    class Two(Net):
        def __init__(self) -> None:
            super().__init__()
            self.automatic_optimization = False

        def configure_optimizers(self) -> Any:
            return [torch.optim.SGD(self.parameters(), lr=0.1), torch.optim.SGD(self.parameters(), lr=0.1)]

    with pytest.raises(MisconfigurationException, match="needs one optimizer"):
        find(L.Trainer(**QUIET), Two(), loader())


def test_a_module_that_takes_no_step() -> None:
    class Idle(Net):
        def __init__(self) -> None:
            super().__init__()
            self.automatic_optimization = False

    with pytest.raises(MisconfigurationException, match="No optimizer step was taken in 101 batches"):
        find(L.Trainer(**QUIET), Idle(), loader())


def test_a_validation_from_a_checkpoint_does_not_count_as_resuming(tmp_path: Path) -> None:
    model, path = Net(), str(tmp_path / "one.ckpt")
    trainer = L.Trainer(**QUIET, callbacks=[LearningRateFinder(num_training_steps=30)])
    trainer.fit(model, loader())
    trainer.save_checkpoint(path)
    finder = LearningRateFinder(num_training_steps=20)
    trainer = L.Trainer(**QUIET, callbacks=[finder])
    model.test_step = model.training_step  # type: ignore[method-assign]
    trainer.test(model, loader(), ckpt_path=path, verbose=False)
    trainer.fit(model, loader())
    assert finder.optimal_lr is not None
    assert len(finder.optimal_lr.results["lr"]) == 20


def test_the_finder_twice_and_other_methods() -> None:
    trainer = L.Trainer(**QUIET, callbacks=[LearningRateFinder()])
    with pytest.raises(MisconfigurationException, match="has a LearningRateFinder"):
        Tuner(trainer).lr_find(Net(), loader())
    with pytest.raises(MisconfigurationException, match="a learning rate is of 'fit'"):
        Tuner(L.Trainer(**QUIET)).lr_find(Net(), dataloaders=loader(), method="validate")


def test_it_is_skipped_in_a_trial_run() -> None:
    with pytest.warns(UserWarning, match="skipped with `fast_dev_run`"):
        assert Tuner(L.Trainer(**QUIET, fast_dev_run=True)).lr_find(Net(), loader()) is None

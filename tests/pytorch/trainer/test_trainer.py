"""The Trainer's calls, and what it knows of them."""

from __future__ import annotations

import os
import signal
from typing import Any

import pytest
import torch
from torch import nn
from torch.optim.lr_scheduler import LambdaLR, OneCycleLR

import gpulayer.pytorch as L
from gpulayer.fabric.utilities.exceptions import MisconfigurationException
from gpulayer.pytorch.callbacks import EarlyStopping, ModelCheckpoint, Timer
from gpulayer.pytorch.loggers import CSVLogger
from tests.pytorch.models import Line, Scored, Validated, dataset, loader, same, stream, trainer, weights


def test_results_of_an_evaluation() -> None:
    """A dict by name, and by number as Lightning's list of one dict a loader."""
    result = trainer().test(Line(), loader())
    assert set(result) == {"test_loss"}
    assert result[0] == {"test_loss": result["test_loss"]}
    assert type(result["test_loss"]) is float
    with pytest.raises(KeyError):
        _ = result["missing"]
    with pytest.raises(IndexError):
        _ = result[1]


# -- how long a run is ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("settings", "steps", "epochs"),
    [
        ({}, 4, 1),
        ({"max_epochs": 3}, 12, 3),
        ({"max_epochs": 0}, 0, 0),
        ({"min_epochs": 2}, 8, 2),
        ({"max_steps": 6}, 6, 2),
        ({"max_steps": 8}, 8, 2),
        ({"max_steps": 0}, 0, 0),
        ({"max_epochs": 1, "max_steps": 6}, 4, 1),
        ({"max_epochs": 5, "max_steps": 6}, 6, 2),
        ({"max_epochs": -1, "max_steps": 6}, 6, 2),
        ({"max_epochs": 2, "accumulate_grad_batches": 3}, 4, 2),
    ],
    ids=str,
)
def test_limits(settings: dict[str, Any], steps: int, epochs: int) -> None:
    used = trainer(**settings)
    used.fit(Line(), loader())
    assert (used.global_step, used.current_epoch) == (steps, epochs)


class Stops(Line):
    """Asks to stop at its third batch."""

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        if self.global_step == 2:
            self.trainer.should_stop = True
        return super().training_step(batch, batch_idx)


@pytest.mark.parametrize(
    ("settings", "steps"),
    [({}, 3), ({"min_steps": 6}, 6), ({"min_epochs": 2}, 8), ({"min_epochs": 2, "min_steps": 10}, 10)],
    ids=str,
)
def test_should_stop(settings: dict[str, Any], steps: int) -> None:
    used = trainer(max_epochs=5, **settings)
    used.fit(Stops(), loader())
    assert used.global_step == steps


def test_should_stop_of_one_run_does_not_stop_the_next() -> None:
    used = trainer(max_epochs=5)
    used.fit(Stops(), loader())
    used.fit(Line(), loader())
    assert used.current_epoch == 5


def test_the_rest_of_an_epoch_may_be_skipped() -> None:
    class Skips(Line):
        def on_train_batch_start(self, batch: Any, batch_idx: int) -> int | None:
            return -1 if batch_idx == 2 else None

    used = trainer(max_epochs=3)
    used.fit(Skips(), loader())
    assert (used.global_step, used.current_epoch) == (6, 3)


def test_a_batch_without_a_loss_is_skipped() -> None:
    """`training_step` returned None: a warning, and no gradients from it."""

    class Sometimes(Line):
        def training_step(self, batch: Any, batch_idx: int) -> Any:
            return self.loss(batch) if batch_idx % 2 else None

    model, expected = Sometimes(), Line()
    expected.load_state_dict(model.state_dict())
    with pytest.warns(UserWarning, match="`training_step` returned None"):
        trainer().fit(model, loader())

    optimizer = torch.optim.SGD(expected.parameters(), lr=0.05, momentum=0.9)
    for i, batch in enumerate(loader()):
        optimizer.zero_grad()
        if i % 2:
            expected.loss(batch).backward()
        optimizer.step()
    assert same(weights(model), weights(expected))


# -- validation -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("settings", "at"),
    [
        ({}, [4, 8, 12]),
        ({"val_check_interval": 0.5}, [2, 4, 6, 8, 10, 12]),
        ({"val_check_interval": 3}, [3, 7, 11]),
        ({"val_check_interval": 0.75}, [3, 7, 11]),
        ({"val_check_interval": 1}, list(range(1, 13))),
        ({"check_val_every_n_epoch": 2}, [8]),
        ({"check_val_every_n_epoch": 2, "val_check_interval": 2}, [6, 8]),
        ({"check_val_every_n_epoch": None, "val_check_interval": 5}, [5, 10]),
        ({"limit_val_batches": 0}, []),
    ],
    ids=str,
)
def test_when_validation_comes(settings: dict[str, Any], at: list[int]) -> None:
    """After which steps, of three epochs of four."""

    class Notes(Validated):
        def on_validation_start(self) -> None:
            steps.append(self.global_step)

    steps: list[int] = []
    trainer(max_epochs=3, **settings).fit(Notes(), loader(), loader(1))
    assert steps == at


# -- what it knows ----------------------------------------------------------------------------------------------------


def test_what_is_running() -> None:
    class Asks(Validated):
        def note(self, where: str) -> None:
            used = self.trainer
            flags = ("training", "sanity_checking", "validating", "testing", "predicting", "evaluating")
            seen[where] = [name for name in flags if getattr(used, name)]

        def training_step(self, batch: Any, batch_idx: int) -> Any:
            self.note("training_step")
            return super().training_step(batch, batch_idx)

        def validation_step(self, batch: Any, batch_idx: int) -> None:
            self.note(f"validation_step in {self.trainer.state.fn.value}")
            if self.trainer.sanity_checking:
                self.note("sanity check")

        def test_step(self, batch: Any, batch_idx: int) -> None:
            self.note("test_step")

        def predict_step(self, batch: Any, batch_idx: int) -> None:
            self.note("predict_step")

    seen: dict[str, list[str]] = {}
    model, used = Asks(), trainer(num_sanity_val_steps=1)
    used.fit(model, loader(), loader())
    used.validate(model, loader())
    used.test(model, loader())
    used.predict(model, loader())
    assert seen == {
        "sanity check": ["sanity_checking", "evaluating"],
        "training_step": ["training"],
        "validation_step in fit": ["validating", "evaluating"],
        "validation_step in validate": ["validating", "evaluating"],
        "test_step": ["testing", "evaluating"],
        "predict_step": ["predicting"],
    }
    assert used.state.finished
    assert not used.training


def test_numbers_and_loaders_after_a_run() -> None:
    train, first, second = loader(4), loader(2), loader(3)

    class Two(Line):
        def validation_step(self, batch: Any, batch_idx: int, dataloader_idx: int) -> None:
            pass

    used = trainer()
    used.fit(Two(), train, [first, second])
    assert used.num_training_batches == 4
    assert used.num_val_batches == [2, 3]
    assert used.train_dataloader is train
    assert used.val_dataloaders == [first, second]
    assert isinstance(used.optimizers[0], torch.optim.SGD)
    assert used.is_last_batch in (True, False)
    assert (used.world_size, used.global_rank, used.local_rank, used.node_rank) == (1, 0, 0, 0)
    assert used.is_global_zero
    assert used.num_devices == 1


def test_loggers_may_be_set_later() -> None:
    """`trainer.logger = ...`, as with Lightning."""
    used, logger = trainer(), CSVLogger("logs")
    used.logger = logger
    assert used.loggers == [logger]
    used.logger = None
    assert used.loggers == []
    used.loggers = [logger]
    assert used.logger is logger


def test_callbacks_by_kind() -> None:
    best, last = ModelCheckpoint("a", monitor="score"), ModelCheckpoint("b", save_last=True)
    stopping = EarlyStopping("score")
    used = trainer(callbacks=[best, stopping, last], max_time="01:00:00:00")
    assert used.checkpoint_callback is best
    assert used.checkpoint_callbacks == [best, last]
    assert used.early_stopping_callback is stopping
    assert [type(callback) for callback in used.callbacks] == [EarlyStopping, Timer, ModelCheckpoint, ModelCheckpoint]


def test_callbacks_that_the_module_brings() -> None:
    """One of the same kind that the Trainer was given is replaced."""

    class Brings(Scored):
        def configure_callbacks(self) -> Any:
            return [own]

    own, given = EarlyStopping("score", patience=1), EarlyStopping("score", patience=9)
    used = trainer(max_epochs=9, callbacks=[given])
    used.fit(Brings([1] * 9), loader(), loader())
    assert used.callbacks == [own]
    assert used.current_epoch == 2


def test_a_callback_that_joins_a_run() -> None:
    class Late(L.Callback):
        def on_train_epoch_start(self, trainer: Any, pl_module: Any) -> None:
            epochs.append(trainer.current_epoch)

    class Adds(Line):
        def on_train_epoch_end(self) -> None:
            if self.current_epoch == 0:
                self.trainer.callbacks.append(Late())

    epochs: list[int] = []
    trainer(max_epochs=3).fit(Adds(), loader())
    assert epochs == [1, 2]


@pytest.mark.parametrize(
    ("settings", "steps"),
    [
        ({"max_epochs": 3}, 12),
        ({"max_epochs": 3, "accumulate_grad_batches": 3}, 6),
        ({"max_epochs": 3, "max_steps": 7}, 7),
        ({"max_steps": 100}, 100),
        ({"max_epochs": 2, "limit_train_batches": 3}, 6),
        ({"max_epochs": -1}, float("inf")),
    ],
    ids=str,
)
def test_estimated_stepping_batches(settings: dict[str, Any], steps: float) -> None:
    """Read where it is needed: in `configure_optimizers`."""

    class Reads(Line):
        def configure_optimizers(self) -> Any:
            read.append(self.trainer.estimated_stepping_batches)
            return super().configure_optimizers()

        def training_step(self, batch: Any, batch_idx: int) -> Any:
            self.trainer.should_stop = True
            return super().training_step(batch, batch_idx)

    read: list[float] = []
    trainer(**settings).fit(Reads(), loader())
    assert read == [steps]


def test_estimated_stepping_batches_of_a_stream() -> None:
    class Reads(Line):
        def configure_optimizers(self) -> Any:
            read.append(self.trainer.estimated_stepping_batches)
            return super().configure_optimizers()

    read: list[float] = []
    trainer(max_epochs=2).fit(Reads(), stream())
    trainer(max_epochs=2, max_steps=5).fit(Reads(), stream())
    assert read == [float("inf"), 5]


def test_a_one_cycle_schedule_ends_where_it_should() -> None:
    class Cycle(Line):
        def training_step(self, batch: Any, batch_idx: int) -> Any:
            rates.append(self.trainer.optimizers[0].param_groups[0]["lr"])
            return super().training_step(batch, batch_idx)

        def configure_optimizers(self) -> Any:
            optimizer = torch.optim.SGD(self.parameters(), lr=0.1)
            total = int(self.trainer.estimated_stepping_batches)
            schedule = OneCycleLR(optimizer, max_lr=0.1, total_steps=total, final_div_factor=100)
            return [optimizer], [{"scheduler": schedule, "interval": "step"}]

    rates: list[float] = []
    trainer(max_epochs=5).fit(Cycle(), loader())
    assert len(rates) == 20
    assert rates[-1] == pytest.approx(0.1 / 25 / 100)


def test_a_module_sees_its_schedulers_and_optimizers() -> None:
    class Looks(Line):
        def training_step(self, batch: Any, batch_idx: int) -> Any:
            assert isinstance(self.optimizers(), torch.optim.SGD)
            rates.append(self.lr_schedulers().get_last_lr()[0])
            return self.loss(batch)

        def configure_optimizers(self) -> Any:
            optimizer = torch.optim.SGD(self.parameters(), lr=1.0)
            return {
                "optimizer": optimizer,
                "lr_scheduler": {"scheduler": LambdaLR(optimizer, lambda step: 1 / (1 + step)), "interval": "step"},
            }

    rates: list[float] = []
    trainer().fit(Looks(), loader())
    assert rates == [1, 1 / 2, 1 / 3, 1 / 4]


def test_printing(capsys: pytest.CaptureFixture[str]) -> None:

    class Prints(Line):
        def on_train_start(self) -> None:
            self.print("from the module", end="!")

    used = trainer()
    used.fit(Prints(), loader())
    used.print("from the trainer")
    assert capsys.readouterr().out == "from the module!from the trainer\n"


# -- how a run ends ---------------------------------------------------------------------------------------------------


class Notes(L.Callback):
    def __init__(self) -> None:
        self.ends: list[str] = []
        self.error: BaseException | None = None

    def on_exception(self, trainer: Any, pl_module: Any, exception: BaseException) -> None:
        self.error = exception

    def on_train_end(self, trainer: Any, pl_module: Any) -> None:
        self.ends.append("train")

    def teardown(self, trainer: Any, pl_module: Any, stage: str) -> None:
        self.ends.append(stage)


def test_an_error_is_seen_by_callbacks_and_the_trainer_can_be_used_again() -> None:
    class Breaks(Line):
        def training_step(self, batch: Any, batch_idx: int) -> Any:
            raise ValueError("the user's own")

    notes = Notes()
    used = trainer(callbacks=[notes])
    with pytest.raises(ValueError, match="the user's own") as caught:
        used.fit(Breaks(), loader())
    assert notes.error is caught.value
    assert notes.ends == []
    assert used.interrupted
    assert not used.training
    used.fit(Line(), loader())
    assert used.global_step == 4
    assert notes.ends == ["train", "fit"]
    assert not used.interrupted


def test_ctrl_c() -> None:
    """The signal itself: callbacks are told, and what was logged and learned so far is there."""

    class Interrupted(Line):
        def training_step(self, batch: Any, batch_idx: int) -> Any:
            if batch_idx == 2:
                os.kill(os.getpid(), signal.SIGINT)
            return super().training_step(batch, batch_idx)

    notes = Notes()
    used = trainer(callbacks=[notes])
    model = Interrupted()
    with pytest.raises(KeyboardInterrupt):
        used.fit(model, loader())
    assert isinstance(notes.error, KeyboardInterrupt)
    assert used.interrupted
    assert used.global_step == 3  # that of the batch at work
    used.save_checkpoint("interrupted.ckpt")
    assert torch.load("interrupted.ckpt", weights_only=True)["global_step"] == 3


def test_an_error_in_validation_puts_the_model_back_in_order() -> None:
    """Gradients and random numbers are as before, so that one may go on in a notebook."""

    class Breaks(Validated):
        def validation_step(self, batch: Any, batch_idx: int) -> None:
            raise ValueError("the user's own")

    with pytest.raises(ValueError, match="the user's own"):
        trainer().fit(Breaks(), loader(), loader())
    assert torch.is_grad_enabled()
    assert not torch.is_inference_mode_enabled()


# -- the odds and ends of training ------------------------------------------------------------------------------------


@pytest.mark.parametrize("algorithm", [None, "norm", "value"])
def test_gradients_are_clipped(algorithm: str | None) -> None:
    class Looks(Line):
        def on_train_batch_end(self, *arguments: Any) -> None:
            gradients = torch.cat([parameter.grad.flatten() for parameter in self.parameters()])
            sizes.append(float(gradients.abs().max() if algorithm == "value" else gradients.norm()))

    sizes: list[float] = []
    trainer(gradient_clip_val=0.01, gradient_clip_algorithm=algorithm).fit(Looks(), loader())
    assert sizes == pytest.approx([0.01] * 4, rel=1e-3)


def test_a_module_without_an_optimizer_runs() -> None:
    class Still(Line):
        def configure_optimizers(self) -> None:
            return None

    model = Still()
    before = weights(model)
    with pytest.warns(UserWarning, match="`configure_optimizers` returned None"):
        trainer().fit(model, loader())
    assert same(before, weights(model))


def test_two_optimizers_by_hand() -> None:
    """As a GAN is trained."""

    class Two(L.Module):
        def __init__(self) -> None:
            super().__init__()
            self.automatic_optimization = False
            self.a, self.b = nn.Linear(4, 1), nn.Linear(4, 1)

        def training_step(self, batch: Any, batch_idx: int) -> None:
            first, second = self.optimizers()
            for optimizer, net in ((first, self.a), (second, self.b)):
                self.toggle_optimizer(optimizer)
                optimizer.zero_grad()
                loss = net(batch[0]).square().mean()
                self.manual_backward(loss)
                optimizer.step()
                self.untoggle_optimizer(optimizer)
            self.log("loss", loss)

        def configure_optimizers(self) -> Any:
            return torch.optim.SGD(self.a.parameters(), lr=0.1), torch.optim.Adam(self.b.parameters(), lr=0.1)

    model = Two()
    before = weights(model)
    used = trainer()
    used.fit(model, loader())
    assert used.global_step == 8
    assert not any(torch.equal(before[name], value) for name, value in weights(model).items())
    assert all(parameter.requires_grad for parameter in model.parameters())


def test_lbfgs() -> None:
    class Second(Line):
        def configure_optimizers(self) -> Any:
            return torch.optim.LBFGS(self.parameters(), max_iter=5)

    model = Second()
    whole = loader(1, 8)
    before = model.loss(dataset(8).tensors).item()
    trainer(max_epochs=3).fit(model, whole)
    assert model.loss(dataset(8).tensors).item() < before / 100


def test_accumulation_is_a_larger_batch() -> None:
    """Four batches of two in one step are one batch of eight, to rounding."""
    start = Line()
    found = []
    for data, every in ((loader(4, 2), 4), (loader(1, 8), 1)):
        model = Line()
        model.load_state_dict(start.state_dict())
        trainer(max_epochs=5, accumulate_grad_batches=every).fit(model, data)
        found.append(model.net.weight)
    torch.testing.assert_close(found[0], found[1])


def test_layers_made_in_configure_model_are_trained() -> None:
    class Late(Line):
        def __init__(self) -> None:
            super().__init__()
            del self.net

        def configure_model(self) -> None:
            if not hasattr(self, "net"):
                self.net = nn.Linear(4, 1)

    model, used = Late(), trainer()
    used.fit(model, loader())
    used.test(model, loader())
    assert used.optimizers[0].param_groups[0]["params"][0] is model.net.weight


def test_a_metric_that_is_missing_for_a_plateau() -> None:
    class Plateau(Line):
        def configure_optimizers(self) -> Any:
            optimizer = torch.optim.SGD(self.parameters(), lr=0.1)
            scheduler = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, patience=0)
            return {
                "optimizer": optimizer,
                "lr_scheduler": {"scheduler": scheduler, "monitor": "missing", "strict": strict},
            }

    strict = False
    with pytest.warns(UserWarning, match="watches 'missing', which was not logged"):
        trainer().fit(Plateau(), loader())
    strict = True
    with pytest.raises(MisconfigurationException, match="watches 'missing', which was not logged"):
        trainer().fit(Plateau(), loader())


def test_training_where_gradients_are_off() -> None:
    """A notebook that says torch.set_grad_enabled(False) at its top trains all the same, and keeps its setting."""
    with torch.no_grad():
        used = trainer()
        used.fit(Validated(), loader(), loader())
        assert not torch.is_grad_enabled()
    assert used.global_step == 4


def test_deterministic_algorithms() -> None:
    try:
        trainer(deterministic=True)
        assert torch.are_deterministic_algorithms_enabled()
        trainer(deterministic="warn")
        assert torch.is_deterministic_algorithms_warn_only_enabled()
    finally:
        torch.use_deterministic_algorithms(False)
        os.environ.pop("CUBLAS_WORKSPACE_CONFIG", None)


def test_an_anomaly_is_named() -> None:
    class Anomalous(Line):
        def training_step(self, batch: Any, batch_idx: int) -> Any:
            return torch.sqrt(self.loss(batch) * 0 - 0.0) * 0

    with pytest.warns(UserWarning, match="Error detected in"), pytest.raises(RuntimeError, match="returned nan"):
        trainer(detect_anomaly=True).fit(Anomalous(), loader())
    assert not torch.is_anomaly_enabled()

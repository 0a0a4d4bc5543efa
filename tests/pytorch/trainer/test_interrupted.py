"""A run that ends by an error or by Ctrl+C: nothing of it is lost, hidden or left behind."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import gpulayer.pytorch as L
from gpulayer.pytorch.callbacks import ModelCheckpoint
from gpulayer.pytorch.loggers import CSVLogger
from tests.pytorch.models import FEATURES, Line, Validated, loader, same, stream, trainer, weights

# -- the last batch of an epoch ---------------------------------------------------------------------------------------


class Breaks(Line):
    """Breaks off in batch 3, the last, of epoch 1; the batches that it finished are in `done`."""

    def __init__(self, hook: str = "", error: BaseException | None = None) -> None:
        super().__init__()
        self.hook, self.error = hook, error
        self.done: list[tuple[int, int]] = []

    def may_break(self, hook: str, batch_idx: int) -> None:
        if hook == self.hook and (self.current_epoch, batch_idx) == (1, 3):
            if self.error is None:
                self.trainer.save_checkpoint("saved/broken.ckpt")
            else:
                raise self.error

    def on_train_batch_start(self, batch: Any, batch_idx: int) -> None:
        self.may_break("on_train_batch_start", batch_idx)

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        self.may_break("training_step", batch_idx)
        self.done.append((self.current_epoch, batch_idx))
        return super().training_step(batch, batch_idx)

    def on_before_optimizer_step(self, optimizer: Any) -> None:
        self.may_break("on_before_optimizer_step", len(self.done) - 5)


INTERRUPTIONS = [
    ("on_train_batch_start", KeyboardInterrupt()), ("training_step", KeyboardInterrupt()),
    ("training_step", ValueError("the user's own")), ("on_before_optimizer_step", ValueError("the user's own")),
    ("on_train_batch_start", None),
]  # fmt: skip


@pytest.mark.filterwarnings("ignore:The run goes on in mid-epoch with a DataLoader that cannot be told where to begin")
@pytest.mark.parametrize("data", [loader, stream])
@pytest.mark.parametrize(("hook", "error"), INTERRUPTIONS, ids=lambda value: str(value) or "KeyboardInterrupt")
def test_the_last_batch_of_an_epoch_is_run_after_resuming(
    hook: str, error: BaseException | None, data: Callable[[], Any]
) -> None:
    """It was not finished, so it is not counted; the weights are in the end those of a run that nobody broke off."""
    whole, broken, resumed = Breaks(), Breaks(hook, error), Breaks()
    broken.load_state_dict(whole.state_dict())
    trainer(max_epochs=3).fit(whole, data())
    savers = [ModelCheckpoint("saved", "broken", save_on_exception=True, every_n_epochs=9) for _ in range(2)]
    first = trainer(max_epochs=3 if error else 2, callbacks=savers[:1])
    if error is None:
        first.fit(broken, data())
    else:
        with pytest.raises(type(error)):
            first.fit(broken, data())
    second = trainer(max_epochs=3, callbacks=savers[1:])
    second.fit(resumed, data(), ckpt_path="saved/broken.ckpt")
    assert resumed.done == [(1, 3), (2, 0), (2, 1), (2, 2), (2, 3)]
    assert (second.current_epoch, second.global_step) == (3, 12)
    assert same(weights(resumed), weights(whole))


class Plateau(Validated):
    """Its scheduler watches the validation. It may be interrupted in a hook of epoch 1, from some step on."""

    def __init__(self, hook: str = "", step: int = 0) -> None:
        super().__init__()
        self.done: list[tuple[int, int]] = []
        if hook:
            setattr(self, hook, partial(self.interrupt, step))

    def interrupt(self, step: int, *_: Any) -> None:
        if self.current_epoch == 1 and self.global_step >= step:
            raise KeyboardInterrupt

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        self.done.append((self.current_epoch, batch_idx))
        return super().training_step(batch, batch_idx)

    def configure_optimizers(self) -> Any:
        optimizer = super().configure_optimizers()
        scheduler = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, factor=0.5, patience=0)
        return {"optimizer": optimizer, "lr_scheduler": scheduler, "monitor": "val_loss"}


BEFORE = (
    "on_train_batch_start on_before_zero_grad on_before_backward on_after_backward on_before_optimizer_step"
).split()
AFTER = "on_train_batch_end on_validation_start on_validation_batch_end on_validation_end".split()
MOMENTS = [
    ("on_train_epoch_start", 4), *product(BEFORE, (4, 7)), *product(AFTER, (5, 8)), ("on_train_epoch_end", 8),
]  # fmt: skip


@pytest.mark.parametrize(("hook", "step"), MOMENTS)
def test_wherever_a_run_is_interrupted_no_batch_is_lost_or_repeated(hook: str, step: int) -> None:
    """In the first batch of epoch 1 or in its last one: both runs together do what one would have done."""

    def run(model: Plateau, **arguments: Any) -> L.Trainer:
        saver = ModelCheckpoint("saved", "broken", save_on_exception=True, every_n_epochs=9)
        interval = 1 if "validation" in hook else 1.0
        used = trainer(max_epochs=3, val_check_interval=interval, callbacks=[saver])
        used.fit(model, loader(), loader(), **arguments)
        return used

    whole, first, second = Plateau(), Plateau(hook, step), Plateau()
    first.load_state_dict(whole.state_dict())
    with pytest.raises(KeyboardInterrupt):
        run(first)
    again = run(second, ckpt_path="saved/broken.ckpt")
    run(whole)
    assert first.done[:step] + second.done == whole.done
    assert (again.current_epoch, again.global_step) == (3, 12)
    assert same(weights(second), weights(whole))


# -- fit again --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("other_module", [False, True])
@pytest.mark.parametrize("place", ["training_step", "validation_step", "on_train_epoch_end"])
def test_the_next_fit_starts_the_epoch_at_its_first_batch(place: str, other_module: bool) -> None:
    def method(self: Any, *arguments: Any) -> Any:
        if fails and self.current_epoch == 1 and (place == "on_train_epoch_end" or arguments[1] == 1):
            raise ValueError("the user's own")
        return getattr(super(kind, self), place)(*arguments)

    def note(self: Any, batch: Any, batch_idx: int) -> None:
        seen.append((self.current_epoch, batch_idx))

    kind = type("Fails", (Validated,), {place: method, "on_train_batch_start": note})
    fails, seen = True, list[tuple[int, int]]()
    model, used = kind(), trainer(max_epochs=3, val_check_interval=0.5)
    with pytest.raises(ValueError, match="the user's own"):
        used.fit(model, loader(), loader())
    fails = False
    seen.clear()
    used.fit(kind() if other_module else model, loader(), loader())
    assert seen == [(epoch, batch) for epoch in (1, 2) for batch in range(4)]
    assert used.current_epoch == 3


# -- a checkpoint of the end of a validation --------------------------------------------------------------------------


class Shuffled(Validated):
    """Dropout, momentum, and a scheduler."""

    def __init__(self) -> None:
        super().__init__(lr=0.001)
        self.net = nn.Sequential(nn.Linear(FEATURES, 8), nn.Dropout(0.5), nn.Linear(8, 1))  # type: ignore[assignment]

    def validation_step(self, batch: Any, batch_idx: int) -> Any:
        torch.rand(batch_idx + 1)  # a validation that draws random numbers
        return super().validation_step(batch, batch_idx)

    def configure_optimizers(self) -> Any:
        optimizer = super().configure_optimizers()
        return [optimizer], [torch.optim.lr_scheduler.StepLR(optimizer, 1, gamma=0.5)]


HOOKS = ["on_validation_start", "on_validation_batch_end", "on_validation_epoch_end", "on_validation_end"]


@pytest.mark.parametrize("owner", ["module", "callback"])
@pytest.mark.parametrize("hook", HOOKS)
def test_a_checkpoint_written_in_a_validation_resumes_exactly(hook: str, owner: str) -> None:
    def save(self: Any, *_: Any) -> None:
        if used.current_epoch == 1 and not used.sanity_checking:
            used.save_checkpoint("middle.ckpt")

    base: type = Shuffled if owner == "module" else L.Callback
    saves = type("Saves", (base,), {hook: save})()
    whole = saves if owner == "module" else Shuffled()
    data = loader(4, shuffle=True)
    used = trainer(max_epochs=4, num_sanity_val_steps=2, callbacks=[] if owner == "module" else [saves])
    used.fit(whole, data, loader())
    torch.manual_seed(99)
    again, resumed = trainer(max_epochs=4, num_sanity_val_steps=2), Shuffled()
    again.fit(resumed, data, loader(), ckpt_path="middle.ckpt")
    assert (again.current_epoch, again.global_step) == (4, 16)
    assert same(weights(resumed), weights(whole))
    assert again.lr_scheduler_configs[0].scheduler.last_epoch == 4


# -- modes ------------------------------------------------------------------------------------------------------------


class Parts(Validated):
    """A frozen part in evaluation mode, of which one child is in training mode; breaks off while evaluating."""

    def __init__(self, error: BaseException) -> None:
        super().__init__()
        self.frozen = nn.Sequential(nn.BatchNorm1d(FEATURES), nn.Dropout(0.5)).eval()
        self.frozen[1].train()
        self.error = error

    def modes(self) -> list[bool]:
        return [part.training for part in self.modules()]

    def break_off(self, *_: Any) -> None:
        assert not any(self.modes())
        raise self.error

    validation_step = test_step = predict_step = break_off  # type: ignore[assignment]


CALLS: dict[str, Callable[[L.Trainer, L.Module], Any]] = {
    "fit": lambda used, model: used.fit(model, loader(), loader()),
    "sanity check": lambda used, model: used.fit(model, loader(), loader()),
    "validate": lambda used, model: used.validate(model, loader()),
    "test": lambda used, model: used.test(model, loader()),
    "predict": lambda used, model: used.predict(model, loader()),
}


@pytest.mark.parametrize("error", [ValueError("the user's own"), KeyboardInterrupt()], ids=["error", "Ctrl+C"])
@pytest.mark.parametrize("call", CALLS)
def test_each_part_is_back_in_its_own_mode(call: str, error: BaseException) -> None:
    model = Parts(error)
    before = model.modes()
    with pytest.raises(type(error)):
        CALLS[call](trainer(num_sanity_val_steps=2 * (call == "sanity check")), model)
    assert model.modes() == before == [True, True, False, False, True]
    assert torch.is_grad_enabled()
    assert not torch.is_inference_mode_enabled()


# -- telling of the error ---------------------------------------------------------------------------------------------


class Told(L.Callback):
    """Notes the error it is told of, and fails then, if it is to."""

    def __init__(self, failure: Exception | None = None) -> None:
        self.failure = failure
        self.errors: list[BaseException] = []

    def on_exception(self, trainer: Any, pl_module: Any, exception: BaseException) -> None:
        self.errors.append(exception)
        if self.failure is not None:
            raise self.failure


class Ends(CSVLogger):
    """Notes how it was finalized."""

    def __init__(self, failure: Exception | None = None) -> None:
        super().__init__("logs")
        self.failure = failure
        self.ends: list[str] = []

    def finalize(self, status: str) -> None:
        super().finalize(status)
        self.ends.append(status)
        if self.failure is not None:
            raise self.failure


class Data(L.DataModule):
    def __init__(self) -> None:
        super().__init__()
        self.errors: list[BaseException] = []

    def train_dataloader(self) -> Any:
        return loader()

    def on_exception(self, exception: BaseException) -> None:
        self.errors.append(exception)


@pytest.mark.parametrize("error", [ValueError("the user's own"), KeyboardInterrupt()], ids=["error", "Ctrl+C"])
def test_a_callback_that_fails_hides_nothing(error: BaseException, caplog: pytest.LogCaptureFixture) -> None:
    """The user's error arrives as it is; the other callbacks, the data and the loggers hear of it; both are shown."""

    class Fails(Line):
        def training_step(self, batch: Any, batch_idx: int) -> Any:
            if batch_idx == 1:  # at step 0 there is nothing to save
                raise error
            return super().training_step(batch, batch_idx)

    told = [Told(), Told(RuntimeError("of a callback")), Told()]
    loggers, data = [Ends(OSError("of a logger")), Ends()], Data()
    saver = ModelCheckpoint("saved", "kept", save_on_exception=True)
    used = trainer(callbacks=[*told, saver], logger=loggers)
    with pytest.raises(type(error)) as caught:
        used.fit(Fails(), datamodule=data)
    assert caught.value is error
    assert (error.__cause__, error.__context__) == (None, None)
    assert [callback.errors for callback in told] == [[error]] * 3
    assert data.errors == [error]
    assert [logger.ends for logger in loggers] == [["failed"]] * 2
    assert Path("saved/kept.ckpt").is_file()
    assert "RuntimeError: of a callback" in caplog.text
    assert "OSError: of a logger" in caplog.text


def test_loggers_are_finalized_once_with_how_the_run_ended() -> None:
    logger = Ends()
    used = trainer(logger=logger)
    used.fit(Line(), loader())
    assert logger.ends == ["success"]

"""What hooks change on the Trainer while it runs, and hooks with signatures of their own."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.optim.lr_scheduler import StepLR

import gpulayer.pytorch as L
from gpulayer.fabric.utilities.exceptions import MisconfigurationException
from tests.pytorch.models import Line, Validated, loader, same, stream, trainer, weights

# -- other optimizers -------------------------------------------------------------------------------------------------


class Replaces(Line):
    """Replaces its optimizer after the second batch."""

    def on_train_batch_end(self, outputs: Any, batch: Any, batch_idx: int) -> None:
        if batch_idx == 1:
            self.after_two = weights(self)
            self.trainer.optimizers = [torch.optim.SGD(self.parameters(), lr=0.0)]


def test_another_optimizer_is_stepped_from_the_next_batch_on() -> None:
    model, used = Replaces(), trainer()
    before = weights(model)
    used.fit(model, loader())
    assert not same(model.after_two, before)
    assert same(weights(model), model.after_two)
    assert used.global_step == 4
    assert used.optimizers == [model.optimizers().optimizer]
    used.save_checkpoint("kept.ckpt")
    assert torch.load("kept.ckpt")["optimizer_states"][0]["param_groups"][0]["lr"] == 0.0


def test_one_that_is_wrapped_already() -> None:
    """It is counted and hooked once."""

    class Rewraps(Line):
        steps = 0

        def on_train_start(self) -> None:
            self.trainer.optimizers = [self.optimizers()]

        def optimizer_step(self, *args: Any) -> None:
            super().optimizer_step(*args)

        def on_before_optimizer_step(self, optimizer: Any) -> None:
            self.steps += 1

    model, used = Rewraps(), trainer()
    used.fit(model, loader())
    assert type(used.optimizers[0]) is torch.optim.SGD
    assert (model.steps, used.global_step) == (4, 4)


def test_other_optimizers_in_manual_optimization() -> None:
    class Manual(Line):
        def __init__(self) -> None:
            super().__init__()
            self.automatic_optimization = False

        def on_train_start(self) -> None:
            self.trainer.optimizers = [torch.optim.SGD([one], lr=0.1) for one in self.parameters()]

        def training_step(self, batch: Any, batch_idx: int) -> None:
            first, second = self.optimizers()
            self.manual_backward(self.loss(batch))
            first.step()
            second.step()

    used = trainer()
    used.fit(Manual(), loader())
    assert used.global_step == 8


def test_two_optimizers_for_a_loop_that_steps_one() -> None:
    class Two(Line):
        def on_train_start(self) -> None:
            self.trainer.optimizers = [self.configure_optimizers(), self.configure_optimizers()]

    with pytest.raises(MisconfigurationException, match="was set to 2 optimizers: give a list of one"):
        trainer().fit(Two(), loader())


def test_optimizers_before_there_is_a_fit() -> None:
    with pytest.raises(MisconfigurationException, match="return the first ones from `configure_optimizers`"):
        trainer().optimizers = []


@pytest.mark.parametrize("outer", [False, True], ids=["of the optimizer", "of what the module sees"])
def test_a_step_of_ones_own(outer: bool) -> None:
    class Patches(Line):
        calls = 0

        def on_train_start(self) -> None:
            optimizer = self.optimizers() if outer else self.trainer.optimizers[0]
            step = optimizer.step

            def own(*args: Any, **kwargs: Any) -> Any:
                self.calls += 1
                return step(*args, **kwargs)

            optimizer.step = own

    model, plain = Patches(), Line()
    plain.load_state_dict(model.state_dict())
    for one in (model, plain):
        trainer().fit(one, loader())
    assert model.calls == 4
    assert same(weights(model), weights(plain))


# -- other settings ---------------------------------------------------------------------------------------------------


def test_a_bound_that_cannot_be_used() -> None:
    with pytest.raises(MisconfigurationException, match="gradient_clip_val"):
        trainer().gradient_clip_val = "much"  # type: ignore[assignment]


def test_accumulation_changed_within_an_epoch_holds_from_the_next_on() -> None:
    """Lightning counts new windows at once, which adds the gradients of a finished step once more."""

    class Changes(Line):
        def __init__(self) -> None:
            super().__init__()
            self.steps: list[int] = []

        def on_train_batch_start(self, batch: Any, batch_idx: int) -> None:
            if batch_idx == 1:
                self.trainer.accumulate_grad_batches = 2

        def on_train_epoch_end(self) -> None:
            self.steps.append(self.global_step)

    model = Changes()
    trainer(max_epochs=2).fit(model, loader())
    assert model.steps == [4, 6]


def test_a_schedule_of_accumulation() -> None:
    """As GradientAccumulationScheduler sets it."""

    class Schedule(L.Callback):
        def on_train_epoch_start(self, trainer: Any, pl_module: Any) -> None:
            trainer.accumulate_grad_batches = {0: 1, 1: 2, 2: 4}[trainer.current_epoch]

    used = trainer(max_epochs=3, callbacks=[Schedule()])
    used.fit(Line(), loader())
    assert used.global_step == 4 + 2 + 1


# -- what hooks see ---------------------------------------------------------------------------------------------------


def test_hooks_before_a_validation_know_that_it_validates() -> None:
    class Looks(Validated):
        def __init__(self) -> None:
            super().__init__()
            self.stages: list[Any] = []

        def on_validation_model_zero_grad(self) -> None:
            self.stages.append(("zero_grad", self.trainer.validating))

        def on_validation_start(self) -> None:
            self.stages.append(("start", self.trainer.validating))

        def on_train_epoch_end(self) -> None:
            self.stages.append(("end", self.trainer.training))

    model = Looks()
    trainer().fit(model, loader(), loader())
    assert model.stages == [("zero_grad", True), ("start", True), ("end", True)]


def test_nothing_is_logged_before_a_validation_begins() -> None:
    class Logs(Validated):
        def on_validation_model_zero_grad(self) -> None:
            self.log("a", 1.0)

    with pytest.raises(MisconfigurationException, match=r"`self.log\('a', ...\)` cannot be called outside the hooks"):
        trainer().fit(Logs(), loader(), loader())


def test_setup_and_teardown_are_told_the_stage_by_name() -> None:
    told: list[Any] = []

    def note(*_: Any, **kwargs: Any) -> None:
        told.append(kwargs)

    names = {"setup": note, "teardown": note}
    module = type("Module", (Line,), names)()
    data = type("Data", (L.DataModule,), {**names, "train_dataloader": lambda self: loader()})()
    trainer(callbacks=[type("Called", (L.Callback,), names)()]).fit(module, datamodule=data)
    assert told == [{"stage": "fit"}] * 6


def test_scheduler_moves_of_an_epoch_in_a_checkpoint() -> None:
    """Beside those of the run; also where the epoch is resumed in its middle."""

    class Scheduled(Line):
        def configure_optimizers(self) -> Any:
            optimizer = super().configure_optimizers()
            return [optimizer], [{"scheduler": StepLR(optimizer, 10), "interval": "step"}]

        def on_train_batch_end(self, outputs: Any, batch: Any, batch_idx: int) -> None:
            if self.global_step == 6:
                self.trainer.save_checkpoint("middle.ckpt")

        def on_train_epoch_end(self) -> None:
            self.trainer.save_checkpoint("end.ckpt")

    def moves(path: str) -> tuple[int, int]:
        progress = torch.load(path)["loops"]["fit_loop"]["epoch_loop.scheduler_progress"]
        return progress["total"]["completed"], progress["current"]["completed"]

    trainer(max_epochs=2).fit(Scheduled(), loader())
    assert (moves("middle.ckpt"), moves("end.ckpt")) == ((6, 2), (8, 4))
    trainer(max_epochs=2).fit(Scheduled(), loader(), ckpt_path="middle.ckpt")
    assert moves("end.ckpt") == (8, 4)


# -- how often it validates -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("settings", "train", "expected"),
    [
        ({}, loader(), 4),
        ({"val_check_interval": 0.5}, loader(), 2),
        ({"val_check_interval": 3}, loader(), 3),
        ({"val_check_interval": 0.5, "limit_train_batches": 2}, stream(), 1),
        ({}, stream(), float("inf")),
        ({"val_check_interval": "00:00:00:01"}, loader(), None),
    ],
    ids=lambda value: str(value).partition(" at 0x")[0],
)
def test_val_check_batch(settings: dict[str, Any], train: Any, expected: float | None) -> None:
    used = trainer(**settings)
    assert used.val_check_batch is None
    used.fit(Validated(), train, loader())
    assert used.val_check_batch == expected

"""Callbacks written for version 0.7: `on_train_batch_end(trainer, model, loss, batch_idx)`."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

import gpulayer.pytorch as L
from tests.pytorch.models import Line, loader, stream, trainer


class Old(L.Callback):
    def __init__(self) -> None:
        self.losses: list[Any] = []
        self.batches: list[int] = []

    def on_train_batch_end(self, trainer: Any, model: Any, loss: Any, batch_idx: int) -> None:  # type: ignore[override]
        assert trainer.global_step == model.global_step
        self.losses.append(loss)
        self.batches.append(batch_idx)


class New(L.Callback):
    def __init__(self) -> None:
        self.losses: list[Any] = []
        self.batches: list[int] = []

    def on_train_batch_end(self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        assert isinstance(batch[0], Tensor)
        self.losses.append(None if outputs is None else outputs.get("loss"))
        self.batches.append(batch_idx)


class Returns(Line):
    """Returns its loss in one of the forms."""

    def __init__(self, form: str) -> None:
        super().__init__()
        self.form = form

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        loss = super().training_step(batch, batch_idx)
        return {"tensor": loss, "dict": {"loss": loss, "more": 1}, "none": None}[self.form]


@pytest.mark.filterwarnings("ignore:`training_step` returned None")
@pytest.mark.parametrize("settings", [{}, {"accumulate_grad_batches": 3}, {"precision": "bf16-mixed"}], ids=str)
@pytest.mark.parametrize("form", ["tensor", "dict", "none"])
def test_it_gets_the_loss_and_no_batch(form: str, settings: dict[str, Any]) -> None:
    """The same loss, in the same moments, that a newer callback finds in the outputs."""
    old, new = Old(), New()
    trainer(callbacks=[old, new], **settings).fit(Returns(form), loader())
    assert old.batches == new.batches == [0, 1, 2, 3]
    if form == "none":
        assert old.losses == new.losses == [None] * 4
        return
    assert all(isinstance(loss, Tensor) and not loss.requires_grad for loss in old.losses)
    assert torch.equal(torch.stack(old.losses), torch.stack(new.losses))


def test_other_names_and_a_stream() -> None:
    class Named(L.Callback):
        def on_train_batch_end(self, runner: Any, net: Any, value: Any, i: int) -> None:  # type: ignore[override]
            seen.append((float(value) > 0, i))

    seen: list[Any] = []
    trainer(callbacks=[Named()]).fit(Line(), stream(2))
    assert seen == [(True, 0), (True, 1)]


def test_newer_ones_that_look_alike() -> None:
    """What takes any arguments, or a fifth one with a default, gets all."""

    class Any_(L.Callback):
        def on_train_batch_end(self, *arguments: Any) -> None:
            seen.append(len(arguments))

    class Default(L.Callback):
        def on_train_batch_end(
            self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int = -1
        ) -> None:
            seen.append(batch_idx)

    seen: list[int] = []
    trainer(callbacks=[Any_(), Default()]).fit(Line(), loader(2))
    assert seen == [5, 0, 5, 1]


def test_in_manual_optimization() -> None:
    class Manual(Returns):
        def __init__(self, form: str) -> None:
            super().__init__(form)
            self.automatic_optimization = False

    for form in ("tensor", "none"):
        old = Old()
        trainer(callbacks=[old]).fit(Manual(form), loader(2))
        assert old.batches == [0, 1]
        assert [loss is None for loss in old.losses] == [form == "none"] * 2


def test_an_old_callback_that_a_module_brings() -> None:
    class Brings(Line):
        def configure_callbacks(self) -> Any:
            return [old]

    old = Old()
    trainer().fit(Brings(), loader())
    assert old.batches == [0, 1, 2, 3]

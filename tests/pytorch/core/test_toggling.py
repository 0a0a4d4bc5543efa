"""Which parameters require gradients: freezing, and toggling between optimizers that share some."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

import gpulayer.pytorch as L
from tests.pytorch.models import FEATURES, Line, loader, same, trainer, weights

# -- freezing ---------------------------------------------------------------------------------------------------------


class Stacked(Line):
    """A backbone under the line."""

    def __init__(self) -> None:
        super().__init__()
        self.backbone = nn.Sequential(nn.Linear(FEATURES, FEATURES), nn.BatchNorm1d(FEATURES))

    def forward(self, x: Any) -> Any:
        return super().forward(self.backbone(x))


def test_freezing_reaches_every_part() -> None:
    model = Stacked()
    model.freeze()
    assert not any(parameter.requires_grad for parameter in model.parameters())
    assert not any(part.training for part in model.modules())
    model.unfreeze()
    assert all(parameter.requires_grad for parameter in model.parameters())
    assert all(part.training for part in model.modules())


def test_a_frozen_backbone_stays_as_it_is() -> None:
    """Its weights, and, in evaluation mode, its statistics."""

    class Frozen(L.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = Stacked()
            self.inner.freeze()
            self.head = nn.Linear(1, 1)

        def training_step(self, batch: Any, batch_idx: int) -> Any:
            return nn.functional.mse_loss(self.head(self.inner(batch[0])), batch[1])

        def configure_optimizers(self) -> Any:
            return torch.optim.SGD(self.parameters(), lr=0.05)

    model = Frozen()
    inner, head = weights(model.inner), weights(model.head)
    trainer(max_epochs=2).fit(model, loader())
    assert same(weights(model.inner), inner)
    assert not same(weights(model.head), head)
    assert not model.inner.training
    assert model.training


def test_one_that_is_frozen_whole_predicts() -> None:
    model = Line()
    model.freeze()
    assert len(trainer().predict(model, loader()) or []) == 4
    assert not model.training


# -- toggling ---------------------------------------------------------------------------------------------------------

NAMES = ("shared", "one", "two", "frozen")


class Shares(L.Module):
    """Two optimizers: one of `shared` and `one`, one of `shared`, `two` and `frozen`, which needs no gradients."""

    def __init__(self) -> None:
        super().__init__()
        self.automatic_optimization = False
        for name in NAMES:
            setattr(self, name, nn.Parameter(torch.ones(()), requires_grad=name != "frozen"))
        self.failed: list[BaseException] = []

    def required(self) -> set[str]:
        return {name for name, parameter in self.named_parameters() if parameter.requires_grad}

    def configure_optimizers(self) -> Any:
        one = torch.optim.SGD([self.shared, self.one], lr=0.1)
        return one, torch.optim.SGD([self.shared, self.two, self.frozen], lr=0.1)


ALL = {"shared", "one", "two"}
ONE, TWO = {"shared", "one"}, {"shared", "two"}


def run(step: Callable[[Shares, Any, Any], None], wrapped: bool = True) -> Shares:
    """Fit with `step(model, one, two)` as the training step."""

    class Steps(Shares):
        def training_step(self, batch: Any, batch_idx: int) -> None:
            assert self.required() == ALL
            step(self, *self.optimizers(use_pl_optimizer=wrapped))

    model = Steps()
    trainer(max_steps=-1, limit_train_batches=2).fit(model, loader())
    assert model.required() == ALL
    return model


@pytest.mark.parametrize("wrapped", [True, False])
def test_only_the_parameters_of_one_optimizer(wrapped: bool) -> None:
    """What both share stays on for both; what needed no gradients before needs none afterwards."""

    def step(model: Shares, one: Any, two: Any) -> None:
        for optimizer, required in ((one, ONE), (two, TWO), (one, ONE)):
            model.toggle_optimizer(optimizer)
            assert model.required() == required
            model.untoggle_optimizer(optimizer)
            assert model.required() == ALL

    run(step, wrapped)


def test_toggled_for_a_block() -> None:
    def step(model: Shares, one: Any, two: Any) -> None:
        for optimizer, required in ((one, ONE), (two, TWO)):
            with model.toggled_optimizer(optimizer):
                assert model.required() == required
            assert model.required() == ALL

    run(step)


def test_an_error_in_the_block_undoes_it() -> None:
    def step(model: Shares, one: Any, two: Any) -> None:
        with pytest.raises(KeyError), model.toggled_optimizer(one):
            raise KeyError
        assert model.required() == ALL

    run(step)


def test_one_within_the_other() -> None:
    """Only what both have is left; each undoes what it did."""

    def step(model: Shares, one: Any, two: Any) -> None:
        with model.toggled_optimizer(one):
            with model.toggled_optimizer(two):
                assert model.required() == {"shared"}
            assert model.required() == ONE

    run(step)


def test_gradients_and_steps() -> None:
    """The others get no gradients, so their optimizer leaves them as they are."""

    def step(model: Shares, one: Any, two: Any) -> None:
        with model.toggled_optimizer(one):
            model.manual_backward(model.shared * model.one * model.two * model.frozen)
            assert model.two.grad is None
            assert model.frozen.grad is None
            one.step()
            one.zero_grad()

    model = run(step)
    assert (model.two.item(), model.frozen.item()) == (1.0, 1.0)
    assert model.one.item() < 1
    assert model.shared.item() < 1


def test_changes_made_meanwhile_by_the_user_last() -> None:
    """A parameter of the toggled optimizer that is frozen within the block stays frozen."""

    def step(model: Shares, one: Any, two: Any) -> None:
        with model.toggled_optimizer(one):
            model.one.requires_grad = False
        assert model.required() == ALL - {"one"}
        model.one.requires_grad = True

    run(step)


def test_a_single_optimizer() -> None:
    class Single(Line):
        def __init__(self) -> None:
            super().__init__()
            self.automatic_optimization = False

        def training_step(self, batch: Any, batch_idx: int) -> None:
            optimizer = self.optimizers()
            with self.toggled_optimizer(optimizer):
                optimizer.zero_grad()
                self.manual_backward(self.loss(batch))
                optimizer.step()

    used = trainer()
    used.fit(Single(), loader())
    assert used.global_step == 4


def test_outside_a_run() -> None:
    model = Shares()
    with pytest.raises(RuntimeError, match=r"`toggle_optimizer\(\)` works only during a Trainer's run"):
        model.toggle_optimizer(model.configure_optimizers()[0])
    assert model.required() == ALL

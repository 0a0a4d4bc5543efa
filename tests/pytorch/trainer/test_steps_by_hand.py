"""Manual optimization computes with the weights and gradients of this moment."""

from __future__ import annotations

from typing import Any

import torch

from tests.pytorch.models import Line, loader, trainer


class ByHand(Line):
    """Steps in the middle of a step, and computes the loss again."""

    def __init__(self) -> None:
        super().__init__()
        self.automatic_optimization = False
        self.losses: list[tuple[float, float]] = []
        self.first_gradient: torch.Tensor | None = None

    def training_step(self, batch: Any, batch_idx: int) -> None:
        optimizer = self.optimizers()
        if batch_idx == 0:
            self.first_gradient = self.net.weight.grad
        optimizer.zero_grad()
        before = self.loss(batch)
        self.manual_backward(before)
        optimizer.step()
        self.losses.append((before.item(), self.loss(batch).item()))


def test_a_pass_after_a_step_sees_the_new_weights() -> None:
    """autocast would otherwise keep the cast weights of before, and the loss would be the same once more."""
    model = ByHand()
    trainer(precision="bf16-mixed").fit(model, loader())
    assert all(before != after for before, after in model.losses)


def test_gradients_of_before_are_gone() -> None:
    model = ByHand()
    model.net(torch.ones(1, 4)).sum().backward()
    trainer().fit(model, loader())
    assert model.first_gradient is None

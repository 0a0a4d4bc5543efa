"""16-mixed in the Trainer: the scaler, and manual optimization with it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import gpulayer.pytorch as L
from gpulayer.fabric.precision import MixedPrecision
from gpulayer.fabric.utilities.exceptions import MisconfigurationException
from tests.pytorch.models import FEATURES, Line, loader, same, stream, trainer, weights

# -- the scaler --------------------------------------------------------------------------------------------------------

SCALE = 256.0  # small enough for the first gradients of these models; the default, 65536, would be halved first


def float16() -> MixedPrecision:
    """16-mixed with that scale."""
    return MixedPrecision("16-mixed", "cpu", torch.amp.GradScaler("cpu", init_scale=SCALE))


class Spoiled(Line):
    """Some batches have gradients that are not finite; its scheduler halves the rate at each step."""

    def __init__(self, *spoiled: int) -> None:
        super().__init__()
        self.spoiled = spoiled
        self.after: list[dict[str, Tensor]] = []

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        return self.loss(batch) * (float("inf") if batch_idx in self.spoiled else 1.0)

    def on_train_batch_start(self, batch: Any, batch_idx: int) -> None:
        self.after.append(weights(self))

    def on_train_end(self) -> None:
        self.after.append(weights(self))

    def configure_optimizers(self) -> Any:
        optimizer = super().configure_optimizers()
        scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.5)
        return [optimizer], [{"scheduler": scheduler, "interval": "step"}]


def moved(model: Spoiled) -> list[bool]:
    """Whether the weights changed, batch by batch."""
    return [not same(one, other) for one, other in zip(model.after, model.after[1:], strict=False)]


@pytest.mark.parametrize("spoiled", [(0,), (1,), (1, 2), (3,), (0, 1, 2, 3)])
def test_a_batch_whose_gradients_are_not_finite_moves_nothing(spoiled: tuple[int, ...]) -> None:
    """Neither the weights nor the schedulers; the scale is halved each time."""
    model, used = Spoiled(*spoiled), trainer(plugins=float16())
    used.fit(model, loader())
    assert moved(model) == [batch not in spoiled for batch in range(4)]
    steps = 4 - len(spoiled)
    scheduler = used.lr_scheduler_configs[0].scheduler
    assert scheduler.last_epoch == steps
    assert scheduler.get_last_lr() == [0.05 * 0.5**steps]
    assert used.precision_plugin.state_dict()["scale"] == SCALE / 2 ** len(spoiled)


def test_the_scaler_is_kept_in_checkpoints() -> None:
    """A run that is resumed goes on with the scale that was reached, and ends as one that nobody broke off."""
    whole, first, second = Spoiled(1), Spoiled(1), Spoiled(1)
    first.load_state_dict(whole.state_dict())
    expected = trainer(plugins=float16(), max_epochs=2)
    expected.fit(whole, loader())
    used = trainer(plugins=float16())
    used.fit(first, loader())
    used.save_checkpoint("model.ckpt")
    state = torch.load("model.ckpt", weights_only=True)["MixedPrecision"]
    assert (state["scale"], state["_growth_tracker"]) == (SCALE / 2, 2)
    again = trainer(plugins=float16(), max_epochs=2)
    again.fit(second, loader(), ckpt_path="model.ckpt")
    assert again.precision_plugin.state_dict() == expected.precision_plugin.state_dict()
    assert again.precision_plugin.state_dict()["scale"] == SCALE / 4
    assert same(weights(second), weights(whole))


class Norms(Line):
    """Notes the size of its gradients, before clipping and after."""

    def __init__(self) -> None:
        super().__init__()
        self.before: list[float] = []
        self.after: list[float] = []

    def norm(self) -> float:
        return float(torch.cat([p.grad.flatten() for p in self.parameters() if p.grad is not None]).norm())

    def on_before_optimizer_step(self, optimizer: Any) -> None:
        self.before.append(self.norm())

    def on_train_batch_end(self, *_: Any) -> None:
        self.after.append(self.norm())


@pytest.mark.parametrize("algorithm", ["norm", "value"])
def test_clipping_sees_the_true_gradients(algorithm: str) -> None:
    """Those of 32 bits, to the rounding of float16; a scaled gradient would be 256 times as large."""
    settings = {"gradient_clip_val": 0.5, "gradient_clip_algorithm": algorithm}
    exact, mixed = Norms(), Norms()
    mixed.load_state_dict(exact.state_dict())
    trainer(**settings).fit(exact, loader())
    trainer(**settings, plugins=float16()).fit(mixed, loader())
    assert mixed.before == pytest.approx(exact.before, rel=0.02)
    assert mixed.after == pytest.approx(exact.after, rel=0.02)
    assert max(mixed.after) < max(mixed.before)


@pytest.mark.parametrize("data", [loader, stream])
def test_accumulated_batches_are_unscaled_together(data: Callable[..., Any]) -> None:
    """Three batches a step, and the ragged rest."""
    exact, mixed = Norms(), Norms()
    mixed.load_state_dict(exact.state_dict())
    for model, precision in ((exact, None), (mixed, float16())):
        trainer(plugins=precision, accumulate_grad_batches=3, gradient_clip_val=0.5).fit(model, data(4))
    assert len(mixed.before) == 2
    assert mixed.before == pytest.approx(exact.before, rel=0.02)
    torch.testing.assert_close(mixed.net.weight, exact.net.weight, rtol=0.02, atol=0.01)


def test_an_optimizer_step_of_ones_own() -> None:
    """It gets the closure, and its step is scaled, clipped and left out as any other."""

    class Own(Spoiled):
        def optimizer_step(self, epoch: int, batch_idx: int, optimizer: Any, optimizer_closure: Any = None) -> None:
            optimizer.step(closure=optimizer_closure)

    plain, own = Spoiled(2), Own(2)
    own.load_state_dict(plain.state_dict())
    for model in (plain, own):
        trainer(plugins=float16(), gradient_clip_val=0.5).fit(model, loader())
    assert same(weights(own), weights(plain))
    assert moved(own) == [True, True, False, True]


def test_a_batch_without_a_loss() -> None:
    class Skips(Spoiled):
        def training_step(self, batch: Any, batch_idx: int) -> Any:
            return None if batch_idx == 0 else super().training_step(batch, batch_idx)

    model = Skips()
    with pytest.warns(UserWarning, match="`training_step` returned None"):
        trainer(plugins=float16()).fit(model, loader())
    assert moved(model) == [False, True, True, True]


def test_a_fused_optimizer_whose_step_was_left_out() -> None:
    """The scheduler does not move either."""

    class Fused(Spoiled):
        def configure_optimizers(self) -> Any:
            optimizer = torch.optim.Adam(self.parameters(), lr=0.05, fused=True)
            scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.5)
            return [optimizer], [{"scheduler": scheduler, "interval": "step"}]

    model, used = Fused(1, 2), trainer(plugins=float16())
    used.fit(model, loader())
    assert moved(model) == [True, False, False, True]
    assert used.lr_scheduler_configs[0].scheduler.get_last_lr() == [0.05 * 0.5**2]


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt])
def test_an_error_between_unscaling_and_the_step(error: type[BaseException]) -> None:
    """The next fit with the same optimizer steps as in 32 bits."""

    class Breaks(Line):
        def __init__(self) -> None:
            super().__init__()
            self.sound, self.optimizer = False, super().configure_optimizers()

        def on_before_optimizer_step(self, optimizer: Any) -> None:
            if not self.sound:
                raise error

        def configure_optimizers(self) -> Any:
            return self.optimizer

    exact, mixed = Breaks(), Breaks()
    mixed.load_state_dict(exact.state_dict())
    for model, precision in ((exact, None), (mixed, float16())):
        used = trainer(plugins=precision)
        with pytest.raises(error):
            used.fit(model, loader())
        model.sound = True
        used.fit(model, loader())
    torch.testing.assert_close(mixed.net.weight, exact.net.weight, rtol=0.02, atol=0.005)


def test_lbfgs_cannot_be_scaled() -> None:
    class Second(Line):
        def configure_optimizers(self) -> Any:
            return torch.optim.LBFGS(self.parameters())

    with pytest.raises(MisconfigurationException, match=r"'16-mixed'.*LBFGS.*use 'bf16-mixed' or 32 bits"):
        trainer(precision="16-mixed").fit(Second(), loader())
    used = trainer(precision="bf16-mixed")
    used.fit(Second(), loader())
    assert used.global_step == 4


# -- manual optimization -----------------------------------------------------------------------------------------------


class Pair(L.Module):
    """Two nets, two optimizers, stepped by hand in one of several orders."""

    def __init__(self, order: str = "", spoiled: int = -1) -> None:
        super().__init__()
        self.automatic_optimization = False
        self.nets = nn.ModuleList([nn.Linear(FEATURES, 1, bias=False) for _ in range(2)])
        self.order, self.spoiled = order, spoiled
        self.norms: list[float] = []

    def backward_of(self, index: int, batch: Any) -> None:
        loss = nn.functional.mse_loss(self.nets[index](batch[0]), batch[1])
        self.manual_backward(loss * (float("inf") if index == self.spoiled else 1.0))

    def training_step(self, batch: Any, batch_idx: int) -> None:
        optimizers = self.optimizers()
        for optimizer in optimizers:
            optimizer.zero_grad()
        if self.order == "one after the other":
            for index, optimizer in enumerate(optimizers):
                self.backward_of(index, batch)
                self.clip_gradients(optimizer, 0.5)
                optimizer.step()
            return
        for index in range(2):
            self.backward_of(index, batch)
        if self.order == "clip both, step both":
            for optimizer in optimizers:
                self.clip_gradients(optimizer, 0.5)
        for optimizer in optimizers:
            if self.order == "clip twice":
                self.clip_gradients(optimizer, 0.6)
                self.clip_gradients(optimizer, 0.5)
            optimizer.step()

    def on_before_optimizer_step(self, optimizer: Any) -> None:
        self.norms.append(float(optimizer.param_groups[0]["params"][0].grad.norm()))

    def configure_optimizers(self) -> Any:
        return [torch.optim.SGD(net.parameters(), lr=0.05) for net in self.nets]


class Seldom(Line):
    """Clips in each batch, steps in every second one, with an argument that its optimizer's step takes."""

    def __init__(self, zero: bool) -> None:
        super().__init__()
        self.automatic_optimization, self.zero = False, zero

    def training_step(self, batch: Any, batch_idx: int) -> None:
        optimizer = self.optimizers()
        if self.zero:
            optimizer.zero_grad()
        self.manual_backward(self.loss(batch))
        self.clip_gradients(optimizer, 1000.0)
        if batch_idx % 2:
            optimizer.step(rate=0.01)
            optimizer.zero_grad()

    def configure_optimizers(self) -> Any:
        class Rated(torch.optim.SGD):
            def step(self, closure: Any = None, rate: float = 1.0) -> Any:  # type: ignore[override]
                self.param_groups[0]["lr"] = rate
                return super().step(closure)

        return Rated(self.parameters(), lr=1.0)


@pytest.mark.parametrize("zero", [False, True])
def test_gradients_that_are_clipped_and_not_stepped(zero: bool) -> None:
    """Whether those of the next batch are added to them or take their place."""
    exact, mixed = Seldom(zero), Seldom(zero)
    mixed.load_state_dict(exact.state_dict())
    for model, precision in ((exact, None), (mixed, float16())):
        trainer(plugins=precision).fit(model, loader())
    torch.testing.assert_close(mixed.net.weight, exact.net.weight, rtol=0.02, atol=0.005)


ORDERS = ["one after the other", "clip both, step both", "clip twice", "no clipping"]


@pytest.mark.parametrize("order", ORDERS)
def test_two_optimizers_by_hand(order: str) -> None:
    """Each sees its true gradients, and each step is that of 32 bits, to the rounding of float16."""
    exact, mixed = Pair(order), Pair(order)
    mixed.load_state_dict(exact.state_dict())
    for model, precision in ((exact, None), (mixed, float16())):
        used = trainer(plugins=precision)
        used.fit(model, loader())
        assert used.global_step == 8
    assert mixed.norms == pytest.approx(exact.norms, rel=0.02)
    if order != "no clipping":
        assert max(mixed.norms) < 0.51
    for one, other in zip(mixed.nets, exact.nets, strict=True):
        torch.testing.assert_close(one.weight, other.weight, rtol=0.02, atol=0.005)


@pytest.mark.parametrize("spoiled", [0, 1])
@pytest.mark.parametrize("order", ORDERS)
def test_one_of_two_whose_gradients_are_not_finite(order: str, spoiled: int) -> None:
    """It stays where it is, the other one steps as if nothing were."""
    exact, mixed = Pair(order), Pair(order, spoiled)
    mixed.load_state_dict(exact.state_dict())
    before = weights(mixed.nets[spoiled])
    for model, precision in ((exact, None), (mixed, float16())):
        trainer(plugins=precision).fit(model, loader())
    assert same(weights(mixed.nets[spoiled]), before)
    other = 1 - spoiled
    torch.testing.assert_close(mixed.nets[other].weight, exact.nets[other].weight, rtol=0.02, atol=0.005)

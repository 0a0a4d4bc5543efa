"""Number formats, apart from any Trainer."""

from __future__ import annotations

import gc
import pickle
from contextlib import suppress
from typing import Any

import pytest
import torch
import torchmetrics
from torch import nn

from gpulayer.fabric.precision import DoublePrecision, HalfPrecision, MixedPrecision, Precision
from gpulayer.fabric.resolve import resolve_precision
from gpulayer.fabric.utilities.exceptions import MisconfigurationException


def scaled_gradients(precision: MixedPrecision, factor: float = 1.0) -> tuple[nn.Linear, torch.optim.SGD]:
    """A layer whose gradients, each truly `factor`, are scaled, and its optimizer."""
    net = nn.Linear(2, 1, bias=False)
    optimizer = torch.optim.SGD(net.parameters(), lr=1.0)
    precision.scale((net.weight * factor).sum()).backward()
    return net, optimizer


@pytest.mark.parametrize("name", ["transformer-engine", "transformer-engine-float16"])
def test_eight_bits_are_explained(name: str) -> None:
    """What is missing, and what to take instead."""
    with pytest.raises(MisconfigurationException) as caught:
        resolve_precision(name, "cpu")
    for piece in (f"`precision={name!r}`", "8 bits", "transformer-engine", "'bf16-mixed'"):
        assert piece in str(caught.value)


@pytest.mark.parametrize("given", ["8", 8, "32-mixed", "64-mixed", "float16", "BF16", True, 16.0, ["16"]])
def test_a_format_that_there_is_not(given: Any) -> None:
    with pytest.raises(MisconfigurationException, match=r"is not available: choose one of .*'16-mixed'") as caught:
        resolve_precision(given, "cpu")
    assert f"`precision={given!r}`" in str(caught.value)


def test_only_float16_has_a_scaler() -> None:
    assert MixedPrecision("16-mixed", "cpu").scaler is not None
    assert MixedPrecision("bf16-mixed", "cpu").scaler is None
    own = torch.amp.GradScaler("cpu", init_scale=8.0)
    assert MixedPrecision("16-mixed", "cpu", own).scaler is own


def test_gradients_are_unscaled_once_a_step() -> None:
    precision = MixedPrecision("16-mixed", "cpu")
    for _ in range(2):
        net, optimizer = scaled_gradients(precision)
        for _ in range(3):
            precision.unscale(optimizer)
        assert net.weight.grad is not None
        assert net.weight.grad.tolist() == [[1.0, 1.0]]
        before = net.weight.detach().clone()
        precision.optimizer_step(optimizer)
        assert torch.equal(net.weight, before - 1)


@pytest.mark.parametrize(
    "events",
    [
        "backward a, unscale a, zero a, backward a, step a",
        "backward a, unscale a, backward a, step a",
        "backward a, unscale a, backward b, unscale b, step a, step b",
        "backward a, backward b, unscale b, step a, zero a, backward a, step a, step b",
        "backward a, backward b, unscale b, step a, save, step b",
        "backward a, step a, backward a, step a",
        "backward a, step a, step a, unscale a, step a",
        "backward a, step a, save, step a",
        "step a, backward a, step a, zero a, step a",
    ],
)
def test_steps_are_those_of_32_bits(events: str) -> None:
    """Bit for bit, in whatever order gradients are made, unscaled and used; each update changes the scale."""

    def weights(precision: Precision) -> list[Any]:
        nets = {name: nn.Linear(2, 1, bias=False) for name in "ab"}
        for net in nets.values():
            nn.init.zeros_(net.weight)
        optimizers = {name: torch.optim.SGD(net.parameters(), lr=1.0) for name, net in nets.items()}
        for number, event in enumerate(events.split(", "), start=1):
            kind, _, name = event.partition(" ")
            if kind == "backward":
                precision.scale((nets[name].weight * number).sum()).backward()
            elif kind == "unscale":
                precision.unscale(optimizers[name])
            elif kind == "step":
                precision.optimizer_step(optimizers[name])
                assert not precision.skipped
            elif kind == "zero":
                optimizers[name].zero_grad()
            else:
                precision.state_dict()
        return [net.weight.tolist() for net in nets.values()]

    scaler = torch.amp.GradScaler("cpu", init_scale=4.0, growth_interval=1)
    assert weights(MixedPrecision("16-mixed", "cpu", scaler)) == weights(Precision())


def test_gradients_of_a_sparse_embedding() -> None:
    precision = MixedPrecision("16-mixed", "cpu", torch.amp.GradScaler("cpu", init_scale=4.0))
    table = nn.Embedding(3, 1, sparse=True)
    optimizer = torch.optim.SGD(table.parameters(), lr=1.0)
    before = table.weight.detach().clone()
    for _ in range(2):
        precision.scale(table(torch.tensor([1, 1, 2])).sum()).backward()
        precision.unscale(optimizer)
    precision.optimizer_step(optimizer)
    torch.testing.assert_close(table.weight, before - torch.tensor([[0.0], [4.0], [2.0]]))


@pytest.mark.parametrize("fused", [False, True])
def test_a_step_that_was_left_out(fused: bool) -> None:
    """A fused optimizer is called all the same, and finds out itself."""
    precision = MixedPrecision("16-mixed", "cpu")
    net = nn.Linear(2, 1, bias=False)
    optimizer = torch.optim.Adam(net.parameters(), fused=fused)
    for factor, skipped in ((1.0, False), (float("inf"), True), (float("nan"), True), (2.0, False)):
        before = net.weight.detach().clone()
        precision.scale((net.weight * factor).sum()).backward()
        precision.optimizer_step(optimizer)
        assert torch.equal(net.weight, before) == precision.skipped == skipped
        optimizer.zero_grad()
    assert precision.state_dict()["scale"] == 2.0**14


class Shortened(torch.optim.SGD):
    """Its step takes an argument of its own."""

    def step(self, closure: Any = None, scale: float = 1.0) -> Any:  # type: ignore[override]
        for group in self.param_groups:
            group["lr"] = scale
        return super().step(closure)


@pytest.mark.parametrize(
    "precision", [Precision(), MixedPrecision("16-mixed", "cpu"), DoublePrecision()], ids=lambda p: p.name
)
def test_arguments_of_an_optimizers_own(precision: Precision) -> None:
    net = nn.Linear(2, 1, bias=False)
    optimizer = Shortened(net.parameters(), lr=1.0)

    def closure() -> Any:
        optimizer.zero_grad()
        precision.scale(net.weight.sum()).backward()
        return "the loss"

    for given in (closure, None):
        before = net.weight.detach().clone()
        loss = precision.optimizer_step(optimizer, given, scale=0.5)
        assert torch.equal(net.weight, before - 0.5)
        assert loss == ("the loss" if given else None)


def test_a_step_of_an_earlier_run_is_not_counted_in_the_next() -> None:
    """Its gradients were not finite; the scale that is loaded is not lowered for that."""
    precision = MixedPrecision("16-mixed", "cpu")
    state = MixedPrecision("16-mixed", "cpu").state_dict()
    _, optimizer = scaled_gradients(precision, float("inf"))
    precision.optimizer_step(optimizer)
    precision.load_state_dict(state)
    precision.scale(torch.ones(1))
    assert precision.state_dict()["scale"] == state["scale"]


def test_it_can_be_pickled_after_a_step() -> None:
    precision = MixedPrecision("16-mixed", "cpu")
    _, optimizer = scaled_gradients(precision, float("inf"))
    precision.optimizer_step(optimizer)
    assert pickle.loads(pickle.dumps(precision)).state_dict() == precision.state_dict()


def test_a_scaler_that_is_switched_off() -> None:
    precision = MixedPrecision("16-mixed", "cpu", torch.amp.GradScaler("cpu", enabled=False))
    net, optimizer = scaled_gradients(precision)
    before = net.weight.detach().clone()
    precision.optimizer_step(optimizer)
    assert torch.equal(net.weight, before - 1)
    assert precision.state_dict() == {}


def test_a_step_with_gradients_that_are_not_finite() -> None:
    precision = MixedPrecision("16-mixed", "cpu")
    net, optimizer = scaled_gradients(precision, float("inf"))
    before = net.weight.detach().clone()
    precision.optimizer_step(optimizer)
    assert torch.equal(net.weight, before)
    assert precision.skipped
    assert precision.state_dict()["scale"] == 2.0**15
    optimizer.zero_grad()
    precision.scale(net.weight.sum()).backward()
    precision.optimizer_step(optimizer)
    assert torch.equal(net.weight, before - 1)
    assert not precision.skipped


def test_the_scalers_state() -> None:
    precision, other = (MixedPrecision("16-mixed", "cpu") for _ in range(2))
    _, optimizer = scaled_gradients(precision, float("inf"))
    precision.optimizer_step(optimizer)
    other.load_state_dict(precision.state_dict())
    assert other.state_dict() == precision.state_dict()
    assert other.state_dict()["scale"] == 2.0**15
    assert Precision().state_dict() == MixedPrecision("bf16-mixed", "cpu").state_dict() == {}


@pytest.mark.parametrize(
    ("precision", "dtype"),
    [(HalfPrecision("16-true"), torch.float16), (HalfPrecision("bf16-true"), torch.bfloat16),
     (DoublePrecision(), torch.float64)],
    ids=["16-true", "bf16-true", "64-true"],
)  # fmt: skip
def test_everything_in_one_format(precision: Precision, dtype: torch.dtype) -> None:
    """Only floating-point tensors are converted; outside of its contexts nothing is changed."""
    assert precision.convert_module(nn.Linear(1, 1)).weight.dtype == dtype
    batch = precision.convert_input({"x": torch.ones(1), "y": [torch.ones(1, dtype=torch.int64), "text", 1.0]})
    assert (batch["x"].dtype, batch["y"][0].dtype) == (dtype, torch.int64)
    assert batch["y"][1:] == ["text", 1.0]
    for context in (precision.forward_context(), precision.init_context()):
        assert context is not None
        with suppress(KeyError), context:
            assert torch.ones(1).dtype == torch.get_default_dtype() == dtype
            raise KeyError
        assert torch.get_default_dtype() == torch.float32


@pytest.mark.parametrize("precision", [HalfPrecision("16-true"), HalfPrecision("bf16-true"), DoublePrecision()])
def test_complex_numbers_stay_as_they_are(precision: Precision) -> None:
    """In a batch and in a module, whose other tensors are converted."""
    wave = torch.full((1,), 1 + 2j, dtype=torch.complex64)
    assert precision.convert_input(wave) is wave
    net = nn.Linear(1, 1)
    net.wave = nn.Parameter(wave.clone())
    net.register_buffer("kept", wave.clone())
    net.register_buffer("whole", torch.arange(2))
    precision.convert_module(net)
    for kept in (net.wave, net.kept):
        assert (kept.dtype, kept.tolist()) == (torch.complex64, [1 + 2j])
    assert (net.weight.dtype, net.whole.dtype) == (precision.dtype, torch.int64)  # type: ignore[attr-defined]


@pytest.mark.parametrize("precision", [HalfPrecision("16-true"), HalfPrecision("bf16-true"), DoublePrecision()])
def test_metrics_count_in_their_own_format(precision: Precision) -> None:
    """In bfloat16 a sum of ones would end at 256."""
    metrics = precision.convert_module(nn.ModuleDict({"mean": torchmetrics.MeanMetric()}))
    for _ in range(300):
        metrics["mean"].update(torch.ones(1, dtype=precision.dtype))  # type: ignore[attr-defined]
    assert metrics["mean"].weight.item() == 300


def test_32_bits_cost_nothing() -> None:
    precision, batch = Precision(), [torch.ones(1)]
    assert precision.forward_context() is None
    assert precision.convert_input(batch) is batch
    assert not any(precision.does(name) for name in ("scale", "unscale", "optimizer_step", "convert_input"))


@pytest.mark.parametrize("broken_off", [False, True])
def test_optimizers_that_come_and_go(broken_off: bool) -> None:
    """Python gives a new object the place of one that is gone, so `id` does not tell them apart.

    Some are broken off between unscaling and stepping, as by an error in a hook; none may be taken for another one.
    """
    precision = MixedPrecision("16-mixed", "cpu", torch.amp.GradScaler("cpu", init_scale=4.0))
    for number in range(100):
        net, optimizer = scaled_gradients(precision)
        before = net.weight.detach().clone()
        precision.unscale(optimizer)
        if not broken_off or number % 2:
            precision.optimizer_step(optimizer)
            assert torch.equal(net.weight, before - 1)
            assert not precision.skipped
        del net, optimizer
        gc.collect(0)

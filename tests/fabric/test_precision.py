"""Number formats, apart from any Trainer."""

from __future__ import annotations

import gc
from contextlib import suppress
from typing import Any

import pytest
import torch
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


def test_complex_numbers_stay_complex() -> None:
    wave = torch.ones(1, dtype=torch.complex64)
    assert DoublePrecision().convert_input(wave).is_complex()


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

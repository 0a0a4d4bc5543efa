"""init_module: a module's tensors right on the device, in the right format."""

from __future__ import annotations

from contextlib import suppress

import pytest
import torch
from torch import nn

from gpulayer.fabric.accelerators import CPUAccelerator
from gpulayer.pytorch.strategies import SingleDeviceStrategy
from tests.pytorch.models import Line, loader, same, trainer, weights

FORMATS = {
    None: torch.float32,
    "32-true": torch.float32,
    "bf16-mixed": torch.float32,
    "16-mixed": torch.float32,
    "16-true": torch.float16,
    "bf16-true": torch.bfloat16,
    "64-true": torch.float64,
}


@pytest.mark.parametrize("empty_init", [None, False, True])
@pytest.mark.parametrize("precision", FORMATS)
def test_the_format_of_the_precision(precision: str | None, empty_init: bool | None) -> None:
    """Mixed precision keeps weights of 32 bits; afterwards all is as before."""
    with trainer(precision=precision).init_module(empty_init=empty_init):
        model = Line()
    assert {parameter.dtype for parameter in model.parameters()} == {FORMATS[precision]}
    assert torch.get_default_dtype() == torch.ones(1).dtype == torch.float32


def test_the_device_of_the_strategy() -> None:
    """Here one that holds no numbers, which every machine has."""
    used = trainer(strategy=SingleDeviceStrategy("meta", CPUAccelerator()))
    with used.init_module():
        model = nn.Linear(1, 1)
    assert model.weight.device.type == "meta"
    assert torch.ones(1).device.type == "cpu"


def test_the_weights_are_those_of_a_module_made_without_it() -> None:
    torch.manual_seed(1)
    plain = Line()
    torch.manual_seed(1)
    with trainer().init_module():
        model = Line()
    assert same(weights(model), weights(plain))


LAYERS = {
    "Linear": lambda: nn.Linear(3, 3),
    "Conv2d": lambda: nn.Conv2d(1, 1, 3),
    "Embedding": lambda: nn.Embedding(2, 2),
    "LSTM": lambda: nn.LSTM(2, 2),
    "TransformerEncoderLayer": lambda: nn.TransformerEncoderLayer(4, 2, 4),
}


@pytest.mark.parametrize("kind", LAYERS)
def test_empty_weights_draw_no_random_numbers(kind: str) -> None:
    """They are left as the memory was; after the block `torch.nn.init` works again."""
    before = torch.get_rng_state()
    with trainer().init_module(empty_init=True):
        LAYERS[kind]()
    assert torch.equal(torch.get_rng_state(), before)
    assert nn.init.constant_(torch.empty(2), 7.0).tolist() == [7.0, 7.0]


def test_empty_weights_that_a_checkpoint_fills() -> None:
    whole = Line()
    used = trainer()
    used.fit(whole, loader())
    used.save_checkpoint("model.ckpt")
    again = trainer(max_epochs=2)
    with again.init_module(empty_init=True):
        model = Line()
    again.fit(model, loader(), ckpt_path="model.ckpt")
    assert again.global_step == 8
    model.load_state_dict(torch.load("model.ckpt", weights_only=True)["state_dict"])
    assert same(weights(model), weights(whole))


def test_an_error_within_leaves_nothing_behind() -> None:
    with suppress(KeyError), trainer(precision="64-true").init_module(empty_init=True):
        raise KeyError
    assert torch.get_default_dtype() == torch.float32
    assert nn.init.ones_(torch.zeros(1)).item() == 1


@pytest.mark.parametrize("precision", ["16-true", "bf16-true", "64-true"])
def test_a_module_made_so_trains(precision: str) -> None:
    used = trainer(precision=precision)
    with used.init_module():
        model = Line()
    before = weights(model)
    used.fit(model, loader())
    assert not same(weights(model), before)
    assert model.net.weight.dtype == FORMATS[precision]

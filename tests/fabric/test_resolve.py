"""Strings to objects."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from gpulayer.fabric.checkpoint import TorchCheckpointIO
from gpulayer.fabric.precision import MixedPrecision, Precision
from gpulayer.fabric.resolve import resolve_accelerator, resolve_precision, resolve_strategy
from gpulayer.fabric.strategies import SingleDeviceStrategy, Strategy
from gpulayer.fabric.utilities.exceptions import MisconfigurationException


def strategy(**given: Any) -> Strategy:
    arguments: dict[str, Any] = {
        "strategy": "auto", "accelerator": "cpu", "devices": "auto", "num_nodes": 1, "precision": None, "plugins": None,
    }  # fmt: skip
    return resolve_strategy(**{**arguments, **given})


@pytest.mark.parametrize("devices", ["auto", 1, "1"])
def test_one_device(devices: Any) -> None:
    found = strategy(devices=devices)
    assert isinstance(found, SingleDeviceStrategy)
    assert found.root_device == torch.device("cpu")
    assert (found.world_size, found.global_rank, found.is_global_zero) == (1, 0, True)


@pytest.mark.parametrize(
    ("given", "name"),
    [(None, "32-true"), (32, "32-true"), ("32", "32-true"), ("32-true", "32-true"), ("bf16", "bf16-mixed"),
     ("bf16-mixed", "bf16-mixed"), ("bf16-true", "bf16-true"), (16, "16-mixed"), ("16", "16-mixed"),
     ("fp16", "16-mixed"), ("16-mixed", "16-mixed"), ("16-true", "16-true"), (64, "64-true"), ("64", "64-true"),
     ("64-true", "64-true")],
)  # fmt: skip
def test_precisions(given: Any, name: str) -> None:
    assert resolve_precision(given, "cpu").name == name


def test_objects_are_taken_as_they_are() -> None:
    own = strategy()
    assert strategy(strategy=own) is own
    assert resolve_accelerator(own.accelerator) is own.accelerator
    precision, files = MixedPrecision("bf16-mixed", "cpu"), TorchCheckpointIO()
    found = strategy(plugins=[precision, files])
    assert found.precision is precision
    assert found.checkpoint_io is files


def test_a_precision_twice() -> None:
    with pytest.raises(MisconfigurationException, match="both given: give one of them"):
        strategy(precision="bf16", plugins=Precision())


@pytest.mark.skipif(torch.cuda.is_available() or torch.backends.mps.is_available(), reason="needs to have no GPU")
@pytest.mark.parametrize("name", ["gpu", "cuda", "mps"])
def test_a_gpu_that_is_not_there(name: str) -> None:
    with pytest.raises(MisconfigurationException, match="accelerator='auto'"):
        resolve_accelerator(name)

"""Strings to objects."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from gpulayer.fabric.checkpoint import TorchCheckpointIO
from gpulayer.fabric.precision import MixedPrecision, Precision
from gpulayer.fabric.resolve import resolve_accelerator, resolve_precision, resolve_strategy
from gpulayer.fabric.strategies import DDPStrategy, SingleDeviceStrategy, Strategy
from gpulayer.fabric.utilities.exceptions import MisconfigurationException
from gpulayer.fabric.utilities.rank_zero import rank_zero_only


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


@pytest.mark.parametrize("strategy", ["ddp_spawn", "ddp_fork", "ddp_notebook", "ddp_spawn_find_unused_parameters_true"])
def test_ways_of_starting_processes_that_are_not_there_yet(strategy: str) -> None:
    resolved = resolve_strategy(strategy, "cpu", 2, 1, None, None)
    with pytest.raises(MisconfigurationException, match="use `strategy='ddp'` in a script"):
        resolved.setup_environment()


def test_several_devices_are_several_processes() -> None:
    resolved = resolve_strategy("auto", "cpu", 2, 1, None, None)
    assert isinstance(resolved, DDPStrategy)
    assert (resolved.world_size, resolved.global_rank, resolved.num_processes) == (2, 0, 2)
    assert resolve_strategy("auto", "cpu", 1, 1, None, None).world_size == 1


def test_the_processes_of_torchrun_are_used(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rank_zero_only, "rank", 0)
    place = {"RANK": "3", "WORLD_SIZE": "4", "LOCAL_RANK": "1", "GROUP_RANK": "1", "LOCAL_WORLD_SIZE": "2"}
    for name, value in place.items():
        monkeypatch.setenv(name, value)
    resolved = resolve_strategy("auto", "cpu", "auto", 1, None, None)
    assert isinstance(resolved, DDPStrategy)
    assert (resolved.world_size, resolved.global_rank, resolved.local_rank, resolved.num_nodes) == (4, 3, 1, 2)
    with pytest.raises(MisconfigurationException, match="--nproc-per-node"):
        resolve_strategy("ddp", "cpu", 3, 1, None, None)

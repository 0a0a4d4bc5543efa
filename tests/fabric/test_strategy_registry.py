"""Strategies by name, those of others too."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

import gpulayer.fabric.strategies as fabric_strategies
import gpulayer.pytorch as L
from gpulayer.fabric.utilities.exceptions import MisconfigurationException
from gpulayer.pytorch.demos.boring_classes import BoringModel
from gpulayer.pytorch.strategies import DDPStrategy, SingleDeviceStrategy, StrategyRegistry


@pytest.fixture
def mine() -> Iterator[type[SingleDeviceStrategy]]:
    @StrategyRegistry.register("mine", device="cpu")
    class Mine(SingleDeviceStrategy):
        pass

    yield Mine
    StrategyRegistry.remove("mine")


def test_one_of_somebody_elses(mine: type[SingleDeviceStrategy]) -> None:
    trainer = L.Trainer(accelerator="cpu", strategy="mine", max_steps=2, logger=False, enable_checkpointing=False)
    assert type(trainer.strategy) is mine
    trainer.fit(BoringModel())
    assert trainer.global_step == 2
    with pytest.raises(MisconfigurationException, match=r"did you mean 'mine'"):
        L.Trainer(accelerator="cpu", strategy="mien")


def test_names_of_ddp() -> None:
    assert fabric_strategies.STRATEGY_REGISTRY is StrategyRegistry
    found = StrategyRegistry.get("ddp_fork_find_unused_parameters_true")
    assert isinstance(found, DDPStrategy)
    assert (found.start_method, found.ddp_kwargs) == ("fork", {"find_unused_parameters": True})
    plain = StrategyRegistry.get("ddp")
    assert (plain.start_method, plain.ddp_kwargs) == ("popen", {})

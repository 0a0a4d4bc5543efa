"""Strategies, at the path where code written for Lightning imports them."""

from gpulayer.fabric.strategies import (
    DDPStrategy,
    ParallelStrategy,
    SingleDeviceStrategy,
    Strategy,
    StrategyRegistry,
)

__all__ = ["DDPStrategy", "ParallelStrategy", "SingleDeviceStrategy", "Strategy", "StrategyRegistry"]

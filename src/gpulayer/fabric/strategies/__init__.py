"""Ways to place a module on devices."""

from gpulayer.fabric.registry import StrategyRegistry
from gpulayer.fabric.strategies.ddp import DDPStrategy
from gpulayer.fabric.strategies.parallel import ParallelStrategy
from gpulayer.fabric.strategies.single_device import SingleDeviceStrategy
from gpulayer.fabric.strategies.strategy import Strategy

__all__ = [
    "STRATEGY_REGISTRY",
    "DDPStrategy",
    "ParallelStrategy",
    "SingleDeviceStrategy",
    "Strategy",
    "StrategyRegistry",
]

STRATEGY_REGISTRY = StrategyRegistry  # its name in Lightning's Fabric

# Names of DDP, which say how processes are started, and whether some parameters may get no gradient.
for start, method in {"": "popen", "_spawn": "spawn", "_fork": "fork", "_notebook": "fork"}.items():
    StrategyRegistry.register(f"ddp{start}", DDPStrategy, start_method=method)
    for unused in (True, False):
        StrategyRegistry.register(
            f"ddp{start}_find_unused_parameters_{str(unused).lower()}",
            DDPStrategy,
            start_method=method,
            find_unused_parameters=unused,
        )

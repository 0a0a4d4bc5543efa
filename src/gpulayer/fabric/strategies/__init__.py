"""Ways to place a module on devices."""

from gpulayer.fabric.strategies.ddp import DDPStrategy
from gpulayer.fabric.strategies.parallel import ParallelStrategy
from gpulayer.fabric.strategies.single_device import SingleDeviceStrategy
from gpulayer.fabric.strategies.strategy import Strategy

__all__ = ["DDPStrategy", "ParallelStrategy", "SingleDeviceStrategy", "Strategy"]

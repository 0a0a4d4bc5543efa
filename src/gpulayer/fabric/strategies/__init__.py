"""Ways to place a module on devices."""

from gpulayer.fabric.strategies.single_device import SingleDeviceStrategy
from gpulayer.fabric.strategies.strategy import Strategy

__all__ = ["SingleDeviceStrategy", "Strategy"]

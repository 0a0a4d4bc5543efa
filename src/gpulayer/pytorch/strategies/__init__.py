"""Strategies, at the path where code written for Lightning imports them."""

from gpulayer.fabric.strategies import SingleDeviceStrategy, Strategy

__all__ = ["SingleDeviceStrategy", "Strategy"]

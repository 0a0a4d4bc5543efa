"""The CPU, at the path where code written for Lightning imports it."""

from gpulayer.fabric.accelerators.cpu import CPUAccelerator

__all__ = ["CPUAccelerator"]

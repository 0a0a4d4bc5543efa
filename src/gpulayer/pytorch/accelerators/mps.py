"""MPS, at the path where code written for Lightning imports it."""

from gpulayer.fabric.accelerators.mps import MPSAccelerator

__all__ = ["MPSAccelerator"]

"""Accelerators, at the path where code written for Lightning imports them."""

from gpulayer.fabric.accelerators import Accelerator, CPUAccelerator, CUDAAccelerator, MPSAccelerator

__all__ = ["Accelerator", "CPUAccelerator", "CUDAAccelerator", "MPSAccelerator"]

"""Kinds of devices."""

from gpulayer.fabric.accelerators.accelerator import Accelerator
from gpulayer.fabric.accelerators.cpu import CPUAccelerator
from gpulayer.fabric.accelerators.cuda import CUDAAccelerator
from gpulayer.fabric.accelerators.mps import MPSAccelerator

__all__ = ["Accelerator", "CPUAccelerator", "CUDAAccelerator", "MPSAccelerator"]

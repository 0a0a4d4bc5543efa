"""Kinds of devices."""

from gpulayer.fabric.accelerators.accelerator import Accelerator
from gpulayer.fabric.accelerators.cpu import CPUAccelerator
from gpulayer.fabric.accelerators.cuda import CUDAAccelerator, find_usable_cuda_devices
from gpulayer.fabric.accelerators.mps import MPSAccelerator
from gpulayer.fabric.registry import AcceleratorRegistry

__all__ = [
    "ACCELERATOR_REGISTRY",
    "Accelerator",
    "AcceleratorRegistry",
    "CPUAccelerator",
    "CUDAAccelerator",
    "MPSAccelerator",
    "find_usable_cuda_devices",
]

ACCELERATOR_REGISTRY = AcceleratorRegistry  # its name in Lightning's Fabric

CPUAccelerator.register_accelerators(AcceleratorRegistry)
CUDAAccelerator.register_accelerators(AcceleratorRegistry)
MPSAccelerator.register_accelerators(AcceleratorRegistry)

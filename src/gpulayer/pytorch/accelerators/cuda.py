"""CUDA, at the path where code written for Lightning imports it."""

from gpulayer.fabric.accelerators.cuda import CUDAAccelerator

__all__ = ["CUDAAccelerator"]

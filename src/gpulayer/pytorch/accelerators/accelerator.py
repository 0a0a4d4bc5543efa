"""The interface of accelerators, at the path where code written for Lightning imports it."""

from gpulayer.fabric.accelerators.accelerator import Accelerator

__all__ = ["Accelerator"]

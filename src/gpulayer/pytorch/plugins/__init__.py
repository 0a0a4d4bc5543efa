"""Plugins, at the path where code written for Lightning imports them."""

from gpulayer.fabric.checkpoint import CheckpointIO, TorchCheckpointIO
from gpulayer.fabric.precision import DoublePrecision, HalfPrecision, MixedPrecision, Precision

__all__ = [
    "CheckpointIO",
    "DoublePrecision",
    "HalfPrecision",
    "MixedPrecision",
    "Precision",
    "TorchCheckpointIO",
]

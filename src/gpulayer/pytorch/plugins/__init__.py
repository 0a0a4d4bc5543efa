"""Plugins, at the path where code written for Lightning imports them."""

from gpulayer.fabric.checkpoint import CheckpointIO, TorchCheckpointIO
from gpulayer.fabric.precision import MixedPrecision, Precision

__all__ = ["CheckpointIO", "MixedPrecision", "Precision", "TorchCheckpointIO"]

"""TorchCheckpointIO, at the path where code written for Lightning imports it."""

from gpulayer.fabric.checkpoint import TorchCheckpointIO

__all__ = ["TorchCheckpointIO"]

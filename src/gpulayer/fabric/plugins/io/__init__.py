"""Where checkpoints are stored, at the path where code written for Lightning imports it."""

from gpulayer.fabric.checkpoint import CheckpointIO, TorchCheckpointIO

__all__ = ["CheckpointIO", "TorchCheckpointIO"]

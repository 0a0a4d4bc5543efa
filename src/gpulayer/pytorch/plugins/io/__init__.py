"""Where checkpoints are stored, at the path where code written for Lightning imports it."""

from gpulayer.fabric.checkpoint import AsyncCheckpointIO, CheckpointIO, TorchCheckpointIO

__all__ = ["AsyncCheckpointIO", "CheckpointIO", "TorchCheckpointIO"]

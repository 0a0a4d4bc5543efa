"""Checkpoint files."""

from gpulayer.fabric.checkpoint.io import CheckpointIO, TorchCheckpointIO

__all__ = ["CheckpointIO", "TorchCheckpointIO"]

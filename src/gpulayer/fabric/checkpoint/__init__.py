"""Checkpoint files."""

from gpulayer.fabric.checkpoint.background import AsyncCheckpointIO
from gpulayer.fabric.checkpoint.io import CheckpointIO, TorchCheckpointIO

__all__ = ["AsyncCheckpointIO", "CheckpointIO", "TorchCheckpointIO"]

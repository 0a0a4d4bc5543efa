"""CheckpointIO, at the path where code written for Lightning imports it."""

from gpulayer.fabric.checkpoint import CheckpointIO

__all__ = ["CheckpointIO"]

"""AsyncCheckpointIO, at the path where code written for Lightning imports it."""

from gpulayer.fabric.checkpoint import AsyncCheckpointIO

__all__ = ["AsyncCheckpointIO"]

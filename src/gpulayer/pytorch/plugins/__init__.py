"""Plugins, at the path where code written for Lightning imports them."""

from gpulayer.fabric.checkpoint import AsyncCheckpointIO, CheckpointIO, TorchCheckpointIO
from gpulayer.fabric.environments import ClusterEnvironment, SLURMEnvironment
from gpulayer.fabric.precision import DoublePrecision, HalfPrecision, MixedPrecision, Precision

__all__ = [
    "AsyncCheckpointIO",
    "CheckpointIO",
    "ClusterEnvironment",
    "DoublePrecision",
    "HalfPrecision",
    "MixedPrecision",
    "Precision",
    "SLURMEnvironment",
    "TorchCheckpointIO",
]

"""Profilers: where the time of a run goes."""

from gpulayer.pytorch.profilers.advanced import AdvancedProfiler
from gpulayer.pytorch.profilers.base import PassThroughProfiler
from gpulayer.pytorch.profilers.profiler import Profiler
from gpulayer.pytorch.profilers.pytorch import PyTorchProfiler
from gpulayer.pytorch.profilers.simple import SimpleProfiler

__all__ = ["AdvancedProfiler", "PassThroughProfiler", "Profiler", "PyTorchProfiler", "SimpleProfiler"]

"""Number formats."""

from gpulayer.fabric.precision.mixed import MixedPrecision
from gpulayer.fabric.precision.precision import Precision
from gpulayer.fabric.precision.true import DoublePrecision, HalfPrecision

__all__ = ["DoublePrecision", "HalfPrecision", "MixedPrecision", "Precision"]

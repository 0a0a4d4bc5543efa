"""Number formats."""

from gpulayer.fabric.precision.mixed import MixedPrecision
from gpulayer.fabric.precision.precision import Precision

__all__ = ["MixedPrecision", "Precision"]

"""Categories of warnings, at the path where code written for Lightning imports them."""

from gpulayer.fabric.utilities.warnings import PossibleUserWarning

__all__ = ["PossibleUserWarning"]

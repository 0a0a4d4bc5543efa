"""Errors, at the path where code written for Lightning imports them."""

from gpulayer.fabric.utilities.exceptions import MisconfigurationException

__all__ = ["MisconfigurationException"]

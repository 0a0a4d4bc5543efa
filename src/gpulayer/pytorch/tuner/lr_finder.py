"""What the learning rate finder found, at the path where code written for Lightning imports it."""

from gpulayer.pytorch.callbacks.lr_finder import _LRFinder

__all__ = ["_LRFinder"]

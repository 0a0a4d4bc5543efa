"""Callback, at the path where code written for Lightning imports it."""

from gpulayer.pytorch.core.callback import Callback

__all__ = ["Callback"]

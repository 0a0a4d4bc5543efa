"""CombinedLoader, at the path where code written for Lightning imports it."""

from gpulayer.pytorch.core.combined_loader import CombinedLoader

__all__ = ["CombinedLoader"]

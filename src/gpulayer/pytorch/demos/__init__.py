"""Small models and data for trying things out."""

from gpulayer.pytorch.demos.boring_classes import BoringDataModule, BoringModel

__all__ = ["BoringDataModule", "BoringModel"]

"""What a user subclasses."""

from gpulayer.pytorch.core.datamodule import DataModule, LightningDataModule
from gpulayer.pytorch.core.module import LightningModule, Module

__all__ = ["DataModule", "LightningDataModule", "LightningModule", "Module"]

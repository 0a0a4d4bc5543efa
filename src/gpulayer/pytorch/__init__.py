"""The Trainer and what goes with it; the names are those of `lightning.pytorch`."""

from gpulayer import __version__
from gpulayer.fabric.utilities.seed import seed_everything
from gpulayer.pytorch import callbacks, loggers
from gpulayer.pytorch.core.callback import Callback
from gpulayer.pytorch.core.datamodule import DataModule, LightningDataModule
from gpulayer.pytorch.core.module import LightningModule, Module
from gpulayer.pytorch.trainer.trainer import Trainer

__all__ = [
    "Callback",
    "DataModule",
    "LightningDataModule",
    "LightningModule",
    "Module",
    "Trainer",
    "__version__",
    "callbacks",
    "loggers",
    "seed_everything",
]

"""The Trainer and what goes with it; the names are those of `lightning.pytorch`."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from gpulayer import __version__
from gpulayer.fabric.utilities.seed import seed_everything
from gpulayer.pytorch import callbacks, loggers, profilers, utilities
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
    "accelerators",
    "callbacks",
    "loggers",
    "plugins",
    "profilers",
    "seed_everything",
    "strategies",
    "utilities",
]

if TYPE_CHECKING:
    from gpulayer.pytorch import accelerators, plugins, strategies
else:

    def __getattr__(name: str) -> Any:
        if name in ("accelerators", "plugins", "strategies"):  # needed by few, so imported when they are used
            return import_module(f"{__name__}.{name}")
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")

"""The Trainer."""

from gpulayer.fabric.utilities.seed import seed_everything
from gpulayer.pytorch.trainer.trainer import Trainer

__all__ = ["Trainer", "seed_everything"]

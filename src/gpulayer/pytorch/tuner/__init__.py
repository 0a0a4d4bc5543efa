"""The tuner: finds a learning rate and a batch size before training."""

from gpulayer.pytorch.tuner.tuning import Tuner

__all__ = ["Tuner"]

"""Callbacks: code that runs at moments of a run without being part of the model."""

from gpulayer.pytorch.callbacks.early_stopping import EarlyStopping
from gpulayer.pytorch.callbacks.lr_monitor import LearningRateMonitor
from gpulayer.pytorch.callbacks.model_checkpoint import ModelCheckpoint
from gpulayer.pytorch.callbacks.timer import Timer
from gpulayer.pytorch.core.callback import Callback, Checkpoint

__all__ = ["Callback", "Checkpoint", "EarlyStopping", "LearningRateMonitor", "ModelCheckpoint", "Timer"]

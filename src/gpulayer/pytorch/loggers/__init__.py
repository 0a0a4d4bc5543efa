"""Loggers: where metrics and hyperparameters go."""

from gpulayer.pytorch.loggers.comet import CometLogger
from gpulayer.pytorch.loggers.csv_logs import CSVLogger
from gpulayer.pytorch.loggers.logger import Logger
from gpulayer.pytorch.loggers.mlflow import MLFlowLogger
from gpulayer.pytorch.loggers.tensorboard import TensorBoardLogger
from gpulayer.pytorch.loggers.trackio import TrackioLogger
from gpulayer.pytorch.loggers.wandb import WandbLogger

__all__ = [
    "CSVLogger",
    "CometLogger",
    "Logger",
    "MLFlowLogger",
    "TensorBoardLogger",
    "TrackioLogger",
    "WandbLogger",
]

"""Loggers: where metrics and hyperparameters go."""

from gpulayer.pytorch.loggers.csv_logs import CSVLogger
from gpulayer.pytorch.loggers.logger import Logger

__all__ = ["CSVLogger", "Logger"]

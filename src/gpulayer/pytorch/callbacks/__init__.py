"""Callbacks: code that runs at moments of a run without being part of the model."""

from gpulayer.pytorch.callbacks.batch_size_finder import BatchSizeFinder
from gpulayer.pytorch.callbacks.device_stats_monitor import DeviceStatsMonitor
from gpulayer.pytorch.callbacks.early_stopping import EarlyStopping
from gpulayer.pytorch.callbacks.finetuning import BackboneFinetuning, BaseFinetuning
from gpulayer.pytorch.callbacks.gradient_accumulation_scheduler import GradientAccumulationScheduler
from gpulayer.pytorch.callbacks.lambda_function import LambdaCallback
from gpulayer.pytorch.callbacks.lr_finder import LearningRateFinder
from gpulayer.pytorch.callbacks.lr_monitor import LearningRateMonitor
from gpulayer.pytorch.callbacks.model_checkpoint import ModelCheckpoint
from gpulayer.pytorch.callbacks.model_summary import ModelSummary
from gpulayer.pytorch.callbacks.on_exception_checkpoint import OnExceptionCheckpoint
from gpulayer.pytorch.callbacks.prediction_writer import BasePredictionWriter
from gpulayer.pytorch.callbacks.progress import ProgressBar, RichProgressBar, TQDMProgressBar
from gpulayer.pytorch.callbacks.pruning import ModelPruning
from gpulayer.pytorch.callbacks.rich_model_summary import RichModelSummary
from gpulayer.pytorch.callbacks.spike import SpikeDetection
from gpulayer.pytorch.callbacks.stochastic_weight_avg import StochasticWeightAveraging
from gpulayer.pytorch.callbacks.throughput_monitor import ThroughputMonitor
from gpulayer.pytorch.callbacks.timer import Timer
from gpulayer.pytorch.callbacks.weight_averaging import EMAWeightAveraging, WeightAveraging
from gpulayer.pytorch.core.callback import Callback, Checkpoint

__all__ = [
    "BackboneFinetuning",
    "BaseFinetuning",
    "BasePredictionWriter",
    "BatchSizeFinder",
    "Callback",
    "Checkpoint",
    "DeviceStatsMonitor",
    "EMAWeightAveraging",
    "EarlyStopping",
    "GradientAccumulationScheduler",
    "LambdaCallback",
    "LearningRateFinder",
    "LearningRateMonitor",
    "ModelCheckpoint",
    "ModelPruning",
    "ModelSummary",
    "OnExceptionCheckpoint",
    "ProgressBar",
    "RichModelSummary",
    "RichProgressBar",
    "SpikeDetection",
    "StochasticWeightAveraging",
    "TQDMProgressBar",
    "ThroughputMonitor",
    "Timer",
    "WeightAveraging",
]

"""Types of signatures, under the names that code written for Lightning imports."""

from collections.abc import Mapping
from typing import Any, TypeAlias, TypedDict

from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler, ReduceLROnPlateau

from gpulayer.pytorch.core.hooks import StepOutput
from gpulayer.pytorch.core.optimizer import LRSchedulerConfig

STEP_OUTPUT: TypeAlias = StepOutput
TRAIN_DATALOADERS: TypeAlias = Any
EVAL_DATALOADERS: TypeAlias = Any
LRSchedulerTypeUnion: TypeAlias = LRScheduler | ReduceLROnPlateau
LRSchedulerTypeTuple = (LRScheduler, ReduceLROnPlateau)


class LRSchedulerConfigType(TypedDict, total=False):
    """The dict form of a scheduler in `configure_optimizers`."""

    scheduler: Any
    name: str | None
    interval: str
    frequency: int
    reduce_on_plateau: bool
    monitor: str | None
    strict: bool


class OptimizerConfig(TypedDict):
    """The dict form of an optimizer in `configure_optimizers`."""

    optimizer: Optimizer


class OptimizerLRSchedulerConfig(TypedDict):
    """The dict form of an optimizer with a scheduler in `configure_optimizers`."""

    optimizer: Optimizer
    lr_scheduler: LRSchedulerTypeUnion | LRSchedulerConfigType
    monitor: str | None


OptimizerLRScheduler: TypeAlias = (
    Optimizer | list[Optimizer] | Mapping[str, Any] | tuple[list[Optimizer], list[Any]] | list[Mapping[str, Any]] | None
)

__all__ = [
    "EVAL_DATALOADERS",
    "STEP_OUTPUT",
    "TRAIN_DATALOADERS",
    "LRSchedulerConfig",
    "LRSchedulerConfigType",
    "LRSchedulerTypeTuple",
    "LRSchedulerTypeUnion",
    "OptimizerConfig",
    "OptimizerLRScheduler",
    "OptimizerLRSchedulerConfig",
]

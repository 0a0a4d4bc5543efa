"""Types that signatures share."""

import os
from collections.abc import Callable
from typing import Any, Protocol, TypeAlias, runtime_checkable

import torch
from torch.optim.lr_scheduler import LRScheduler, ReduceLROnPlateau

Path: TypeAlias = str | os.PathLike[str]
MapLocation: TypeAlias = (
    torch.device
    | str
    | int
    | Callable[[Any, str], Any]
    | dict[torch.device | str | int, torch.device | str | int]
    | None
)
Scheduler: TypeAlias = LRScheduler | ReduceLROnPlateau


@runtime_checkable
class Stateful(Protocol):
    """Has state that a checkpoint can hold."""

    def state_dict(self) -> dict[str, Any]: ...

    def load_state_dict(self, state_dict: dict[str, Any]) -> None: ...

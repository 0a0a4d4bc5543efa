"""Types that signatures share."""

import os
from collections.abc import Callable
from typing import Any, TypeAlias

import torch

Path: TypeAlias = str | os.PathLike[str]
MapLocation: TypeAlias = (
    torch.device
    | str
    | int
    | Callable[[Any, str], Any]
    | dict[torch.device | str | int, torch.device | str | int]
    | None
)

"""Speaking once: messages and functions that only the first process of a run prints or runs."""

import logging
import os
import sys
import warnings
from collections.abc import Callable
from functools import wraps
from typing import Any, ParamSpec, TextIO, TypeVar

P = ParamSpec("P")
T = TypeVar("T")

log = logging.getLogger("gpulayer")


class _StandardError(logging.StreamHandler):  # type: ignore[type-arg]  # to give one needs Python 3.11
    """Writes to whatever `sys.stderr` is now, and only where the program has not set up logging of its own."""

    def __init__(self) -> None:
        logging.Handler.__init__(self)
        self.setFormatter(logging.Formatter("%(message)s"))

    @property
    def stream(self) -> TextIO:
        return sys.stderr

    def filter(self, record: logging.LogRecord) -> bool:
        return not logging.getLogger().handlers


log.addHandler(_StandardError())
log.setLevel(logging.INFO)


def _rank_from_environment() -> int:
    """The rank that a launcher gave this process; 0 for a single process."""
    for name in ("RANK", "SLURM_PROCID", "OMPI_COMM_WORLD_RANK", "PMI_RANK", "JSM_NAMESPACE_RANK"):
        value = os.environ.get(name, "")
        if value.isdigit():
            return int(value)
    return 0


class _RankZeroOnly:
    """Decorator: the function runs on rank 0, and elsewhere returns `default`. Its `rank` is this process's."""

    def __init__(self) -> None:
        self.rank = _rank_from_environment()

    def __call__(self, function: Callable[P, T], default: T | None = None) -> Callable[P, T | None]:
        @wraps(function)
        def on_rank_zero(*args: P.args, **kwargs: P.kwargs) -> T | None:
            return function(*args, **kwargs) if self.rank == 0 else default

        return on_rank_zero


rank_zero_only = _RankZeroOnly()


def rank_zero_info(message: str, *args: Any) -> None:
    """Log a line on rank 0."""
    if rank_zero_only.rank == 0:
        log.info(message, *args)


def rank_zero_debug(message: str, *args: Any) -> None:
    """Log a detail on rank 0."""
    if rank_zero_only.rank == 0:
        log.debug(message, *args)


def rank_zero_warn(message: str, category: type[Warning] = UserWarning, stacklevel: int = 2) -> None:
    """Warn on rank 0, pointing `stacklevel` frames above this call."""
    if rank_zero_only.rank == 0:
        warnings.warn(message, category, stacklevel=stacklevel + 1)


class GPULayerDeprecationWarning(DeprecationWarning):
    """Something that a later version will not have."""


def rank_zero_deprecation(message: str, stacklevel: int = 3) -> None:
    """Warn on rank 0 that a feature is going away."""
    rank_zero_warn(message, GPULayerDeprecationWarning, stacklevel + 1)

"""Small helpers, at the paths where code written for Lightning imports them."""

from gpulayer.fabric.utilities import (
    move_data_to_device,
    rank_zero_deprecation,
    rank_zero_info,
    rank_zero_only,
    rank_zero_warn,
)
from gpulayer.pytorch.core.combined_loader import CombinedLoader
from gpulayer.pytorch.core.hparams import AttributeDict
from gpulayer.pytorch.utilities import combined_loader, exceptions, rank_zero, seed, types, warnings

__all__ = [
    "AttributeDict",
    "CombinedLoader",
    "combined_loader",
    "exceptions",
    "move_data_to_device",
    "rank_zero",
    "rank_zero_deprecation",
    "rank_zero_info",
    "rank_zero_only",
    "rank_zero_warn",
    "seed",
    "types",
    "warnings",
]

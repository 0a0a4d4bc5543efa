"""Small helpers that every layer may use; this package imports nothing of the others."""

from gpulayer.fabric.utilities.apply import apply_to_collection, move_data_to_device
from gpulayer.fabric.utilities.rank_zero import (
    rank_zero_debug,
    rank_zero_deprecation,
    rank_zero_info,
    rank_zero_only,
    rank_zero_warn,
)

__all__ = [
    "apply_to_collection",
    "move_data_to_device",
    "rank_zero_debug",
    "rank_zero_deprecation",
    "rank_zero_info",
    "rank_zero_only",
    "rank_zero_warn",
]

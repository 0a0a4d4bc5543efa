"""What a model consists of: layers, parameters, shapes, FLOPs."""

from gpulayer.pytorch.utilities.model_summary.model_summary import (
    LayerSummary,
    ModelSummary,
    parse_batch_shape,
    summarize,
)
from gpulayer.pytorch.utilities.model_summary.table import get_formatted_model_size, get_human_readable_count

__all__ = [
    "LayerSummary",
    "ModelSummary",
    "get_formatted_model_size",
    "get_human_readable_count",
    "parse_batch_shape",
    "summarize",
]

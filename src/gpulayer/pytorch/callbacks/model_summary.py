"""ModelSummary: a table of the model's layers before training."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from gpulayer.fabric.utilities.rank_zero import rank_zero_info
from gpulayer.pytorch.core.callback import Callback
from gpulayer.pytorch.utilities.model_summary.model_summary import check_depth, summarize
from gpulayer.pytorch.utilities.model_summary.table import Columns, draw, terminal_width, totals

if TYPE_CHECKING:
    from gpulayer.pytorch.core.module import Module
    from gpulayer.pytorch.trainer.trainer import Trainer


class ModelSummary(Callback):
    """Log a table of the layers at the start of `fit`, with shapes and FLOPs if the model has an `example_input_array`.

    Args:
        max_depth: how deep into nested modules layers are listed; -1: all of them, 0: nothing is logged.
        **summarize_kwargs: passed on to `summarize`, for subclasses that override it.

    Raises:
        MisconfigurationException: `max_depth` is below -1 or no whole number.
    """

    def __init__(self, max_depth: int = 1, **summarize_kwargs: Any) -> None:
        check_depth(max_depth, type(self).__name__)
        self._max_depth = max_depth
        self._summarize_kwargs = summarize_kwargs

    def on_fit_start(self, trainer: Trainer, pl_module: Module) -> None:
        if self._max_depth == 0:
            return
        summary = summarize(pl_module, self._max_depth)  # on all ranks: the forward pass of a sharded model needs them
        if trainer.is_global_zero:
            self.summarize(
                summary.columns(),
                summary.total_parameters,
                summary.trainable_parameters,
                summary.model_size,
                summary.total_training_modes,
                total_flops=summary.total_flops,
                **self._summarize_kwargs,
            )

    @staticmethod
    def summarize(
        summary_data: Columns,
        total_parameters: int,
        trainable_parameters: int,
        model_size: float,
        total_training_modes: dict[str, int],
        total_flops: int,
        **summarize_kwargs: Any,
    ) -> None:
        """Show the summary; override it to show it elsewhere.

        Args:
            summary_data: the table: each column's header and cells.
            total_parameters: of the whole model.
            trainable_parameters: those that require gradients.
            model_size: of the parameters, in megabytes.
            total_training_modes: how many modules are in "train" and how many in "eval" mode.
            total_flops: of the forward pass; 0 if there was none.
            **summarize_kwargs: what the callback was given.
        """
        below = totals(total_parameters, trainable_parameters, model_size, total_training_modes, total_flops)
        rank_zero_info("\n%s\n", draw(summary_data, below, terminal_width()))

"""BasePredictionWriter: the base of callbacks that store predictions."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from enum import Enum
from typing import TYPE_CHECKING, Any, Literal

from gpulayer.fabric.utilities.exceptions import MisconfigurationException
from gpulayer.pytorch.core.callback import Callback
from gpulayer.pytorch.core.hooks import overridden

if TYPE_CHECKING:
    from gpulayer.pytorch.core.module import Module
    from gpulayer.pytorch.trainer.trainer import Trainer


class WriteInterval(str, Enum):
    """When a writer writes."""

    BATCH = "batch"
    EPOCH = "epoch"
    BATCH_AND_EPOCH = "batch_and_epoch"

    @property
    def on_batch(self) -> bool:
        """Whether it writes after each batch."""
        return self is not WriteInterval.EPOCH

    @property
    def on_epoch(self) -> bool:
        """Whether it writes at the end of a prediction."""
        return self is not WriteInterval.BATCH


class BasePredictionWriter(Callback):
    """Override `write_on_batch_end`, `write_on_epoch_end` or both; `trainer.predict` calls them.

    With `trainer.predict(..., return_predictions=False)` and "batch" no prediction is kept in memory.

    Args:
        write_interval: "batch", "epoch" (at the end, with all predictions) or "batch_and_epoch".

    Raises:
        MisconfigurationException: another interval.
    """

    def __init__(self, write_interval: Literal["batch", "epoch", "batch_and_epoch"] = "batch") -> None:
        super().__init__()
        if write_interval not in list(WriteInterval):
            raise MisconfigurationException(
                f"`{type(self).__name__}(write_interval={write_interval!r})`: choose 'batch', 'epoch' or "
                "'batch_and_epoch'."
            )
        self.interval = WriteInterval(write_interval)

    def setup(self, trainer: Trainer, pl_module: Module, stage: str) -> None:
        """Refuse what it cannot work with.

        Raises:
            MisconfigurationException: the method to write with is missing, or `predict_step` takes the iterator, so
                that nobody knows which batches it used.
        """
        if stage != "predict":
            return
        for name, used in (
            ("write_on_batch_end", self.interval.on_batch),
            ("write_on_epoch_end", self.interval.on_epoch),
        ):
            if used and not overridden(name, self, BasePredictionWriter):
                raise MisconfigurationException(
                    f"`{type(self).__name__}(write_interval={self.interval.value!r})` has no `{name}`: define it, or "
                    "choose another interval."
                )
        if "dataloader_iter" in inspect.signature(pl_module.predict_step).parameters:
            raise MisconfigurationException(
                f"{type(self).__name__} cannot write for a `predict_step` that takes `dataloader_iter`: let it take "
                "`batch` and `batch_idx`."
            )

    def write_on_batch_end(
        self,
        trainer: Trainer,
        pl_module: Module,
        prediction: Any,
        batch_indices: Sequence[int] | None,
        batch: Any,
        batch_idx: int,
        dataloader_idx: int,
    ) -> None:
        """Store the prediction of one batch.

        Args:
            trainer: the Trainer.
            pl_module: the Module.
            prediction: what `predict_step` returned.
            batch_indices: the indices in the dataset of the batch's samples; empty where they are not known.
            batch: the batch.
            batch_idx: its number.
            dataloader_idx: the number of its loader.
        """

    def write_on_epoch_end(
        self, trainer: Trainer, pl_module: Module, predictions: Sequence[Any], batch_indices: Sequence[Any]
    ) -> None:
        """Store all predictions.

        Args:
            trainer: the Trainer.
            pl_module: the Module.
            predictions: those of the batches; with several loaders, one such list for each.
            batch_indices: for each loader, also if there is one, the indices of each batch's samples; an empty list for
                a loader where they are not known.
        """

    def on_predict_batch_end(
        self, trainer: Trainer, pl_module: Module, outputs: Any, batch: Any, batch_idx: int, dataloader_idx: int = 0
    ) -> None:
        if self.interval.on_batch:
            indices = trainer.predict_loop.current_batch_indices
            self.write_on_batch_end(trainer, pl_module, outputs, indices, batch, batch_idx, dataloader_idx)

    def on_predict_epoch_end(self, trainer: Trainer, pl_module: Module) -> None:
        if self.interval.on_epoch:
            loop = trainer.predict_loop
            self.write_on_epoch_end(trainer, pl_module, loop.predictions, loop.epoch_batch_indices)

"""TrainingSpikeException: what ends a run whose loss jumped."""

from typing import Any


class TrainingSpikeException(RuntimeError):
    """The loss jumped.

    Args:
        batch_idx: the batch's number in its epoch.
    """

    def __init__(self, batch_idx: int, *args: Any, **kwargs: Any) -> None:
        super().__init__(f"Training spike detected in batch {batch_idx}", *args, **kwargs)
        self.batch_idx = batch_idx

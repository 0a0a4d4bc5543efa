"""LambdaCallback: a callback made of functions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from gpulayer.fabric.utilities.exceptions import MisconfigurationException
from gpulayer.pytorch.core.callback import Callback

Hook = Callable[..., Any]


class LambdaCallback(Callback):
    """Calls functions at moments of a run: `LambdaCallback(on_train_end=lambda trainer, module: print("over"))`.

    Args:
        setup: is given what `Callback.setup` is given, the trainer and the module first; all others likewise.

    Raises:
        MisconfigurationException: one is no function.
    """

    def __init__(
        self,
        setup: Hook | None = None,
        teardown: Hook | None = None,
        on_fit_start: Hook | None = None,
        on_fit_end: Hook | None = None,
        on_sanity_check_start: Hook | None = None,
        on_sanity_check_end: Hook | None = None,
        on_train_batch_start: Hook | None = None,
        on_train_batch_end: Hook | None = None,
        on_train_epoch_start: Hook | None = None,
        on_train_epoch_end: Hook | None = None,
        on_validation_epoch_start: Hook | None = None,
        on_validation_epoch_end: Hook | None = None,
        on_test_epoch_start: Hook | None = None,
        on_test_epoch_end: Hook | None = None,
        on_validation_batch_start: Hook | None = None,
        on_validation_batch_end: Hook | None = None,
        on_test_batch_start: Hook | None = None,
        on_test_batch_end: Hook | None = None,
        on_train_start: Hook | None = None,
        on_train_end: Hook | None = None,
        on_validation_start: Hook | None = None,
        on_validation_end: Hook | None = None,
        on_test_start: Hook | None = None,
        on_test_end: Hook | None = None,
        on_exception: Hook | None = None,
        on_save_checkpoint: Hook | None = None,
        on_load_checkpoint: Hook | None = None,
        on_before_backward: Hook | None = None,
        on_after_backward: Hook | None = None,
        on_before_optimizer_step: Hook | None = None,
        on_before_zero_grad: Hook | None = None,
        on_predict_start: Hook | None = None,
        on_predict_end: Hook | None = None,
        on_predict_batch_start: Hook | None = None,
        on_predict_batch_end: Hook | None = None,
        on_predict_epoch_start: Hook | None = None,
        on_predict_epoch_end: Hook | None = None,
    ) -> None:
        given = {name: hook for name, hook in locals().items() if name not in ("self", "__class__")}
        for name, hook in given.items():
            if hook is None:
                continue
            if not callable(hook):
                raise MisconfigurationException(f"`LambdaCallback({name}={hook!r})`: give a function.")
            setattr(self, name, hook)  # on the object: a hook that was not given stays one that costs nothing

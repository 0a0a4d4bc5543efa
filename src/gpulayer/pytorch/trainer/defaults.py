"""The callbacks that a Trainer has beside those that it was given."""

from __future__ import annotations

from typing import Any

from gpulayer.fabric.utilities.exceptions import MisconfigurationException
from gpulayer.fabric.utilities.rank_zero import rank_zero_warn
from gpulayer.pytorch.callbacks.model_checkpoint import ModelCheckpoint
from gpulayer.pytorch.callbacks.model_summary import ModelSummary
from gpulayer.pytorch.callbacks.progress.progress_bar import ProgressBar
from gpulayer.pytorch.callbacks.progress.rich_progress import RichProgressBar
from gpulayer.pytorch.callbacks.progress.tqdm_progress import TQDMProgressBar
from gpulayer.pytorch.callbacks.rich_model_summary import RichModelSummary
from gpulayer.pytorch.callbacks.timer import Timer, read_duration
from gpulayer.pytorch.core.callback import Callback, Checkpoint


def all_callbacks(
    given: Any,
    max_time: Any = None,
    checkpointing: bool | None = None,
    progress_bar: bool | None = None,
    model_summary: bool | None = None,
    trial: bool = False,
) -> list[Callback]:
    """The callbacks that the user gave, and those that other arguments of the Trainer ask for.

    Args:
        given: `Trainer(callbacks=...)`.
        max_time: as there.
        checkpointing: `enable_checkpointing`.
        progress_bar: `enable_progress_bar`.
        model_summary: `enable_model_summary`.
        trial: whether it is a `fast_dev_run`, which saves nothing whatever was given.

    Raises:
        MisconfigurationException: something given is no callback, or two arguments contradict each other.
    """
    callbacks = list(given) if isinstance(given, (list, tuple)) else [] if given is None else [given]
    for item in callbacks:
        if not isinstance(item, Callback):
            raise MisconfigurationException(
                f"`Trainer(callbacks=...)` holds {item!r}: give objects of subclasses of `gpulayer.pytorch.Callback`."
            )
    savers, bars = _of(callbacks, Checkpoint), _of(callbacks, ProgressBar)
    if not trial:
        _refuse_contradiction("enable_checkpointing", checkpointing, savers)
    _refuse_contradiction("enable_progress_bar", progress_bar, bars)
    if len(bars) > 1:
        raise MisconfigurationException(
            f"`Trainer(callbacks=...)` holds {len(bars)} progress bars, {type(bars[0]).__name__} and "
            f"{type(bars[1]).__name__}: leave all but one out."
        )
    if progress_bar and not bars:
        callbacks.append(TQDMProgressBar())
    if model_summary and not _of(callbacks, ModelSummary):
        callbacks.append(RichModelSummary() if _of(callbacks, RichProgressBar) else ModelSummary())
    if max_time is not None:
        if _of(callbacks, Timer):
            rank_zero_warn("`Trainer(max_time=...)` is ignored, for `callbacks` holds a Timer.")
        else:
            callbacks.append(Timer(read_duration(max_time, "Trainer(max_time={!r})"), interval="step"))
    if checkpointing is not False and not trial and not savers:
        callbacks.append(ModelCheckpoint())
    return savers_last(callbacks)


def savers_last(callbacks: list[Callback]) -> list[Callback]:
    """Those that save checkpoints last, so that they save what the others have done."""
    savers = _of(callbacks, Checkpoint)
    return [callback for callback in callbacks if not isinstance(callback, Checkpoint)] + savers


def _of(callbacks: list[Callback], kind: type[Callback]) -> list[Callback]:
    return [callback for callback in callbacks if isinstance(callback, kind)]


def _refuse_contradiction(argument: str, enabled: bool | None, callbacks: list[Callback]) -> None:
    if enabled is False and callbacks:
        raise MisconfigurationException(
            f"`Trainer({argument}=False)`, but `callbacks` holds {type(callbacks[0]).__name__}: leave one out."
        )

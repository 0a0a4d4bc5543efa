"""The callbacks that a Trainer has: those that it was given, and those that other arguments or packages bring."""

from __future__ import annotations

from collections.abc import Iterable
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
from gpulayer.pytorch.trainer import checks
from gpulayer.pytorch.trainer.third_party import third_party_callbacks

LIGHTNINGS = {"lightning": "lightning.pytorch.callbacks", "pytorch_lightning": "pytorch_lightning.callbacks"}


def all_callbacks(
    given: Any,
    max_time: Any = None,
    checkpointing: bool | None = None,
    progress_bar: bool | None = None,
    model_summary: bool | None = None,
    trial: bool = False,
    third_party: bool = True,
) -> list[Callback]:
    """The callbacks that the user gave, and those that other arguments of the Trainer ask for.

    Args:
        given: `Trainer(callbacks=...)`.
        max_time: as there.
        checkpointing: `enable_checkpointing`.
        progress_bar: `enable_progress_bar`.
        model_summary: `enable_model_summary`.
        trial: whether it is a `fast_dev_run`, which saves nothing whatever was given.
        third_party: whether installed packages may add theirs.

    Raises:
        MisconfigurationException: something given is no callback, or two arguments contradict each other.
    """
    callbacks = read_callbacks(given, "`Trainer(callbacks=...)`")
    savers, bars = _of(callbacks, Checkpoint), _of(callbacks, ProgressBar)
    if not trial:
        _refuse_contradiction("enable_checkpointing", checkpointing, savers)
    _refuse_contradiction("enable_progress_bar", progress_bar, bars)
    if checkpointing is not False and not trial and not savers:
        callbacks.append(ModelCheckpoint())
    if max_time is not None:
        if _of(callbacks, Timer):
            rank_zero_warn("`Trainer(max_time=...)` is ignored, for `callbacks` holds a Timer.")
        else:
            callbacks.append(Timer(read_duration(max_time, "Trainer(max_time={!r})"), interval="step"))
    if progress_bar and not bars:
        callbacks.append(TQDMProgressBar())
    if model_summary and not _of(callbacks, ModelSummary):
        callbacks.append(RichModelSummary() if _of(callbacks, RichProgressBar) else ModelSummary())
    if third_party:
        callbacks += third_party_callbacks(read_callbacks)
    bars = _of(callbacks, ProgressBar)
    if len(bars) > 1:
        raise MisconfigurationException(
            f"The Trainer has {len(bars)} progress bars, {type(bars[0]).__name__} and {type(bars[1]).__name__}: "
            "leave all but one out of `Trainer(callbacks=...)`."
        )
    checks.distinct_state_keys(callbacks)
    return in_order(callbacks)


def in_order(callbacks: list[Callback]) -> list[Callback]:
    """First those that want to be, last those that save checkpoints, so that they save what the others have done."""
    return sorted(callbacks, key=lambda callback: 2 if isinstance(callback, Checkpoint) else not callback.comes_first)


def read_callbacks(given: Any, where: str) -> list[Callback]:
    """A callback or several, or None, as a list.

    Args:
        given: what the user wrote.
        where: words for what holds it, to begin an error with.

    Raises:
        MisconfigurationException: there is something else; the message says what to give.
    """
    several = isinstance(given, Iterable) and not isinstance(given, (str, Callback))
    callbacks = list(given) if several else [] if given is None else [given]
    for item in callbacks:
        if not isinstance(item, Callback):
            raise MisconfigurationException(f"{where} holds {_what_to_give(item)}")
    return callbacks


def _what_to_give(item: Any) -> str:
    """Words for something that is no callback, and for what to give instead."""
    kind = item if isinstance(item, type) else type(item)
    if isinstance(item, type) and issubclass(item, Callback):
        return f"the class {kind.__name__}: give an object of it, `{kind.__name__}(...)`."
    for base in kind.__mro__:
        if package := LIGHTNINGS.get(base.__module__.partition(".")[0]):
            what = "" if base is kind else f", whose class (of the module {kind.__module__!r}) extends Lightning's own"
            return (
                f"{kind.__name__} of Lightning{what}: import {base.__name__} from `gpulayer.pytorch.callbacks`, "
                f"not from `{package}`."
            )
    return f"{item!r}, of {kind.__name__}: give objects of subclasses of `gpulayer.pytorch.Callback`."


def _of(callbacks: list[Callback], kind: type[Callback]) -> list[Callback]:
    return [callback for callback in callbacks if isinstance(callback, kind)]


def _refuse_contradiction(argument: str, enabled: bool | None, callbacks: list[Callback]) -> None:
    if enabled is False and callbacks:
        raise MisconfigurationException(
            f"`Trainer({argument}=False)`, but `callbacks` holds {type(callbacks[0]).__name__}: leave one out."
        )

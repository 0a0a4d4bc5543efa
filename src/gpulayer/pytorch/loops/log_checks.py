"""The checks of `self.log`, made once for each name in each hook."""

from __future__ import annotations

from typing import Any

import torch

from gpulayer.fabric.utilities.exceptions import MisconfigurationException
from gpulayer.pytorch.loops.slots import (
    KINDS,
    PLACES,
    REDUCTIONS,
    FunctionSlot,
    MetricSlot,
    Options,
    Slot,
    plain_options,
)

OPTIONS = ("prog_bar", "logger", "on_step", "on_epoch", "reduce_fx", "add_dataloader_idx", "rank_zero_only")
_WHERE = (
    "log in `training_step`, `validation_step`, `test_step`, in the hooks around a batch, or in "
    "`on_*_epoch_start` and `on_*_epoch_end`"
)


def new_slot(
    fx: str | None,
    name: Any,
    loader: int | None,
    options: Options,
    device: torch.device,
    known: Slot | None = None,
    metric: bool = False,
) -> Slot:
    """The slot for a name, after a check of the arguments of `self.log`.

    Args:
        fx: the hook that is running.
        name: the metric's name.
        loader: which of several loaders the batch is from.
        options: the other arguments, in the order of OPTIONS.
        device: where the module is.
        known: the slot that this name has in this hook already.
        metric: whether the value is an object of torchmetrics.

    Raises:
        MisconfigurationException: something cannot be logged there or so, or was logged otherwise before.
    """
    if not isinstance(name, str):
        raise MisconfigurationException(f"`self.log` takes a name as its first argument; got {name!r}.")
    if "/dataloader_idx_" in name:
        raise MisconfigurationException(
            f"`self.log({name!r}, ...)`: with several loaders `/dataloader_idx_N` is appended by itself; choose "
            "another name, or pass `add_dataloader_idx=False`."
        )
    place = PLACES.get(fx or "")
    if place is None:
        where = f"in `{fx}`" if fx else "outside the hooks of a run"
        raise MisconfigurationException(f"`self.log({name!r}, ...)` cannot be called {where}: {_WHERE}.")
    if known is not None and not same_function(options, known.options):
        changed = [
            f"{key}={new!r} (before: {old!r})"
            for key, new, old in zip(OPTIONS, options, known.options, strict=True)
            if new != old
        ]
        raise MisconfigurationException(
            f"`self.log({name!r}, ...)` was called in `{fx}` with {', '.join(changed)}: "
            "one name keeps its settings; give the values two names, or the same settings."
        )
    on_step, on_epoch, reduction = options[2], options[3], options[4]
    if on_step and not place.steps:
        raise MisconfigurationException(
            f"`self.log({name!r}, on_step=True)` in `{fx}`: there is no step there; use on_epoch=True."
        )
    if not place.steps and on_epoch is False:
        raise MisconfigurationException(
            f"`self.log({name!r}, on_epoch=False)` in `{fx}`: only an epoch's value can be logged there."
        )
    kind = REDUCTIONS.get(reduction) if isinstance(reduction, str) or callable(reduction) else None
    if kind is None and not callable(reduction):
        raise MisconfigurationException(
            f"`self.log({name!r}, reduce_fx={reduction!r})`: give 'mean', 'sum', 'min', 'max' or a function."
        )
    cls = MetricSlot if metric else KINDS.get(kind or "", FunctionSlot)
    slot = cls(name, loader, place, options, device)
    if not slot.on_step and not slot.on_epoch:
        raise MisconfigurationException(
            f"`self.log({name!r}, on_step=False, on_epoch=False)` logs nothing: set one of them."
        )
    return slot


def same_function(one: Options, other: Options) -> bool:
    """Whether options differ in nothing but `reduce_fx`, a function that is made anew by the same line of code."""
    code = getattr(one[4], "__code__", None)
    return (
        code is not None and code is getattr(other[4], "__code__", None) and plain_options(one) == plain_options(other)
    )

"""The arguments of ModelCheckpoint, checked before training starts."""

from __future__ import annotations

import os
from datetime import timedelta
from typing import Any

from gpulayer.fabric.utilities.exceptions import MisconfigurationException
from gpulayer.pytorch.callbacks.checkpoint.templates import check_template
from gpulayer.pytorch.loops.when import Every, every


def check_arguments(
    dirpath: Any, filename: Any, monitor: Any, save_last: Any, save_top_k: Any, mode: Any, on_save_error: Any
) -> None:
    """Raise for a value that cannot be used.

    Raises:
        MisconfigurationException: it names the argument, what was given and what is allowed.
    """
    if mode not in ("min", "max"):
        raise MisconfigurationException(f"`ModelCheckpoint(mode={mode!r})`: choose 'min' or 'max'.")
    if isinstance(save_top_k, bool) or not isinstance(save_top_k, int) or save_top_k < -1:
        raise MisconfigurationException(
            f"`ModelCheckpoint(save_top_k={save_top_k!r})`: give how many to keep, -1 for all, or 0 for none."
        )
    if monitor is None and save_top_k not in (-1, 0, 1):
        raise MisconfigurationException(
            f"`ModelCheckpoint(save_top_k={save_top_k})` needs `monitor=`, the metric that says which are "
            "best; without one, save_top_k is 1 (the newest), -1 (all) or 0."
        )
    if save_last not in (None, True, False, "link"):
        raise MisconfigurationException(f"`ModelCheckpoint(save_last={save_last!r})`: choose True, False or 'link'.")
    if on_save_error not in ("raise", "warn"):
        raise MisconfigurationException(
            f"`ModelCheckpoint(on_save_error={on_save_error!r})`: choose 'raise', which ends the run when a "
            "checkpoint cannot be stored, or 'warn', which goes on without it."
        )
    if monitor is not None and not isinstance(monitor, str):
        raise MisconfigurationException(f"`ModelCheckpoint(monitor={monitor!r})`: give the name of a logged metric.")
    if dirpath is not None and not isinstance(dirpath, (str, os.PathLike)):
        raise MisconfigurationException(f"`ModelCheckpoint(dirpath={dirpath!r})`: give a folder.")
    check_template(filename)


def interval(steps: int | None, time: timedelta | None, epochs: int | None) -> Every:
    """When to save, from the three arguments of which one may be given.

    Raises:
        MisconfigurationException: several are, or one is of the wrong kind.
    """
    if time is not None and not (isinstance(time, timedelta) and time > timedelta(0)):
        raise MisconfigurationException(
            f"`ModelCheckpoint(train_time_interval={time!r})`: give a timedelta, such as `timedelta(minutes=30)`."
        )
    for name, value in (("every_n_train_steps", steps), ("every_n_epochs", epochs)):
        if value is not None and (isinstance(value, bool) or not isinstance(value, int) or value < 0):
            raise MisconfigurationException(f"`ModelCheckpoint({name}={value!r})`: give a number from 0.")
    names = ("every_n_train_steps", "train_time_interval", "every_n_epochs")
    given = [name for name, value in zip(names, (steps, time, epochs), strict=True) if value]
    if len(given) > 1:
        raise MisconfigurationException(
            f"ModelCheckpoint takes one interval, but got {' and '.join(given)}: use a ModelCheckpoint for each."
        )
    if steps:
        return every(steps=steps)
    if time:
        return every(seconds=time.total_seconds())
    return every(epochs=1 if steps is None and epochs is None else epochs or 0)

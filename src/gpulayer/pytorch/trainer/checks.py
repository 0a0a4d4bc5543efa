"""Errors of the user, found before training starts; each says what was given, what is allowed and what to do."""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable, Iterable
from datetime import timedelta
from difflib import get_close_matches
from typing import TYPE_CHECKING, Any

from gpulayer.fabric.utilities.exceptions import MisconfigurationException
from gpulayer.pytorch.callbacks.timer import read_duration
from gpulayer.pytorch.core.callback import Callback
from gpulayer.pytorch.core.hooks import overridden
from gpulayer.pytorch.core.module import Module

if TYPE_CHECKING:
    from gpulayer.pytorch.trainer.attach import Source


# Arguments that Lightning has or had, and what to do here.
_ELSEWHERE = {
    "model_registry": "model registries come with a later version.",
    "resume_from_checkpoint": "pass `ckpt_path=` to `trainer.fit`.",
    "gpus": "use `accelerator='gpu', devices=...`.",
    "auto_lr_find": "the tuner comes with a later version.",
    "auto_scale_batch_size": "the tuner comes with a later version.",
    "weights_save_path": "use `default_root_dir`, or `ModelCheckpoint(dirpath=...)`.",
    "checkpoint_callback": "use `enable_checkpointing`.",
    "progress_bar_refresh_rate": "use `enable_progress_bar`.",
}


def unknown_arguments(given: Iterable[str], init: Callable[..., None]) -> None:
    """Raise for arguments that the Trainer's `init` does not have, with the nearest name.

    Raises:
        TypeError: there is one.
    """
    parameters = inspect.signature(init).parameters.values()
    known = [parameter.name for parameter in parameters if parameter.kind is parameter.KEYWORD_ONLY]
    for name in given:
        near = get_close_matches(name, known, n=1)
        hint = f"did you mean `{near[0]}`?" if near else f"it takes {', '.join(known)}."
        hint = _ELSEWHERE.get(name, hint)
        raise TypeError(f"Trainer has no argument `{name}`; {hint}")


def whole_number(name: str, value: Any, least: int, none: bool = True) -> None:
    """Raise unless `value` is a whole number of at least `least`, or None where that is allowed.

    Raises:
        MisconfigurationException: it is not.
    """
    if value is None and none:
        return
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        meaning = " (-1 for no limit)" if least == -1 else ""
        raise MisconfigurationException(
            f"`Trainer({name}={value!r})`: give a whole number from {least}{meaning}{', or None' if none else ''}."
        )


def limit(name: str, value: Any) -> None:
    """Raise unless `value` is None, a number of batches from 0, or a fraction from 0.0 to 1.0.

    Raises:
        MisconfigurationException: it is not.
    """
    if value is None:
        return
    good = not isinstance(value, bool) and (
        (isinstance(value, int) and value >= 0) or (isinstance(value, float) and 0.0 <= value <= 1.0)
    )
    if not good:
        raise MisconfigurationException(
            f"`Trainer({name}={value!r})`: give a number of batches from 0 (an int) or a fraction from 0.0 to 1.0 "
            "(a float)."
        )


def batch_limit(name: str, value: int | float | None, length: int | None, what: str) -> tuple[int | None, int | None]:
    """How many batches a loader gives under a limit.

    Args:
        name: the Trainer's argument.
        value: its value.
        length: the loader's length, None if it has none.
        what: what to call the loader.

    Returns:
        The number of batches (None if unknown), and the most to take (None for no bound).

    Raises:
        MisconfigurationException: a fraction of an unknown length, or one that rounds down to nothing.
    """
    if value is None or (isinstance(value, float) and value == 1.0):
        return length, None
    if isinstance(value, int):
        return (None if length is None else min(value, length)) if value else 0, value
    if value == 0.0:
        return 0, 0
    if length is None:
        raise MisconfigurationException(
            f"`Trainer({name}={value!r})` is a fraction, but {what} has no length. Give a number of batches "
            f"(`{name}=100`), 1.0 for all or 0 for none, or give the dataset a `__len__`."
        )
    taken = int(length * value)
    if taken == 0 and length > 0:
        raise MisconfigurationException(
            f"`Trainer({name}={value!r})` of {what}'s {length} batches is less than one. Give at least "
            f"{1 / length:.3g}, a number of batches (`{name}=1`), or 0 for none."
        )
    return taken, taken


_TRAINING_STEP = "computes the loss of a batch: `def training_step(self, batch, batch_idx): ... return loss`"
_OPTIMIZERS = "makes the optimizer: `def configure_optimizers(self): return torch.optim.Adam(self.parameters())`"
_EVALUATION_STEP = "looks at one batch: `def {}(self, batch, batch_idx): ...`"


def has_what_it_needs(call: str, module: Module, source: Source) -> None:
    """Raise unless the module has the methods of a call, and the call has data.

    Args:
        call: "fit", "validate", "test" or "predict".
        module: the module.
        source: where the call's batches come from.

    Raises:
        MisconfigurationException: a method is missing, or there is no data.
    """
    step = {"validate": "validation_step", "test": "test_step", "predict": "predict_step"}.get(call, "training_step")
    needed = {step: _TRAINING_STEP if call == "fit" else _EVALUATION_STEP.format(step)}
    if call == "fit":
        needed["configure_optimizers"] = _OPTIMIZERS
    if call == "predict" and overridden("forward", module, Module):
        needed = {}  # `predict_step` calls it
    for name, why in needed.items():
        if not overridden(name, module, Module):
            raise MisconfigurationException(f"`trainer.{call}` needs `{type(module).__name__}.{name}`, which {why}.")
    if not source.defined:
        argument = "train_dataloaders" if call == "fit" else "dataloaders"
        raise MisconfigurationException(
            f"`trainer.{call}` has no data: pass `{argument}=`, a `datamodule=` with a `{source.name}`, or define "
            f"`{type(module).__name__}.{source.name}`."
        )


def as_module(given: Any, call: str) -> Module:
    """The Module in what the user passed: itself, or the one that was compiled by `torch.compile(module)`.

    Raises:
        TypeError: it is something else.
    """
    compiled = getattr(given, "_orig_mod", None)
    if isinstance(compiled, Module):  # its steps are compiled in the same way when the run is prepared
        compiled.__dict__["_compiler"] = given.dynamo_ctx
        return compiled
    if isinstance(given, Module):
        return given
    raise TypeError(
        f"`trainer.{call}` takes a `gpulayer.pytorch.Module` (= LightningModule); got {type(given).__module__}."
        f"{type(given).__qualname__}."
    )


def step_arguments(step: Callable[..., Any], name: str, loaders: int) -> tuple[int, bool]:
    """How many of (batch, batch_idx, dataloader_idx) a step takes, and whether it takes the iterator instead.

    Raises:
        MisconfigurationException: the signature does not fit the number of loaders.
    """
    parameters = inspect.signature(step).parameters
    if "dataloader_iter" in parameters:
        return 1, True
    most = 3 if loaders > 1 else 2
    positional = [
        parameter
        for parameter in parameters.values()
        if parameter.kind in (parameter.POSITIONAL_ONLY, parameter.POSITIONAL_OR_KEYWORD)
    ]
    anything = any(parameter.kind is parameter.VAR_POSITIONAL for parameter in parameters.values())
    required = [parameter for parameter in positional if parameter.default is parameter.empty]
    if name == "predict_step" and not positional and anything:
        return most, False
    if len(required) > most:
        extra = [parameter.name for parameter in required[most:]]
        why = " (there is one loader; give `dataloader_idx` a default of 0)" if extra == ["dataloader_idx"] else ""
        raise MisconfigurationException(
            f"`{name}` takes {', '.join(parameter.name for parameter in required)}; it is called with "
            f"{', '.join(('batch', 'batch_idx', 'dataloader_idx')[:most])}{why}."
        )
    if loaders > 1 and not anything and len(positional) < 3:
        raise MisconfigurationException(
            f"There are {loaders} loaders, but `{name}` has no argument `dataloader_idx`: "
            f"`def {name}(self, batch, batch_idx, dataloader_idx)`."
        )
    return (most if anything else min(len(positional), most)), False


def distinct_state_keys(callbacks: Iterable[Callback]) -> None:
    """Raise if the state of two callbacks would lie under one name in a checkpoint.

    Raises:
        MisconfigurationException: it would.
    """
    seen: dict[str, Callback] = {}
    for callback in callbacks:
        if not overridden("state_dict", callback, Callback):
            continue
        if (other := seen.get(callback.state_key)) is not None:
            kinds = " and ".join({f"{type(one).__module__}.{type(one).__qualname__}": 0 for one in (other, callback)})
            raise MisconfigurationException(
                f"Two callbacks have the state key {callback.state_key!r}, so a checkpoint could keep only one of "
                f"them ({kinds}). Remove one, give it other settings if they are part of the key, or give "
                f"`{type(callback).__name__}` a property `state_key` that tells them apart. A hook that adds callbacks "
                "is called in every run, so it must look whether they are in `trainer.callbacks` already."
            )
        seen[callback.state_key] = callback


def validation_interval(interval: Any, every_n_epochs: int | None) -> None:
    """Raise unless `val_check_interval` is a number of batches from 1, a fraction in (0.0, 1.0], a time, or None.

    Raises:
        MisconfigurationException: it is not, or a fraction is to be counted across epochs.
    """
    if interval is None:
        if every_n_epochs is None:
            raise MisconfigurationException(
                "`Trainer(check_val_every_n_epoch=None)` counts batches across epochs: give `val_check_interval` as a "
                "number of batches, such as 100."
            )
        return
    if isinstance(interval, (str, dict, timedelta)):
        read_duration(interval, "Trainer(val_check_interval={!r})")
        return
    good = not isinstance(interval, bool) and (
        (isinstance(interval, int) and interval >= 1) or (isinstance(interval, float) and 0.0 < interval <= 1.0)
    )
    if not good:
        raise MisconfigurationException(
            f"`Trainer(val_check_interval={interval!r})`: give a number of batches from 1 (an int), a fraction of an "
            "epoch up to 1.0 (a float), or a time such as '00:00:15:00'; `limit_val_batches=0` switches validation off."
        )
    if every_n_epochs is None and isinstance(interval, float):
        raise MisconfigurationException(
            f"`Trainer(val_check_interval={interval!r}, check_val_every_n_epoch=None)` counts batches across "
            "epochs: give a number of batches (an int)."
        )


def clipping(value: Any, algorithm: Any) -> None:
    """Raise unless the gradients' bound is a number from 0 or None, and the algorithm is known.

    Raises:
        MisconfigurationException: it is not.
    """
    number = isinstance(value, (int, float)) and not isinstance(value, bool)
    if value is not None and not (number and value >= 0):  # NaN is not
        raise MisconfigurationException(f"`Trainer(gradient_clip_val={value!r})`: give a number from 0, or None.")
    if algorithm is not None and algorithm not in ("norm", "value"):
        raise MisconfigurationException(f"`Trainer(gradient_clip_algorithm={algorithm!r})`: choose 'norm' or 'value'.")


def trial(batches: Any) -> None:
    """Raise unless `fast_dev_run` is a bool or a number of batches from 0.

    Raises:
        MisconfigurationException: it is not.
    """
    if not isinstance(batches, bool) and (not isinstance(batches, int) or batches < 0):
        raise MisconfigurationException(
            f"`Trainer(fast_dev_run={batches!r})`: give True for one batch of each stage, or a number of batches."
        )


def nothing_beside_the_loop(**given: Any) -> None:
    """Raise if `barebones=True` came with an argument that asks for something beside the loop.

    Raises:
        MisconfigurationException: it did; all of them are named.
    """
    asked = {name: value for name, value in given.items() if value}
    if asked:
        named = ", ".join(f"{name}={value!r}" for name, value in asked.items())
        raise MisconfigurationException(
            f"`Trainer(barebones=True, {named})`: barebones measures the loop alone. Leave "
            f"{'them' if len(asked) > 1 else 'it'} out, or leave barebones out."
        )


def yes_or_no(**given: Any) -> None:
    """Raise unless each argument is True, False or None.

    Raises:
        MisconfigurationException: one is not.
    """
    for name, value in given.items():
        if value not in (None, True, False) or (isinstance(value, (int, float)) and not isinstance(value, bool)):
            raise MisconfigurationException(f"`Trainer({name}={value!r})`: choose True or False.")


def path(name: str, value: Any) -> None:
    """Raise unless it is a path or None.

    Raises:
        MisconfigurationException: it is not.
    """
    if value is not None and not isinstance(value, (str, os.PathLike)):
        raise MisconfigurationException(f"`{name}={value!r}`: give a path, as a string or a `pathlib.Path`.")

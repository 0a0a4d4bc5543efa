"""Checkpoints of older versions of Lightning, brought into the layout of today."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

from gpulayer.fabric.utilities.rank_zero import rank_zero_info
from gpulayer.pytorch.core.saving import move_hparams
from gpulayer.pytorch.loops.progress import Progress, loops_state

# The layout is that of this version; Lightning reads it to know how to upgrade a file.
LAYOUT_VERSION = "2.6.6"
VERSION = "pytorch-lightning_version"
ORIGINAL_VERSION = "legacy_pytorch-lightning_version"

Checkpoint = dict[str, Any]


def upgrade(checkpoint: Checkpoint) -> bool:
    """Bring a checkpoint of an older version of Lightning into today's layout, in place.

    Those of newer versions than are known here stay as they are, with a line that says so.

    Returns:
        Whether there was anything to do.
    """
    if VERSION not in checkpoint and not {"state_dict", "epoch", "global_step"} <= set(checkpoint):
        return False  # of someone else
    written_by = str(checkpoint.get(VERSION, "0.7"))
    version = numbers_of(written_by)
    if version[:2] > numbers_of(LAYOUT_VERSION)[:2]:
        rank_zero_info(
            f"The checkpoint was written by Lightning {written_by}. The newest layout that is known here is that of "
            f"{LAYOUT_VERSION}: it is read as such."
        )
    due = [change for before, change in CHANGES if version < before]
    for change in due:
        change(checkpoint)
    if due:
        checkpoint[ORIGINAL_VERSION] = checkpoint.get(ORIGINAL_VERSION, written_by)
        checkpoint[VERSION] = LAYOUT_VERSION
    return bool(due)


def say_what_is_missing(checkpoint: Checkpoint) -> None:
    """Tell, when training goes on from a checkpoint, what its version did not keep."""
    if numbers_of(str(checkpoint.get(ORIGINAL_VERSION, LAYOUT_VERSION))) < (1, 6):
        rank_zero_info(
            "The checkpoint was written before Lightning 1.6 and does not say where in its epoch it was: training goes "
            f"on at the start of epoch {checkpoint.get('epoch', 0)}."
        )


def numbers_of(version: str) -> tuple[int, ...]:
    """The numbers in a version: (1, 9, 5) of "1.9.5rc1"; two at least."""
    found = re.match(r"\d+(\.\d+)*", version)
    numbers = tuple(map(int, found[0].split("."))) if found else (0,)
    return numbers + (0,) * (2 - len(numbers))


def name_monitors(checkpoint: Checkpoint) -> None:
    """The states of ModelCheckpoint and EarlyStopping lay beside those of the others, with a key for each value."""
    callbacks = checkpoint.setdefault("callbacks", {})
    stopper = checkpoint.pop("early_stop_callback_state_dict", None) or {}
    saver: dict[str, Any] = {}
    for key, state, name in (
        ("early_stop_callback_wait", stopper, "wait_count"),
        ("early_stop_callback_patience", stopper, "patience"),
        ("checkpoint_callback_best", saver, "best_model_score"),
        ("checkpoint_callback_best_model_score", saver, "best_model_score"),
        ("checkpoint_callback_best_model_path", saver, "best_model_path"),
    ):
        if key in checkpoint:
            state[name] = checkpoint.pop(key)
    if stopper.get("best_score") is not None:
        callbacks["EarlyStopping"] = stopper
    if saver.get("best_model_path"):  # there is none before the first save
        callbacks["ModelCheckpoint"] = saver


def name_callbacks(checkpoint: Checkpoint) -> None:
    """A state's key was the callback's class."""
    states = checkpoint.get("callbacks") or {}
    checkpoint["callbacks"] = {
        key.__qualname__ if isinstance(key, type) else key: state for key, state in states.items()
    }
    for key, state in checkpoint["callbacks"].items():
        if key == "ModelCheckpoint" and state.get("best_model_path"):
            best, score = state["best_model_path"], state["best_model_score"]
            state.setdefault("best_k_models", {best: score})
            state.setdefault("kth_best_model_path", best)
            state.setdefault("kth_value", score)
            state.setdefault("dirpath", best.rpartition("/")[0])


def count_in_loops(checkpoint: Checkpoint) -> None:
    """There were two counters: the number of the epoch to go on with, and optimizer steps."""
    epoch, step = int(checkpoint.get("epoch", 0)), int(checkpoint.get("global_step", 0))
    at = Progress(epoch=epoch, step=step, window=step, epoch_start_step=step)
    loops = loops_state(at, manual=False)
    fit = loops["fit_loop"]  # for either kind of optimization: the file does not say which it is
    fit["epoch_loop.manual_optimization.optim_step_progress"]["total"] = {"ready": step, "completed": step}
    checkpoint["loops"] = loops


def count_windows(checkpoint: Checkpoint) -> None:
    """The loggers' step was that of the optimizers."""
    state = checkpoint["loops"]["fit_loop"]["epoch_loop.state_dict"]
    state.setdefault("_batches_that_stepped", checkpoint.get("global_step", 0))


def shorten_state_keys(checkpoint: Checkpoint) -> None:
    """The key of ModelCheckpoint's state named one more argument."""
    states = checkpoint.get("callbacks") or {}
    shorter = {
        key: re.sub(r", 'save_on_train_epoch_end': \w+", "", key) if key.startswith("ModelCheckpoint") else key
        for key in states
    }
    if len(set(shorter.values())) == len(shorter):  # else one could not tell two of them apart
        checkpoint["callbacks"] = {shorter[key]: state for key, state in states.items()}


RENAMED_LOOPS = {
    "epoch_loop.batch_loop.optimizer_loop.": "epoch_loop.automatic_optimization.",
    "epoch_loop.batch_loop.manual_loop.": "epoch_loop.manual_optimization.",
    "epoch_loop.val_loop.epoch_loop.": "epoch_loop.val_loop.",
}


def flatten_loops(checkpoint: Checkpoint) -> None:
    """Loops were nested deeper: over optimizers, over the parts of a long sequence, over loaders."""
    loops = checkpoint.get("loops", {})
    fit = loops.get("fit_loop", {})
    for key in [key for key in fit if key.endswith("dataloader_progress") or key == "epoch_loop.batch_loop.state_dict"]:
        del fit[key]
    for old, new in RENAMED_LOOPS.items():
        for key in [key for key in fit if key.startswith(old)]:
            fit[new + key.removeprefix(old)] = fit.pop(key)
    fit.get("epoch_loop.automatic_optimization.optim_progress", {}).pop("optimizer_position", None)
    for name in ("validate_loop", "test_loop", "predict_loop"):
        loop = loops.get(name, {})
        loop.pop("dataloader_progress", None)
        for key in [key for key in loop if key.startswith("epoch_loop.")]:
            loop[key.removeprefix("epoch_loop.")] = loop.pop(key)


def name_scaler(checkpoint: Checkpoint) -> None:
    """The state of float16's scaler lay under other names; that of NVIDIA's apex has no use any more."""
    checkpoint.pop("amp_scaling_state", None)
    for key in ("native_amp_scaling_state", "NativeMixedPrecisionPlugin", "MixedPrecisionPlugin"):
        if key in checkpoint:
            checkpoint["MixedPrecision"] = checkpoint.pop(key)


# What changed, each with the first version that had it: older files need the change.
CHANGES: tuple[tuple[tuple[int, ...], Callable[[Checkpoint], None]], ...] = (
    ((0, 8), move_hparams),
    ((0, 10), name_monitors),
    ((1, 5), name_callbacks),
    ((1, 6), count_in_loops),
    ((1, 6, 5), count_windows),
    ((1, 9), shorten_state_keys),
    ((2, 0), flatten_loops),
    ((2, 1), name_scaler),
)

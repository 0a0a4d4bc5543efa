"""Which checkpoint `ckpt_path` means: a path, "best", "last", or "hpc"."""

from __future__ import annotations

import os
from typing import Any

from gpulayer.fabric.utilities.exceptions import MisconfigurationException
from gpulayer.fabric.utilities.files import damage, exists, is_folder, load_file
from gpulayer.fabric.utilities.rank_zero import rank_zero_info, rank_zero_warn
from gpulayer.pytorch.callbacks.checkpoint.saves import written_at
from gpulayer.pytorch.callbacks.model_checkpoint import ModelCheckpoint
from gpulayer.pytorch.callbacks.on_exception_checkpoint import OnExceptionCheckpoint
from gpulayer.pytorch.trainer import checks, hpc


def resolve_path(trainer: Any, path: Any, module_given: bool) -> str | None:
    """The file that `ckpt_path` means.

    Args:
        trainer: the Trainer.
        path: a path, "best", "last", "hpc" or None.
        module_given: whether the user passed a module to the call; if not, evaluating takes the best checkpoint.

    Returns:
        A path, or None for the weights as they are.

    Raises:
        MisconfigurationException: there is no best checkpoint, or none of SLURM's, or the word is unknown.
    """
    fitting = trainer.state.fn == "fit"
    savers = [callback for callback in trainer.checkpoint_callbacks if isinstance(callback, ModelCheckpoint)]
    best = next((saver.best_model_path for saver in savers if saver.best_model_path), "")
    requeued = hpc.to_go_on_from(trainer, path) if fitting else None
    if path == "hpc":
        return hpc.newest(trainer)
    if requeued is not None and path != "last":
        return requeued
    if path is None:
        evaluates_the_best = not module_given and not fitting and not trainer.fast_dev_run
        return str(best) if evaluates_the_best and best else None
    if path == "best":
        if trainer.fast_dev_run:
            rank_zero_warn("`fast_dev_run` saves no checkpoints: the current weights are used instead of the best.")
            return None
        if not best:
            raise MisconfigurationException(
                "`ckpt_path='best'`, but no checkpoint was saved: give the Trainer a ModelCheckpoint and call "
                "`fit` first, or give a path."
            )
        return str(best)
    if path == "last":
        return find_last(savers, trainer, requeued)
    checks.path("ckpt_path", path)
    return str(os.fspath(path))


def find_last(savers: list[ModelCheckpoint], trainer: Any, requeued: str | None) -> str | None:
    """The newest of the savers' last checkpoints; the newest of all where there is none, or one that is further.

    A "last" one may be older: a signal writes it once, whatever the saver's settings.

    Args:
        savers: the callbacks.
        trainer: the Trainer.
        requeued: what SLURM's notice wrote, if the job goes on from that.

    Returns:
        A path; None, with a line, if there is none yet.

    Raises:
        MisconfigurationException: there are some, and all are damaged.
    """
    last = {path for saver in savers for path in saver.last_checkpoints(trainer)} | ({requeued} if requeued else set())
    others = {path for saver in savers if not saver.save_weights_only for path in saver.all_checkpoints(trainer)} - last
    others |= {
        callback.ckpt_path
        for callback in trainer.checkpoint_callbacks
        if isinstance(callback, OnExceptionCheckpoint) and exists(callback.ckpt_path)
    }
    wrong: dict[str, str] = {}
    for path in candidates(last, others):
        if (reason := whats_wrong(path)) is not None:
            wrong[path] = reason
            continue
        if wrong:
            rank_zero_warn(f"{_listed(wrong)}. Training goes on from the newest good checkpoint, {path!r}.")
        elif path in others:
            rank_zero_info("`ckpt_path='last'`: training goes on from the newest checkpoint, %s.", path)
        return path
    if wrong:
        raise MisconfigurationException(
            f"`ckpt_path='last'`: {_listed(wrong)}. Give another checkpoint as `ckpt_path`."
        )
    rank_zero_info("`ckpt_path='last'`: there is no last checkpoint yet, so training starts from the beginning.")
    return None


def candidates(last: set[str], others: set[str]) -> list[str]:
    """The order in which to try them."""
    ordered, rest = newest_first(last), newest_first(others)
    newer = ordered and rest and exists(ordered[0]) and (written_at(rest[0]) or 0.0) > (written_at(ordered[0]) or 0.0)
    if newer and batches_done(rest[0]) > batches_done(ordered[0]):  # where a folder was copied, time says nothing
        ordered.insert(0, rest.pop(0))
    return ordered + rest


def batches_done(path: str) -> int:
    """How many batches had been trained when a checkpoint was written; -1 if it cannot be read."""
    try:
        loop = load_file(path).get("loops", {})["fit_loop"]
        return int(loop["epoch_loop.batch_progress"]["total"]["processed"])
    except (KeyError, OSError, MisconfigurationException):
        return -1


def _listed(wrong: dict[str, str]) -> str:
    return "; ".join(f"{path!r} is damaged ({reason})" for path, reason in wrong.items())


def newest_first(paths: set[str]) -> list[str]:
    """By when they were written; a link to a file that is gone comes last."""
    return sorted(paths, key=lambda path: written_at(path) or 0.0, reverse=True)


def whats_wrong(path: str) -> str | None:
    """Why a checkpoint cannot be read; None if it can."""
    if not exists(path):
        return "it is a link to a file that is gone"
    return None if is_folder(path) else damage(path, archive=True)  # a folder is one in parts

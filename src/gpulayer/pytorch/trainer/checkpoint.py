"""Checkpoints of a run: what they hold, in Lightning's layout, and how a run takes it back."""

from __future__ import annotations

import os
import pickle
import zipfile
from typing import Any

import gpulayer
from gpulayer.fabric.utilities.exceptions import MisconfigurationException
from gpulayer.fabric.utilities.files import damage
from gpulayer.fabric.utilities.rank_zero import rank_zero_info, rank_zero_warn
from gpulayer.fabric.utilities.seed import collect_rng_states, set_rng_states
from gpulayer.fabric.utilities.warnings import PossibleUserWarning
from gpulayer.pytorch.callbacks.model_checkpoint import ModelCheckpoint
from gpulayer.pytorch.core.callback import Callback
from gpulayer.pytorch.core.hparams import HyperparametersMixin
from gpulayer.pytorch.loops.progress import load_loops_state, loops_state
from gpulayer.pytorch.loops.run import Run
from gpulayer.pytorch.trainer import checks

# The layout is that of this version; Lightning reads it to know how to upgrade a file.
LAYOUT_VERSION = "2.6.6"


def dump(run: Run, weights_only: bool) -> dict[str, Any]:
    """The checkpoint of this moment.

    Args:
        run: the run.
        weights_only: leave out what only resuming needs.

    Returns:
        A dict in Lightning's layout; what goes beyond it is under "gpulayer".
    """
    trainer, module, at = run.trainer, run.module, run.progress
    strategy, datamodule = trainer.strategy, trainer.datamodule
    checkpoint: dict[str, Any] = {
        "epoch": at.epoch,
        "global_step": at.step,
        "pytorch-lightning_version": LAYOUT_VERSION,
        "state_dict": strategy.module_state(module),
        "loops": loops_state(at, run.manual),
        "gpulayer": {
            "version": gpulayer.__version__,
            "position": at.position,
            "metrics": {name: float(value) for name, value in run.results.refresh().callback.items()},
            "rng": trainer.training_rng or collect_rng_states(),
        },
    }
    if not weights_only:
        checkpoint["gpulayer"]["results"] = run.results.state_dict()
        checkpoint["gpulayer"]["loaders"] = run.train.state_dict()
        checkpoint["gpulayer"]["gradients"] = gathered_gradients(run)
        states = {callback.state_key: state for callback in trainer.callbacks if (state := callback.state_dict())}
        checkpoint["callbacks"] = states
        checkpoint["optimizer_states"] = [strategy.optimizer_state(optimizer) for optimizer in run.optimizers]
        checkpoint["lr_schedulers"] = [config.scheduler.state_dict() for config in run.scheduler_configs]
        if precision_state := strategy.precision.state_dict():
            checkpoint[type(strategy.precision).__qualname__] = precision_state
    for owner in (module, datamodule):
        if owner is not None and owner._hparams:
            _add_hparams(checkpoint, owner)
    if datamodule is not None and (state := datamodule.state_dict()):
        checkpoint[type(datamodule).__qualname__] = state
    if not weights_only:
        for callback in trainer.callbacks:
            callback.on_save_checkpoint(trainer, module, checkpoint)
    module.on_save_checkpoint(checkpoint)
    return checkpoint


def gathered_gradients(run: Run) -> dict[str, Any]:
    """Gradients that wait for the other batches of their optimizer step; none if the last batch was one's last."""
    gathers = not run.manual and not run.progress.ended
    if not gathers or run.progress.batch_in_epoch % run.trainer.accumulate_grad_batches == 0:
        return {}
    return {name: weight.grad for name, weight in run.module.named_parameters() if weight.grad is not None}


def _add_hparams(checkpoint: dict[str, Any], owner: HyperparametersMixin) -> None:
    checkpoint[owner.CHECKPOINT_HYPER_PARAMS_NAME] = owner._hparams_name
    kept = {name: value for name, value in owner.hparams.items() if _can_be_saved(value)}
    if left := sorted(set(owner.hparams) - set(kept)):
        rank_zero_warn(
            f"The hyperparameters {left} of `{type(owner).__name__}` cannot be pickled and are left out of "
            f"checkpoints; to leave them out without this warning: `save_hyperparameters(ignore={left})`."
        )
    checkpoint[owner.CHECKPOINT_HYPER_PARAMS_KEY] = kept


def _can_be_saved(value: Any) -> bool:
    if value is None or isinstance(value, (bool, int, float, str)):
        return True
    try:
        pickle.dumps(value)
    except Exception:  # whatever the object's own code raises
        return False
    return True


def restore_objects(run: Run, checkpoint: dict[str, Any]) -> None:
    """Take back the weights, the datamodule's state and the callbacks' states."""
    trainer, module, datamodule = run.trainer, run.module, run.trainer.datamodule
    if "state_dict" not in checkpoint:
        raise MisconfigurationException(
            f"The checkpoint {trainer.ckpt_path!r} has no 'state_dict'; it holds {sorted(map(str, checkpoint))}. "
            "Give a file that `trainer.save_checkpoint` or ModelCheckpoint wrote."
        )
    module.on_load_checkpoint(checkpoint)
    if datamodule is not None and (name := type(datamodule).__qualname__) in checkpoint:
        datamodule.load_state_dict(checkpoint[name])
    module.load_state_dict(checkpoint["state_dict"], strict=module.strict_loading)
    for callback in trainer.callbacks:
        callback.on_load_checkpoint(trainer, module, checkpoint)
    restore_callbacks(trainer.callbacks, checkpoint.get("callbacks", {}))


def restore_callbacks(callbacks: list[Callback], states: dict[Any, Any]) -> None:
    """Give each callback the state that lies under its key."""
    for callback in callbacks:
        state = states.get(callback.state_key, states.get(type(callback)))  # before 1.5 the key was the class
        if state:
            callback.load_state_dict(dict(state))
    known = {callback.state_key for callback in callbacks}
    gone = [str(key) for key in states if key not in known and key not in {type(callback) for callback in callbacks}]
    if gone:
        rank_zero_warn(
            f"The checkpoint holds the state of callbacks that this Trainer lacks: {gone}. Their state is not used; "
            "add them to `Trainer(callbacks=...)` to go on with it.",
            PossibleUserWarning,
        )


def restore_training(run: Run, checkpoint: dict[str, Any]) -> None:
    """Take back the counters, optimizers, schedulers and the precision's state.

    Raises:
        MisconfigurationException: the checkpoint holds weights only, or another number of optimizers or schedulers.
    """
    load_loops_state(run.progress, checkpoint, checkpoint.get("gpulayer", {}).get("position"))
    if "optimizer_states" not in checkpoint:
        raise MisconfigurationException(
            f"The checkpoint {run.trainer.ckpt_path!r} was saved with weights only, so training cannot go on from it. "
            "Load the weights with `load_from_checkpoint` and start anew, or give a full checkpoint."
        )
    if run.trainer.max_epochs != -1 and run.progress.epoch > run.trainer.max_epochs:
        raise MisconfigurationException(
            f"The checkpoint {run.trainer.ckpt_path!r} was written after {run.progress.epoch} epochs, and "
            f"`Trainer(max_epochs={run.trainer.max_epochs})` allows fewer: raise `max_epochs`, which counts all epochs."
        )
    for name, objects, states in (
        ("optimizers", run.optimizers, checkpoint["optimizer_states"]),
        ("schedulers", [config.scheduler for config in run.scheduler_configs], checkpoint["lr_schedulers"]),
    ):
        if len(objects) != len(states):
            raise MisconfigurationException(
                f"The checkpoint holds {len(states)} {name}, but `configure_optimizers` returned {len(objects)}: "
                "they must be those that the checkpoint was saved with."
            )
        for target, state in zip(objects, states, strict=True):
            target.load_state_dict(state)
    precision = run.trainer.strategy.precision
    if state := checkpoint.get(type(precision).__qualname__):
        precision.load_state_dict(state)


def restore_moment(run: Run, checkpoint: dict[str, Any]) -> None:
    """Take back the metrics, also those that the running epoch gathers, and the random states.

    Last of all, for set-up and the sanity check would change them.
    """
    own = checkpoint.get("gpulayer", {})
    run.results.metrics.callback.update(own.get("metrics", {}))
    if "results" in own:
        run.results.load_state_dict(own["results"])
    if "loaders" in own:
        run.train.load_state_dict(own["loaders"])
    parameters = dict(run.module.named_parameters())
    for name, gradient in own.get("gradients", {}).items():
        if name in parameters:
            parameters[name].grad = gradient.to(parameters[name].device)
    if "rng" in own:
        set_rng_states(own["rng"])


def resolve_path(trainer: Any, path: Any, module_given: bool) -> str | None:
    """The file that `ckpt_path` means.

    Args:
        trainer: the Trainer.
        path: a path, "best", "last" or None.
        module_given: whether the user passed a module to the call; if not, evaluating takes the best checkpoint.

    Returns:
        A path, or None for the weights as they are.

    Raises:
        MisconfigurationException: there is no best checkpoint, or the word is unknown.
    """
    fitting = trainer.state.fn == "fit"
    savers = [callback for callback in trainer.checkpoint_callbacks if isinstance(callback, ModelCheckpoint)]
    best = next((saver.best_model_path for saver in savers if saver.best_model_path), "")
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
        return find_last(savers, trainer)
    checks.path("ckpt_path", path)
    return str(os.fspath(path))


def find_last(savers: list[ModelCheckpoint], trainer: Any) -> str | None:
    """The newest of the savers' last checkpoints; where that is damaged, the newest good one that there is.

    Returns:
        A path; None, with a line, if there is none yet.

    Raises:
        MisconfigurationException: there are some, and all are damaged.
    """
    last = newest_first({path for saver in savers for path in saver.last_checkpoints(trainer)})
    if not last:
        rank_zero_info("`ckpt_path='last'`: there is no last checkpoint yet, so training starts from the beginning.")
        return None
    others = {path for one in last for path in beside(one)} - set(last)
    wrong: dict[str, str] = {}
    for path in [*last, *newest_first(others)]:
        if (reason := whats_wrong(path)) is None:
            if wrong:
                rank_zero_warn(f"{_listed(wrong)}. Training goes on from the newest good checkpoint, {path!r}.")
            return path
        wrong[path] = reason
    raise MisconfigurationException(f"`ckpt_path='last'`: {_listed(wrong)}. Give another checkpoint as `ckpt_path`.")


def _listed(wrong: dict[str, str]) -> str:
    return "; ".join(f"{path!r} is damaged ({reason})" for path, reason in wrong.items())


def newest_first(paths: set[str]) -> list[str]:
    """By when they were written."""
    return sorted(paths, key=os.path.getmtime, reverse=True)


def beside(path: str) -> list[str]:
    """The checkpoints in the folder of one."""
    folder, ending = os.path.dirname(path), ModelCheckpoint.FILE_EXTENSION
    return [os.path.join(folder, name) for name in os.listdir(folder or ".") if name.endswith(ending)]


def whats_wrong(path: str) -> str | None:
    """Why a checkpoint cannot be read; None if it can."""
    if os.path.isdir(path):
        return None  # one in parts
    return damage(path) if zipfile.is_zipfile(path) else "it is cut short, or no checkpoint"

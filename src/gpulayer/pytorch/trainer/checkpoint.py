"""Checkpoints of a run: what they hold, in Lightning's layout, and how a run takes it back."""

from __future__ import annotations

import pickle
from typing import Any

from torch.utils.data import RandomSampler

import gpulayer
from gpulayer.fabric.utilities.exceptions import MisconfigurationException
from gpulayer.fabric.utilities.plain import beyond_plain
from gpulayer.fabric.utilities.rank_zero import rank_zero_info, rank_zero_warn
from gpulayer.fabric.utilities.seed import collect_rng_states, set_rng_states
from gpulayer.fabric.utilities.warnings import PossibleUserWarning
from gpulayer.pytorch.core.hparams import INIT_ARGUMENTS, HyperparametersMixin
from gpulayer.pytorch.core.saving import few, load_weights, weights_in
from gpulayer.pytorch.loops.progress import Position, load_loops_state, loops_state
from gpulayer.pytorch.loops.run import Run
from gpulayer.pytorch.trainer import gradients
from gpulayer.pytorch.trainer.upgrade import LAYOUT_VERSION, VERSION, say_what_is_missing, upgrade

MOST_TOLD = 5  # places in a message


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
    stepped = at.batch_in_epoch > 0 and run.ends_window()
    checkpoint: dict[str, Any] = {
        "epoch": at.epoch,
        "global_step": at.step,
        VERSION: LAYOUT_VERSION,
        "state_dict": strategy.module_state(module),
        "loops": loops_state(at, run.manual, stepped, trainer.validating),
        "gpulayer": {
            "version": gpulayer.__version__,
            "position": at.position,
            "window": at.window,
            "stepped": at.stepped,
            "metrics": {name: float(value) for name, value in run.results.refresh().callback.items()},
            "rng": trainer.training_rng or collect_rng_states(),
            "should_stop": trainer.should_stop and not any(one.asked_to_stop for one in trainer.callbacks),
        },
    }
    if not weights_only:
        owed = stepped and at.position == Position.BATCH
        checkpoint["gpulayer"]["results"] = run.results.state_dict(at.window, at.epoch, owed)
        checkpoint["gpulayer"]["loggers"] = trainer.delivery.state_dict()
        loaders = checkpoint["gpulayer"]["loaders"] = run.train.state_dict(at.batch_in_epoch)
        if not at.ended and (places := [one["place"] for one in loaders["parts"] if one["place"] is not None]):
            checkpoint["loops"]["fit_loop"]["state_dict"]["combined_loader"] = places  # where Lightning looks for them
        if run.loader_made is not None:
            checkpoint["gpulayer"]["loader_made"] = list(run.loader_made)
        checkpoint["gpulayer"]["gradients"] = gradients.gathered(run)
        states = {callback.state_key: state for callback in trainer.callbacks if (state := callback.state_dict())}
        checkpoint["callbacks"] = trainer.kept_states | states
        checkpoint["optimizer_states"] = [strategy.optimizer_state(optimizer) for optimizer in run.optimizers]
        checkpoint["lr_schedulers"] = [config.scheduler.state_dict() for config in run.scheduler_configs]
        if precision_state := strategy.precision.state_dict():
            checkpoint[type(strategy.precision).__qualname__] = precision_state
    for owner in (module, datamodule):
        if owner is not None and owner._hparams:
            _add_hparams(checkpoint, owner)
    if datamodule is not None and (state := datamodule.state_dict()):
        checkpoint[type(datamodule).__qualname__] = state
    for callback in trainer.callbacks:
        if not weights_only or callback.changes_saved_weights:
            callback.on_save_checkpoint(trainer, module, checkpoint)
    module.on_save_checkpoint(checkpoint)
    tell_of_objects(checkpoint)
    return checkpoint


def _add_hparams(checkpoint: dict[str, Any], owner: HyperparametersMixin) -> None:
    checkpoint[owner.CHECKPOINT_HYPER_PARAMS_NAME] = owner._hparams_name
    if owner._hparams_name != INIT_ARGUMENTS:  # one object, whose attributes Lightning would not find in a dict
        checkpoint[owner.CHECKPOINT_HYPER_PARAMS_TYPE] = "AttributeDict"
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


def tell_of_objects(checkpoint: dict[str, Any]) -> None:
    """Say at once what would be refused when the checkpoint is loaded."""
    found = [(f"`checkpoint{place}`", value) for place, value in beyond_plain(checkpoint)]
    if not found:
        return
    kinds = sorted({f"{kind.__module__}.{kind.__qualname__}" for kind in (class_of(value) for _, value in found)})
    more = f" and {len(found) - MOST_TOLD} more" if len(found) > MOST_TOLD else ""
    rank_zero_warn(
        f"The checkpoint holds more than plain data: {', '.join(place for place, _ in found[:MOST_TOLD])}{more}, of "
        f"{', '.join(kinds[:MOST_TOLD])}. It will be loaded only by those who trust it: with `weights_only=False`, or "
        "after `torch.serialization.add_safe_globals([...])` with these classes. Keep numbers, text, lists, dicts, "
        "tensors, arrays or paths instead, or leave hyperparameters out with `save_hyperparameters(ignore=[...])`."
    )


def class_of(value: Any) -> type:
    """The class that a pickle of an object names; of a class, itself."""
    return value if isinstance(value, type) else type(value)


def restore_objects(run: Run, checkpoint: dict[str, Any]) -> None:
    """Take back the weights and the datamodule's state."""
    trainer, module, datamodule = run.trainer, run.module, run.trainer.datamodule
    weights_in(checkpoint, str(trainer.ckpt_path))
    upgrade(checkpoint)
    module.on_load_checkpoint(checkpoint)
    if datamodule is not None and (name := type(datamodule).__qualname__) in checkpoint:
        datamodule.load_state_dict(checkpoint[name])
    load_weights(module, checkpoint["state_dict"], module.strict_loading, str(trainer.ckpt_path))


def restore_training(run: Run, checkpoint: dict[str, Any]) -> None:
    """Take back the counters, optimizers, schedulers and the precision's state.

    Raises:
        MisconfigurationException: the checkpoint holds weights only, or another number of optimizers or schedulers.
    """
    say_what_is_missing(checkpoint)
    load_loops_state(run.progress, checkpoint)
    run.resumed = True
    if run.trainer.reruns and checkpoint.get("gpulayer", {}).get("should_stop"):
        run.trainer.should_stop = True
        rank_zero_info("`trainer.should_stop` was set when the checkpoint was saved: the run is over.")
    if made := checkpoint.get("gpulayer", {}).get("loader_made"):
        run.loader_made = made[0], made[1]
    lacking = [key for key in ("optimizer_states", "lr_schedulers") if key not in checkpoint]
    if lacking == ["lr_schedulers"]:
        raise MisconfigurationException(
            f"The checkpoint {run.trainer.ckpt_path!r} lacks 'lr_schedulers', so training cannot go on from it; it "
            f"holds {few(checkpoint)}. Load the weights with `load_from_checkpoint` and start anew."
        )
    if lacking:
        raise MisconfigurationException(
            f"The checkpoint {run.trainer.ckpt_path!r} was saved with weights only, so training cannot go on from it. "
            "Load the weights with `load_from_checkpoint` and start anew, or give a full checkpoint."
        )
    epochs = run.progress.epoch + (run.progress.position == Position.EPOCH)
    if run.trainer.max_epochs != -1 and epochs > run.trainer.max_epochs:
        raise MisconfigurationException(
            f"The checkpoint {run.trainer.ckpt_path!r} was written after {epochs} epochs, and "
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
            try:
                target.load_state_dict(state)
            except ValueError as error:
                raise MisconfigurationException(
                    f"{type(target).__name__} cannot go on from its state in {run.trainer.ckpt_path!r}: {error}. "
                    f"`configure_optimizers` must return the {name} that the checkpoint was saved with."
                ) from error
    precision = run.trainer.strategy.precision
    if state := checkpoint.get(type(precision).__qualname__):
        precision.load_state_dict(state)


def restore_moment(run: Run, checkpoint: dict[str, Any]) -> None:
    """Take back the metrics, also those that the running epoch gathers, and the random states.

    Last of all, for set-up and the sanity check would change them.
    """
    own = checkpoint.get("gpulayer", {})
    run.results.metrics.callback.update(own.get("metrics", {}))
    run.trainer.delivery.load_state_dict(own.get("loggers", []))
    if "results" in own:
        run.results.load_state_dict(own["results"])
    if "loaders" in own:
        run.train.load_state_dict(own["loaders"])
    elif not own:
        go_on_from_lightning(run, checkpoint)
    gradients.put_back(run, own.get("gradients", {}))
    if "rng" in own:
        set_rng_states(own["rng"])


def go_on_from_lightning(run: Run, checkpoint: dict[str, Any]) -> None:
    """Tell the loaders where they were, as far as a checkpoint of Lightning's says it, and the user what it lacks."""
    at, metrics = run.progress, run.results.metrics.callback
    for state in checkpoint.get("callbacks", {}).values():  # of ModelCheckpoint: the metric that it watches
        if isinstance(state, dict) and state.get("monitor") and state.get("current_score") is not None:
            metrics[state["monitor"]] = state["current_score"]
    for config in run.scheduler_configs:
        if config.monitor not in metrics and at.position in (Position.VALIDATED, Position.EPOCH):
            config.strict = False  # its move that is due is left out, with a warning
    loop = checkpoint.get("loops", {}).get("fit_loop", {})
    begun = loop.get("epoch_loop.batch_progress", {}).get("current", {}).get("ready", 0) > at.batch_in_epoch
    places = None if begun else loop.get("state_dict", {}).get("combined_loader")  # that batch is gone from the loader
    if places:
        run.train.load_places(places)
    if not at.batch_in_epoch or at.ended:
        return
    if not places and any(isinstance(sampler, RandomSampler) for sampler in run.train.samplers()):
        rank_zero_warn(
            "The checkpoint was written in mid-epoch by Lightning, which keeps no random states: the rest of this "
            "epoch is shuffled anew, so that some of its samples come twice and others not at all.",
            PossibleUserWarning,
        )
    if not run.manual and not run.ends_window():
        rank_zero_warn(
            "The checkpoint was written by Lightning in the middle of an accumulated step, whose gradients it does not "
            "hold: the step is made with those of the batches that are left.",
            PossibleUserWarning,
        )

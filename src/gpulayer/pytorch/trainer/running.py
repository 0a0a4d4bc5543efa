"""Set-up and end of a run, in the order that users rely on.

`with running(...) as run:` adds no frame to the way from `Trainer.fit` to the backward pass.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import torch

from gpulayer.fabric.utilities.exceptions import MisconfigurationException
from gpulayer.fabric.utilities.rank_zero import rank_zero_warn
from gpulayer.fabric.utilities.warnings import PossibleUserWarning
from gpulayer.pytorch.core.callback import Callback, Checkpoint
from gpulayer.pytorch.core.hooks import overridden
from gpulayer.pytorch.core.module import Module
from gpulayer.pytorch.core.optimizer import Configured, LightningOptimizer, NoOptimizer, read_configured
from gpulayer.pytorch.loops.batches import Batches
from gpulayer.pytorch.loops.evaluate import evaluate
from gpulayer.pytorch.loops.hooks import Hooks
from gpulayer.pytorch.loops.progress import Evaluated
from gpulayer.pytorch.loops.results import Results
from gpulayer.pytorch.loops.run import Evaluation, Run, Schedulers
from gpulayer.pytorch.trainer import callables, checkpoint, checks
from gpulayer.pytorch.trainer.attach import Sources, as_list, make_batches
from gpulayer.pytorch.trainer.report import Report
from gpulayer.pytorch.trainer.states import RunningStage, TrainerFn, TrainerStatus

STAGES = {
    TrainerFn.FITTING: RunningStage.TRAINING,
    TrainerFn.VALIDATING: RunningStage.VALIDATING,
    TrainerFn.TESTING: RunningStage.TESTING,
    TrainerFn.PREDICTING: RunningStage.PREDICTING,
}


@contextmanager
def running(trainer: Any, fn: TrainerFn, sources: Sources, ckpt_path: Any, weights_only: bool | None,
            module_given: bool = True) -> Iterator[Run]:  # fmt: skip
    """Everything around one call of fit, validate, test or predict.

    Args:
        trainer: the Trainer.
        fn: which call.
        sources: the module and the data.
        ckpt_path: a checkpoint to take weights from, and in `fit` to go on from.
        weights_only: as in `torch.load`.
        module_given: whether the user passed a module to this call.

    Yields:
        The run, ready for its loop.
    """
    module, strategy, stage = sources.module, trainer.strategy, fn.value
    trainer.state.fn, trainer.state.stage, trainer.state.status = fn, STAGES[fn], TrainerStatus.RUNNING
    trainer.sources = sources
    try:
        if fn is TrainerFn.FITTING:
            checks.module_can_fit(module)
        path = checkpoint.resolve_path(trainer, ckpt_path, module_given)
        trainer.ckpt_path = path
        take_module(trainer, module)
        results = Results(strategy.root_device, trainer.log_every_n_steps, send_to(trainer))
        trainer.results = results
        run = Run(trainer, module, Hooks(trainer, module, [], results), results, trainer.progress)
        trainer._run = trainer._last = run
        if fn is TrainerFn.FITTING:
            trainer._fitted = run
        prepare(trainer, module, sources)
        strategy.setup_environment()
        set_up(trainer, module, stage)
        module.configure_model()
        loaded = None
        if path is not None:
            loaded = strategy.load(path, "cpu", weights_only)
            checkpoint.restore_objects(run, loaded)
        strategy.precision.convert_module(module)
        module.to(strategy.root_device)
        if fn is TrainerFn.FITTING:
            configure_optimizers(run, sources)
        run.hooks.resolve(trainer.callbacks)
        if fn is TrainerFn.FITTING:
            run.hooks.on_fit_start()
        log_hyperparameters(trainer, module)
        if fn is TrainerFn.FITTING:
            if loaded is not None:
                checkpoint.restore_training(run, loaded)
            prepare_fit(run, sources)
            if loaded is not None:
                checkpoint.restore_moment(run, loaded)
        else:
            run.evaluation = evaluation_of(run, sources, fn)
        del loaded
        with torch.autograd.set_detect_anomaly(trainer.detect_anomaly):
            yield run
        if fn is TrainerFn.FITTING:
            run.hooks.on_fit_end()
        elif trainer.inference_mode:
            callables.make_ordinary(module)
        tear_down(trainer, module, stage)
        trainer.state.status = TrainerStatus.FINISHED
    except BaseException as error:
        trainer.state.status = TrainerStatus.INTERRUPTED
        for callback in trainer.callbacks:
            callback.on_exception(trainer, module, error)
        if sources.datamodule is not None:
            sources.datamodule.on_exception(error)
        for logger in trainer.loggers:
            logger.finalize("failed")
        raise
    finally:
        leave_device(trainer, module)
        trainer._run = None
        trainer.state.stage = None


# -- before the data ---------------------------------------------------------------------------------------------------


def take_module(trainer: Any, module: Module) -> None:
    """Attach the module, and the callbacks that it brings."""
    module.trainer = trainer
    trainer.lightning_module = module
    trainer.datamodule = trainer.sources.datamodule
    if trainer.datamodule is not None:
        trainer.datamodule.trainer = trainer
    trainer.name_default_logger(type(module).__name__)
    brought = module.configure_callbacks()
    brought = [brought] if isinstance(brought, Callback) else list(brought)
    if brought:
        kinds = {type(callback) for callback in brought}
        trainer.callbacks = order([c for c in trainer.callbacks if type(c) not in kinds] + brought)
    checks.distinct_state_keys(trainer.callbacks)


def order(callbacks: list[Callback]) -> list[Callback]:
    """Those that save checkpoints last, so that they save what the others have done."""
    savers = [callback for callback in callbacks if isinstance(callback, Checkpoint)]
    return [callback for callback in callbacks if not isinstance(callback, Checkpoint)] + savers


def prepare(trainer: Any, module: Module, sources: Sources) -> None:
    """`prepare_data`, once per machine or once in all."""
    for owner in (sources.datamodule, module):
        if owner is not None:
            per_node = getattr(owner, "prepare_data_per_node", True)
            if trainer.local_rank == 0 if per_node else trainer.is_global_zero:
                owner.prepare_data()
    trainer.strategy.barrier("prepare_data")


def set_up(trainer: Any, module: Module, stage: str) -> None:
    """`setup` of the datamodule, the callbacks and the module; loggers claim their folder before."""
    for logger in trainer.loggers:
        _ = logger.experiment
    if trainer.datamodule is not None:
        trainer.datamodule.setup(stage)
    for callback in list(trainer.callbacks):
        callback.setup(trainer, module, stage)
    module.setup(stage)


def tear_down(trainer: Any, module: Module, stage: str) -> None:
    """`teardown` in the same order."""
    if trainer.datamodule is not None:
        trainer.datamodule.teardown(stage)
    for callback in list(trainer.callbacks):
        callback.teardown(trainer, module, stage)
    module.teardown(stage)
    for logger in trainer.loggers:
        logger.finalize("success")


def leave_device(trainer: Any, module: Module) -> None:
    """Bring the module and its optimizers' state to the host, and free the device."""
    if trainer.strategy.root_device.type != "cpu":
        module.cpu()
        for optimizer in trainer._last.optimizers if trainer._last else []:
            for state in optimizer.state.values():
                state.update({name: value.cpu() for name, value in state.items() if isinstance(value, torch.Tensor)})
    trainer.strategy.teardown()


def log_hyperparameters(trainer: Any, module: Module) -> None:
    """Give the loggers the hyperparameters of the module and the datamodule.

    Raises:
        MisconfigurationException: both have one of a name, with different values.
    """
    if not trainer.loggers:
        return
    owners = [owner for owner in (trainer.datamodule, module) if owner is not None and owner._log_hyperparams]
    merged: dict[str, Any] = {}
    for owner in owners if trainer.enable_autolog_hparams else []:
        for name, value in owner.hparams_initial.items():
            if name in merged and merged[name] is not value and merged[name] != value:
                raise MisconfigurationException(
                    f"The module and the datamodule both have a hyperparameter {name!r}, {value!r} and "
                    f"{merged[name]!r}: "
                    "rename one, or leave it out with `save_hyperparameters(ignore=...)`."
                )
            merged[name] = value
    for logger in trainer.loggers:
        if owners and trainer.enable_autolog_hparams:
            logger.log_hyperparams(merged)
        logger.log_graph(module)
        logger.save()


def send_to(trainer: Any) -> Any:
    """What gives a dict of numbers to every logger; None without loggers."""
    if not trainer.loggers:
        return None

    def send(metrics: dict[str, float], step: int, epoch: int | None) -> None:
        if "step" in metrics:  # a user who logs "step" chooses the x axis
            step, epoch = int(metrics.pop("step")), None
        if epoch is not None:
            metrics.setdefault("epoch", epoch)
        if not trainer.sanity_checking:
            for logger in trainer.loggers:
                logger.log_metrics(metrics=dict(metrics), step=step)
                logger.save()

    return send


# -- fit ---------------------------------------------------------------------------------------------------------------


def configure_optimizers(run: Run, sources: Sources) -> None:
    """Make the optimizers and schedulers, and the callables of training."""
    module, strategy = run.module, run.trainer.strategy
    run.manual = not module.automatic_optimization
    configured: Configured = read_configured(module.configure_optimizers(), automatic=not run.manual)
    _, optimizers = strategy.setup(module, configured.optimizers)
    run.optimizers = optimizers if optimizers or run.manual else [NoOptimizer()]
    run.wrapped_optimizers = [LightningOptimizer(optimizer, run.wrapped_step) for optimizer in run.optimizers]
    run.scheduler_configs = configured.schedulers
    run.schedulers = Schedulers() if run.manual else Schedulers.of(configured.schedulers)
    takes, _ = checks.step_arguments(module.training_step, "training_step", 1)
    callables.resolve_training(run, strategy.step_method(module, "training_step"), takes)
    if run.manual:
        for name in ("gradient_clip_val", "accumulate_grad_batches"):
            value = getattr(run.trainer, name)
            if value not in (None, 1, 0):
                raise MisconfigurationException(
                    f"`Trainer({name}={value!r})` works in automatic optimization only: this module steps its "
                    "optimizers "
                    "itself, so do it in `training_step` (there is `self.clip_gradients`)."
                )


def prepare_fit(run: Run, sources: Sources) -> None:
    """The loaders, when validation is due, the sanity check, and the lines that are printed."""
    trainer, module = run.trainer, run.module
    if not sources.train.defined:
        raise MisconfigurationException(
            "`trainer.fit` has no training data: pass `train_dataloaders=`, a `datamodule=` with a "
            "`train_dataloader`, or "
            f"define `{type(module).__name__}.train_dataloader`."
        )
    validates = sources.val.defined and overridden("validation_step", module, Module) and trainer.limit_val_batches != 0
    if sources.val.given is not None and not overridden("validation_step", module, Module):
        rank_zero_warn(
            f"A validation loader was given, but `{type(module).__name__}` has no `validation_step`: nothing is "
            "validated.",
            PossibleUserWarning,
        )
    if not sources.val.defined and overridden("validation_step", module, Module):
        rank_zero_warn(
            f"`{type(module).__name__}` has a `validation_step`, but there is no validation loader: nothing is "
            "validated. "
            "Pass one as `trainer.fit(model, train_loader, val_loader)`.",
            PossibleUserWarning,
        )
    if validates and trainer.num_sanity_val_steps != 0:
        sanity_check(run, sources)
    load_train(run)
    if validates and (run.progress.mid_epoch or not run.done()):
        run.validation = run.validation or evaluation_of(run, sources, TrainerFn.FITTING)
        set_validation_interval(run)
    if trainer.reload_dataloaders_every_n_epochs:

        def reload_train() -> None:
            run.train = Batches(None, 0)
            load_train(run)

        def reload_validation() -> None:
            run.validation = evaluation_of(run, sources, TrainerFn.FITTING)
            set_validation_interval(run)

        run.reload_train = every_so_many_epochs(run, reload_train)
        if validates:
            run.reload_validation = every_so_many_epochs(run, reload_validation)
    report = Report(run)
    run.report_line, run.report_epoch = report.minute, report.epoch


def sanity_check(run: Run, sources: Sources) -> None:
    """A few validation batches before training, to find errors early; its numbers are thrown away."""
    trainer = run.trainer
    trainer.state.stage = RunningStage.SANITY_CHECKING
    run.hooks.on_sanity_check_start()
    run.validation = evaluation_of(run, sources, TrainerFn.FITTING)
    most = trainer.num_sanity_val_steps
    loaders = [first(batches, most) if most != -1 else batches for batches in run.validation.loaders]
    evaluate(run, replace(run.validation, loaders=loaders, counts=Evaluated()))
    run.hooks.on_sanity_check_end()
    run.results.forget("validation")
    trainer.state.stage = RunningStage.TRAINING


def first(batches: Batches, most: int) -> Batches:
    """The first `most` batches of a loader."""
    length = None if batches.length is None else min(batches.length, most)
    limit = most if batches.limit is None else min(batches.limit, most)
    return Batches(batches.loader, length, limit, batches.move, batches.as_iterator)


def load_train(run: Run) -> None:
    """The training batches; made once, or sooner if someone asks the Trainer how many there are."""
    trainer, sources = run.trainer, run.trainer.sources
    if run.train.loader is not None:
        return
    loader = sources.train.request()
    _, as_iterator = checks.step_arguments(run.module.training_step, "training_step", 1)
    move = sources.mover(trainer.strategy.root_device, trainer.strategy.precision)
    run.train = make_batches(
        loader, trainer.limit_train_batches, "limit_train_batches", "the training loader", move, as_iterator
    )


def every_so_many_epochs(run: Run, make: Callable[[], None]) -> Callable[[], None]:
    """`make`, when the Trainer's `reload_dataloaders_every_n_epochs` are over since the last time."""
    made = run.progress.epoch

    def make_if_due() -> None:
        nonlocal made
        if run.progress.epoch - made >= run.trainer.reload_dataloaders_every_n_epochs:
            made = run.progress.epoch
            make()

    return make_if_due


def set_validation_interval(run: Run) -> None:
    """After how many batches to validate, from the Trainer's `val_check_interval` and `check_val_every_n_epoch`.

    Raises:
        MisconfigurationException: the interval cannot be kept.
    """
    trainer, length = run.trainer, run.train.length
    interval = trainer.val_check_interval
    run.validate_every_n_epochs = trainer.check_val_every_n_epoch
    if isinstance(interval, int):
        if length is not None and interval > length and trainer.check_val_every_n_epoch is not None:
            raise MisconfigurationException(
                f"`Trainer(val_check_interval={interval})`, but an epoch has {length} batches: give at most that, a "
                "fraction such as 0.5, or `check_val_every_n_epoch=None` to count batches across epochs."
            )
        run.validate_every_n_batches = interval
    elif interval == 1.0:
        run.validate_every_n_batches = None
    elif length is None:
        raise MisconfigurationException(
            f"`Trainer(val_check_interval={interval})` is a fraction, but the training loader has no length: give a "
            "number of batches, such as `val_check_interval=100`, or 1.0 for the end of the epoch."
        )
    else:
        run.validate_every_n_batches = max(1, int(length * interval))


# -- evaluation --------------------------------------------------------------------------------------------------------


def evaluation_of(run: Run, sources: Sources, fn: TrainerFn) -> Evaluation:
    """The evaluation of a call: its loaders, step and hooks.

    Raises:
        MisconfigurationException: there are no loaders, or no step.
    """
    trainer, module, strategy = run.trainer, run.module, run.trainer.strategy
    call, stage, argument, source, counts = {
        TrainerFn.FITTING: ("fit", "validation", "limit_val_batches", sources.val, run.progress.validation),
        TrainerFn.VALIDATING: ("validate", "validation", "limit_val_batches", sources.val, run.progress.validate),
        TrainerFn.TESTING: ("test", "test", "limit_test_batches", sources.test, run.progress.test),
        TrainerFn.PREDICTING: ("predict", "predict", "limit_predict_batches", sources.predict, run.progress.predict),
    }[fn]
    name = f"{stage}_step"
    if name != "predict_step" and not overridden(name, module, Module):
        raise MisconfigurationException(
            f"`trainer.{call}` needs `{type(module).__name__}.{name}`: `def {name}(self, batch, batch_idx): ...`."
        )
    if name == "predict_step" and not overridden(name, module, Module) and not overridden("forward", module, Module):
        raise MisconfigurationException(
            f"`trainer.predict` needs `{type(module).__name__}.predict_step`, or a `forward` that takes a batch."
        )
    if not source.defined:
        raise MisconfigurationException(
            f"`trainer.{call}` has no data: pass `dataloaders=`, a `datamodule=` with a `{source.name}`, or define "
            f"`{type(module).__name__}.{source.name}`."
        )
    loaders = as_list(source.request())
    takes, as_iterator = checks.step_arguments(getattr(module, name), name, len(loaders))
    limit = getattr(trainer, argument)
    batches = [
        make_batches(
            loader,
            limit,
            argument,
            f"the {stage} loader" + (f" {index}" if len(loaders) > 1 else ""),
            sources.mover(strategy.root_device, strategy.precision, index),
            as_iterator,
        )
        for index, loader in enumerate(loaders)
    ]
    evaluation = Evaluation(
        stage,
        batches,
        callables.marked(strategy.step_method(module, name), name, run.results, strategy.precision, takes),
        counts,
        several=len(loaders) > 1,
        takes=takes,
        set_eval=callables.evaluation_mode(module, stage),
        context=callables.evaluation_context(trainer, within_fit=fn is TrainerFn.FITTING),
    )
    evaluation.take_hooks(run.hooks)
    return evaluation

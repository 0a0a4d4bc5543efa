"""What a run needs before its first batch: optimizers, loaders, when to validate, the sanity check, evaluations."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from functools import partial
from math import inf
from typing import Any

from torch import Tensor
from torch.optim import Optimizer

from gpulayer.fabric.samplers import Shard
from gpulayer.fabric.strategies import Strategy
from gpulayer.fabric.utilities.exceptions import MisconfigurationException
from gpulayer.fabric.utilities.rank_zero import rank_zero_warn
from gpulayer.fabric.utilities.seed import collect_rng_states, set_rng_states
from gpulayer.fabric.utilities.warnings import PossibleUserWarning
from gpulayer.pytorch.callbacks.prediction_writer import BasePredictionWriter
from gpulayer.pytorch.core.hooks import overridden
from gpulayer.pytorch.core.indices import Indices
from gpulayer.pytorch.core.module import Module
from gpulayer.pytorch.core.optimizer import (
    Configured,
    LightningOptimizer,
    LRSchedulerConfig,
    NoOptimizer,
    read_configured,
    unwrapped,
)
from gpulayer.pytorch.loops.batches import Batches
from gpulayer.pytorch.loops.evaluate import evaluate
from gpulayer.pytorch.loops.progress import Evaluated
from gpulayer.pytorch.loops.run import Evaluation, Run, Schedulers
from gpulayer.pytorch.loops.slots import TRAINING_STEP
from gpulayer.pytorch.loops.when import every
from gpulayer.pytorch.trainer import callables, checks, profiling
from gpulayer.pytorch.trainer.attach import (
    Sources,
    make_batches,
    one_after_another,
    shard_of,
    split,
    together,
    unshuffled,
)
from gpulayer.pytorch.trainer.report import Report
from gpulayer.pytorch.trainer.states import RunningStage, TrainerFn

# -- fit ---------------------------------------------------------------------------------------------------------------


def configure_optimizers(run: Run) -> None:
    """Make the optimizers and schedulers, and the callables of training."""
    module, strategy = run.module, run.trainer.strategy
    module.zero_grad()  # nothing of an earlier fit, or of the user's own backward passes, goes into the first step
    configured: Configured = read_configured(module.configure_optimizers(), automatic=module.automatic_optimization)
    _, optimizers = strategy.setup(module, configured.optimizers)
    if not optimizers and module.automatic_optimization:
        optimizers = [NoOptimizer()]
    train_with(run, optimizers, configured.schedulers)
    if run.manual:
        for name, harmless in (("gradient_clip_val", (None, 0)), ("accumulate_grad_batches", (1,))):
            value = getattr(run.trainer, name)
            if value not in harmless:
                raise MisconfigurationException(
                    f"`Trainer({name}={value!r})` works in automatic optimization only: this module steps its "
                    "optimizers itself, so do it in `training_step` (there is `self.clip_gradients`)."
                )


def train_with(run: Run, optimizers: list[Optimizer], schedulers: list[LRSchedulerConfig]) -> None:
    """Let the run train with these: the callables of its loop."""
    module = run.module
    run.manual = not module.automatic_optimization
    take_optimizers(run, optimizers)
    run.scheduler_configs = schedulers
    run.schedulers = Schedulers() if run.manual else Schedulers.of(schedulers)
    takes, _ = checks.step_arguments(module.training_step, "training_step", 1)
    callables.resolve_training(run, callables.compiled_step(run.trainer.strategy, module, "training_step"), takes)
    profiling.training(run)


def take_optimizers(run: Run, optimizers: list[Optimizer]) -> None:
    """Let the run step these."""
    run.optimizers = [unwrapped(optimizer) for optimizer in optimizers]
    run.wrapped_optimizers = [
        LightningOptimizer(optimizer, run.wrapped_step, run.module.toggled_optimizer) for optimizer in run.optimizers
    ]


def prepare_fit(run: Run, sources: Sources) -> None:
    """The loaders, when validation is due, the sanity check, and the lines that are printed."""
    trainer, module = run.trainer, run.module
    validates = sources.val.defined and overridden("validation_step", module, Module) and trainer.limit_val_batches != 0
    if sources.val.given is not None and not overridden("validation_step", module, Module):
        rank_zero_warn(
            f"A validation loader was given, but `{type(module).__name__}` has no `validation_step`: nothing is "
            "validated.",
            PossibleUserWarning,
        )
    if not sources.val.defined and overridden("validation_step", module, Module) and trainer.limit_val_batches != 0:
        rank_zero_warn(
            f"`{type(module).__name__}` has a `validation_step`, but there is no validation loader: nothing is "
            "validated. Pass one as `trainer.fit(model, train_loader, val_loader)`.",
            PossibleUserWarning,
        )
    if validates and trainer.num_sanity_val_steps != 0:
        with trainer.profiler.profile("run_sanity_check"):
            sanity_check(run, sources)
    load_train(run)
    run.validates = validates and (run.progress.mid_epoch or not run.done())
    run.validate_every_n_epochs = trainer.check_val_every_n_epoch
    every_n_epochs = trainer.reload_dataloaders_every_n_epochs
    made = run.progress.epoch if run.validation is not None else None

    def load_validation() -> None:
        nonlocal made
        if made is None or (every_n_epochs and run.progress.epoch - made >= every_n_epochs):
            made = run.progress.epoch
            run.validation = evaluation_of(run, sources, TrainerFn.FITTING)

    if run.validates:
        run.load_validation = load_validation
        run.validating = partial(callables.validating, trainer)
        set_validation_interval(run)
        if isinstance(trainer.val_check_interval, float):
            run.set_interval = partial(set_validation_interval, run)
        if run.validates_in(run.progress.epoch):
            load_validation()
    if every_n_epochs:
        run.reload_train = reload_train(run, every_n_epochs)
    if not trainer.barebones:
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
    run.resolve_hooks()
    run.results.forget("validation")
    trainer.state.stage = RunningStage.TRAINING


def first(batches: Batches, most: int) -> Batches:
    """The first `most` batches of a loader."""
    length = None if batches.length is None else min(batches.length, most)
    limit = most if batches.limit is None else min(batches.limit, most)
    some = Batches(batches.loader, length, limit, batches.move, batches.as_iterator, batches.stream)
    some.watch = batches.watch
    return some


def load_train(run: Run) -> None:
    """The training batches; made once, or sooner if someone asks the Trainer how many there are."""
    trainer, sources = run.trainer, run.trainer.sources
    if run.train.loader is not None:
        return
    if trainer.reload_dataloaders_every_n_epochs:
        if run.loader_made is None:
            run.loader_made = run.progress.epoch, collect_rng_states()
        else:  # by the process before
            set_rng_states(run.loader_made[1])
    loader = together(profiling.loaders(trainer, sources.train))
    if trainer.overfit_batches:
        loader = unshuffled(loader)
    if trainer.use_distributed_sampler:
        loader = split(loader, trainer.strategy, equal=True)
        weigh_last_batch(run, shard_of(loader))
    _, as_iterator = checks.step_arguments(run.module.training_step, "training_step", 1)
    move = sources.mover(trainer.strategy.root_device, trainer.strategy.precision)
    run.train = make_batches(
        loader,
        trainer.limit_train_batches,
        "limit_train_batches",
        "the training loader",
        move,
        as_iterator,
    )
    profiling.batches(trainer, run.train, "train")


def weigh_last_batch(run: Run, shard: Shard | None) -> None:
    """Let the last batch count by how many samples this process has in it, where the others have more or less.

    The average of all processes' losses is then that of all samples. A process without a sample of its own in it has
    been given one again: what is logged for that is left out.

    Args:
        run: the run.
        shard: this process's part of the data; None where that is not known.
    """
    strategy: Strategy = run.trainer.strategy
    share, at, results = strategy.share_gradients, run.progress, run.results
    if share is None or run.manual or shard is None:
        return

    def is_last() -> bool:
        return at.last_batch and run.train.length == len(run.train.loader)

    def weighted(loss: Tensor) -> Tensor:
        return share(loss * shard.last_weight if is_last() else loss)

    log = results.log

    def log_own(*args: Any, **kwargs: Any) -> None:
        if not (is_last() and results.fx in TRAINING_STEP):
            log(*args, **kwargs)

    run.share_gradients = share if shard.last_weight == 1.0 else weighted
    if shard.lacks_a_batch:
        results.log = log_own  # type: ignore[method-assign]


def reload_train(run: Run, every_n_epochs: int) -> Callable[[], None]:
    """What makes the training loader anew, when so many epochs are over since it last was."""

    def reload() -> None:
        if run.loader_made is None or run.progress.epoch - run.loader_made[0] >= every_n_epochs:
            run.loader_made, run.train = None, Batches(None, 0)
            load_train(run)
            if run.validates:
                set_validation_interval(run)

    return reload


def renew_loaders(run: Run) -> None:
    """Make those loaders of the call anew that are made already."""
    trainer = run.trainer
    if trainer.state.fn is not TrainerFn.FITTING:
        if run.evaluation is not None:
            run.evaluation.loaders = evaluation_of(run, trainer.sources, trainer.state.fn).loaders
        return
    if run.train.loader is not None:
        run.train, run.loader_made = Batches(None, 0), None
        load_train(run)
        run.train.set_epoch(run.progress.epoch)
        if run.validates:
            set_validation_interval(run)
    if run.validation is not None:
        run.validation = evaluation_of(run, trainer.sources, TrainerFn.FITTING)


def set_validation_interval(run: Run) -> None:
    """After how many batches to validate, from the Trainer's `val_check_interval` and `check_val_every_n_epoch`.

    Raises:
        MisconfigurationException: the interval cannot be kept.
    """
    trainer, count = run.trainer, run.train.count
    interval = trainer.val_check_interval
    if isinstance(interval, timedelta):
        run.validate_every = run.validate_every or every(seconds=interval.total_seconds())
    elif isinstance(interval, int):
        if interval > count and trainer.check_val_every_n_epoch is not None:
            raise MisconfigurationException(
                f"`Trainer(val_check_interval={interval})`, but an epoch has {count} batches: give at most that, a "
                "fraction such as 0.5, or `check_val_every_n_epoch=None` to count batches across epochs."
            )
        run.validate_every_n_batches = interval
    elif interval == 1.0:
        run.validate_every_n_batches = None
    elif count == inf:
        raise MisconfigurationException(
            f"`Trainer(val_check_interval={interval})` is a fraction, but the training loader has no length: give a "
            "number of batches, such as `val_check_interval=100`, or 1.0 for the end of the epoch."
        )
    else:
        run.validate_every_n_batches = trainer.val_check_batch


# -- evaluation --------------------------------------------------------------------------------------------------------


def evaluation_of(run: Run, sources: Sources, fn: TrainerFn) -> Evaluation:
    """The evaluation of a call: its loaders, step and hooks.

    Raises:
        MisconfigurationException: the step's signature does not fit the loaders, or a limit cannot be applied.
    """
    trainer, module, strategy = run.trainer, run.module, run.trainer.strategy
    stage, argument, source, counts = {
        TrainerFn.FITTING: ("validation", "limit_val_batches", sources.val, run.progress.validation),
        TrainerFn.VALIDATING: ("validation", "limit_val_batches", sources.val, run.progress.validate),
        TrainerFn.TESTING: ("test", "limit_test_batches", sources.test, run.progress.test),
        TrainerFn.PREDICTING: ("predict", "limit_predict_batches", sources.predict, run.progress.predict),
    }[fn]
    name = f"{stage}_step"
    loaders = one_after_another(profiling.loaders(trainer, source))
    if trainer.overfit_batches and fn is TrainerFn.FITTING:
        loaders = [unshuffled(loader) for loader in loaders]
    if trainer.use_distributed_sampler:
        loaders = [split(loader, strategy, equal=False) for loader in loaders]
    takes, as_iterator = checks.step_arguments(getattr(module, name), name, len(loaders))
    most = 3 if len(loaders) > 1 else 2
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
        callables.in_precision(callables.compiled_step(strategy, module, name), strategy.precision, takes, most),
        name,
        counts,
        several=len(loaders) > 1,
        eval_mode=callables.evaluation_mode(module, stage),
        context=callables.evaluation_context(trainer, within_fit=fn is TrainerFn.FITTING),
    )
    evaluation.take_hooks(run.hooks)
    if fn is TrainerFn.PREDICTING:
        serve_writers(trainer, evaluation)
    return profiling.evaluation(trainer, evaluation)


def serve_writers(trainer: Any, evaluation: Evaluation) -> None:
    """Keep and note what the callbacks that write predictions are given."""
    writers = [callback for callback in trainer.callbacks if isinstance(callback, BasePredictionWriter)]
    if not writers:
        return
    evaluation.keeps = any(writer.interval.on_epoch for writer in writers)
    for batches in evaluation.loaders:
        if batches.stream is None and Indices.are_known(batches.loader):
            batches.indices = Indices(batches.loader)
        else:
            rank_zero_warn(
                f"{type(writers[0]).__name__} gets no `batch_indices` for a {type(batches.loader).__name__}: they are "
                "known of a DataLoader whose dataset has indices, and whose batches come in order.",
                PossibleUserWarning,
            )

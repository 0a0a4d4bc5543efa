"""Profiling: the callables of a run, wrapped so that a profiler is told of them.

Without a profiler the run keeps the callables that it has, and nothing of this is called in a step.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

from gpulayer.fabric.utilities.exceptions import MisconfigurationException
from gpulayer.fabric.utilities.rank_zero import log
from gpulayer.pytorch.core.callback import Callback, Checkpoint
from gpulayer.pytorch.core.module import Module
from gpulayer.pytorch.loops.batches import Batches
from gpulayer.pytorch.loops.hooks import Hooks, nothing
from gpulayer.pytorch.loops.results import Results
from gpulayer.pytorch.loops.run import Evaluation, Run, zero_grad
from gpulayer.pytorch.profilers import AdvancedProfiler, PassThroughProfiler, Profiler, PyTorchProfiler, SimpleProfiler
from gpulayer.pytorch.trainer.attach import Source
from gpulayer.pytorch.trainer.states import TrainerFn

BY_NAME: dict[str, Callable[[], Profiler]] = {
    "simple": SimpleProfiler,
    "advanced": AdvancedProfiler,
    "pytorch": PyTorchProfiler,
}
NEXT = {
    "train": "[_TrainingEpochLoop].train_dataloader_next",
    "validation": "[_EvaluationLoop].val_next",
    "test": "[_EvaluationLoop].test_next",
    "predict": "[_PredictionLoop].predict_next",
}
LOOPS = {
    TrainerFn.FITTING: "run_training",
    TrainerFn.VALIDATING: "run_validation",
    TrainerFn.TESTING: "run_test",
    TrainerFn.PREDICTING: "run_predict",
}
# What `self.log` and the log points call.
LOGGING = ("log", "step_done", "evaluation_step_done", "end", "refresh", "send_epoch", "close")


def resolve_profiler(given: Any) -> Profiler:
    """`Trainer(profiler=...)` as an object.

    Raises:
        MisconfigurationException: it is none, nor the name of one.
    """
    if given is None:
        return PassThroughProfiler()
    if isinstance(given, str) and given.lower() in BY_NAME:
        return BY_NAME[given.lower()]()
    if isinstance(given, Profiler):
        return given
    raise MisconfigurationException(
        f"`Trainer(profiler={given!r})`: choose 'simple', 'advanced' or 'pytorch', or give an object of a subclass of "
        "`gpulayer.pytorch.profilers.Profiler`."
    )


def is_on(trainer: Any) -> bool:
    """Whether the Trainer has a profiler."""
    return type(trainer.profiler) is not PassThroughProfiler


def told(profiler: Profiler, name: str, call: Callable[..., Any]) -> Callable[..., Any]:
    """The same callable, as an action of the profiler; a no-op stays what it is."""
    if call is nothing:
        return call
    start, stop = profiler.start, profiler.stop

    def action(*args: Any, **kwargs: Any) -> Any:
        start(name)
        try:
            return call(*args, **kwargs)
        finally:
            stop(name)

    return action


# -- around a call -----------------------------------------------------------------------------------------------------


@contextmanager
def reporting(trainer: Any, fn: TrainerFn) -> Iterator[None]:
    """A whole call; its report comes at the end, also when the loop was broken off.

    A call that is made within another one, by a hook, is part of that one's report.
    """
    profiler = trainer.profiler
    if not is_on(trainer) or profiler._trainer is not None:
        yield
        return
    profiler._trainer, profiler._log_dir = trainer, None
    try:
        profiler.setup(stage=fn.value, local_rank=trainer.global_rank, log_dir=None)
        yield
    finally:
        for name in LOGGING:  # what is read after the call is no part of it
            vars(trainer.results).pop(name, None)
        try:
            if profiler._log_dir is not None:  # the loop was reached
                profiler.describe()
        except Exception as error:  # the run is worth more
            log.warning("%s could not make its report (%s).", type(profiler).__name__, error)
        finally:
            profiler.teardown(stage=fn.value)
            profiler._trainer = None


@contextmanager
def loop(trainer: Any, fn: TrainerFn) -> Iterator[None]:
    """The loop of a call, when the folder of the run is known."""
    if is_on(trainer):
        trainer.profiler._log_dir = trainer.log_dir
    with trainer.profiler.profile(LOOPS[fn]):
        yield


# -- what the loop calls -----------------------------------------------------------------------------------------------


class ProfiledHooks(Hooks):
    """Hooks whose methods are actions: `[Callback]EarlyStopping.on_validation_end`."""

    def of_callback(self, callback: Callback, name: str) -> Callable[..., Any]:
        kind = "Checkpoint" if isinstance(callback, Checkpoint) else "Callback"
        trainer = self._parts[0]
        action = f"[{kind}]{type(callback).__qualname__}.{name}"
        return told(trainer.profiler, action, super().of_callback(callback, name))

    def of_module(self, name: str) -> Callable[..., Any]:
        trainer, module, _ = self._parts
        return told(trainer.profiler, of_module(module, name), super().of_module(name))


def hooks(trainer: Any, module: Module, results: Results) -> Hooks:
    """The hooks of a run."""
    return (ProfiledHooks if is_on(trainer) else Hooks)(trainer, module, [], results)


def of_module(module: Module, name: str) -> str:
    """The name of a method of the module's as an action."""
    return f"[LightningModule]{type(module).__qualname__}.{name}"


def of_strategy(trainer: Any, name: str) -> str:
    """The name of what the strategy does as an action."""
    return f"[Strategy]{type(trainer.strategy).__qualname__}.{name}"


def results(trainer: Any, results: Results) -> Results:
    """What `self.log` gathers in, whose methods are actions."""
    if is_on(trainer):
        for name in LOGGING:
            setattr(results, name, told(trainer.profiler, f"[Results].{name}", getattr(results, name)))
        if results.send is not None:
            results.send = told(trainer.profiler, "[Results].log_metrics", results.send)
    return results


def training(run: Run) -> None:
    """The fields of a run that training calls."""
    trainer, profiler = run.trainer, run.trainer.profiler
    if not is_on(trainer):
        return
    wrap = partial(told, profiler)
    run.training_step = wrap(of_strategy(trainer, "training_step"), run.training_step)
    run.backward = wrap(of_strategy(trainer, "backward"), run.backward)
    if run.zero_grad is not zero_grad:  # otherwise the loop does it itself, at another moment
        run.zero_grad = wrap(of_module(run.module, "optimizer_zero_grad"), run.zero_grad)
    run.scheduler_step = wrap(of_module(run.module, "lr_scheduler_step"), run.scheduler_step)
    step = of_module(run.module, "optimizer_step")
    if run.manual:
        run.step_optimizer = wrap(step, run.step_optimizer)
    bind = run.bind_optimizer

    def bind_optimizer() -> None:
        bind()
        run.steps_alone = run.steps_alone and not run.manual  # where `step_optimizer` is the action
        run.clip = wrap(of_module(run.module, "configure_gradient_clipping"), run.clip)
        run.optimizer_step = wrap(step, run.optimizer_step)
        if run.closure_step is not None:
            plain, action = run.closure_step, wrap(step, run.closure_step)
            run.closure_step = lambda compute, i, step_now: (action if step_now else plain)(compute, i, step_now)

    run.bind_optimizer = bind_optimizer


def loaders(trainer: Any, source: Source) -> Any:
    """The loaders of a stage; making them is an action."""
    if not is_on(trainer) or source.owner is None:
        return source.request()
    kind = "LightningModule" if isinstance(source.owner, Module) else "LightningDataModule"
    with trainer.profiler.profile(f"[{kind}]{type(source.owner).__qualname__}.{source.name}"):
        return source.request()


def batches(trainer: Any, batches: Batches, stage: str) -> Batches:
    """The batches of a loader: waiting for them, and moving them to the device."""
    if is_on(trainer):
        name = NEXT[stage]
        batches.watch = lambda begin: waited_for(trainer.profiler, name, begin)
        if batches.move is not None:
            batches.move = told(trainer.profiler, of_strategy(trainer, "batch_to_device"), batches.move)
    return batches


def waited_for(profiler: Profiler, name: str, begin: Callable[[], Iterator[Any]]) -> Iterator[Any]:
    """The batches of an iterator that is yet to be made; making it and waiting for each batch are actions."""
    with profiler.profile(name):
        iterator = begin()
    ask = told(profiler, name, partial(next, iterator, nothing))
    while (batch := ask()) is not nothing:
        yield batch


def evaluation(trainer: Any, evaluation: Evaluation) -> Evaluation:
    """The step and the loaders of an evaluation; its hooks are actions already."""
    if is_on(trainer):
        evaluation.step = told(trainer.profiler, of_strategy(trainer, evaluation.step_name), evaluation.step)
        for loader in evaluation.loaders:
            batches(trainer, loader, evaluation.stage)
    return evaluation

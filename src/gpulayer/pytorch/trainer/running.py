"""Set-up and end of a run, in the order that users rely on.

`with running(...) as run:` adds no frame to the way from `Trainer.fit` to the backward pass.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch

from gpulayer.fabric.utilities.exceptions import MisconfigurationException
from gpulayer.fabric.utilities.rank_zero import log
from gpulayer.pytorch.core.module import Module
from gpulayer.pytorch.loggers.folders import FolderLogger
from gpulayer.pytorch.loops.exchange import Exchange
from gpulayer.pytorch.loops.results import NoResults, Results
from gpulayer.pytorch.loops.run import Run
from gpulayer.pytorch.trainer import callables, checkpoint, checks, profiling
from gpulayer.pytorch.trainer.attach import Sources
from gpulayer.pytorch.trainer.ckpt_path import resolve_path
from gpulayer.pytorch.trainer.members import Members
from gpulayer.pytorch.trainer.prepare import configure_optimizers, evaluation_of, prepare_fit
from gpulayer.pytorch.trainer.signals import listening
from gpulayer.pytorch.trainer.states import RunningStage, TrainerFn, TrainerStatus
from gpulayer.pytorch.trainer.together import StopTogether

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
    with listening(trainer) as signals, profiling.reporting(trainer, fn):
        try:
            checks.has_what_it_needs(stage, module, sources.of_call(stage))
            trainer.name_default_logger(type(module).__name__)
            trainer.reruns = fn is TrainerFn.FITTING and ckpt_path == "last"
            if trainer.reruns:
                for number, logger in folder_loggers(trainer):
                    logger.go_on_in_folder(number)
            strategy.setup_environment()
            # Where the files are looked at: another process may see some that were written meanwhile.
            path = strategy.broadcast(
                resolve_path(trainer, ckpt_path, module_given) if trainer.is_global_zero else None
            )
            trainer.ckpt_path = path
            take_module(trainer, module)
            members = Members(trainer, module, fn)
            members.bring()
            trainer.results.abandon()
            results = trainer.results = profiling.results(trainer, make_results(trainer))
            hooks = profiling.hooks(trainer, module, results)
            run = Run(trainer, module, hooks, results, trainer.progress, signals.ending)
            trainer._run = trainer._last = run
            if fn is TrainerFn.FITTING:
                trainer._fitted, trainer.training_rng = run, None
                if path is None:
                    trainer.progress.restart_epoch()  # which an error may have broken off
            if fn is TrainerFn.FITTING and strategy.peers is not None:
                run.together = StopTogether(run, strategy.peers, signals)
            with trainer.profiler.profile("prepare_data"):
                prepare_data(trainer, module, sources)
            if trainer.reruns and path is None:
                trainer.delivery.begin_anew()
            with trainer.profiler.profile("setup"):
                set_up(trainer, module, stage, members)
            if fn is TrainerFn.FITTING:
                for number, logger in folder_loggers(trainer):
                    logger.begin(number)
            with strategy.root_device, strategy.precision.init_context(), trainer.profiler.profile("configure_model"):
                module.configure_model()
            members.set_up()
            loaded = None
            if path is not None:
                with trainer.profiler.profile("load_checkpoint"):
                    loaded = strategy.load(path, "cpu", weights_only)
                strategy.precision.convert_module(module)  # before it takes the weights, which would be rounded
                checkpoint.restore_objects(run, loaded)
                members.load(loaded)
            strategy.precision.convert_module(module)  # also what loading made anew
            module.to(strategy.root_device)
            if fn is TrainerFn.FITTING:
                with trainer.profiler.profile("configure_optimizers"):
                    configure_optimizers(run)
            members.join()
            run.hooks.resolve(trainer.callbacks)
            if fn is TrainerFn.FITTING:
                run.restore_joined = members.restore
                run.hooks.on_fit_start()
                run.resolve_hooks()
            members.all_here()
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
            with (
                torch.enable_grad(),
                torch.autograd.set_detect_anomaly(trainer.detect_anomaly),
                signals.noting(run, fitting=fn is TrainerFn.FITTING),
                profiling.loop(trainer, fn),
            ):
                yield run
            if fn is TrainerFn.FITTING:
                run.hooks.on_fit_end()
            tear_down(trainer, module, stage)
            trainer.state.status = TrainerStatus.FINISHED
        except BaseException as error:
            trainer.state.status = TrainerStatus.INTERRUPTED
            ends_with = error if signals.shared and error is signals.ending.error else strategy.end_with(error)
            tell(trainer, module, ends_with)
            if ends_with is not error:
                raise ends_with from None
            raise
        finally:
            if fn is TrainerFn.FITTING:
                for _, logger in folder_loggers(trainer):
                    logger.end(well=trainer.state.status is TrainerStatus.FINISHED)
            elif trainer.inference_mode:
                callables.make_ordinary(module)
            leave_device(trainer, module)
            trainer._run = None
            trainer.state.stage = None


def folder_loggers(trainer: Any) -> list[tuple[int, FolderLogger]]:
    """The loggers that mark their folder while a run trains, so that a rerun after a crash finds it; with numbers."""
    if not trainer.is_global_zero or trainer.fast_dev_run:
        return []
    return [(number, logger) for number, logger in enumerate(trainer.loggers) if isinstance(logger, FolderLogger)]


def tell(trainer: Any, module: Module, error: BaseException) -> None:
    """Tell the callbacks, the datamodule and the loggers of an error; one that fails does not hide it."""
    told: list[Callable[[], None]] = [
        partial(callback.on_exception, trainer, module, error) for callback in trainer.callbacks
    ]
    if trainer.sources.datamodule is not None:
        told.append(partial(trainer.sources.datamodule.on_exception, error))
    told += [trainer.strategy.checkpoint_io.wait, partial(trainer.delivery.finalize, "failed")]
    for call in told:
        try:
            call()
        except Exception:
            log.exception("While the error that follows was being reported, another one occurred:")


# -- before the data ---------------------------------------------------------------------------------------------------


def take_module(trainer: Any, module: Module) -> None:
    """Attach the module and the datamodule."""
    module.trainer = trainer
    trainer.lightning_module = module
    trainer.datamodule = trainer.sources.datamodule
    if trainer.datamodule is not None:
        trainer.datamodule.trainer = trainer


def prepare_data(trainer: Any, module: Module, sources: Sources) -> None:
    """`prepare_data`, once per machine or once in all."""
    for owner in (sources.datamodule, module):
        if owner is not None:
            per_node = getattr(owner, "prepare_data_per_node", True)
            if trainer.local_rank == 0 if per_node else trainer.is_global_zero:
                owner.prepare_data()
    trainer.strategy.barrier("prepare_data")


def set_up(trainer: Any, module: Module, stage: str, members: Members) -> None:
    """`setup` of the datamodule, the callbacks and the module; loggers claim their folder before."""
    for logger in trainer.loggers:
        if trainer.world_size > 1 and isinstance(logger, FolderLogger):
            logger.share_version(trainer.strategy.broadcast)
        _ = logger.experiment
    if trainer.datamodule is not None:
        trainer.datamodule.setup(stage=stage)
    members.set_up()
    module.setup(stage=stage)
    members.set_up()


def tear_down(trainer: Any, module: Module, stage: str) -> None:
    """`teardown` in the same order, when what was saved in the background is safe."""
    trainer.strategy.checkpoint_io.wait()
    if trainer.datamodule is not None:
        trainer.datamodule.teardown(stage=stage)
    for callback in list(trainer.callbacks):
        callback.teardown(trainer, module, stage=stage)
    module.teardown(stage=stage)
    trainer.delivery.finalize("success")


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
            if name in merged and not equal(merged[name], value):
                raise MisconfigurationException(
                    f"The module and the datamodule both have a hyperparameter {name!r}, {value!r} and "
                    f"{merged[name]!r}: rename one, or leave it out with `save_hyperparameters(ignore=...)`."
                )
            merged[name] = value
    for logger in trainer.loggers:
        if owners and trainer.enable_autolog_hparams:
            logger.log_hyperparams(merged)
        logger.log_graph(module)
        logger.save()


def equal(one: Any, other: Any) -> bool:
    """Whether two hyperparameters are; tensors and arrays compare element by element."""
    same: Any = one is other or one == other
    return bool(same.all() if hasattr(same, "all") else same)


def make_results(trainer: Any) -> Results:
    """Where `self.log` goes."""
    device = trainer.strategy.root_device
    if trainer.barebones:
        return NoResults(device)
    strategy = trainer.strategy
    exchange = None if strategy.world_size == 1 else Exchange(strategy.gather_numbers, strategy.gather_objects)
    return Results(device, trainer.log_every_n_steps, send_to(trainer), trainer.lightning_module, exchange)


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
            trainer.delivery.row(metrics, step)

    return send

"""Trials: a few steps of a run, to learn something about it, that leave no trace. The tuner is made of them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from copy import deepcopy
from typing import Any

import torch
from torch import Tensor
from torch.nn.parameter import is_lazy
from torch.optim import Optimizer
from torch.utils.data import DataLoader

from gpulayer.fabric.utilities.apply import apply_to_collection
from gpulayer.fabric.utilities.exceptions import MisconfigurationException
from gpulayer.fabric.utilities.generators import held_by, set_states, states_of
from gpulayer.fabric.utilities.seed import isolate_rng
from gpulayer.pytorch.core.callback import Callback
from gpulayer.pytorch.core.hooks import overridden
from gpulayer.pytorch.core.metrics import load_metric_states, metric_states, metrics_in
from gpulayer.pytorch.core.module import Module
from gpulayer.pytorch.core.optimizer import LRSchedulerConfig
from gpulayer.pytorch.loggers.logger import DummyLogger
from gpulayer.pytorch.loops.batches import Batches
from gpulayer.pytorch.loops.evaluate import evaluate
from gpulayer.pytorch.loops.fit import fit
from gpulayer.pytorch.loops.hooks import Hooks
from gpulayer.pytorch.loops.predict import predict
from gpulayer.pytorch.loops.progress import Progress
from gpulayer.pytorch.loops.results import Results
from gpulayer.pytorch.loops.run import Run
from gpulayer.pytorch.trainer.attach import Sources, one_after_another
from gpulayer.pytorch.trainer.prepare import evaluation_of, load_train, train_with
from gpulayer.pytorch.trainer.states import TrainerFn

# What a run changes about the Trainer, or a trial sets.
STATE = (
    "callbacks loggers progress results should_stop training_rng max_epochs max_steps min_epochs min_steps "
    "num_sanity_val_steps limit_train_batches limit_val_batches limit_test_batches limit_predict_batches "
    "_run _last _fitted"
).split()


class Trial(Run):
    """A run that ends after its steps, in whatever number of epochs, and not at the Trainer's `max_epochs`."""

    def done(self) -> bool:
        at = self.progress
        used_up = at.epoch > at.batch  # an epoch gave no batch
        return self.train.count == 0 or used_up or self.stopping()


@contextmanager
def set_aside(trainer: Any, callbacks: Iterable[Callback] = ()) -> Iterator[None]:
    """What the Trainer is and knows is put back afterwards; meanwhile it has these callbacks only, and a logger that
    takes every call of the module's and writes nothing."""
    kept = {name: getattr(trainer, name) for name in STATE}
    fn, stage, status = trainer.state.fn, trainer.state.stage, trainer.state.status
    trainer.callbacks, trainer.progress = list(callbacks), Progress()
    trainer.loggers = [DummyLogger()] if trainer.loggers else []
    trainer.num_sanity_val_steps = 0
    try:
        with isolate_rng():
            yield
    finally:
        for name, value in kept.items():
            setattr(trainer, name, value)
        trainer.state.fn, trainer.state.stage, trainer.state.status = fn, stage, status


def try_out(trainer: Any, callbacks: Iterable[Callback], max_steps: int, batches: int | None) -> None:
    """`Trainer.try_out`: a run of its own with the module, the optimizers and the data of the one that is under way."""
    run, fn = trainer._run, trainer.state.fn
    with set_aside(trainer, callbacks), unchanged(run, trainer.sources):
        trainer.should_stop = False
        trainer.max_steps, trainer.min_epochs, trainer.min_steps = max_steps, None, None
        if batches is not None:
            trainer.limit_val_batches = trainer.limit_test_batches = trainer.limit_predict_batches = batches
        results = trainer.results = Results(run.results.device, log_every_n_steps=0, module=run.module)
        hooks = Hooks(trainer, run.module, trainer.callbacks, results)
        tried = Trial(trainer, run.module, hooks, results, trainer.progress, run.ending)
        trainer._run = trainer._last = tried
        try:
            if fn is TrainerFn.FITTING:
                trainer._fitted = tried
                train(tried, run.optimizers, run.scheduler_configs, validates=batches is not None)
            else:
                tried.evaluation = evaluation_of(tried, trainer.sources, fn)
                with torch.enable_grad():
                    if fn is TrainerFn.PREDICTING:
                        predict(tried, tried.evaluation, keep=False)
                    else:
                        evaluate(tried, tried.evaluation)
        finally:
            results.abandon()
            # Let go of the loaders now: the garbage collector would end their workers in an order that takes seconds.
            tried.train, tried.validation, tried.evaluation = Batches(None, 0), None, None


def train(run: Run, optimizers: list[Optimizer], schedulers: list[LRSchedulerConfig], validates: bool) -> None:
    """The training loop, and a validation after it; schedulers are there, but move only if the module moves them."""
    sources = run.trainer.sources
    train_with(run, optimizers, [])
    run.scheduler_configs = schedulers
    load_train(run)
    fit(run)
    if validates and sources.val.defined and overridden("validation_step", run.module, Module):
        run.validation = evaluation_of(run, sources, TrainerFn.FITTING)
        evaluate(run, run.validation)


@contextmanager
def unchanged(run: Run, sources: Sources) -> Iterator[None]:
    """The module, its optimizers and schedulers, and the data's generators are afterwards what they were before."""
    module, precision = run.module, run.trainer.strategy.precision
    has_shapes(module)
    tensors = [
        (holder, name, tensor, on_host(tensor))
        for child in module.modules()
        for holder in (child._parameters, child._buffers)
        for name, tensor in holder.items()
        if tensor is not None
    ]
    parameters = [(parameter, parameter.requires_grad, on_host(parameter.grad)) for parameter in module.parameters()]
    optimizers = [(optimizer, on_host(optimizer.state_dict())) for optimizer in run.optimizers]
    schedulers = [(config.scheduler, copied(config.scheduler.state_dict())) for config in run.scheduler_configs]
    modes = [(child, child.training) for child in module.modules()]
    metrics, scaler = deepcopy(metric_states(module, without=[])), deepcopy(precision.state_dict())
    given = [source.given for source in (sources.train, sources.val, sources.test, sources.predict)]
    loaders = [loader for one in given if one is not None for loader in one_after_another(one)]
    owners = [*loaders, *module.modules(), *([sources.datamodule] if sources.datamodule is not None else [])]
    generators = [generator for owner in owners for generator in held_by(owner)]
    states = states_of(generators)
    workers = [(loader, loader._iterator) for loader in loaders if isinstance(loader, DataLoader)]
    for loader, _ in workers:
        loader._iterator = None  # workers that live on have random states of their own, so a trial starts others
    for parameter, _, _ in parameters:
        parameter.grad = None
    try:
        yield
    finally:
        put_back(tensors)
        for optimizer, state in optimizers:
            optimizer.load_state_dict(state)
            optimizer.zero_grad()
        for scheduler, state in schedulers:
            scheduler.load_state_dict(state)
        for parameter, trainable, gradient in parameters:
            parameter.requires_grad_(trainable)
            parameter.grad = None if gradient is None else gradient.to(parameter.device)
        for child, mode in modes:
            child.training = mode
        for _, metric in metrics_in(module):
            metric.reset()
        load_metric_states(module, metrics)
        if scaler:
            precision.load_state_dict(scaler)
        set_states(generators, states)
        for loader, iterator in workers:
            loader._iterator = iterator


def has_shapes(module: Module) -> None:
    """Whether all tensors have their shapes: a lazy layer becomes another one with its first batch.

    Raises:
        MisconfigurationException: one has not.
    """
    for name, tensor in (*module.named_parameters(), *module.named_buffers()):
        if is_lazy(tensor):
            raise MisconfigurationException(
                f"The shape of {name!r} is known from the first batch on only, so what a trial does could not be "
                "undone: call the module once on a batch before, for example at the end of its `__init__`."
            )


def copied(state: Any) -> Any:
    """The containers and tensors of a state, anew."""
    return apply_to_collection(state, Tensor, Tensor.clone)


def on_host(state: Any) -> Any:
    """A copy on the host, which leaves the memory of the device to what is tried."""
    return apply_to_collection(state, Tensor, lambda tensor: tensor.detach().to("cpu", copy=True))


def put_back(tensors: list[tuple[dict[str, Any], str, Tensor, Tensor]]) -> None:
    """Give each parameter and buffer its object and its values of before."""
    with torch.no_grad():
        for holder, name, tensor, values in tensors:
            holder[name] = tensor
            tensor.copy_(values)

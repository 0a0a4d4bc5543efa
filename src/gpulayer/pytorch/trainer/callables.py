"""The callables of a Run: steps, backward, clipping, optimizer and schedulers, resolved before the first batch."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import fields, is_dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy
from torch.optim import LBFGS, Optimizer

from gpulayer.fabric.precision import Precision
from gpulayer.fabric.strategies import Strategy
from gpulayer.fabric.utilities.exceptions import MisconfigurationException
from gpulayer.fabric.utilities.seed import isolate_rng
from gpulayer.pytorch.core.hooks import overridden
from gpulayer.pytorch.core.module import Module
from gpulayer.pytorch.loops.fit import loss_of
from gpulayer.pytorch.loops.hooks import nothing
from gpulayer.pytorch.loops.run import Run
from gpulayer.pytorch.trainer.states import RunningStage


def in_precision(step: Callable[..., Any], precision: Precision, takes: int, given: int = 2) -> Callable[..., Any]:
    """A step in the precision's context. Where there is none, it is the user's own method, without a detour.

    Args:
        step: the user's method.
        precision: the number formats.
        takes: how many arguments the step takes.
        given: how many the loop passes; those that the step does not take are left out.
    """
    context = precision.forward_context
    if context() is None:
        return step if takes == given else lambda *args: step(*args[:takes])

    def call(*args: Any) -> Any:
        with context():  # type: ignore[union-attr]
            return step(*args[:takes])

    return call


def compiled_step(strategy: Strategy, module: Module, name: str) -> Callable[..., Any]:
    """The step `name` to call: compiled, if the user gave the Trainer `torch.compile(module)`.

    `self.log` is left out of what is compiled, also where the user compiled the step: the graph is cut there.
    """
    step = strategy.step_method(module, name)
    compiler = module._compiler
    if compiler is not None or hasattr(step, "_torchdynamo_orig_callable"):
        for logging in ("log", "log_dict"):
            if logging not in module.__dict__:
                module.__dict__[logging] = torch.compiler.disable(getattr(module, logging))
    return step if compiler is None else compiler(step)


def resolve_training(run: Run, step: Callable[..., Any], takes: int) -> None:
    """Fill the fields of `run` that training calls."""
    module, strategy = run.module, run.trainer.strategy
    precision: Precision = strategy.precision
    run.training_step = in_precision(step, precision, takes)
    if run.manual:
        run.training_step = checked(run.training_step)
    run.sync_gradients = strategy.sync_gradients
    run.share_gradients = strategy.share_gradients
    if overridden("backward", module, Module):
        run.backward = module.backward
    else:
        run.backward = strategy.backward or Tensor.backward
    if precision.does("scale"):
        run.backward = scaled(run.backward, precision)
    if precision.does("unscale"):
        run.unscale = precision.unscale
    if precision.does("optimizer_step"):
        run.step_optimizer = precision.optimizer_step
        run.step_skipped = lambda: precision.skipped
    if overridden("optimizer_zero_grad", module, Module):
        run.zero_grad = lambda optimizer, i: module.optimizer_zero_grad(run.progress.epoch, i, optimizer)
    if overridden("lr_scheduler_step", module, Module):
        run.scheduler_step = module.lr_scheduler_step
    else:
        run.scheduler_step = Module.lr_scheduler_step.__get__(module)
    run.bind_optimizer = partial(bind_optimizer, run)


def bind_optimizer(run: Run) -> None:
    """What clips the gradients and steps the optimizer.

    Bound at each epoch's start, and when the user gives the Trainer others: hooks may have changed what there is to
    call. A scheduler, for one, replaces the `step` of the optimizer that it is made of.
    """
    trainer, module, strategy = run.trainer, run.module, run.trainer.strategy
    if overridden("configure_gradient_clipping", module, Module):
        run.clip = lambda optimizer: module.configure_gradient_clipping(
            optimizer, trainer.gradient_clip_val, trainer.gradient_clip_algorithm
        )
    else:
        run.clip = module.clip_gradients if trainer.gradient_clip_val else nothing
    plain = not strategy.precision.does("optimizer_step")
    run.steps_alone = plain and not any(map(needs_closure, run.optimizers))
    if run.manual:
        return
    run.optimizer, wrapped = run.optimizers[0], run.wrapped_optimizers[0]
    if strategy.precision.does("optimizer_step"):
        run.optimizer_step = partial(strategy.precision.optimizer_step, run.optimizer)
    else:
        run.optimizer_step = strategy.optimizer_step or run.optimizer.step
    own_step = overridden("optimizer_step", module, Module) or "step" in vars(wrapped)
    run.closure_step = closure_step(run) if own_step or needs_closure(run.optimizer) else None


def needs_closure(optimizer: Optimizer) -> bool:
    """Whether its step computes the loss: LBFGS's does, and that of an optimizer of others may (SAM's does)."""
    return isinstance(optimizer, LBFGS) or not type(optimizer).step.__module__.startswith(("torch.optim.", "gpulayer."))


def checked(step: Callable[..., Any]) -> Callable[..., Any]:
    """A step of manual optimization, whose answer nobody but the hooks uses: wrong ones would go unnoticed."""

    def call(*args: Any) -> Any:
        output = step(*args)
        if output is not None and not isinstance(output, (Tensor, Mapping)):
            raise MisconfigurationException(
                f"`training_step` returned {output!r}. In manual optimization return a tensor, a dict, or None."
            )
        return output

    return call


def scaled(backward: Callable[..., Any], precision: Precision) -> Callable[..., Any]:
    """The backward pass from the scaled loss."""
    return lambda loss, *args, **kwargs: backward(precision.scale(loss), *args, **kwargs)


def closure_step(run: Run) -> Callable[[Callable[[], Any], int, bool], Any]:
    """The step of an optimizer that calls the computation itself: LBFGS, or the module's own `optimizer_step`."""
    module = run.module
    optimizer = run.wrapped_optimizers[0]

    def step(compute: Callable[[], Any], i: int, step_now: bool) -> Any:
        if not step_now:
            return compute()
        outputs: list[Any] = []

        def closure() -> Tensor | None:
            with torch.enable_grad():
                outputs[:] = [compute()]
            loss = outputs[0] if type(outputs[0]) is Tensor else loss_of(outputs[0])
            if loss is None:
                return None
            accumulate = run.trainer.accumulate_grad_batches
            return loss.detach() if accumulate == 1 else loss.detach() / run.window(i, accumulate)

        module.optimizer_step(run.progress.epoch, i, optimizer, closure)
        if not outputs:
            raise MisconfigurationException(
                f"`{type(module).__name__}.optimizer_step` did not run the closure, so nothing was computed: call "
                "`optimizer.step(closure=optimizer_closure)`, or `optimizer_closure()` itself."
            )
        return outputs[0]

    return step


def evaluation_context(trainer: Any, within_fit: bool) -> Callable[[], AbstractContextManager[Any]]:
    """What an evaluation runs in.

    Args:
        trainer: the Trainer; its `inference_mode` chooses between `torch.inference_mode` and `torch.no_grad`.
        within_fit: training follows: no_grad, for its tensors may be kept, and the random state is put back, so that
            validating does not change what training does (Lightning's issues 16827 and 20204).
    """
    if not within_fit:
        return torch.inference_mode if trainer.inference_mode else torch.no_grad

    @contextmanager
    def context() -> Iterator[None]:
        with isolate_rng() as states, torch.no_grad():
            trainer.training_rng = states  # what a checkpoint that is written meanwhile holds
            yield
        trainer.training_rng = None

    return context


@contextmanager
def validating(trainer: Any) -> Iterator[None]:
    """The stage of a validation that interrupts training; after an error in it the stage tells where that was."""
    trainer.state.stage = RunningStage.VALIDATING
    with trainer.profiler.profile("run_validation"):
        yield
    trainer.state.stage = RunningStage.TRAINING


def evaluation_mode(module: Module, stage: str) -> Callable[[], AbstractContextManager[None]]:
    """A context with the model in evaluation mode; each submodule is put back into its own, also after an error."""
    eval_hook, train_hook = f"on_{stage}_model_eval", f"on_{stage}_model_train"
    own_eval = getattr(module, eval_hook) if overridden(eval_hook, module, Module) else module.eval
    own_train = getattr(module, train_hook) if overridden(train_hook, module, Module) else None

    @contextmanager
    def context() -> Iterator[None]:
        training = [child for child in module.modules() if child.training]
        own_eval()
        try:
            yield
        except BaseException:
            set_training(training)
            raise
        if own_train is not None:
            own_train()
        else:
            set_training(training)

    return context


def set_training(modules: list[nn.Module]) -> None:
    """Put each of these, and nothing below them, into training mode."""
    for module in modules:
        module.training = True


def make_ordinary(module: Module) -> None:
    """Turn tensors that the module kept from inference mode into ordinary ones, which autograd can use later.

    Modules cache tensors on first use (tables of cosines, masks). Made in inference mode, they would make a later `fit`
    fail in the backward pass (Lightning's issue 14497).
    """
    done: dict[int, tuple[Any, Any]] = {}
    with torch.no_grad():
        for child in module.modules():
            ordinary(child.__dict__, done)


MOST_ITEMS = 10_000  # a list or dict with more is data, and looking through it would take longer than it is worth


def ordinary(value: Any, done: dict[int, tuple[Any, Any]]) -> Any:
    """The value without tensors of inference mode.

    Args:
        value: anything; lists, dicts and dataclasses are changed in place.
        done: by its id what was looked at before, and what took its place, so that one object stays one.
    """
    if id(value) in done:
        return done[id(value)][1]
    new = value
    if isinstance(value, Tensor):
        if not is_lazy(value) and value.is_inference():
            new = value.clone()
            if isinstance(value, nn.Parameter):
                new = nn.Parameter(new, value.requires_grad)
        done[id(value)] = value, new
    elif isinstance(value, tuple):
        items = [ordinary(item, done) for item in value]
        if any(item is not old for item, old in zip(items, value, strict=True)):
            new = type(value)(*items) if hasattr(value, "_fields") else type(value)(items)
            done[id(value)] = value, new
    elif isinstance(value, (dict, list)) and len(value) <= MOST_ITEMS:
        done[id(value)] = value, value
        for key, item in list(value.items() if isinstance(value, dict) else enumerate(value)):
            if (changed := ordinary(item, done)) is not item:
                value[key] = changed
    elif is_dataclass(value) and not isinstance(value, type):
        done[id(value)] = value, value
        for field in fields(value):
            item = getattr(value, field.name, None)
            if (changed := ordinary(item, done)) is not item:
                object.__setattr__(value, field.name, changed)  # a frozen one too
    return new

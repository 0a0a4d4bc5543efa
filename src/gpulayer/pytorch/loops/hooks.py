"""Hooks: every hook of a run as one callable, resolved once.

A hook that nobody overrides is `nothing`; the others are a function that calls the overridden methods in order. The
mark "which hook is running", which `self.log` needs, is part of that function, so that it costs nothing where unused.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable
from functools import partial
from typing import TYPE_CHECKING, Any

from gpulayer.pytorch.core.callback import Callback, Checkpoint, Monitor
from gpulayer.pytorch.core.hooks import overridden
from gpulayer.pytorch.core.module import Module

if TYPE_CHECKING:
    from gpulayer.pytorch.loops.results import Results

# Hooks that both callbacks and the module have; callbacks are called first.
SHARED = (
    "on_fit_start on_fit_end on_train_start on_train_end on_train_epoch_start on_train_epoch_end "
    "on_train_batch_start on_train_batch_end on_before_zero_grad on_before_backward on_after_backward "
    "on_before_optimizer_step "
    "on_validation_start on_validation_end on_validation_epoch_start on_validation_epoch_end "
    "on_validation_batch_start on_validation_batch_end "
    "on_test_start on_test_end on_test_epoch_start on_test_epoch_end on_test_batch_start on_test_batch_end "
    "on_predict_start on_predict_end on_predict_epoch_start on_predict_epoch_end "
    "on_predict_batch_start on_predict_batch_end"
).split()
CALLBACKS_ONLY = ("on_sanity_check_start", "on_sanity_check_end")
# Hooks at whose end the values are known that were logged in them; several processes bring them together there.
EPOCH_ENDS = {f"on_{stage}_epoch_end": stage for stage in ("train", "validation", "test")}
# Hooks in which some callbacks come after the module: those that decide on what it logged there, and those that save,
# for a resumed run calls none of the hooks of a moment that its checkpoint was written in.
LATE = {"on_train_epoch_end": Monitor, "on_train_batch_end": Checkpoint, "on_validation_end": Checkpoint}


def nothing(*_: Any) -> None:
    """The hook that nobody overrides."""


class Hooks:
    """One attribute for each name in `SHARED` and `CALLBACKS_ONLY`: the callable to call."""

    def __init__(self, trainer: Any, module: Module, callbacks: Iterable[Callback], results: Results) -> None:
        self._parts = (trainer, module, results)
        self.resolve(callbacks)

    def resolve(self, callbacks: Iterable[Callback]) -> None:
        """Look at the callbacks; again, when there are new ones."""
        _, module, results = self._parts
        self.callbacks = list(callbacks)
        for callback in self.callbacks:
            callback._module_of_run = module  # for its `log`
        for name in (*SHARED, *CALLBACKS_ONLY):
            users = [callback for callback in self.callbacks if overridden(name, callback, Callback)]
            late = [user for user in users if name in LATE and isinstance(user, LATE[name])]
            calls = [self.of_callback(user, name) for user in users if user not in late]
            own = self.of_module(name) if name not in CALLBACKS_ONLY and overridden(name, module, Module) else None
            after = [self.of_callback(user, name) for user in late]
            if results.exchange is not None and name in EPOCH_ENDS and (calls or own or after):
                after.insert(0, partial(results.reduce, EPOCH_ENDS[name]))
            setattr(self, name, chain(name, calls, own, after, results) if calls or own or after else nothing)

    def of_callback(self, callback: Callback, name: str) -> Callable[..., Any]:
        """A callback's hook, ready to be called."""
        trainer, module, _ = self._parts
        return bound(callback, name, trainer, module)

    def of_module(self, name: str) -> Callable[..., Any]:
        """The module's own hook."""
        hook: Callable[..., Any] = getattr(self._parts[1], name)
        return hook

    if TYPE_CHECKING:

        def __getattr__(self, name: str) -> Callable[..., Any]: ...


def bound(callback: Callback, name: str, trainer: Any, module: Module) -> Callable[..., Any]:
    """A callback's hook, given the trainer and the module.

    Callbacks written for version 0.7 take `on_train_batch_end(trainer, model, loss, batch_idx)`: they are given the
    loss in place of the outputs, and no batch. They are told apart here, once, by the number of arguments.
    """
    method = getattr(callback, name)
    if name == "on_train_batch_end":
        parameters = inspect.signature(method).parameters.values()
        if len(parameters) == 4 and all(parameter.kind is parameter.POSITIONAL_OR_KEYWORD for parameter in parameters):
            return lambda outputs, _, batch_idx: method(trainer, module, outputs.get("loss"), batch_idx)
    return partial(method, trainer, module)


def chain(
    name: str,
    before: list[Callable[..., Any]],
    own: Callable[..., Any] | None,
    after: list[Callable[..., Any]],
    results: Results,
) -> Callable[..., Any]:
    """One function that calls all of a hook's methods; only the module's answer counts."""

    def call(*args: Any) -> Any:
        outer, results.fx = results.fx, name
        for method in before:
            method(*args)
        answer = own(*args) if own is not None else None
        for method in after:
            method(*args)
        results.fx = outer
        return answer

    return call

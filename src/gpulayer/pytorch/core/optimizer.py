"""Reading what `configure_optimizers` returned, and the optimizer that a module sees."""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from difflib import get_close_matches
from typing import Any, TypeGuard

import torch
from torch.optim import Optimizer
from torch.optim.lr_scheduler import ReduceLROnPlateau

from gpulayer.fabric.utilities.exceptions import MisconfigurationException
from gpulayer.fabric.utilities.rank_zero import rank_zero_warn


@dataclass
class LRSchedulerConfig:
    """A scheduler and when it moves.

    Args:
        scheduler: the scheduler.
        name: what LearningRateMonitor calls it.
        interval: "epoch" or "step".
        frequency: it moves every so many epochs or optimizer steps.
        reduce_on_plateau: whether it is given the monitored metric and moves after validation.
        monitor: the metric's name.
        strict: whether a missing metric is an error, or a warning.
    """

    scheduler: Any
    name: str | None = None
    interval: str = "epoch"
    frequency: int = 1
    reduce_on_plateau: bool = False
    monitor: str | None = None
    strict: bool = True


@dataclass
class Configured:
    """What `configure_optimizers` returned, in one form."""

    optimizers: list[Optimizer] = field(default_factory=list)
    schedulers: list[LRSchedulerConfig] = field(default_factory=list)


FORMS = (
    "an optimizer; a list of optimizers; a dict with 'optimizer' and perhaps 'lr_scheduler'; a list of such dicts; "
    "two lists, of optimizers and of schedulers; or None"
)


def read_configured(returned: Any, automatic: bool) -> Configured:
    """Read any documented return form of `configure_optimizers`.

    Args:
        returned: what the user's method returned.
        automatic: whether the loop steps the optimizer; then it must know of each plateau scheduler what to watch.

    Returns:
        The optimizers and the schedulers.

    Raises:
        MisconfigurationException: the value has none of the forms, or a scheduler's dict is wrong.
    """
    if returned is None:
        rank_zero_warn("`configure_optimizers` returned None: the model runs, but nothing trains it.")
        return Configured()
    configured = Configured()
    if isinstance(returned, Optimizer):
        configured.optimizers = [returned]
    elif isinstance(returned, dict):
        _read_dict(returned, configured, automatic)
    elif _is_list(returned) and len(returned) == 2 and _is_list(returned[0]):
        optimizers, schedulers = returned
        if not all(isinstance(optimizer, Optimizer) for optimizer in optimizers):
            raise _nonsense(returned)
        configured.optimizers = list(optimizers)
        for scheduler in schedulers if _is_list(schedulers) else [schedulers]:
            configured.schedulers.append(read_scheduler(scheduler, None, automatic))
    elif _is_list(returned) and returned and all(isinstance(item, Optimizer) for item in returned):
        configured.optimizers = list(returned)
    elif _is_list(returned) and returned and all(isinstance(item, dict) for item in returned):
        for item in returned:
            _read_dict(item, configured, automatic)
    else:
        raise _nonsense(returned)
    if automatic and len(configured.optimizers) > 1:
        raise MisconfigurationException(
            f"`configure_optimizers` returned {len(configured.optimizers)} optimizers, but the loop steps one. Set "
            "`self.automatic_optimization = False` in `__init__` and step them yourself in `training_step`."
        )
    strangers = [
        type(config.scheduler).__name__
        for config in configured.schedulers
        if getattr(config.scheduler, "optimizer", None) is not None
        and all(config.scheduler.optimizer is not optimizer for optimizer in configured.optimizers)
        and not isinstance(config.scheduler.optimizer, LightningOptimizer)
    ]
    if strangers:
        raise MisconfigurationException(
            f"`configure_optimizers` returned {strangers[0]} of an optimizer that it did not return: return that "
            "optimizer too."
        )
    return configured


def _is_list(value: Any) -> TypeGuard[list[Any] | tuple[Any, ...]]:
    return isinstance(value, (list, tuple))


def _nonsense(returned: Any) -> MisconfigurationException:
    return MisconfigurationException(f"`configure_optimizers` returned {returned!r}. Return {FORMS}.")


def _read_dict(given: dict[str, Any], into: Configured, automatic: bool) -> None:
    allowed = {"optimizer", "lr_scheduler", "monitor"}
    optimizer = given.get("optimizer")
    if not isinstance(optimizer, Optimizer):
        raise _nonsense(given)
    extra = sorted(set(given) - allowed)
    if extra:
        rank_zero_warn(
            f"`configure_optimizers` returned a dict with {extra}, which are ignored; it has {sorted(allowed)}."
        )
    into.optimizers.append(optimizer)
    scheduler = given.get("lr_scheduler")
    for item in scheduler if _is_list(scheduler) else [] if scheduler is None else [scheduler]:
        into.schedulers.append(read_scheduler(item, given.get("monitor"), automatic))


def read_scheduler(given: Any, monitor: str | None, automatic: bool) -> LRSchedulerConfig:
    """A scheduler, or a dict of `LRSchedulerConfig`'s fields, as a config.

    Raises:
        MisconfigurationException: no scheduler, an unknown key, or a bad value.
    """
    if isinstance(given, dict):
        known = dict.fromkeys(LRSchedulerConfig.__dataclass_fields__)
        unknown = [key for key in given if key not in known]
        if unknown:
            near = get_close_matches(str(unknown[0]), list(known), n=1)
            rank_zero_warn(
                f"The scheduler's dict has {unknown}, which are ignored; it takes {sorted(known)}"
                + (f" (did you mean {near[0]!r}?)." if near else ".")
            )
        if "scheduler" not in given:
            raise MisconfigurationException(f"The scheduler's dict has no 'scheduler': {given!r}.")
        config = LRSchedulerConfig(**{key: value for key, value in given.items() if key in known})
        config.reduce_on_plateau = given.get("reduce_on_plateau", isinstance(config.scheduler, ReduceLROnPlateau))
        config.monitor = config.monitor if config.monitor is not None else monitor
    else:
        config = LRSchedulerConfig(given, reduce_on_plateau=isinstance(given, ReduceLROnPlateau), monitor=monitor)
    if not callable(getattr(config.scheduler, "step", None)):
        raise MisconfigurationException(
            f"`configure_optimizers` gave {config.scheduler!r} as a scheduler; a scheduler has a `step` method."
        )
    if not all(callable(getattr(config.scheduler, name, None)) for name in ("state_dict", "load_state_dict")):
        raise MisconfigurationException(
            f"The scheduler {type(config.scheduler).__name__} has no `state_dict` and `load_state_dict`, which "
            "checkpoints need: define them; they may return and take an empty dict."
        )
    if config.interval not in ("epoch", "step"):
        raise MisconfigurationException(f"The scheduler's 'interval' is {config.interval!r}; it is 'epoch' or 'step'.")
    if isinstance(config.frequency, bool) or not isinstance(config.frequency, int) or config.frequency < 1:
        raise MisconfigurationException(
            f"The scheduler's 'frequency' is {config.frequency!r}; it is a whole number from 1."
        )
    if automatic and config.reduce_on_plateau and config.monitor is None:
        raise MisconfigurationException(
            f"{type(config.scheduler).__name__} watches a metric: return "
            "{'optimizer': ..., 'lr_scheduler': ..., 'monitor': 'name_of_the_metric'}."
        )
    return config


# A LightningOptimizer's own attributes; the others are the optimizer's. A scheduler made of one replaces its `step`.
_OWN = ("_optimizer", "_step", "_toggled", "step")


class LightningOptimizer:
    """An optimizer as a module sees it: the same, but `step` runs the hooks and is counted.

    All other attributes are the optimizer's, and `isinstance` holds for its class.
    """

    def __init__(
        self,
        optimizer: Optimizer,
        step: Callable[[Optimizer, Callable[[], Any] | None], Any],
        toggled: Callable[[Optimizer], AbstractContextManager[None]],
    ) -> None:
        self._optimizer = optimizer
        self._step = step
        self._toggled = toggled

    @property
    def optimizer(self) -> Optimizer:
        """The optimizer itself."""
        return self._optimizer

    def step(self, closure: Callable[[], Any] | None = None, **kwargs: Any) -> Any:
        """One step: `on_before_optimizer_step`, then the optimizer's own, counted in `trainer.global_step`.

        Args:
            closure: recomputes the loss and its gradients; needed by LBFGS.
            **kwargs: passed to the optimizer's `step`.

        Returns:
            What the optimizer returned: the closure's loss, as a rule.
        """
        if closure is not None and not callable(closure):
            raise MisconfigurationException(
                f"`optimizer.step(closure={closure!r})`: the closure is a function, or None."
            )
        return self._step(self._optimizer, closure, **kwargs)

    @contextmanager
    def toggle_model(self, sync_grad: bool = True) -> Iterator[None]:
        """For a block, only this optimizer's parameters require gradients.

        Args:
            sync_grad: whether processes share the gradients of the block; on one device there is nothing to share.
        """
        with self._toggled(self._optimizer):
            yield

    @property  # type: ignore[misc]
    def __class__(self) -> type:  # so that `isinstance(optimizer, Adam)` and a scheduler's check hold
        return type(self._optimizer)

    def __getattr__(self, name: str) -> Any:
        if name in _OWN:  # a copy or an unpickled object that has no attributes yet
            raise AttributeError(name)
        return getattr(self._optimizer, name)

    def __setattr__(self, name: str, value: Any) -> None:
        if name in _OWN:
            object.__setattr__(self, name, value)
        else:
            setattr(self._optimizer, name, value)

    def __repr__(self) -> str:
        return f"LightningOptimizer({self._optimizer!r})"


def unwrapped(optimizer: Optimizer | LightningOptimizer) -> Optimizer:
    """The optimizer itself, if it was wrapped."""
    wrapped = vars(optimizer).get("_optimizer")
    return wrapped if isinstance(wrapped, Optimizer) else optimizer  # type: ignore[return-value]


class NoOptimizer(Optimizer):
    """Stands in where `configure_optimizers` returned None: it has nothing to step."""

    def __init__(self) -> None:
        super().__init__([torch.zeros(1)], {})
        self.param_groups = []

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Only compute."""
        return closure() if closure is not None else None

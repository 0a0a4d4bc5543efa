"""Slots: what one name logged in one hook has gathered, by the way it is reduced over an epoch."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import reduce
from numbers import Number
from typing import Any

import torch
from torch import Tensor

from gpulayer.fabric.utilities.exceptions import InvalidValueError, MisconfigurationException
from gpulayer.pytorch.core.metrics import is_metric
from gpulayer.pytorch.loops.pending import stacked, wide

Key = tuple[str | None, str, int | None]  # hook, name, loader
Options = tuple[bool, bool | None, bool | None, bool | None, Any, bool, bool]


@dataclass(frozen=True)
class Place:
    """What may be logged in a hook: its stage, the defaults of on_step and on_epoch, and whether on_step is allowed."""

    stage: str
    on_step: bool
    on_epoch: bool
    steps: bool = True


# Where a batch of training may log.
TRAINING_STEP = (
    "training_step",
    "on_train_batch_start",
    "on_train_batch_end",
    "on_before_zero_grad",
    "on_before_backward",
    "on_after_backward",
    "on_before_optimizer_step",
)
_EPOCH = ("on_train_start", "on_train_epoch_start", "on_train_epoch_end")
PLACES: dict[str, Place] = {
    **dict.fromkeys(TRAINING_STEP, Place("train", on_step=True, on_epoch=False)),
    **dict.fromkeys(_EPOCH, Place("train", on_step=False, on_epoch=True, steps=False)),
}
for _stage in ("validation", "test"):
    for _name in (f"{_stage}_step", f"on_{_stage}_batch_start", f"on_{_stage}_batch_end"):
        PLACES[_name] = Place(_stage, on_step=False, on_epoch=True)
    for _name in (f"on_{_stage}_start", f"on_{_stage}_epoch_start", f"on_{_stage}_epoch_end"):
        PLACES[_name] = Place(_stage, on_step=False, on_epoch=True, steps=False)

# The functions that users pass in place of a name.
REDUCTIONS: dict[Any, str] = {
    "mean": "mean", "sum": "sum", "min": "min", "max": "max", "avg": "mean",
    torch.mean: "mean", torch.sum: "sum", torch.min: "min", torch.max: "max", torch.amin: "min", torch.amax: "max",
    min: "min", max: "max", sum: "sum",
}  # fmt: skip


def plain_options(options: Options) -> list[Any]:
    """The options as a checkpoint can hold them: a reduction by its name, None for a function of the user's."""
    reduction = REDUCTIONS.get(options[4])
    return [*options[:4], reduction, *options[5:]]


MOST_KEPT = 64  # values that a slot keeps before it adds them up


class Slot:
    """One logged name in one hook; the base reduces by a weighted mean.

    Tensors are kept as they come and added up many at a time, which is a few operations on the device in place of some
    at each step. Sums are in float64, on the device (MPS has no float64: float32 there); numbers stay on the host.
    """

    def __init__(self, name: str, loader: int | None, place: Place, options: Options, device: torch.device) -> None:
        self.options = options
        self.stage = place.stage
        self.prog_bar, to_loggers, on_step, on_epoch = options[:4]
        self.to_loggers = True if to_loggers is None else to_loggers
        self.on_step = place.on_step if on_step is None else on_step
        self.on_epoch = place.on_epoch if on_epoch is None else on_epoch
        suffix = f"/dataloader_idx_{loader}" if loader is not None and options[5] else ""
        forked = self.on_step and self.on_epoch
        self.loader = loader
        self.name = name + suffix
        self.step_name = f"{name}_step{suffix}" if forked else self.name
        self.epoch_name = f"{name}_epoch{suffix}" if forked else self.name
        self.device = device
        self.value: Any = None  # the last one logged
        self.unread = False  # whether `value` is newer than what `refresh` last gave
        self.unsent = False  # whether `value` is newer than what loggers last got
        self.clear()

    weighted = True
    metric: Any = None  # the object of torchmetrics, if it has one,
    path: str | None = None  # and where the module holds it

    def check(self, value: Any, module: Any, attribute: str | None) -> None:
        """Whether the slot can take such a value; asked once."""
        self.value_of(value)

    def value_of(self, value: Any) -> Any:
        """The scalar tensor or float to gather; None if there is nothing new."""
        return scalar(self.name, value)

    def clear(self) -> None:
        """Forget the epoch's values."""
        self.values: list[Tensor] = []  # not yet in the sum
        self.weights: list[float] = []  # of these values
        self.sum: Tensor | None = None
        self.host_sum = 0.0
        self.weight = 0.0
        self.filled = False  # whether the epoch has a value
        self.dirty = False  # whether that value is newer than what was last read

    def add(self, value: Any, weight: float) -> None:
        """Take one value into the epoch's; a tensor is kept, and must not be changed by others."""
        if isinstance(value, Tensor):
            self.values.append(value)
            self.weights.append(weight)
            if len(self.values) == MOST_KEPT:
                self.gather()
        else:
            self.host_sum += value * weight
        self.weight += weight

    def gather(self) -> None:
        """Bring the values that are kept into the sum."""
        if self.values:
            part = self.reduced(stacked(self.values, self.device))
            self.sum = part if self.sum is None else self.joined(self.sum, part)
            self.values, self.weights = [], []

    def reduced(self, values: Tensor) -> Tensor:
        """The weighted sum of a vector."""
        weight = self.weights[0]
        if self.weights.count(weight) == len(self.weights):
            return values.sum() * weight
        weights = torch.tensor(self.weights, dtype=values.dtype)
        if values.is_cuda:
            weights = weights.pin_memory()  # or the host would wait for the copy
        return values.dot(weights.to(self.device, non_blocking=True))

    def joined(self, one: Tensor, other: Tensor) -> Tensor:
        """The sum of two."""
        return one + other

    def total(self) -> Tensor | None:
        """What lies on the device and is read, together with all others', to know the epoch's value."""
        self.gather()
        return self.sum

    def read(self, total: float | None) -> float:
        """The epoch's value, given the number that `total` returned."""
        return (self.host_sum + (total or 0.0)) / self.weight if self.weight else float("nan")

    def parts(self, total: float | None) -> tuple[float, float]:
        """This process's part of the value of all, given the number that `total` returned: a sum, and its weight."""
        return self.host_sum + (total or 0.0), self.weight

    def of_all(self, parts: list[tuple[float, float]]) -> float:
        """The epoch's value from the parts of all processes."""
        weight = math.fsum(weight for _, weight in parts)
        return math.fsum(total for total, _ in parts) / weight if weight else float("nan")

    def state_dict(self) -> dict[str, Any]:
        """What the epoch has gathered so far, for a checkpoint: in plain numbers."""
        return {
            "value": float(self.value) if self.unsent else None,
            "values": stacked(self.values, self.device).tolist() if self.values else [],
            "weights": self.weights,
            "sum": None if self.sum is None else self.sum.item(),
            "host_sum": self.host_sum,
            "weight": self.weight,
            "filled": self.filled,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from what `state_dict` returned."""
        self.values, self.weights = [self._tensor(value) for value in state["values"]], list(state["weights"])
        self.host_sum, self.weight = state["host_sum"], state["weight"]
        self.sum = None if state["sum"] is None else self._tensor(state["sum"])
        self.value = state["value"]
        self.unsent = self.value is not None
        self.filled = self.dirty = state["filled"]

    def _tensor(self, number: float) -> Tensor:
        return torch.tensor(number, dtype=wide(self.device), device=self.device)


class SumSlot(Slot):
    """Adds up."""

    weighted = False

    def read(self, total: float | None) -> float:
        return self.host_sum + (total or 0.0)

    def of_all(self, parts: list[tuple[float, float]]) -> float:
        return math.fsum(total for total, _ in parts)


class ExtremeSlot(Slot):
    """Keeps the least, or the greatest."""

    weighted = False

    def clear(self) -> None:
        super().clear()
        self.least = REDUCTIONS[self.options[4]] == "min"
        self.host_sum = float("inf") if self.least else float("-inf")

    def add(self, value: Any, weight: float) -> None:
        if isinstance(value, Tensor):
            super().add(value, weight)
        else:
            self.host_sum = self.of_two(self.host_sum, value)

    def of_two(self, one: float, other: float) -> float:
        """The one to keep; NaN if either is, as in torch (Python's `min` depends on the order then)."""
        return math.nan if math.isnan(one + other) else min(one, other) if self.least else max(one, other)

    def reduced(self, values: Tensor) -> Tensor:
        return values.amin() if self.least else values.amax()

    def joined(self, one: Tensor, other: Tensor) -> Tensor:
        return torch.minimum(one, other) if self.least else torch.maximum(one, other)

    def read(self, total: float | None) -> float:
        return self.host_sum if total is None else self.of_two(self.host_sum, total)

    def parts(self, total: float | None) -> tuple[float, float]:
        return self.read(total), 1.0

    def of_all(self, parts: list[tuple[float, float]]) -> float:
        return reduce(self.of_two, [extreme for extreme, _ in parts])


class FunctionSlot(Slot):
    """Keeps every value and applies the user's function to all of them, stacked, at the end."""

    weighted = False

    def add(self, value: Any, weight: float) -> None:
        self.values.append(value if isinstance(value, Tensor) else torch.tensor(float(value)))

    def gather(self) -> None:
        """They are all needed at the end."""

    def read(self, total: float | None) -> float:
        return float(self.options[4](torch.stack(self.values)))

    def state_dict(self) -> dict[str, Any]:
        result = None
        if self.filled:
            # The function may not be there when the value is asked for; nor may it work on a part of an epoch's values.
            with contextlib.suppress(Exception):
                result = self.read(None)
        return super().state_dict() | {"tensors": [value.cpu() for value in self.values], "result": result}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        super().load_state_dict(state)
        self.values = [value.to(self.device) for value in state["tensors"]]


class MetricSlot(Slot):
    """Asks an object of torchmetrics, which gathers by itself: once, at the end of the epoch; then it is reset."""

    weighted = False

    def check(self, value: Any, module: Any, attribute: str | None) -> None:
        self.path = attribute or next((path for path, child in module.named_modules() if child is value), None)
        if self.path is None:
            raise MisconfigurationException(
                f"`self.log({self.name!r}, ...)` got a {type(value).__name__} that is no attribute of the module, so "
                "it is not moved to its device: make it one in `__init__`, as in `self.accuracy = Accuracy(...)`."
            )
        self.value_of(value)

    def value_of(self, value: Any) -> Any:
        if value is not self.metric:
            if not is_metric(value):
                raise InvalidValueError(
                    f"`self.log({self.name!r}, ...)` was given a torchmetrics object before, and now {value!r}."
                )
            self.metric = value
        latest = value._forward_cache
        return None if latest is None else scalar(self.name, latest)

    def add(self, value: Any, weight: float) -> None:
        """The object has gathered it already."""

    def clear(self) -> None:
        super().clear()
        if self.metric is not None:
            self.metric.reset()

    def total(self) -> Tensor | None:
        value = self.metric.compute()
        return value if isinstance(value, Tensor) and value.numel() == 1 else torch.tensor(scalar(self.name, value))

    def read(self, total: float | None) -> float:
        return float("nan") if total is None else total

    def state_dict(self) -> dict[str, Any]:
        return super().state_dict() | {"metric": self.path}


def is_number(value: Any) -> bool:
    """Whether it is a real number, a scalar tensor or a NumPy scalar among them."""
    return (isinstance(value, Number) and not isinstance(value, complex)) or (
        isinstance(value, Tensor) and not value.dim()
    )


def scalar(name: str, value: Any) -> Any:
    """A scalar tensor, detached, or a float.

    Args:
        name: what it is logged as, for the error.
        value: what was given to `self.log`.

    Raises:
        InvalidValueError: the value is neither a number nor a tensor of one element.
    """
    if isinstance(value, Tensor):
        if value.numel() != 1:
            raise InvalidValueError(
                f"`self.log({name!r}, ...)` got a tensor of shape {tuple(value.shape)}; it takes one number: "
                "log its mean, or each element under a name of its own."
            )
        if value.is_complex():
            raise InvalidValueError(f"`self.log({name!r}, ...)` got a complex number; log its parts.")
        return value.detach().reshape(())
    if isinstance(value, Number) and not isinstance(value, complex):
        return float(value)  # type: ignore[arg-type]
    if hasattr(value, "item") and getattr(value, "size", None) == 1:  # a NumPy array of one element
        return float(value.item())
    raise InvalidValueError(
        f"`self.log({name!r}, ...)` got {value!r} of type {type(value).__name__}; it takes a number, a scalar tensor "
        "or a torchmetrics object, and `self.log_dict` a dict or a MetricCollection of them."
    )


KINDS: dict[str, type[Slot]] = {"mean": Slot, "sum": SumSlot, "min": ExtremeSlot, "max": ExtremeSlot}


def read_all(slots: Iterable[Slot]) -> list[float]:
    """The epoch's value of each slot: one copy from the device for all of them."""
    slots = list(slots)
    return [slot.read(total) for slot, total in zip(slots, read_totals(slots), strict=True)]


def read_totals(slots: list[Slot]) -> list[float | None]:
    """The number that each slot's `total` returned, in one copy from the device."""
    totals = [slot.total() for slot in slots]
    on_device = [total for total in totals if total is not None]
    numbers: Iterator[float] = iter(stacked(on_device, slots[0].device).tolist() if on_device else [])
    return [None if total is None else next(numbers) for total in totals]

"""Slots: what one name logged in one hook has gathered, by the way it is reduced over an epoch."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

Options = tuple[bool, bool | None, bool | None, bool | None, Any, bool, bool]


@dataclass(frozen=True)
class Place:
    """What may be logged in a hook: its stage, the defaults of on_step and on_epoch, and whether on_step is allowed."""

    stage: str
    on_step: bool
    on_epoch: bool
    steps: bool = True


_STEP = ("training_step", "on_train_batch_start", "on_train_batch_end", "on_before_zero_grad", "on_before_backward",
         "on_after_backward", "on_before_optimizer_step")  # fmt: skip
_EPOCH = ("on_train_start", "on_train_epoch_start", "on_train_epoch_end")
PLACES: dict[str, Place] = {
    **dict.fromkeys(_STEP, Place("train", on_step=True, on_epoch=False)),
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


class Slot:
    """One logged name in one hook; the base reduces by a weighted mean.

    Sums are kept in float64, on the device (MPS has no float64: float32 there); numbers stay on the host.
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

    def clear(self) -> None:
        """Forget the epoch's values."""
        self.sum: Tensor | None = None
        self.host_sum = 0.0
        self.weight = 0.0
        self.filled = False  # whether the epoch has a value
        self.dirty = False  # whether that value is newer than what was last read

    def add(self, value: Any, weight: float) -> None:
        """Take one value into the epoch's."""
        if isinstance(value, Tensor):
            if self.sum is None:
                self.sum = self._zero()
            self.sum.add_(value, alpha=weight)
        else:
            self.host_sum += value * weight
        self.weight += weight

    def read(self, total: float | None) -> float:
        """The epoch's value, given what `sum` holds, read by the caller together with all others."""
        return (self.host_sum + (total or 0.0)) / self.weight if self.weight else float("nan")

    def _zero(self) -> Tensor:
        dtype = torch.float32 if self.device.type == "mps" else torch.float64
        return torch.zeros((), dtype=dtype, device=self.device)


class SumSlot(Slot):
    """Adds up."""

    weighted = False

    def add(self, value: Any, weight: float) -> None:
        super().add(value, 1)

    def read(self, total: float | None) -> float:
        return self.host_sum + (total or 0.0)


class ExtremeSlot(Slot):
    """Keeps the least, or the greatest."""

    weighted = False

    def clear(self) -> None:
        super().clear()
        self.least = REDUCTIONS[self.options[4]] == "min"
        self.host_sum = float("inf") if self.least else float("-inf")

    def add(self, value: Any, weight: float) -> None:
        if not isinstance(value, Tensor):
            self.host_sum = min(self.host_sum, value) if self.least else max(self.host_sum, value)
        elif self.sum is None:
            self.sum = self._zero() + value
        else:
            keep = torch.minimum if self.least else torch.maximum
            self.sum = keep(self.sum, value)

    def read(self, total: float | None) -> float:
        if total is None:
            return self.host_sum
        return min(self.host_sum, total) if self.least else max(self.host_sum, total)


class FunctionSlot(Slot):
    """Keeps every value and applies the user's function to all of them, stacked, at the end."""

    weighted = False

    def clear(self) -> None:
        super().clear()
        self.values: list[Tensor] = []

    def add(self, value: Any, weight: float) -> None:
        self.values.append(value.clone() if isinstance(value, Tensor) else torch.tensor(float(value)))

    def read(self, total: float | None) -> float:
        return float(self.options[4](torch.stack(self.values)))


def read_all(slots: Iterable[Slot]) -> list[float]:
    """The epoch's value of each slot: one copy from the device for all of them."""
    slots = list(slots)
    sums = [slot.sum for slot in slots if slot.sum is not None]
    totals: Iterator[float] = iter(torch.stack(sums).tolist() if sums else [])
    return [slot.read(None if slot.sum is None else next(totals)) for slot in slots]

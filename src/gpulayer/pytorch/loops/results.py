"""Results: what `self.log` gathers, and how it becomes metrics.

Each (hook, name, loader) has one slot. A step adds to sums on the value's device and never waits for it. The numbers
are read in one copy: at the log points of training, and at the end of an epoch or an evaluation.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, fields, is_dataclass
from numbers import Number
from typing import Any

import torch
from torch import Tensor

from gpulayer.fabric.utilities.exceptions import InvalidValueError, MisconfigurationException
from gpulayer.fabric.utilities.rank_zero import rank_zero_warn
from gpulayer.pytorch.loops.batches import HandedOver
from gpulayer.pytorch.loops.slots import (
    PLACES,
    REDUCTIONS,
    ExtremeSlot,
    FunctionSlot,
    Options,
    Slot,
    SumSlot,
    read_all,
)


@dataclass
class Metrics:
    """The newest value of each name, for its three readers."""

    callback: dict[str, Any] = field(default_factory=dict)
    logged: dict[str, Any] = field(default_factory=dict)
    progress_bar: dict[str, Any] = field(default_factory=dict)

    def put(self, slot: Slot, name: str, value: Any, decides: bool = True) -> None:
        """Note a value that `slot` gave under `name`; one that `decides` is for callbacks, too."""
        if decides:
            self.callback[name] = value
            self.callback[slot.name] = value
        if slot.to_loggers:
            self.logged[name] = value
        if slot.prog_bar:
            self.progress_bar[name] = value

    def clear(self) -> None:
        """Forget everything."""
        self.callback.clear()
        self.logged.clear()
        self.progress_bar.clear()


@dataclass
class Pending:
    """Step values on their way to the host: a vector that is being copied, and which names its numbers have."""

    names: list[str]
    numbers: dict[str, float]
    vector: Tensor | None
    copied: torch.cuda.Event | None
    step: int = 0
    epoch: int = 0

    def metrics(self) -> dict[str, float]:
        """The numbers; the copy, begun a step ago, is over by now."""
        if self.copied is not None:
            self.copied.synchronize()
        if self.vector is not None:
            self.numbers.update(zip(self.names, self.vector.tolist(), strict=True))
        return self.numbers


class Results:
    """All that was logged in one run.

    Args:
        device: where the module is.
        log_every_n_steps: training's step values reach the loggers every so many optimizer steps; 0 for never.
        send: gives loggers a dict of numbers, their step and epoch; None where there are no loggers.
    """

    def __init__(
        self,
        device: torch.device,
        log_every_n_steps: int = 50,
        send: Callable[[dict[str, float], int, int | None], None] | None = None,
    ) -> None:
        self.device = device
        self.log_every_n_steps = log_every_n_steps
        self.send = send
        self.fx: str | None = None  # the hook that is running
        self.batch: Any = None  # the batch that is being worked on,
        self.batch_size: int | None = None  # and its size once someone asked
        self.loader: int | None = None  # which of several loaders it is from
        self.slots: dict[tuple[str | None, str, int | None], Slot] = {}
        self.stages: dict[str, list[Slot]] = {"train": [], "validation": [], "test": []}
        self.stepping: dict[str, list[Slot]] = {"train": [], "validation": [], "test": []}  # those with on_step
        self.ended: str | None = None  # the stage whose epoch is over
        self.metrics = Metrics()
        self.pending: Pending | None = None
        self._ambiguous = False

    # -- gathering ---------------------------------------------------------------------------------------------------

    def log(self, name: str, value: Any, options: Options, batch_size: int | None = None) -> None:
        """`Module.log`: note `value` in its slot. `options` are compared as a whole with those of the first call."""
        slot = self.slots.get((self.fx, name, self.loader))
        if slot is None or slot.options != options:
            slot = self._new_slot(name, value, options, batch_size)
        if type(value) is Tensor:
            value = value.detach()
            if value.dim():
                value = self._scalar(name, value)
        else:
            value = self._scalar(name, value)
        if slot.on_step:
            # A copy, for the user may change the tensor in place before it is read (`loss += penalty`).
            slot.value = value.clone() if type(value) is Tensor else value
            slot.unread = slot.unsent = True
        if slot.on_epoch:
            if not slot.weighted:
                weight: float = 1
            elif batch_size is None:
                weight = self._weight()
            else:
                weight = batch_size if type(batch_size) is int else float(batch_size)
            slot.add(value, weight)
            slot.filled = slot.dirty = True

    def _new_slot(self, name: str, value: Any, options: Options, batch_size: int | None) -> Slot:
        """Check the arguments; this happens once for each name in each hook."""
        if not isinstance(name, str):
            raise MisconfigurationException(f"`self.log` takes a name as its first argument; got {name!r}.")
        if "/dataloader_idx_" in name:
            raise MisconfigurationException(
                f"`self.log({name!r}, ...)`: with several loaders `/dataloader_idx_N` is appended by itself; choose "
                "another name, or pass `add_dataloader_idx=False`."
            )
        place = PLACES.get(self.fx or "")
        if place is None:
            where = f"in `{self.fx}`" if self.fx else "outside the hooks of a run"
            raise MisconfigurationException(f"`self.log({name!r}, ...)` cannot be called {where}: {_WHERE}.")
        known = self.slots.get((self.fx, name, self.loader))
        if known is not None:
            names = ("prog_bar", "logger", "on_step", "on_epoch", "reduce_fx", "add_dataloader_idx", "rank_zero_only")
            changed = [
                f"{key}={new!r} (before: {old!r})"
                for key, new, old in zip(names, options, known.options, strict=True)
                if new != old
            ]
            raise MisconfigurationException(
                f"`self.log({name!r}, ...)` was called in `{self.fx}` with {', '.join(changed)}: "
                "one name keeps its settings; give the values two names, or the same settings."
            )
        on_step, on_epoch, reduction = options[2], options[3], options[4]
        if on_step and not place.steps:
            raise MisconfigurationException(
                f"`self.log({name!r}, on_step=True)` in `{self.fx}`: there is no step there; use on_epoch=True."
            )
        if not place.steps and on_epoch is False:
            raise MisconfigurationException(
                f"`self.log({name!r}, on_epoch=False)` in `{self.fx}`: only an epoch's value can be logged there."
            )
        kind = REDUCTIONS.get(reduction) if isinstance(reduction, str) or callable(reduction) else None
        if kind is None and not callable(reduction):
            raise MisconfigurationException(
                f"`self.log({name!r}, reduce_fx={reduction!r})`: give 'mean', 'sum', 'min', 'max' or a function."
            )
        cls = {"mean": Slot, "sum": SumSlot, "min": ExtremeSlot, "max": ExtremeSlot}.get(kind or "", FunctionSlot)
        self._scalar(name, value)
        if batch_size is not None and not (_is_number(batch_size) and batch_size > 0):
            raise InvalidValueError(f"`self.log({name!r}, batch_size={batch_size!r})`: give a number above zero.")
        slot = cls(name, self.loader, place, options, self.device)
        if not slot.on_step and not slot.on_epoch:
            raise MisconfigurationException(
                f"`self.log({name!r}, on_step=False, on_epoch=False)` logs nothing: set one of them."
            )
        self.slots[(self.fx, name, self.loader)] = slot
        self.stages[place.stage].append(slot)
        if slot.on_step:
            self.stepping[place.stage].append(slot)
        return slot

    def _scalar(self, name: str, value: Any) -> Any:
        """A scalar tensor, detached, or a float.

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
            f"`self.log({name!r}, ...)` got {value!r} of type {type(value).__name__}; it takes a number or a "
            "scalar tensor."
        )

    def _weight(self) -> int:
        """The size of the batch that is being worked on; 1 between batches."""
        if self.batch_size is None:
            if self.batch is None:
                return 1
            if isinstance(self.batch, HandedOver):  # the step fetches batches itself, perhaps several
                return self._size_of(self.batch.batch)
            self.batch_size = self._size_of(self.batch)
        return self.batch_size

    def _size_of(self, batch: Any) -> int:
        if type(batch) is Tensor:
            return batch.size(0) if batch.dim() else 1
        sizes = batch_sizes(batch)
        size = next(sizes, None)
        if size is None:
            raise MisconfigurationException(
                f"`self.log` found no tensor in the batch, a {type(batch).__name__}, to read its size from: "
                "give it as `self.log(..., batch_size=...)`."
            )
        if not self._ambiguous and any(other != size for other in sizes):
            self._ambiguous = True
            rank_zero_warn(
                "The batch holds tensors of several first sizes; `self.log` weights means by that of the first, "
                f"{size}. Give the right one as `self.log(..., batch_size=...)`."
            )
        return size

    # -- training's step values --------------------------------------------------------------------------------------

    def step_done(self, window: int, epoch: int, last: bool = False) -> None:
        """After an optimizer step: at a log point, start copying the values that are new since the last one.

        Args:
            window: how many optimizer steps are done.
            epoch: the epoch's number.
            last: someone has asked to stop, so this may be the last step, which is a log point in any case.
        """
        if self.pending is not None:
            self.deliver()
        stepping = self.stepping["train"]
        if not stepping or self.send is None or not self.log_every_n_steps:
            return
        if window % self.log_every_n_steps and not last:
            return
        due = [slot for slot in stepping if slot.unsent and slot.to_loggers]
        if not due:
            return
        for slot in due:
            slot.unsent = False
        self.pending = start_copy({slot.step_name: slot.value for slot in due}, self.device)
        self.pending.step, self.pending.epoch = window - 1, epoch
        if self.pending.copied is None:
            self.deliver()

    def deliver(self) -> None:
        """Give loggers the values of the last log point."""
        pending, self.pending = self.pending, None
        if pending is not None and self.send is not None:
            self.send(pending.metrics(), pending.step, pending.epoch)

    def evaluation_step_done(self, stage: str, step: int) -> None:
        """After a batch of an evaluation: loggers get the values logged with on_step, by the loader's own count."""
        due = [slot for slot in self.stepping[stage] if slot.unsent]
        for slot in due:
            slot.unsent = False
            self.metrics.put(slot, slot.step_name, slot.value, decides=False)
        due = [slot for slot in due if slot.to_loggers]
        if due and self.send is not None:
            self.send(start_copy({slot.step_name: slot.value for slot in due}, self.device).metrics(), step, None)

    # -- the end of an epoch or an evaluation ------------------------------------------------------------------------

    def end(self, stage: str) -> None:
        """The last batch of `stage` is done: from now on its epoch's values are there to be read."""
        self.fx = self.batch = self.batch_size = self.loader = None
        self.ended = stage
        if self.pending is not None:
            self.deliver()

    def refresh(self) -> Metrics:
        """The newest value of every name. During an epoch these are tensors, which nobody has waited for."""
        for slot in self.stepping["train"]:
            if slot.unread:
                slot.unread = False
                self.metrics.put(slot, slot.step_name, slot.value)
        if self.ended is not None:
            dirty = [slot for slot in self.stages[self.ended] if slot.dirty]
            for slot, value in zip(dirty, read_all(dirty), strict=True):
                slot.dirty = False
                self.metrics.put(slot, slot.epoch_name, torch.tensor(value, dtype=torch.float64))
        return self.metrics

    def send_epoch(self, stage: str, step: int, epoch: int) -> None:
        """Give loggers the values of the epoch that is over."""
        metrics = self.refresh().logged
        names = [slot.epoch_name for slot in self.stages[stage] if slot.on_epoch and slot.to_loggers and slot.filled]
        if names and self.send is not None:
            self.send({name: float(metrics[name]) for name in dict.fromkeys(names)}, step, epoch)

    def close(self, stage: str) -> dict[int | None, dict[str, float]]:
        """Forget the stage's values.

        Returns:
            The epoch's values that loggers get, by loader.
        """
        metrics = self.refresh().callback
        by_loader: dict[int | None, dict[str, float]] = {}
        for slot in self.stages[stage]:
            if slot.on_epoch and slot.filled and slot.to_loggers:
                by_loader.setdefault(slot.loader, {})[slot.epoch_name] = float(metrics[slot.epoch_name])
            slot.clear()
        self.ended = None
        return by_loader

    def forget(self, stage: str) -> None:
        """Drop a stage's slots and all metrics: after the sanity check, whose numbers mean nothing."""
        self.slots = {key: slot for key, slot in self.slots.items() if slot.stage != stage}
        self.stages[stage].clear()
        self.stepping[stage].clear()
        self.metrics.clear()


class NoResults(Results):
    """Where `self.log` goes in a barebones run: nowhere."""

    def log(self, name: str, value: Any, options: Options, batch_size: int | None = None) -> None:
        if name not in self.told:
            self.told.add(name)
            rank_zero_warn(f"`self.log({name!r}, ...)` does nothing in a barebones run.")

    def __init__(self, device: torch.device) -> None:
        super().__init__(device)
        self.told: set[str] = set()


_WHERE = (
    "log in `training_step`, `validation_step`, `test_step`, in the hooks around a batch, or in "
    "`on_*_epoch_start` and `on_*_epoch_end`"
)


def _is_number(value: Any) -> bool:
    """Whether it is a real number, a scalar tensor or a NumPy scalar among them."""
    return (isinstance(value, Number) and not isinstance(value, complex)) or (
        isinstance(value, Tensor) and not value.dim()
    )


def start_copy(values: Mapping[str, Any], device: torch.device) -> Pending:
    """Stack the tensors into one vector and begin its copy to the host, without waiting on a GPU.

    Args:
        values: scalar tensors and numbers.
        device: where the tensors are.
    """
    numbers = {name: value for name, value in values.items() if not isinstance(value, Tensor)}
    tensors = {name: value for name, value in values.items() if isinstance(value, Tensor)}
    vector: Tensor | None = None
    copied: torch.cuda.Event | None = None
    if tensors:
        vector = torch.stack(
            [value.to(device, torch.float64 if device.type != "mps" else None) for value in tensors.values()]
        )
        if device.type == "cuda":
            pinned = torch.empty(vector.shape, dtype=vector.dtype, pin_memory=True)
            vector = pinned.copy_(vector, non_blocking=True)
            copied = torch.cuda.Event()
            copied.record()
    return Pending(list(tensors), dict.fromkeys(values, 0.0) | numbers, vector, copied)


def batch_sizes(batch: Any) -> Iterator[int]:
    """The first size of every tensor in a batch, however nested; 1 for a tensor without dimensions."""
    if isinstance(batch, Tensor):
        yield batch.size(0) if batch.dim() else 1
    elif isinstance(batch, Mapping):
        for item in batch.values():
            yield from batch_sizes(item)
    elif isinstance(batch, (str, bytes)):
        return
    elif is_dataclass(batch) and not isinstance(batch, type):
        for entry in fields(batch):
            yield from batch_sizes(getattr(batch, entry.name))
    elif isinstance(batch, Iterable):
        for item in batch:
            yield from batch_sizes(item)

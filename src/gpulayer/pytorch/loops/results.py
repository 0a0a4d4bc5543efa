"""Results: what `self.log` gathers, and how it becomes metrics.

Each (hook, name, loader) has one slot. A step adds to sums on the value's device and never waits for it. The numbers
are read in one copy: at the log points of training, and at the end of an epoch or an evaluation.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from gpulayer.fabric.utilities.exceptions import InvalidValueError, MisconfigurationException
from gpulayer.fabric.utilities.rank_zero import rank_zero_warn
from gpulayer.pytorch.core.metrics import is_metric, load_metric_states, metric_states
from gpulayer.pytorch.loops.batch_size import size_of
from gpulayer.pytorch.loops.batches import HandedOver
from gpulayer.pytorch.loops.exchange import Exchange
from gpulayer.pytorch.loops.log_checks import new_slot
from gpulayer.pytorch.loops.pending import Pending, start_copy
from gpulayer.pytorch.loops.slots import (
    PLACES,
    FunctionSlot,
    Key,
    MetricSlot,
    Options,
    Slot,
    is_number,
    plain_options,
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


class Results:
    """All that was logged in one run.

    Args:
        device: where the module is.
        log_every_n_steps: training's step values reach the loggers every so many optimizer steps; 0 for never.
        send: gives loggers a dict of numbers, their step and epoch; None where there are no loggers.
        module: the module that logs, which holds the metric objects.
        exchange: brings the epoch's values of several processes together; None for a single one.
    """

    def __init__(
        self,
        device: torch.device,
        log_every_n_steps: int = 50,
        send: Callable[[dict[str, float], int, int | None], None] | None = None,
        module: nn.Module | None = None,
        exchange: Exchange | None = None,
    ) -> None:
        self.device = device
        self.module = module
        self.log_every_n_steps = log_every_n_steps
        self.send = send
        self.exchange = exchange
        self.fx: str | None = None  # the hook that is running
        self.batch: Any = None  # the batch that is being worked on,
        self.batch_size: int | None = None  # and its size once someone asked
        self.loader: int | None = None  # which of several loaders it is from
        self.slots: dict[Key, Slot] = {}
        self.stages: dict[str, list[Slot]] = {"train": [], "validation": [], "test": []}
        self.stepping: dict[str, list[Slot]] = {"train": [], "validation": [], "test": []}  # those with on_step
        self.ended: str | None = None  # the stage whose epoch is over
        self.metrics = Metrics()
        self.pending: Pending | None = None
        self._ambiguous = False
        self._restored: dict[Key, dict[str, Any]] = {}  # what a checkpoint held for slots that are yet to be made
        self._rest: dict[Key, Slot] = {}  # those of names that the rest of a resumed epoch did not log again

    # -- gathering ---------------------------------------------------------------------------------------------------

    def log(
        self,
        name: str,
        value: Any,
        options: Options,
        batch_size: int | None = None,
        attribute: str | None = None,
    ) -> None:
        """`Module.log`: note `value` in its slot. `options` are compared as a whole with those of the first call."""
        slot = self.slots.get((self.fx, name, self.loader))
        if slot is None or slot.options != options:
            slot = self._add_slot(name, value, options, batch_size, attribute)
        if type(value) is not Tensor or value.dim() or slot.metric is not None:
            value = slot.value_of(value)
        if isinstance(value, Tensor):
            # A copy, for the user may change the tensor in place before it is read (`loss += penalty`).
            value = value.detach().clone()
        if slot.on_step and value is not None:
            slot.value = value
            slot.unread = slot.unsent = True
        if slot.on_epoch:
            if not slot.weighted:
                weight: float = 1
            elif batch_size is not None:
                weight = batch_size if type(batch_size) is int else float(batch_size)
            else:
                weight = self.batch_size if self.batch_size is not None else self._weight()
            slot.add(value, weight)
            slot.filled = slot.dirty = True

    def _add_slot(self, name: str, value: Any, options: Options, batch_size: int | None, attribute: str | None) -> Slot:
        """Check the arguments and make the slot; this happens once for each name in each hook."""
        key = (self.fx, name, self.loader)
        known = self.slots.get(key)
        slot = new_slot(*key, options, self.device, known, is_metric(value))
        if known is not None:  # with a function that is made anew at each call
            known.options = options
            return known
        slot.check(value, self.module, attribute)
        if batch_size is not None and not (is_number(batch_size) and batch_size >= 0):
            raise InvalidValueError(f"`self.log({name!r}, batch_size={batch_size!r})`: give a number, zero or above.")
        if any(taken[:2] == key[:2] and other.name == slot.name for taken, other in self.slots.items()):
            raise MisconfigurationException(
                f"`self.log({name!r}, add_dataloader_idx=False)` was called for several loaders, whose values would be "
                "mixed up: give each a name of its own, or leave `add_dataloader_idx` out."
            )
        self._take_up(slot, key)
        self.slots[key] = slot
        self.stages[slot.stage].append(slot)
        if slot.on_step:
            self.stepping[slot.stage].append(slot)
        return slot

    def _take_up(self, slot: Slot, key: Key) -> None:
        """Give a slot what a checkpoint holds for it."""
        state = self._restored.pop(key, None)
        if state is None:
            return
        if state["options"] == plain_options(slot.options) and state.get("metric") == slot.path:
            slot.load_state_dict(state)
        else:
            rank_zero_warn(
                f"`self.log({key[1]!r}, ...)` has other settings than in the checkpoint: what that holds of it "
                "is left out."
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
        size, ambiguous = size_of(batch)
        if ambiguous and not self._ambiguous:
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
        if not (stepping or self._restored) or self.send is None or not self.log_every_n_steps:
            return
        if window % self.log_every_n_steps and not last:
            return
        due = [slot for slot in [*stepping, *self._not_logged_again()] if slot.unsent and slot.to_loggers]
        if not due:
            return
        for slot in due:
            slot.unsent = False
        values = {slot.step_name: slot.value for slot in due}
        self.pending = start_copy(values, self.device, window - 1, epoch)
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
        if self._restored and stage == "train":
            self._take_up_the_rest()
        if self.pending is not None:
            self.deliver()
        if self.exchange is not None:
            self.reduce(stage)

    def reduce(self, stage: str) -> None:
        """Bring the epoch's values of all processes together: at the end of the stage, and after the hook for it."""
        assert self.exchange is not None
        for key, value in self.exchange.values(self, stage).items():
            slot = self.slots[key]
            slot.filled, slot.dirty = True, False
            self.metrics.put(slot, slot.epoch_name, torch.tensor(value, dtype=torch.float64))

    def take_slot(self, key: Key, options: list[Any], function: bool, path: str | None) -> None:
        """Have a slot for what another process logged."""
        if key in self.slots:
            return
        if function:  # which the other process has
            slot: Slot = FunctionSlot(key[1], key[2], PLACES[str(key[0])], tuple(options), self.device)
        else:
            slot = new_slot(*key, tuple(options), self.device, metric=path is not None)
        if path is not None and self.module is not None:
            slot.path = path
            slot.value_of(self.module.get_submodule(path))
        self.slots[key] = slot
        self.stages[slot.stage].append(slot)

    def refresh(self) -> Metrics:
        """The newest value of every name. During an epoch these are tensors, which nobody has waited for."""
        for slot in self.stepping["train"]:
            if slot.unread:
                slot.unread = False
                self.metrics.put(slot, slot.step_name, slot.value)
        if self.ended is not None:
            dirty = [slot for slot in self.stages[self.ended] if slot.dirty]
            if self.exchange is not None:  # until they meet, a value is this process's own
                dirty = [slot for slot in dirty if not isinstance(slot, MetricSlot)]
            for slot in dirty:
                # Before they are read: a value that cannot be computed is an error once.
                slot.dirty = self.exchange is not None and not slot.options[6]
            for slot, value in zip(dirty, read_all(dirty), strict=True):
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
        self._rest = {key: slot for key, slot in self._rest.items() if slot.unsent}
        return by_loader

    # -- checkpoints -------------------------------------------------------------------------------------------------

    def state_dict(self, window: int, epoch: int, owed: bool) -> dict[str, Any]:
        """What the running epoch of training has gathered so far, in plain numbers, and in objects of torchmetrics.

        Args:
            window: how many optimizer steps are done.
            epoch: the epoch's number.
            owed: the last of them was just done, and its values are yet to be sent to loggers, if it is a log point.
        """
        log_point = owed and self.log_every_n_steps and window % self.log_every_n_steps == 0
        due = [slot for slot in self.stepping["train"] if log_point and slot.unsent and slot.to_loggers]
        slots = [
            {
                "key": list(key),
                "options": plain_options(slot.options),
                **slot.state_dict(),
                **({"value": None} if slot in due else {}),  # it is in the row that is owed
            }
            for key, slot in {**self._rest, **self.slots}.items()
            if slot.stage == "train" and (slot.filled or slot.unsent)
        ]
        pending = [] if self.pending is None else [self.pending]
        if due:
            values = {slot.step_name: slot.value for slot in due}
            pending.append(start_copy(values, self.device, window - 1, epoch))
        rows = [{"metrics": dict(one.metrics()), "step": one.step, "epoch": one.epoch} for one in pending]
        over = [slot.metric for stage in ("validation", "test") for slot in self.stages[stage] if slot.filled]
        metrics = metric_states(self.module, without=over) if self.module is not None else {}
        return {"slots": [*slots, *self._restored.values()], "metrics": metrics, "rows": rows}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from what `state_dict` returned; each slot is taken up when its name is logged again."""
        self._restored = {tuple(slot["key"]): slot for slot in state["slots"]}
        if self.module is not None:
            load_metric_states(self.module, state["metrics"])
        if self.send is not None:
            for row in state.get("rows", []):
                self.send(row["metrics"], row["step"], row["epoch"])

    def _not_logged_again(self) -> list[Slot]:
        """Slots, for one log point, of step values that a checkpoint holds and that were not logged since."""
        slots = []
        for key, state in self._restored.items():
            if state["value"] is not None:
                slot = new_slot(*key, tuple(state["options"]), self.device, metric=state.get("metric") is not None)
                slot.value, slot.unsent = state["value"], True
                state["value"] = None
                slots.append(slot)
        return slots

    def _take_up_the_rest(self) -> None:
        """Make slots, for this epoch alone, of names that a resumed epoch did not log again."""
        metrics = dict(self.module.named_modules()) if self.module is not None else {}
        for key, state in self._restored.items():
            options = list(state["options"])
            path = state.get("metric")
            if (path and path not in metrics) or ("result" in state and state["result"] is None):
                continue
            if "result" in state:  # of a function of the user's
                options[4] = partial(result_of, state)
            slot = new_slot(*key, tuple(options), self.device, metric=path is not None)
            slot.load_state_dict(state)
            if path:
                slot.path = path
                slot.value_of(metrics[path])
            self.stages[slot.stage].append(slot)
            self._rest[key] = slot
            if slot.unsent:  # until the next log point
                self.stepping[slot.stage].append(slot)
        self._restored.clear()

    def abandon(self) -> None:
        """Forget what an epoch that broke off had gathered: a later run would count that in metric objects again."""
        for slots in self.stages.values():
            for slot in slots:
                if slot.filled:
                    slot.clear()

    def forget(self, stage: str) -> None:
        """Drop a stage's slots and all metrics: after the sanity check, whose numbers mean nothing."""
        self.slots = {key: slot for key, slot in self.slots.items() if slot.stage != stage}
        self.stages[stage].clear()
        self.stepping[stage].clear()
        self.metrics.clear()


def result_of(state: dict[str, Any], values: Tensor) -> float:
    """What a function gave, when a slot's state was saved, for the values that it is given again."""
    return float(state["result"])


class NoResults(Results):
    """Where `self.log` goes in a barebones run: nowhere."""

    def log(self, name: str, *_: Any) -> None:
        if name not in self.told:
            self.told.add(name)
            rank_zero_warn(f"`self.log({name!r}, ...)` does nothing in a barebones run.")

    def __init__(self, device: torch.device) -> None:
        super().__init__(device)
        self.told: set[str] = set()

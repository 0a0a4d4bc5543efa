"""Exchange: the epoch's values of all processes, brought together in one operation on the host."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from gpulayer.pytorch.loops.slots import FunctionSlot, Key, MetricSlot, Slot, plain_options, read_totals

if TYPE_CHECKING:
    from gpulayer.pytorch.loops.results import Results

NOTHING = (0.0, 0.0, 0.0)  # what a process gives that has not logged a name


class Exchange:
    """Where the numbers of all processes meet. Processes may log different names; each learns the values of all.

    A vector of float64 holds three numbers for each name: whether this process has a value, its sum, and the sum of the
    weights. All have agreed on the names and their order before; the first number of the vector says whether a process
    has another one now, and then they agree anew.

    Args:
        gather_numbers: gives the numbers of each rank.
        gather_objects: gives the object of each rank.
    """

    def __init__(
        self,
        gather_numbers: Callable[[list[float]], list[list[float]]],
        gather_objects: Callable[[Any], list[Any]],
    ) -> None:
        self.gather_numbers = gather_numbers
        self.gather_objects = gather_objects
        self.names: dict[str, list[Key]] = {}  # by stage

    def values(self, results: Results, stage: str) -> dict[Key, float]:
        """The values of the epoch that is over, of all processes together.

        Args:
            results: what was logged here; it gets slots for what was only logged elsewhere.
            stage: whose epoch it is.
        """
        slots = {
            key: slot for key, slot in results.slots.items() if slot.stage == stage and slot.dirty and shared(slot)
        }
        names = self.names.setdefault(stage, [])
        gathered = self._gather(slots, names)
        if any(numbers[0] for numbers in gathered):
            self._agree(results, slots, names)
            gathered = self._gather(slots, names)
        values = {}
        for place, key in enumerate(names):
            slot = results.slots[key]
            parts = [numbers[1 + 3 * place : 4 + 3 * place] for numbers in gathered]
            given = [(total, weight) for there, total, weight in parts if there]
            if given:
                values[key] = self._value(slot, given)
        return values

    def _gather(self, slots: dict[Key, Slot], names: list[Key]) -> list[list[float]]:
        plain = [slot for slot in slots.values() if not isinstance(slot, (MetricSlot, FunctionSlot))]
        totals = dict(zip(map(id, plain), read_totals(plain), strict=True))
        numbers = [float(any(key not in names for key in slots))]
        for key in names:
            slot = slots.get(key)
            numbers += NOTHING if slot is None else (1.0, *slot.parts(totals.get(id(slot))))
        return self.gather_numbers(numbers)

    def _agree(self, results: Results, slots: dict[Key, Slot], names: list[Key]) -> None:
        """Learn all names that any process has a value for, and make the slots that are missing here."""
        own = {key: (plain_options(slot.options), type(slot) is FunctionSlot, slot.path) for key, slot in slots.items()}
        everywhere: dict[Key, Any] = {}
        for there in self.gather_objects(own):
            everywhere |= {key: made_of for key, made_of in there.items() if key not in everywhere}
        for key, (options, function, path) in everywhere.items():
            results.take_slot(key, options, function, path)
        names[:] = sorted({*names, *everywhere}, key=str)

    def _value(self, slot: Slot, given: list[tuple[float, float]]) -> float:
        if isinstance(slot, MetricSlot):
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # where this process has not updated it, the others have
                total = slot.total()  # the object asks the other processes itself
            return slot.read(None if total is None else float(total))
        if isinstance(slot, FunctionSlot):
            of_all = self.gather_objects([value.cpu() for value in slot.values])
            slot.values = [value.to(slot.device) for values in of_all for value in values]
            results = self.gather_objects(slot.read(None) if callable(slot.options[4]) else None)
            return next(float(result) for result in results if result is not None)
        return slot.of_all(given)


def shared(slot: Slot) -> bool:
    """Whether its value is that of all processes; not with `rank_zero_only=True`."""
    return not slot.options[6]

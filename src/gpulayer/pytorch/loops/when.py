"""When: one trigger for all that happens every so many steps, epochs or seconds."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field


@dataclass
class Every:
    """True once every `steps`, `epochs` or `seconds`; exactly one of them is given.

    Ask `at_step`, `at_epoch` or `at_time` with the count reached; the others then answer False.
    """

    steps: int | None = None
    epochs: int | None = None
    seconds: float | None = None
    clock: Callable[[], float] = time.monotonic
    due_at: float = field(default=0.0, init=False)

    def __post_init__(self) -> None:
        self.restart()

    def at_step(self, step: int) -> bool:
        """Whether `step` (counted from 1) is one."""
        return bool(self.steps) and step > 0 and step % (self.steps or 1) == 0

    def at_epoch(self, epochs: int) -> bool:
        """Whether the end of the `epochs`-th epoch is one."""
        return bool(self.epochs) and epochs > 0 and epochs % (self.epochs or 1) == 0

    def at_time(self) -> bool:
        """Whether the time has come. It stays so until `restart`: to ask changes nothing, so several may."""
        return self.seconds is not None and self.clock() >= self.due_at

    def restart(self) -> None:
        """What was due is done: the time starts anew."""
        if self.seconds is not None:
            self.due_at = self.clock() + self.seconds


def every(steps: int | None = None, epochs: int | None = None, seconds: float | None = None) -> Every:
    """`every(steps=100)`, `every(epochs=1)`, `every(seconds=60)`.

    Raises:
        ValueError: none or several are given, or one is negative.
    """
    given = {"steps": steps, "epochs": epochs, "seconds": seconds}
    chosen = {name: value for name, value in given.items() if value is not None}
    if len(chosen) != 1:
        raise ValueError(f"every(...) takes one of steps, epochs and seconds; got {chosen or 'none'}.")
    if any(value < 0 for value in chosen.values()):
        raise ValueError(f"every(...) takes no negative value; got {chosen}.")
    return Every(steps, epochs, seconds)

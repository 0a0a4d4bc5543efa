"""Timeline: how long each action took, alone and with what it is nested in."""

from __future__ import annotations

from collections import Counter, defaultdict, deque
from collections.abc import Callable
from time import perf_counter
from typing import Any, TypeAlias

import torch

Stack: TypeAlias = tuple[str, ...]  # the actions that are under way, the innermost last

READ_EVERY = 1_000  # slices of a device's time between two looks at which of them are over
MOST_UNREAD = 100_000  # slices; about 20 MB


class CudaClock:
    """The device's own time, so that a part is charged with what it makes the device do; the host never waits.

    Args:
        device: whose.
    """

    def __init__(self, device: torch.device) -> None:
        self._stream = torch.cuda.current_stream(device)

    def mark(self) -> Any:
        """The moment at which the device will have done what it was given before."""
        event = torch.cuda.Event(enable_timing=True)
        event.record(self._stream)
        return event

    def reached(self, mark: Any) -> bool:
        """Whether the device is there."""
        return bool(mark.query())

    def seconds(self, begin: Any, end: Any) -> float:
        """The time between two marks; the host waits for the second."""
        end.synchronize()
        return float(begin.elapsed_time(end)) / 1000  # milliseconds


class Timeline:
    """Cuts the time at the beginning and end of every action. A slice belongs to the actions that are under way in it.

    Args:
        clock: gives marks, and the time between two of them when it is known. Default: the host's clock.
    """

    def __init__(self, clock: CudaClock | None = None) -> None:
        self.spent: defaultdict[Stack, float] = defaultdict(float)  # seconds with exactly these actions under way
        self.calls: Counter[Stack] = Counter()
        self.stack: Stack = ()
        self._clock = clock
        self._mark: Callable[[], Any] = perf_counter if clock is None else clock.mark
        self._unread: deque[tuple[Stack, Any, Any]] = deque()
        self._last = self._mark()
        self._closed = False

    def start(self, name: str) -> None:
        """An action begins, within those that are under way."""
        if self._closed:
            self._closed, self._last = False, self._mark()
        self._cut()
        self.stack = (*self.stack, name)
        self.calls[self.stack] += 1

    def stop(self, name: str) -> None:
        """An action ends.

        Raises:
            ValueError: it was not started.
        """
        if name not in self.stack:
            raise ValueError(f"The action {name!r} was stopped, but it was not started.")
        self._cut()
        self.stack = without(self.stack, name)

    def close(self) -> None:
        """The time until now is over, and read. What follows counts from the next action on."""
        if self._closed:
            return
        self._cut()
        while self._unread and self._clock is not None:
            self._read(self._clock)
        self._closed = True

    def _cut(self) -> None:
        now, last = self._mark(), self._last
        self._last = now
        if self._clock is None:
            self.spent[self.stack] += now - last
            return
        self._unread.append((self.stack, last, now))
        if len(self._unread) % READ_EVERY == 0:
            while self._unread and (self._clock.reached(self._unread[0][2]) or len(self._unread) > MOST_UNREAD):
                self._read(self._clock)

    def _read(self, clock: CudaClock) -> None:
        stack, begin, end = self._unread.popleft()
        self.spent[stack] += clock.seconds(begin, end)

    def __getstate__(self) -> dict[str, Any]:
        state = {**self.__dict__, "_clock": None, "_mark": perf_counter, "_unread": deque(), "_last": 0.0}
        return {**state, "_closed": True}


def without(stack: Stack, name: str) -> Stack:
    """The stack after the innermost action of a name has ended."""
    if stack[-1] == name:
        return stack[:-1]
    place = len(stack) - 1 - stack[::-1].index(name)
    return stack[:place] + stack[place + 1 :]

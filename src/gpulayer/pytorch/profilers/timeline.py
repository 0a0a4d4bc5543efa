"""Timeline: how long each action took, alone and with what it is nested in."""

from __future__ import annotations

from collections import Counter, defaultdict, deque
from collections.abc import Callable
from threading import get_ident
from time import perf_counter
from typing import Any, TypeAlias

import torch

from gpulayer.fabric.utilities.exceptions import MisconfigurationException

Stack: TypeAlias = tuple[str, ...]  # the actions that are under way, the innermost last

READ_EVERY = 1_000  # slices of a device's time between two looks at which of them are over
MOST_UNREAD = 100_000  # slices; about 20 MB
DEEPEST = 1_000  # actions within one another; Python's own calls go no deeper


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

    It is that of the thread that made it. Others have timelines of their own: what they do meanwhile takes no time from
    this one.

    Args:
        clock: gives marks, and the time between two of them when it is known. Default: the host's clock.
    """

    def __init__(self, clock: CudaClock | None = None) -> None:
        self.spent: defaultdict[Stack, float] = defaultdict(float)  # seconds with exactly these actions under way
        self.calls: Counter[Stack] = Counter()
        self.stack: Stack = ()
        self.others: dict[int, Timeline] = {}  # of other threads, by their numbers
        self._clock = clock
        self._mark: Callable[[], Any] = perf_counter if clock is None else clock.mark
        self._unread: deque[tuple[Stack, Any, Any]] = deque()
        self._last = self._mark()
        self._closed = False
        self.thread = get_ident()

    def anew(self, clock: CudaClock | None = None) -> Timeline:
        """An empty one, in which the actions that are under way still are."""
        timeline = Timeline(clock)
        timeline.stack = self.stack
        timeline.calls.update(self.stack[: depth + 1] for depth in range(len(self.stack)))
        return timeline

    def start(self, name: str) -> None:
        """An action begins, within those that are under way.

        Raises:
            MisconfigurationException: more are under way than a program can be in the midst of.
        """
        if get_ident() != self.thread:
            self._of_this_thread().start(name)
            return
        if len(self.stack) == DEEPEST:
            ((forgotten, count),) = Counter(self.stack).most_common(1)
            raise MisconfigurationException(
                f"{DEEPEST:,} actions are under way, {count:,} of them {forgotten!r}: a `stop` is missing for each "
                "`start`. `with profiler.profile(name):` stops it in any case."
            )
        if self._closed and not self.stack:
            self._last = self._mark()
        self._cut()
        self.stack = (*self.stack, name)
        self.calls[self.stack] += 1

    def stop(self, name: str) -> None:
        """An action ends.

        Raises:
            ValueError: it was not started.
        """
        if get_ident() != self.thread:
            self._of_this_thread().stop(name)
            return
        if name not in self.stack:
            raise ValueError(f"The action {name!r} was stopped, but it was not started.")
        self._cut()
        self.stack = without(self.stack, name)

    def close(self) -> None:
        """The time until now is over, and read. What follows counts from the next action on, or for those under way."""
        for timeline in list(self.others.values()):
            timeline.close()
        if self._closed and not self.stack:
            return
        self._cut()
        while self._unread and self._clock is not None:
            self._read(self._clock)
        self._closed = True

    def _of_this_thread(self) -> Timeline:
        thread = get_ident()
        if thread not in self.others:
            self.others[thread] = Timeline(self._clock)
        return self.others[thread]

    def _cut(self) -> None:
        self._closed = False
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

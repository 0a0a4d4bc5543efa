"""Outbox: what goes to a server that may be slow or away leaves by a thread, so that training never waits for it."""

from __future__ import annotations

import atexit
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from threading import Condition, Thread
from time import monotonic
from typing import Any

from gpulayer.fabric.utilities.rank_zero import log

GATHER = 0.5  # seconds that things are gathered, to go together
FIRST_PAUSE, LONGEST_PAUSE = 1.0, 30.0  # seconds from a failure to the next try; it doubles
LAST_PAUSE = 0.5  # the same at the end, where somebody waits
PATIENCE = 20.0  # seconds without success after which the end of a run waits no longer


@dataclass
class Channel:
    """One kind of thing on its way to the server.

    Args:
        kind: what one is called, for messages.
        send: sends some, in order; when it raises, all of them are sent again later.
        at_once: how many go together.
        most_waiting: how many are kept; of more the oldest are dropped.
        patience: seconds that one call of `send` may take at the end of a run; None for `PATIENCE`.
        done_with: told of each thing that is needed no longer, sent or not.
    """

    kind: str
    send: Callable[[list[Any]], None]
    at_once: int
    most_waiting: int
    patience: float | None = None
    done_with: Callable[[Any], None] = lambda thing: None

    waiting: deque[Any] = field(default_factory=deque, init=False)
    leaving: list[Any] = field(default_factory=list, init=False)  # taken by the thread, not known to have arrived
    lost: int = field(default=0, init=False)
    error: Exception | None = field(default=None, init=False)  # since sending fails
    pause: float = field(default=FIRST_PAUSE, init=False)
    next_try: float = field(default=0.0, init=False)
    last_turn: float = field(default=0.0, init=False)

    @property
    def pending(self) -> bool:
        """Whether anything has yet to arrive."""
        return bool(self.leaving or self.waiting)

    def let_go(self, things: list[Any], lost: bool) -> None:
        """These have arrived, or are lost."""
        self.lost += len(things) if lost else 0
        for thing in things:
            self.done_with(thing)

    def give_up(self) -> None:
        """All that is pending is lost."""
        things = [*self.leaving, *self.waiting]
        self.leaving = []  # the thread may still be sending them; it sees that they are no longer its own
        self.waiting.clear()
        self.let_go(things, lost=True)


class Outbox:
    """Sends from a thread, tries again while the server is away, and says in the end what it has not got.

    Args:
        owner: the logger's name, for messages.
        channels: what is to be sent. Each has its own queue, so that one which fails does not hold up the others.
        refused: whether an error means that the server will take the things neither now nor later.
    """

    def __init__(self, owner: str, channels: list[Channel], refused: Callable[[Exception], bool]) -> None:
        self._owner = owner
        self._channels = {channel.kind: channel for channel in channels}
        self._refused = refused
        self._changed = Condition()
        self._thread: Thread | None = None
        self._sending: Channel | None = None
        self._last_success = 0.0
        self._ending = False  # send at once, and end the thread when all is sent

    def put(self, kind: str, *things: Any) -> None:
        """Leave some things to be sent; returns at once."""
        channel = self._channels[kind]
        with self._changed:
            wake = not channel.pending or self._ending
            self._ending = False
            channel.waiting.extend(things)
            while len(channel.waiting) > channel.most_waiting:
                channel.let_go([channel.waiting.popleft()], lost=True)
            if self._thread is None:
                self._thread = Thread(target=self._work, name=f"{self._owner}-outbox", daemon=True)
                self._thread.start()
            if wake:  # else it will look by itself
                self._changed.notify_all()
                atexit.unregister(self.flush)
                atexit.register(self.flush)  # for what comes after the end of a run

    def send_now(self, kind: str, *things: Any) -> None:
        """Send some things without the thread; raises what sending raises."""
        channel = self._channels[kind]
        try:
            channel.send(list(things))
        finally:
            channel.let_go(list(things), lost=False)

    def flush(self) -> bool:
        """Wait until all is sent, or given up, and say what the server has not got.

        Returns:
            Whether the server answered.
        """
        began, answered = monotonic(), True
        with self._changed:
            self._ending = True
            for channel in self._channels.values():
                channel.next_try = 0.0
            self._changed.notify_all()
            while any(channel.pending for channel in self._channels.values()):
                self._changed.wait(0.1)
                sending = self._sending
                patience = sending.patience if sending is not None and sending.error is None else None
                if monotonic() - max(began, self._last_success) > (patience or PATIENCE):
                    answered = False
                    for channel in self._channels.values():
                        channel.give_up()
            atexit.unregister(self.flush)
            self._report()
        return answered

    def _report(self) -> None:
        for channel in self._channels.values():
            if channel.lost:
                reason = f" The last error: {channel.error}" if channel.error else ""
                log.warning("%s lacks %s of this run.%s", self._owner, _count(channel.lost, channel.kind), reason)
                channel.lost = 0

    # -- the thread --------------------------------------------------------------------------------------------------

    def _work(self) -> None:
        while True:
            with self._changed:
                channel = self._sending = self._next()
                if channel is None:
                    self._thread = None
                    return
                while channel.waiting and len(channel.leaving) < channel.at_once:
                    channel.leaving.append(channel.waiting.popleft())
                things, channel.last_turn = channel.leaving, monotonic()
            failure = None
            try:
                channel.send(things)
            except Exception as error:
                failure = error
            with self._changed:
                self._sending = None
                if channel.leaving is not things:  # given up meanwhile
                    continue
                if failure is None:
                    self._sent(channel)
                else:
                    self._failed(channel, failure)
                self._changed.notify_all()

    def _next(self) -> Channel | None:
        """Wait for a channel that has something to send; None once all is sent and somebody waits for that."""
        gathering_since = None
        while True:
            now = monotonic()
            pending = [channel for channel in self._channels.values() if channel.pending]
            due = [channel for channel in pending if channel.next_try <= now]
            if not pending and self._ending:
                return None
            if due:
                gathering_since = gathering_since or now
                if self._ending or now - gathering_since >= GATHER:
                    return min(due, key=lambda channel: channel.last_turn)
            self._changed.wait(GATHER if pending else None)

    def _sent(self, channel: Channel) -> None:
        if channel.error is not None:
            log.info("%s: the server takes %ss again.", self._owner, channel.kind)
        channel.let_go(channel.leaving, lost=False)
        channel.leaving, channel.error, channel.pause = [], None, FIRST_PAUSE
        self._last_success = monotonic()

    def _failed(self, channel: Channel, error: Exception) -> None:
        if self._refused(error):
            log.warning("%s: the server refused %s: %s", self._owner, _count(len(channel.leaving), channel.kind), error)
            channel.let_go(channel.leaving, lost=True)
            channel.leaving = []
            return
        if channel.error is None:
            log.warning(
                "%s cannot send %ss (%s). The run goes on; up to %s are kept and sent when the server is back.",
                self._owner, channel.kind, error, f"{channel.most_waiting:,}",
            )  # fmt: skip
        channel.error = error
        channel.next_try = monotonic() + (LAST_PAUSE if self._ending else channel.pause)
        channel.pause = min(2 * channel.pause, LONGEST_PAUSE)


def _count(number: int, kind: str) -> str:
    return f"{number:,} {kind}{'s' if number != 1 else ''}"

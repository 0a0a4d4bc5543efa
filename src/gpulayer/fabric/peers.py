"""Peers: what the processes of a group tell each other while their main threads may be busy, or stuck.

Collective operations need every process. What must get through when one of them is missing goes by the group's store,
a small server that rank 0 or torchrun's agent keeps, and a thread in each process that looks there now and then:

- that a process failed, so that the others end in seconds and not at a time-out;
- that a process was asked to stop, and after which batch they all do.
"""

from __future__ import annotations

import json
import os
import sys
import traceback
from collections.abc import Callable
from dataclasses import asdict, dataclass
from threading import Event, Lock, Thread
from time import monotonic, sleep
from typing import Any

from torch.distributed.distributed_c10d import PrefixStore

LOOK_EVERY = 0.1  # seconds
PATIENCE = 2.0  # seconds in which a process gets out of what it is doing, once another one has failed
GRACE = 0.3  # seconds in which a process reaches the end of its batch, before its place is said to be within it
KILLED = 70  # the exit code of a process that did not get out


@dataclass(frozen=True)
class Failure:
    """What ended a process."""

    rank: int
    error: str  # the last line of its traceback


class RankError(RuntimeError):
    """Another process of the group failed, and this one with it."""

    def __init__(self, failure: Failure) -> None:
        super().__init__(f"Rank {failure.rank} failed: {failure.error}")
        self.failure = failure


class Peers:
    """This process's line to the others.

    Args:
        store: the group's store.
        rank: this process's.
        world_size: how many processes there are.
    """

    def __init__(self, store: Any, rank: int, world_size: int) -> None:
        self.store = PrefixStore("gpulayer", store)
        self.rank = rank
        self.world_size = world_size
        self.place: Callable[[], int] = int  # how many batches this process has done
        self.heard: Callable[[], Any] = bool  # called, in this object's thread, when another process asks to stop
        self.asked = False  # whether someone has asked all to stop
        self.failed = False  # whether this process, or another one, has failed
        self.leaving = False  # whether the main thread is on its way out
        self._round = 0  # how often the processes have met
        self._asked_at = 0.0
        self._said = False  # whether this process's place in this round is said
        self._lock = Lock()
        self._closed = Event()
        self._store_of_thread = PrefixStore("gpulayer", store.clone())
        self._thread = Thread(target=self._watch, name="gpulayer-peers", daemon=True)
        self._thread.start()

    # -- stopping together -------------------------------------------------------------------------------------------

    def ask(self, why: str) -> None:
        """Ask all to stop after the same batch."""
        self.store.compare_set(f"stop/{self._round}", "", why)
        self.asked = True

    def meet(self) -> tuple[int, str]:
        """Agree, between two batches, after which one all stop: the furthest that any of them is in.

        The processes that have not heard of it yet may be waiting, in the batch after this one, for this process. So
        each says where it is, by its thread if its main thread is in the middle of a batch; to that batch all go on.

        Returns:
            How many batches are done when all stop, and why.

        Raises:
            RankError: another process failed meanwhile.
        """
        self._say(self.place())
        keys = [f"place/{self._round}/{rank}" for rank in range(self.world_size)]
        while not self.store.check(keys):
            if self.failed:
                raise self.first_error()
            sleep(0.002)
        return max(int(self.store.get(key)) for key in keys), self.store.get(f"stop/{self._round}").decode()

    def met(self) -> None:
        """All have stopped, and may be asked anew."""
        with self._lock:
            self._round += 1
            self._said = self.asked = False

    def _say(self, place: int) -> None:
        with self._lock:
            if not self._said:
                self._said = True
                self.store.set(f"place/{self._round}/{self.rank}", str(place))

    # -- failing together --------------------------------------------------------------------------------------------

    def report(self, error: BaseException) -> Failure:
        """Tell the others that this process failed, unless one of them did before.

        The traceback of the first one is written at once, and the others wait for that: so it is on top.

        Returns:
            The first failure.
        """
        self.leaving = self.failed = True
        own = Failure(self.rank, traceback.format_exception_only(type(error), error)[-1].strip())
        try:
            first = self._post(own)
            if first != own:
                self._wait_until(lambda: self.store.check(["told"]), 2.0)
            else:
                if self.rank:  # that of rank 0 is what the program ends with
                    text = "".join(traceback.format_exception(type(error), error, error.__traceback__))
                    sys.stderr.write(f"[rank {self.rank}] failed:\n{text}")
                    sys.stderr.flush()
                self.store.set("told", "")
        except RuntimeError:  # the store is gone, and rank 0 with it
            return own if self.rank == 0 else Failure(0, "it ended without a word")
        return first

    def report_death(self, rank: int, how: str) -> Failure:
        """Tell the others that a process is gone, which could not say so itself."""
        self.leaving = self.failed = True
        first = self._post(Failure(rank, how))
        self.store.set("told", "")
        return first

    def known_failure(self, seconds: float) -> bool:
        """Whether another process has said, or says within some time, that it failed."""
        try:
            return self._wait_until(lambda: self.store.check(["failure"]), seconds)
        except RuntimeError:
            return False

    def _post(self, failure: Failure) -> Failure:
        return Failure(**json.loads(self.store.compare_set("failure", "", json.dumps(asdict(failure)))))

    def _wait_until(self, true: Callable[[], bool], seconds: float) -> bool:
        end = monotonic() + seconds
        while not (found := true()) and monotonic() < end:
            sleep(0.01)
        return found

    def first_error(self) -> RankError:
        """The first failure as what this process ends with."""
        return RankError(Failure(**json.loads(self.store.get("failure"))))

    def _watch(self) -> None:
        """Look for what the others say. The store answers while the main thread waits for a collective operation."""
        store = self._store_of_thread
        while not self._closed.wait(LOOK_EVERY):
            try:
                if store.check(["failure"]):
                    self._get_out(store.get("failure").decode())
                    return
                if store.check([f"stop/{self._round}"]):
                    self._heard()
            except RuntimeError:
                self._get_out("")
                return

    def _heard(self) -> None:
        """Someone asked to stop: if the main thread is in a batch, perhaps waiting there for others, say so for it."""
        if not self.asked:
            self.asked, self._asked_at = True, monotonic()
            self.heard()
        elif monotonic() > self._asked_at + GRACE:
            self._say(self.place() + 1)

    def _get_out(self, failure: str) -> None:
        """Another process failed: see that this one ends, if need be in the middle of what it does."""
        self.failed = True
        if self._closed.wait(PATIENCE) or self.leaving:
            return
        # An operation that waits for the others cannot be broken off, not even by leaving the group.
        why = str(RankError(Failure(**json.loads(failure)))) if failure else "Rank 0 ended without a word"
        sys.stderr.write(f"[rank {self.rank}] ends. {why}\n")
        sys.stderr.flush()
        os._exit(KILLED)

    # -- the end -----------------------------------------------------------------------------------------------------

    def wait_for_all(self, seconds: float = 60.0) -> None:
        """Wait, for some time, until all processes are about to leave."""
        try:
            self.store.set(f"leaving/{self.rank}", "")
            keys = [f"leaving/{rank}" for rank in range(self.world_size)]
            self._wait_until(lambda: self.failed or self.store.check(keys), seconds)
        except RuntimeError:  # the one that keeps the store has gone already
            return

    def close(self) -> None:
        """Stop listening."""
        self._closed.set()
        self._thread.join()

"""Outbox: a server that is slow, away, back, or unwilling, here a function that a thread calls."""

from __future__ import annotations

import logging
import subprocess
import sys
import time
from pathlib import Path
from textwrap import dedent
from threading import Event, Timer, current_thread
from typing import Any

import pytest

from gpulayer.pytorch.loggers import outbox
from gpulayer.pytorch.loggers.outbox import Channel, Outbox


@pytest.fixture(autouse=True)
def hasty(monkeypatch: pytest.MonkeyPatch) -> None:
    """Waits for tenths of a second."""
    shorter = {"GATHER": 0.05, "FIRST_PAUSE": 0.05, "LONGEST_PAUSE": 0.1, "LAST_PAUSE": 0.05, "PATIENCE": 0.4}
    for name, seconds in shorter.items():
        monkeypatch.setattr(outbox, name, seconds)


class Server:
    """Takes lists of things; raises while `error` is set, and waits while `open` is not."""

    def __init__(self) -> None:
        self.taken: list[Any] = []
        self.calls: list[list[Any]] = []
        self.threads: set[str] = set()
        self.error: Exception | None = None
        self.open = Event()
        self.open.set()

    def take(self, things: list[Any]) -> None:
        self.threads.add(current_thread().name)
        self.open.wait(30)
        self.calls.append(list(things))
        if self.error is not None:
            raise self.error
        self.taken += things


def outbox_to(*servers: Server, **arguments: Any) -> Outbox:
    """With a channel "thing" to the first server and "other" to the second."""
    settings = {"at_once": 3, "most_waiting": 100, **arguments}
    channels = [
        Channel(kind, server.take, **settings) for kind, server in zip(["thing", "other"], servers, strict=False)
    ]
    return Outbox("Logger", channels, refused=lambda error: isinstance(error, ValueError))


def until(condition: Any) -> None:
    deadline = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_things_go_in_order_and_in_batches_by_a_thread_that_ends() -> None:
    server = Server()
    box = outbox_to(server)
    box.put("thing", *range(4))
    box.put("thing", 4)
    assert box.flush()
    assert server.calls == [[0, 1, 2], [3, 4]]
    assert server.threads == {"Logger-outbox"}
    until(lambda: box._thread is None)
    box.put("thing", 5)
    assert box.flush()
    assert server.taken == list(range(6))


def test_things_go_without_being_asked() -> None:
    server = Server()
    box = outbox_to(server)
    box.put("thing", 1)
    until(lambda: server.taken == [1])
    assert box.flush()


def test_to_leave_something_does_not_wait() -> None:
    server = Server()
    box = outbox_to(server, most_waiting=10_000)
    server.open.clear()
    began = time.perf_counter()
    for number in range(5000):
        box.put("thing", number)
    assert time.perf_counter() - began < 1
    server.open.set()
    assert box.flush()
    assert server.taken == list(range(5000))


def test_a_server_that_is_away_and_comes_back(caplog: pytest.LogCaptureFixture) -> None:
    """What failed is sent again, in order; each is said once."""
    caplog.set_level(logging.INFO)
    server = Server()
    box = outbox_to(server)
    server.error = ConnectionError("away")
    box.put("thing", *range(5))
    until(lambda: len(server.calls) >= 3)
    server.error = None
    assert box.flush()
    assert server.taken == list(range(5))
    assert [record.getMessage() for record in caplog.records] == [
        "Logger cannot send things (away). The run goes on; up to 100 are kept and sent when the server is back.",
        "Logger: the server takes things again.",
    ]


def test_a_server_that_stays_away(caplog: pytest.LogCaptureFixture) -> None:
    """The end does not wait long, and says what is missing; a later try begins anew."""
    server, gone = Server(), []
    box = outbox_to(server, done_with=gone.append)
    server.error = ConnectionError("away")
    box.put("thing", *range(7))
    began = time.monotonic()
    assert not box.flush()
    assert 0.3 < time.monotonic() - began < 5
    assert caplog.records[-1].getMessage() == "Logger lacks 7 things of this run. The last error: away"
    assert gone == list(range(7))
    server.error = None
    box.put("thing", 7)
    assert box.flush()
    assert server.taken == [7]


def test_a_server_that_hangs(caplog: pytest.LogCaptureFixture) -> None:
    """What was being sent counts as lost, and stays so when it arrives after all."""
    server = Server()
    box = outbox_to(server)
    server.open.clear()
    box.put("thing", *range(4))
    assert not box.flush()
    assert "Logger lacks 4 things" in caplog.text
    server.open.set()
    box.put("thing", 4)
    assert box.flush()
    assert server.taken == [0, 1, 2, 4]


def test_something_slow_is_waited_for() -> None:
    """A large file may take its time."""
    server = Server()
    box = outbox_to(server, patience=20.0)
    server.open.clear()
    box.put("thing", 1)
    Timer(1.0, server.open.set).start()
    assert box.flush()
    assert server.taken == [1]


def test_the_oldest_are_dropped_and_counted(caplog: pytest.LogCaptureFixture) -> None:
    server, gone = Server(), []
    box = outbox_to(server, most_waiting=5, at_once=2, done_with=gone.append)
    server.open.clear()
    box.put("thing", 0)
    until(lambda: server.threads)
    box.put("thing", *range(1, 9))
    server.open.set()
    assert box.flush()
    assert server.taken == [0, 4, 5, 6, 7, 8]
    assert caplog.records[-1].getMessage() == "Logger lacks 3 things of this run."
    assert sorted(gone) == list(range(9))


def test_what_is_refused_is_not_tried_again(caplog: pytest.LogCaptureFixture) -> None:
    server = Server()
    box = outbox_to(server)
    server.error = ValueError("no such run")
    box.put("thing", *range(4))
    assert box.flush()
    assert server.calls == [[0, 1, 2], [3]]
    messages = [record.getMessage() for record in caplog.records]
    assert messages[0] == "Logger: the server refused 3 things: no such run"
    assert messages[-1].startswith("Logger lacks 4 things of this run.")


def test_a_channel_that_fails_does_not_hold_up_the_others(caplog: pytest.LogCaptureFixture) -> None:
    good, bad = Server(), Server()
    box = outbox_to(good, bad)
    bad.error = ConnectionError("no storage")
    box.put("other", "a")
    for number in range(20):
        box.put("thing", number)
        time.sleep(0.01)
    until(lambda: good.taken == list(range(20)))
    assert not box.flush()
    assert caplog.records[-1].getMessage() == "Logger lacks 1 other of this run. The last error: no storage"


def test_without_the_thread() -> None:
    server, gone = Server(), []
    box = outbox_to(server, done_with=gone.append)
    box.send_now("thing", 1, 2)
    assert server.threads == {current_thread().name}
    server.error = ConnectionError("away")
    with pytest.raises(ConnectionError):
        box.send_now("thing", 3)
    assert server.taken == [1, 2]
    assert gone == [1, 2, 3]


LATE = dedent("""
    from pathlib import Path
    from gpulayer.pytorch.loggers.outbox import Channel, Outbox

    channel = Channel("thing", lambda things: Path("sent").write_text(str(things)), at_once=9, most_waiting=9)
    box = Outbox("Logger", [channel], refused=lambda error: False)
    box.put("thing", 1)
    box.flush()
    box.put("thing", 2)
    """)


def test_what_comes_after_the_end_arrives_before_the_program_ends() -> None:
    subprocess.run([sys.executable, "-c", LATE], check=True, timeout=100)
    assert Path("sent").read_text() == "[2]"

"""Checkpoints that are written while training goes on."""

import os
import sys
import threading
import weakref
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from typing import Any

from gpulayer.fabric.checkpoint.io import CheckpointIO, TorchCheckpointIO
from gpulayer.fabric.checkpoint.snapshot import Snapshot
from gpulayer.fabric.utilities.rank_zero import log

NICENESS = 10  # a tenth of the share of a core that others have


class AsyncCheckpointIO(CheckpointIO):
    """Copies a checkpoint to host memory and stores it in the background; training goes on meanwhile.

    One checkpoint is on its way at a time: the next save waits until it is stored, so that the copy takes the memory of
    one checkpoint and no more. Copies and deletions follow in the order in which they were called. What is not done yet
    when the program ends is done before it ends, also after an error; only a killed process loses it.

    What goes wrong in the background is raised once, by the next call of any method; what was queued behind it is left
    undone, so that no checkpoint is deleted for one that could not be stored.

    Args:
        checkpoint_io: what stores them; default: TorchCheckpointIO.

    Example:
        >>> from gpulayer.pytorch import Trainer
        >>> from gpulayer.pytorch.plugins import AsyncCheckpointIO
        >>> trainer = Trainer(plugins=[AsyncCheckpointIO()])
    """

    def __init__(self, checkpoint_io: CheckpointIO | None = None) -> None:
        self.checkpoint_io = checkpoint_io or TorchCheckpointIO()
        self._snapshot = Snapshot()
        self._queue = _Queue()
        weakref.finalize(self, self._queue.complain)

    def save_checkpoint(self, checkpoint: dict[str, Any], path: str, storage_options: Any = None) -> None:
        """Copy `checkpoint`, which may then be changed, and store it in the background."""
        self.wait()
        self._snapshot.take(checkpoint)
        self._queue.add(_store, self.checkpoint_io, self._snapshot, _absolute(path), storage_options)

    def load_checkpoint(self, path: str, map_location: Any = None, weights_only: bool | None = None) -> dict[str, Any]:
        """What was stored under `path`, by what is on its way, too."""
        self.wait()
        return self.checkpoint_io.load_checkpoint(path, map_location, weights_only)

    def copy_checkpoint(self, source: str, target: str) -> None:
        self._queue.add(self.checkpoint_io.copy_checkpoint, _absolute(source), _absolute(target))

    def link_checkpoint(self, source: str, target: str) -> None:
        self._queue.add(self.checkpoint_io.link_checkpoint, _absolute(source), _absolute(target))

    def remove_checkpoint(self, path: str) -> None:
        self._queue.add(self.checkpoint_io.remove_checkpoint, _absolute(path))

    def wait(self) -> None:
        self._queue.wait()
        self.checkpoint_io.wait()

    def teardown(self) -> None:
        """Wait for what is on its way, and free the memory of the copy."""
        try:
            self.wait()
        finally:
            self._snapshot = Snapshot()
            self._queue.stop()
            self.checkpoint_io.teardown()


class _Queue:
    """Calls that a thread makes one after the other, until one fails."""

    def __init__(self) -> None:
        self._thread: ThreadPoolExecutor | None = None  # Python waits for its work when the program ends
        self._pending: list[Future[None]] = []
        self._error: BaseException | None = None

    def add(self, call: Callable[..., None], *arguments: Any) -> None:
        """Queue a call; raises what an earlier one raised."""
        if self._error is not None:
            self.wait()
        if self._thread is None:
            self._thread = ThreadPoolExecutor(1, "checkpoints", initializer=_give_way)
        self._pending = [future for future in self._pending if not future.done()]
        self._pending.append(self._thread.submit(self._make, call, *arguments))

    def _make(self, call: Callable[..., None], *arguments: Any) -> None:
        if self._error is None:
            try:
                call(*arguments)
            except BaseException as error:
                self._error = error

    def wait(self) -> None:
        """Return when nothing is left; raises what a call raised."""
        for future in self._pending:
            future.result()
        self._pending = []
        error, self._error = self._error, None
        if error is not None:
            raise error

    def stop(self) -> None:
        if self._thread is not None:
            self._thread.shutdown()
            self._thread = None

    def complain(self) -> None:
        """Say at the end of the program what nobody was there to be told."""
        if self._error is not None:
            log.error("A checkpoint could not be stored in the background:", exc_info=self._error)


def _store(checkpoint_io: CheckpointIO, snapshot: Snapshot, path: str, storage_options: Any) -> None:
    checkpoint_io.save_checkpoint(snapshot.give(), path, storage_options)


def _absolute(path: Any) -> str:
    """The path, whatever folder the program changes to until it is used."""
    text: str = os.fspath(path)
    return text if "://" in text else os.path.abspath(os.path.expanduser(text))


def _give_way() -> None:
    """Let others go first: where all cores are busy, training is not slower for this thread."""
    if sys.platform == "linux":  # elsewhere threads have no priority of their own
        with suppress(OSError):
            os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), os.getpriority(os.PRIO_PROCESS, 0) + NICENESS)

"""Signals that ask a run to end: Ctrl+C, SIGTERM, and SLURM's notice that a job must go.

A handler notes the signal, and the loops end the run after the batch that is at work. What was trained is then saved.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from threading import Timer, current_thread, main_thread
from typing import Any

from torch.utils.data import get_worker_info

from gpulayer.fabric.environments import SLURMEnvironment
from gpulayer.fabric.utilities.rank_zero import log, rank_zero_info, rank_zero_only
from gpulayer.pytorch.callbacks.model_checkpoint import ModelCheckpoint
from gpulayer.pytorch.loops.run import Ending, Run
from gpulayer.pytorch.trainer import hpc
from gpulayer.pytorch.utilities.exceptions import SIGTERMException

PATIENCE = 5.0  # seconds that Ctrl+C waits for the end of a batch


class Interrupted(SystemExit, KeyboardInterrupt):
    """Ctrl+C: a KeyboardInterrupt for code that catches it; where nobody does, the script ends with exit code 130."""

    def __init__(self) -> None:
        super().__init__(128 + signal.SIGINT)


class Signals:
    """The handlers that are in place during a call of the Trainer, and the calls that are made within it.

    Args:
        environment: SLURM, if the job is to be put back into its queue.
    """

    def __init__(self, environment: SLURMEnvironment | None = None) -> None:
        self.environment = environment
        self.requeue_signal = environment.requeue_signal if environment is not None else None
        self.process = os.getpid()
        self.ending = Ending()
        self.unsaid = ""  # the line that tells of it
        self.shared = False  # whether all processes of the run end with it
        self.insisting = False  # whether Ctrl+C's patience is over
        self.leaving = False  # whether the loop has been left
        self.received: int | None = None  # the first signal, which decides how the run ends
        self.noted: frozenset[int] = frozenset()  # signals that wait for the end of a batch; others end the run at once
        self.before: dict[int, tuple[Any, Callable[[int, Any], None]]] = {}  # the handlers of before, and those of now

    @property
    def numbers(self) -> frozenset[int]:
        """The signals that a run may be ended with."""
        hangup = getattr(signal, "SIGHUP", None)  # the terminal is gone, or the connection to it
        return frozenset(
            {signal.SIGINT, signal.SIGTERM} | {number for number in (hangup, self.requeue_signal) if number}
        )

    # -- handlers ----------------------------------------------------------------------------------------------------

    def install(self) -> None:
        """Take the signals that Python handles in its own way; a handler that the user installed stays."""
        for number in self.numbers:
            if signal.getsignal(number) in (signal.SIG_DFL, signal.default_int_handler):
                self.replace(number, self.handle)

    def replace(self, number: int, handler: Callable[[int, Any], None]) -> None:
        """Install a handler, and remember the one before."""
        with suppress(ValueError):  # not in the main interpreter
            self.before[number] = signal.signal(number, handler), handler

    def restore(self) -> None:
        """Put back the handlers of before; not where the user installed one meanwhile."""
        for number, (before, now) in self.before.items():
            if signal.getsignal(number) == now:
                signal.signal(number, before)
        self.before.clear()

    def handle(self, number: int, frame: Any) -> None:
        """The handler of all signals."""
        if os.getpid() != self.process:
            self.handle_in_child(number)
        elif self.ending.error is None:
            error = self.receive(number)
            self.outlive_workers()
            if number not in self.noted:
                raise error
            self.tell(number)
            if number == signal.SIGINT:
                self.insist_in(PATIENCE)
        elif number == signal.SIGINT and self.insisting:
            self.insisting = False
            if is_stepping(frame):
                self.insist_in(0.1)
            elif not self.leaving:
                raise self.ending.error
        elif number == signal.SIGINT:
            raise self.error_of(number)

    def receive(self, number: int) -> BaseException:
        """Note a signal that came here, or to another process of the run; what the run ends with."""
        if self.ending.error is None:
            self.received, self.ending.error, self.ending.asked = number, self.error_of(number), True
        return self.ending.error

    def insist_in(self, seconds: float) -> None:
        """End the run in the middle of its batch, if it is not over by then: it may be stuck."""

        def insist() -> None:
            if not self.leaving:
                self.insisting = True
                signal.pthread_kill(main_thread().ident or 0, signal.SIGINT)

        if hasattr(signal, "pthread_kill"):  # not on Windows, where the second Ctrl+C does it
            start_timer(seconds, insist)

    def handle_in_child(self, number: int) -> None:
        """In a process forked from this one: a DataLoader's worker works on until it is stopped, others do as before.

        The terminal and SLURM signal workers, too; without them the batch that is being fetched would not come.
        """
        if number == signal.SIGTERM or get_worker_info() is None:
            self.restore()
            os.kill(os.getpid(), number)

    def outlive_workers(self) -> None:
        """Workers that the signal ended are no error now. The handler of torch's would raise one in mid-step."""
        handler = signal.getsignal(signal.SIGCHLD) if hasattr(signal, "SIGCHLD") else None
        if not callable(handler):
            return

        def quietly(number: int, frame: Any) -> None:
            with suppress(RuntimeError):
                handler(number, frame)

        self.replace(signal.SIGCHLD, quietly)

    def error_of(self, number: int) -> BaseException:
        """What is raised for a signal."""
        if number == signal.SIGINT:
            return KeyboardInterrupt() if hasattr(sys, "ps1") else Interrupted()  # where someone types, nothing exits
        return SIGTERMException() if number == signal.SIGTERM else SystemExit(128 + number)

    def tell(self, number: int) -> None:
        """Tell that the signal was seen, for the batch may take long.

        A moment later, in another thread: the handler may have interrupted the drawing of a bar, or a log line that
        holds a lock of `logging`'s.
        """
        name = "Ctrl+C" if number == signal.SIGINT else signal.Signals(number).name
        once_more = "; once more to end at once" if number == signal.SIGINT else ""
        self.unsaid = f"{name}: the run ends after this batch{once_more}.\n"
        start_timer(0.1, self.say)

    def say(self) -> None:
        """Write what `tell` was given, once. It comes out above a progress bar, as log lines do."""
        text, self.unsaid = self.unsaid, ""
        if text and rank_zero_only.rank == 0:
            with suppress(Exception):  # the stream is closed
                sys.stderr.write(text)
                sys.stderr.flush()

    # -- the end of a run --------------------------------------------------------------------------------------------

    @contextmanager
    def noting(self, run: Run, fitting: bool) -> Iterator[None]:
        """While the loop runs, signals wait for the end of a batch; then what was trained is saved."""
        before, self.noted = self.noted, self.numbers
        try:
            yield
            self.share(run.trainer.strategy.gather_objects(self.received))
            if self.ending.error is not None:
                raise self.ending.error
        except BaseException as error:
            asked = self.ending.error
            self.leaving = asked is not None
            self.say()
            if asked is None or not (error is asked or is_dead_worker(error)):
                raise
            if fitting:
                self.save(run)
            if error is asked:
                raise
            raise asked from error
        finally:
            self.noted = before or self.numbers - {signal.SIGINT}

    def share(self, received: list[int | None]) -> None:
        """At the end of a loop, note what signal any of the processes got: they end alike."""
        for number in received:
            if number is not None:
                self.receive(number)
                self.shared = True

    def save(self, run: Run) -> None:
        """Write the checkpoint that the next start goes on from, and say so."""
        trainer = run.trainer
        if trainer.fast_dev_run:
            return
        saver = next((found for found in trainer.checkpoint_callbacks if isinstance(found, ModelCheckpoint)), None)
        if self.received == self.requeue_signal:
            path, who = hpc.next_path(trainer), "the job"
            trainer.save_checkpoint(path)
        elif saver is not None:
            path, who = saver.save_last_now(trainer), "`ckpt_path=`"
        else:
            if not trainer.checkpoint_callbacks:
                rank_zero_info("Nothing is saved, for there is no ModelCheckpoint.")
            return
        trainer.strategy.checkpoint_io.wait()
        if path:
            rank_zero_info("Saved %s; %s goes on from it.", path, who)

    def requeue(self) -> None:
        """Put SLURM's job back into its queue, if that is what the signal was for."""
        if self.environment is None or self.received is None or self.received != self.requeue_signal:
            return
        if rank_zero_only.rank == 0:
            try:
                self.environment.requeue()
            except RuntimeError as error:
                log.error("The job was not put back into the queue: %s. Submit it again.", error)
            else:
                rank_zero_info("The job is back in SLURM's queue.")


_current: Signals | None = None  # those of the call that runs in the main thread


@contextmanager
def listening(trainer: Any) -> Iterator[Signals]:
    """During a call, signals end it in good order. Calls within it share its handlers; other threads have none."""
    global _current
    if current_thread() is not main_thread():
        yield Signals()
        return
    if _current is not None:
        if _current.process == os.getpid():
            yield _current
            return
        _current.restore()  # this process was forked within a call
    environment = trainer.strategy.cluster_environment
    requeues = isinstance(environment, SLURMEnvironment) and environment.requeues
    signals = _current = Signals(environment if requeues else None)
    signals.install()
    try:
        try:
            yield signals
        finally:
            signals.requeue()
    finally:
        signals.restore()
        _current = None
    if signals.ending.error is not None:  # it came when the loop was over
        raise signals.ending.error


def start_timer(seconds: float, call: Callable[[], None]) -> None:
    """Call something later, in another thread, unless the program has ended by then."""
    timer = Timer(seconds, call)
    timer.daemon = True
    timer.start()


def is_stepping(frame: Any) -> bool:
    """Whether an optimizer's step is at work, after which some weights would be new and others not."""
    while frame is not None:
        if str(frame.f_globals.get("__name__")).startswith("torch.optim."):
            return True
        frame = frame.f_back
    return False


def is_dead_worker(error: BaseException) -> bool:
    """Whether a DataLoader says that it waits for a worker in vain."""
    return isinstance(error, RuntimeError) and str(error).startswith("DataLoader worker (pid(s)")

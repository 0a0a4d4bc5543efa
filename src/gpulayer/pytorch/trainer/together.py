"""Together: several processes end a run after the same batch, whichever of them was asked to."""

from __future__ import annotations

from gpulayer.fabric.peers import Peers
from gpulayer.pytorch.loops.run import Run
from gpulayer.pytorch.trainer.signals import Signals

STOP = "stop"  # in place of a signal's number: `trainer.should_stop`


class StopTogether:
    """Asked between two batches of training, in a process that wants to stop or has heard that another one does.

    Nothing of it is called in a step: `Peers` hears of the others in a thread.

    Args:
        run: the run.
        peers: the line to the other processes.
        signals: the signals that this process got.
    """

    def __init__(self, run: Run, peers: Peers, signals: Signals) -> None:
        self.run = run
        self.peers = peers
        self.signals = signals
        self.meeting: tuple[int, str] | None = None
        peers.place = lambda: run.progress.batch
        peers.heard = self.heard

    def heard(self) -> None:
        """Another process asks to stop: the loop looks here at the end of its batch."""
        self.run.ending.asked = True

    def __call__(self) -> bool:
        """Whether this is the batch after which all stop."""
        if self.meeting is None:
            if not self.peers.asked:
                received = self.signals.received
                self.peers.ask(STOP if received is None else str(int(received)))
            self.meeting = self.peers.meet()
        batch, why = self.meeting
        if self.run.progress.batch < batch:
            return False
        if self.peers.asked:
            self.peers.met()
            if why != STOP:
                self.signals.share([int(why)])
            else:
                self.run.trainer.should_stop = True
        return True

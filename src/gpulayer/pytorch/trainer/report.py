"""The lines that a run prints: one an epoch, and about one a minute in an epoch that lasts longer."""

from __future__ import annotations

from collections.abc import Mapping
from time import monotonic
from typing import Any

from gpulayer.fabric.utilities.rank_zero import rank_zero_info
from gpulayer.fabric.utilities.spoken import duration, speed
from gpulayer.pytorch.loops.run import Run

MOST_METRICS = 8


class Report:
    """Writes a run's lines to the log; it remembers when the epoch began, to tell the rate."""

    def __init__(self, run: Run) -> None:
        self.run = run
        self.began = monotonic()
        self.began_at = run.progress.batch

    def minute(self) -> None:
        """How far the epoch is: batch, rate and time left. A progress bar says that, too."""
        bar = self.run.trainer.progress_bar_callback
        if bar is not None and bar.is_drawn:
            return
        at, total = self.run.progress, self.run.train.length
        rate = (at.batch - self.began_at) / max(monotonic() - self.began, 1e-9)
        done = f"batch {at.batch_in_epoch}" + (f"/{total}" if total else "")
        left = f"  {duration((total - at.batch_in_epoch) / rate)} left in the epoch" if total and rate else ""
        rank_zero_info("%s  %s  step %d  %s%s%s", self._epoch(), done, at.step, speed(rate), left, self._metrics())

    def epoch(self) -> None:
        """The epoch that is over: its metrics, time and rate."""
        at, now = self.run.progress, monotonic()
        batches, seconds = at.batch - self.began_at, now - self.began
        if batches:
            rate = batches / max(seconds, 1e-9)
            rank_zero_info(
                "%s  step %d%s  %s, %s", self._epoch(), at.step, self._metrics(), duration(seconds), speed(rate)
            )
        self.began, self.began_at = now, at.batch

    def _epoch(self) -> str:
        last = self.run.trainer.max_epochs
        return f"epoch {self.run.progress.epoch + 1}" + (f"/{last}" if last > 0 else "")

    def _metrics(self) -> str:
        metrics = self.run.results.refresh()
        chosen = dict(metrics.progress_bar or metrics.callback)
        for name in list(chosen):  # of a forked name the epoch's value says more than the last step's
            if name.endswith(("_step", "_epoch")) and name.rsplit("_", 1)[0] in metrics.callback:
                base = name.rsplit("_", 1)[0]
                chosen[base] = metrics.callback[base]
                del chosen[name]
        shown = "  ".join(f"{name} {float(value):.4g}" for name, value in sorted(chosen.items())[:MOST_METRICS])
        more = len(chosen) - MOST_METRICS
        return (f"  {shown}" if shown else "") + (f"  (+{more} more)" if more > 0 else "")


def evaluated(call: str, metrics: Mapping[str, Any]) -> None:
    """The line after `validate` or `test`."""
    shown = "  ".join(f"{name} {value:.4g}" for name, value in sorted(metrics.items()))
    rank_zero_info("%s: %s", call, shown or "nothing was logged")

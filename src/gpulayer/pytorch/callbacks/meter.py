"""Meter: counts batches while the device works on, and reads what was counted later."""

from __future__ import annotations

from time import perf_counter
from typing import Any, NamedTuple

import torch

from gpulayer.fabric.utilities.throughput import Throughput


class HostClock:
    """The host's clock."""

    def mark(self) -> Any:
        """This moment."""
        return perf_counter()

    def seconds(self, begin: Any, end: Any) -> float:
        """The time between two marks."""
        return float(end - begin)


class CudaClock:
    """The device's own time; a mark is reached when the device has done what it was given before."""

    def mark(self) -> Any:
        """The moment at which the device will be here; the host goes on."""
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        return event

    def seconds(self, begin: Any, end: Any) -> float:
        """The time between two marks; the host waits until the device is there."""
        end.synchronize()
        return float(begin.elapsed_time(end)) / 1000  # milliseconds


class Lap(NamedTuple):
    """One batch, as it was counted: nothing of it has been read yet."""

    begin: Any
    end: Any
    samples: Any
    lengths: Any
    flops: float | None


class Meter:
    """Counts the batches of one stage, and reads them at a log point.

    Args:
        throughput: makes rates of the totals.
        clock: gives marks.
    """

    def __init__(self, throughput: Throughput, clock: HostClock | CudaClock) -> None:
        self.throughput = throughput
        self.clock = clock
        self.laps: list[Lap] = []
        self.time, self.batches, self.samples, self.lengths = 0.0, 0, 0, 0
        self.resume()

    def resume(self) -> None:
        """The time until now belongs to no batch."""
        self.begin = self.clock.mark()

    def count(self, samples: Any, lengths: Any, flops: float | None) -> None:
        """A batch is done; its time began with the end of the one before."""
        end = self.clock.mark()
        self.laps.append(Lap(self.begin, end, samples, lengths, flops))
        self.begin = end

    def compute(self) -> dict[str, int | float]:
        """Read what was counted since the last time."""
        for lap in self.laps:
            # Two CUDA events less than half a microsecond apart have the same time, and time must go on.
            self.time += max(self.clock.seconds(lap.begin, lap.end), 1e-9)
            self.batches += 1
            self.samples += int(lap.samples)
            lengths = None
            if lap.lengths is not None:
                self.lengths += int(lap.lengths)
                lengths = self.lengths
            self.throughput.update(
                time=self.time, batches=self.batches, samples=self.samples, lengths=lengths, flops=lap.flops
            )
        self.laps.clear()
        return self.throughput.compute()

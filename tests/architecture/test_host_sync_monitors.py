"""Monitors read nothing from the device between two log points, and at one no more than they must."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
import torch

from gpulayer.pytorch.callbacks import (
    DeviceStatsMonitor,
    EarlyStopping,
    EMAWeightAveraging,
    GradientAccumulationScheduler,
    LearningRateMonitor,
    ModelPruning,
    SpikeDetection,
    StochasticWeightAveraging,
    ThroughputMonitor,
    Timer,
    WeightAveraging,
)
from gpulayer.pytorch.callbacks.meter import HostClock
from tests.architecture.test_host_sync import ScalarReads
from tests.architecture.workload import Net, Validated, batches, trainer

EVERY = 5


def size(batch: torch.Tensor) -> torch.Tensor:
    """The size as it would be counted on the device: a tensor."""
    return torch.ones_like(batch[:, 0]).sum()


def monitors() -> list[Any]:
    """All, with everything on that they can read."""
    return [
        ThroughputMonitor(size, length_fn=lambda batch: batch.count_nonzero(), window_size=4),
        DeviceStatsMonitor(cpu_stats=True),
        LearningRateMonitor("step", log_momentum=True, log_weight_decay=True),
    ]


class Steps(Net):
    """Notes, before and after each of its steps, how much has been read."""

    def __init__(self, mode: ScalarReads) -> None:
        super().__init__("two")
        self.mode = mode
        self.counts: list[int] = []

    def training_step(self, batch: torch.Tensor, batch_idx: int) -> torch.Tensor:
        self.counts.append(self.mode.count)
        return super().training_step(batch, batch_idx)


def test_nothing_is_read_between_log_points(tmp_path: Path) -> None:
    """Steps 4, 9, 14 ... are log points: what is read at one has been read when the next step begins."""
    with ScalarReads() as mode:
        model = Steps(mode)
        fit = trainer(tmp_path, logger=True, log_every_n_steps=EVERY, callbacks=monitors())
        fit.fit(model, batches(23))
    read = [after - before for before, after in zip(model.counts, model.counts[1:], strict=False)]
    assert len(read) == 22
    assert [step for step, count in enumerate(read) if count] == [4, 9, 14, 19]


AVERAGES = {
    "ema": lambda: EMAWeightAveraging(decay=0.9),
    "ema of every third step": lambda: EMAWeightAveraging(update_every_n_steps=3, update_starting_at_step=2),
    "mean": lambda: WeightAveraging(),
    "mean by a function": lambda: WeightAveraging(avg_fn=lambda old, new, count: old + (new - old) / (count + 1)),
    "stochastic": lambda: StochasticWeightAveraging(0.01, swa_epoch_start=1),
}


@pytest.mark.parametrize("average", AVERAGES)
def test_nothing_is_read_between_log_points_with_everything_attached(average: str, tmp_path: Path) -> None:
    """All monitors, averages, and what may stop or change a run. The second epoch begins with step 23."""

    class Both(Steps, Validated):
        pass

    with ScalarReads() as mode:
        model = Both(mode)
        callbacks = [
            *monitors(),
            AVERAGES[average](),
            EarlyStopping("val_loss"),
            Timer("00:01:00:00"),
            SpikeDetection(atol=1000),
            GradientAccumulationScheduler({0: 1}),
            ModelPruning("l1_unstructured", amount=1),
        ]
        fit = trainer(tmp_path, logger=True, log_every_n_steps=EVERY, callbacks=callbacks, max_epochs=2)
        fit.fit(model, batches(23), batches(2))
    steps = model.counts[:46]
    read = [after - before for before, after in pairwise(steps)]
    assert [step for step, count in enumerate(read) if count] == [4, 9, 14, 19, 22, 24, 29, 34, 39, 44]


def test_nothing_is_read_between_log_points_of_a_validation(tmp_path: Path) -> None:
    def total(count: int) -> int:
        with ScalarReads() as mode:
            fit = trainer(tmp_path, logger=True, log_every_n_steps=1000, callbacks=[DeviceStatsMonitor()])
            fit.fit(Validated("two"), batches(2), batches(count))
        return mode.count

    assert total(60) == total(20)


def test_the_clock_of_a_device_is_read_at_log_points_only(tmp_path: Path) -> None:
    """On CUDA the time between two marks is what the host waits for."""
    marked: list[str] = []

    class Watched(HostClock):
        def mark(self) -> Any:
            marked.append("mark")
            return super().mark()

        def seconds(self, begin: Any, end: Any) -> float:
            marked.append("read")
            return super().seconds(begin, end)

    with patch("gpulayer.pytorch.callbacks.throughput_monitor.HostClock", Watched):
        fit = trainer(tmp_path, logger=True, log_every_n_steps=EVERY, callbacks=monitors()[:1])
        fit.fit(Net(), batches(12))
    window = ["mark"] * EVERY + ["read"] * EVERY
    assert marked == ["mark", *window, *window, "mark", "mark"]

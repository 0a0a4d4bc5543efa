"""ThroughputMonitor: what reaches the loggers, on a clock that the test moves."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Any

import pytest
import torch

import gpulayer.pytorch as L
from gpulayer.fabric.utilities.exceptions import MisconfigurationException
from gpulayer.fabric.utilities.throughput import Throughput
from gpulayer.pytorch.callbacks import ThroughputMonitor, meter
from gpulayer.pytorch.callbacks.meter import CudaClock, Meter
from gpulayer.pytorch.callbacks.throughput_monitor import _dtype_of
from gpulayer.pytorch.loggers import Logger
from tests.pytorch.models import Line, loader, stream, trainer

Row = tuple[int, dict[str, float]]


class Rows(Logger):
    """Keeps what reaches it."""

    name, version = "rows", 0

    def __init__(self) -> None:
        super().__init__()
        self.rows: list[Row] = []

    def log_metrics(self, metrics: dict[str, float], step: int | None = None) -> None:
        assert step is not None
        self.rows.append((step, dict(metrics)))

    def log_hyperparams(self, params: Any, *args: Any, **kwargs: Any) -> None:
        pass

    def of(self, stage: str) -> list[Row]:
        """The rows of a stage, without the prefix and the epoch."""
        found = []
        for step, metrics in self.rows:
            values = {k.removeprefix(f"{stage}/"): v for k, v in metrics.items() if k.startswith(f"{stage}/")}
            if values:
                found.append((step, values))
        return found


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The time is its only item."""
    now = [1000.0]
    monkeypatch.setattr(meter, "perf_counter", lambda: now[0])
    return now


class Timed(Line):
    """A training batch takes 2 s, one of an evaluation 1 s."""

    def __init__(self, clock: list[float]) -> None:
        super().__init__()
        self.clock = clock

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        self.clock[0] += 2
        return self.loss(batch)

    def test_step(self, batch: Any, batch_idx: int) -> None:
        self.clock[0] += 1

    def predict_step(self, batch: Any, batch_idx: int) -> Any:
        self.clock[0] += 1


class TimedValidated(Timed):
    """What is around the batches of a validation takes 100 s."""

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        self.clock[0] += 1

    def on_validation_epoch_start(self) -> None:
        self.clock[0] += 50

    def on_validation_epoch_end(self) -> None:
        self.clock[0] += 50


def monitor(**arguments: Any) -> ThroughputMonitor:
    return ThroughputMonitor(lambda batch: len(batch[0]), **{"window_size": 3, **arguments})


def fit(module: L.Module, callback: ThroughputMonitor, *loaders: Any, **arguments: Any) -> Rows:
    rows = Rows()
    given = {"logger": rows, "max_epochs": 1, "log_every_n_steps": 2, "callbacks": [callback], **arguments}
    trainer(**given).fit(module, *(loaders or (loader(6),)))
    return rows


def test_totals_then_rates(clock: list[float]) -> None:
    rows = fit(Timed(clock), monitor())
    assert rows.of("train") == [
        (1, {"time": 4, "batches": 2, "samples": 4}),
        (3, {"time": 8, "batches": 4, "samples": 8, "device/batches_per_sec": 0.5, "device/samples_per_sec": 1}),
        (5, {"time": 12, "batches": 6, "samples": 12, "device/batches_per_sec": 0.5, "device/samples_per_sec": 1}),
    ]
    assert all(metrics["epoch"] == 0 for _, metrics in rows.rows)


def test_items_operations_and_utilisation(clock: list[float]) -> None:
    module = Timed(clock)
    module.flops_per_batch = 100
    callback = monitor(length_fn=lambda batch: batch[0].numel(), available_flops=200.0, world_size=4, separator="|")
    step, metrics = fit(module, callback).rows[-1]
    assert step == 5
    assert metrics["train|lengths"] == 6 * 2 * 4
    assert metrics["train|device|items_per_sec"] == 4
    assert metrics["train|items_per_sec"] == 16
    assert metrics["train|device|flops_per_sec"] == 50
    assert metrics["train|device|mfu"] == 0.25


def test_operations_set_in_setup(clock: list[float]) -> None:
    """As documented: the callback's own setup runs before the module's."""

    class Measured(Timed):
        def setup(self, stage: str) -> None:
            self.flops_per_batch = 10

    assert fit(Measured(clock), monitor()).of("train")[-1][1]["device/flops_per_sec"] == 5


def test_batches_of_different_sizes(clock: list[float]) -> None:
    """The last has one row: Lightning takes all for equal (its issue 20235)."""
    data = torch.utils.data.TensorDataset(torch.randn(7, 4), torch.randn(7, 1))
    rows = fit(Timed(clock), monitor(), torch.utils.data.DataLoader(data, batch_size=2))
    assert [metrics["samples"] for _, metrics in rows.of("train")] == [4, 7]


def test_sizes_that_are_tensors(clock: list[float]) -> None:
    callback = ThroughputMonitor(lambda batch: torch.ones_like(batch[1]).sum(), window_size=3)
    assert [metrics["samples"] for _, metrics in fit(Timed(clock), callback).of("train")] == [4, 8, 12]


def test_accumulated_batches_are_written_with_their_step(clock: list[float]) -> None:
    rows = fit(Timed(clock), monitor(), loader(5), accumulate_grad_batches=2, log_every_n_steps=1)
    assert [(step, metrics["batches"]) for step, metrics in rows.of("train")] == [(0, 2), (1, 4), (2, 5)]


def test_a_loader_without_length(clock: list[float]) -> None:
    rows = fit(Timed(clock), monitor(), stream(5), accumulate_grad_batches=2, log_every_n_steps=1)
    assert [(step, metrics["batches"]) for step, metrics in rows.of("train")] == [(0, 2), (1, 4), (2, 5)]


def test_validation_is_no_time_of_training(clock: list[float]) -> None:
    """Each has its own time; both count on from epoch to epoch."""
    arguments = {"max_epochs": 2, "num_sanity_val_steps": 2, "val_check_interval": 2}
    rows = fit(TimedValidated(clock), monitor(), loader(4), loader(3), **arguments)
    assert [(step, metrics["time"]) for step, metrics in rows.of("train")] == [(1, 4), (3, 8), (5, 12), (7, 16)]
    assert [metrics["device/batches_per_sec"] for _, metrics in rows.of("train")[1:]] == [0.5, 0.5, 0.5]
    seen = [(step, m["time"] - 50 * n, m["batches"]) for n, (step, m) in enumerate(rows.of("validate"), 1)]
    assert seen == [(2, 2, 2), (5, 5, 5), (8, 8, 8), (11, 11, 11)]


@pytest.mark.parametrize("call", ["validate", "test", "predict"])
def test_evaluations(call: str, clock: list[float]) -> None:
    rows = Rows()
    used = trainer(logger=rows, log_every_n_steps=2, callbacks=[monitor()])
    for _ in range(2):
        getattr(used, call)(TimedValidated(clock), loader(5))
    first = rows.of(call)[:2]
    assert [(step, metrics["batches"], metrics["samples"]) for step, metrics in first] == [(2, 2, 4), (4, 4, 8)]
    assert first[1][1]["device/batches_per_sec"] == 1
    assert [metrics["batches"] for _, metrics in rows.of(call)[2:]] == [2, 4]


def test_a_second_fit_counts_anew(clock: list[float]) -> None:
    rows = Rows()
    used = trainer(logger=rows, max_epochs=1, log_every_n_steps=2, callbacks=[monitor()])
    module = Timed(clock)
    used.fit(module, loader(4))
    used.fit_loop.max_epochs = 2
    clock[0] += 1000
    used.fit(module, loader(4))
    seen = [(step, metrics["batches"], metrics["time"]) for step, metrics in rows.of("train")]
    assert seen == [(1, 2, 4), (3, 4, 8), (5, 2, 4), (7, 4, 8)]


def test_added_during_training(clock: list[float]) -> None:
    class Adds(L.Callback):
        def on_train_epoch_end(self, trainer: L.Trainer, pl_module: L.Module) -> None:
            if trainer.current_epoch == 0:
                trainer.callbacks.append(monitor())

    rows = Rows()
    used = trainer(logger=rows, max_epochs=2, log_every_n_steps=2, callbacks=[Adds()])
    used.fit(Timed(clock), loader(4))
    assert [(step, metrics["batches"]) for step, metrics in rows.of("train")] == [(5, 2), (7, 4)]


def test_someone_stops_training(clock: list[float]) -> None:
    """Its last step is a log point."""

    class Stop(L.Callback):
        def on_train_batch_end(self, trainer: L.Trainer, *args: Any) -> None:
            trainer.should_stop = trainer.global_step == 3

    rows = Rows()
    used = trainer(logger=rows, max_epochs=1, log_every_n_steps=50, callbacks=[Stop(), monitor()])
    used.fit(Timed(clock), loader(6))
    assert [step for step, _ in rows.of("train")] == [2]


def test_in_metrics_csv() -> None:
    """The real clock and logger; a rate times its time is a number of batches."""
    callbacks = [ThroughputMonitor(lambda batch: len(batch[0]), window_size=4)]
    trainer(logger=None, max_epochs=2, log_every_n_steps=4, callbacks=callbacks).fit(Line(), loader(8))
    with Path("runs/Line/version_0/metrics.csv").open() as file:
        rows = [row for row in csv.DictReader(file, restval="") if row["train/time"]]
    assert [(int(row["epoch"]), int(row["step"])) for row in rows] == [(0, 3), (0, 7), (1, 11), (1, 15)]
    times = [float(row["train/time"]) for row in rows]
    assert times == sorted(times)
    rate = float(rows[-1]["train/device/batches_per_sec"])
    assert 3 / times[-1] < rate < 1e6
    assert float(rows[-1]["train/device/samples_per_sec"]) == pytest.approx(2 * rate)


def test_it_needs_a_logger() -> None:
    with pytest.raises(MisconfigurationException, match=r"ThroughputMonitor writes to loggers.*logger=False"):
        trainer(callbacks=[monitor()]).fit(Line(), loader())
    trainer(callbacks=[monitor()], fast_dev_run=True).fit(Line(), loader())


def test_without_log_points_nothing_is_counted() -> None:
    def size(batch: Any) -> int:
        raise AssertionError("nobody will read it")

    assert fit(Line(), ThroughputMonitor(size), log_every_n_steps=0).rows == []


@pytest.mark.parametrize("wrong", [{"window_size": 1}, {"world_size": 0}, {"available_flops": -1.0}])
def test_arguments(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=next(iter(wrong))):
        monitor(**wrong)


def test_a_wrong_size_says_so() -> None:
    with pytest.raises(ValueError, match="`samples=0` with `batches=1`"):
        fit(Line(), ThroughputMonitor(lambda batch: 0))


def test_marks_are_read_at_a_log_point_only() -> None:
    """A mark is what the device reaches later; to read it is to wait."""

    class Counting:
        marks = reads = 0

        def mark(self) -> Any:
            self.marks += 1
            return float(self.marks)

        def seconds(self, begin: Any, end: Any) -> float:
            self.reads += 1
            return float(end - begin)

    clock = Counting()
    counter = Meter(Throughput(window_size=2), clock)
    for _ in range(10):
        counter.count(1, None, None)
    assert (clock.marks, clock.reads) == (11, 0)
    assert counter.compute()["time"] == 10
    assert counter.compute()["batches"] == clock.reads == 10


def test_a_validation_between_log_points_is_not_kept(clock: list[float]) -> None:
    callback = monitor()
    fit(TimedValidated(clock), callback, loader(2), loader(3), log_every_n_steps=50, max_epochs=3)
    assert callback._meters["validate"].batches == 9
    assert callback._meters["validate"].laps == []


def test_two_marks_at_the_same_time(clock: list[float]) -> None:
    """CUDA's events have a resolution of half a microsecond: two may have the same time."""
    assert fit(Line(), monitor(), loader(4)).of("train")[-1][1]["time"] == pytest.approx(4e-9)


@pytest.mark.parametrize(
    ("precision", "dtype"),
    [
        ("32-true", torch.float32),
        ("64-true", torch.float64),
        ("16-mixed", torch.float16),
        ("16-true", torch.float16),
        ("bf16-mixed", torch.bfloat16),
        ("bf16-true", torch.bfloat16),
    ],
)
def test_formats_of_precisions(precision: str, dtype: torch.dtype) -> None:
    assert _dtype_of(trainer(precision=precision).precision) is dtype


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_time_on_the_device() -> None:
    """The host goes on at once; the time is that of the device's work."""
    clock = CudaClock()
    begin = clock.mark()
    torch.cuda._sleep(200_000_000)  # cycles: about a tenth of a second
    end = clock.mark()
    assert not end.query()
    assert 0.01 < clock.seconds(begin, end) < 10
    assert end.query()

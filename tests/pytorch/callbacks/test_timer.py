"""Timer and max_time, on a clock that the test moves."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

import gpulayer.pytorch as L
from gpulayer.fabric.utilities.exceptions import MisconfigurationException
from gpulayer.pytorch.callbacks import ModelCheckpoint, Timer, timer
from gpulayer.pytorch.callbacks.timer import read_duration
from tests.pytorch.models import Line, Validated, loader, same, trainer, weights


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The time is its only item."""
    now = [1000.0]
    monkeypatch.setattr(timer.time, "monotonic", lambda: now[0])
    return now


class Slow(Line):
    """Each batch takes ten seconds."""

    def __init__(self, clock: list[float]) -> None:
        super().__init__()
        self.clock = clock

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        self.clock[0] += 10
        return super().training_step(batch, batch_idx)


@pytest.mark.parametrize(
    ("given", "seconds"),
    [
        ("00:00:00:30", 30),
        ("01:02:03:04", 93784),
        ("100:00:00:00", 8640000),
        (timedelta(minutes=2), 120),
        ({"hours": 1, "seconds": 1}, 3601),
    ],
)
def test_durations(given: Any, seconds: int) -> None:
    assert read_duration(given).total_seconds() == seconds


@pytest.mark.parametrize("duration", ["00:00:00:30", timedelta(seconds=30), {"seconds": 30}])
def test_max_time_stops_after_the_batch_in_which_it_is_over(clock: list[float], duration: Any) -> None:
    used = trainer(max_time=duration)
    used.fit(Slow(clock), loader())
    assert used.global_step == 3


def test_max_time_alone_sets_no_bound_on_epochs(clock: list[float]) -> None:
    used = trainer(max_time="00:00:01:40")
    used.fit(Slow(clock), loader())
    assert used.global_step == 10
    assert used.current_epoch == 3


def test_max_epochs_may_come_first(clock: list[float]) -> None:
    used = trainer(max_time="00:00:01:40", max_epochs=2)
    used.fit(Slow(clock), loader())
    assert used.global_step == 8


def test_at_the_end_of_an_epoch(clock: list[float]) -> None:
    used = trainer(max_epochs=9, callbacks=[Timer("00:00:00:50", interval="epoch")])
    used.fit(Slow(clock), loader())
    assert used.global_step == 8


def test_min_steps_come_first(clock: list[float]) -> None:
    used = trainer(max_epochs=9, min_steps=6, max_time="00:00:00:30")
    used.fit(Slow(clock), loader())
    assert used.global_step == 6


def test_times_of_the_stages(clock: list[float]) -> None:
    class Reads(Validated, Slow):
        def validation_step(self, batch: Any, batch_idx: int) -> None:
            clock[0] += 1

        def test_step(self, batch: Any, batch_idx: int) -> None:
            clock[0] += 100

    watch = Timer()
    used = trainer(max_epochs=2, callbacks=[watch])
    assert watch.time_elapsed() == 0
    used.fit(Reads(clock), loader(), loader(2))
    assert watch.time_elapsed("train") == 2 * (4 * 10 + 2 * 1)
    assert watch.time_elapsed("validate") == 2  # the last validation
    assert watch.time_remaining() is None
    used.test(Reads(clock), loader(3))
    assert watch.time_elapsed("test") == 300
    assert watch.end_time("test") == clock[0]
    with pytest.raises(ValueError, match="'training'"):
        watch.time_elapsed("training")


def test_time_before_a_resume_counts(clock: list[float]) -> None:
    """80 of 100 seconds before the break leave two batches after it, however long the break was."""
    saver = ModelCheckpoint("saved", save_last=True)
    trainer(max_epochs=2, max_time="00:00:01:40", callbacks=[saver]).fit(Slow(clock), loader())
    clock[0] += 10000
    used = trainer(max_epochs=9, max_time="00:00:01:40", callbacks=[ModelCheckpoint("saved")])
    used.fit(Slow(clock), loader(), ckpt_path="saved/last.ckpt")
    assert used.global_step == 10


def test_of_a_timer_and_max_time_the_timer_counts(clock: list[float]) -> None:
    with pytest.warns(UserWarning, match="`Trainer\\(max_time=...\\)` is ignored"):
        used = L.Trainer(
            accelerator="cpu", max_time="00:00:00:10", logger=False, max_epochs=9, enable_checkpointing=False,
            callbacks=Timer("00:00:00:30"),
        )  # fmt: skip
    used.fit(Slow(clock), loader())
    assert used.global_step == 3


@pytest.mark.filterwarnings("ignore:The checkpoint holds the state of callbacks")
@pytest.mark.parametrize(("interval", "steps"), [("step", 7), ("epoch", 8)])
def test_a_run_saved_at_any_batch_stops_where_the_whole_one_did(clock: list[float], interval: str, steps: int) -> None:
    """Seventy seconds of ten a batch, of four batches an epoch; the moment of the stop included, bit for bit."""

    def run(path: str | None = None) -> tuple[int, dict[str, Any]]:
        saver = ModelCheckpoint("saved", "{step}", save_top_k=-1, every_n_train_steps=1)
        ends = ModelCheckpoint("ends", "{step}", save_top_k=-1, save_on_train_epoch_end=True)
        model = Slow(clock)
        used = trainer(max_epochs=9, callbacks=[Timer({"seconds": 70}, interval), *([] if path else [saver, ends])])
        used.fit(model, loader(), ckpt_path=path)
        return used.global_step, weights(model)

    ended, whole = run()
    assert ended == steps
    files = [*Path("saved").glob("*.ckpt"), *Path("ends").glob("*.ckpt")]
    assert len(files) == steps + 2
    for path in files:
        clock[0] += 500
        again, resumed = run(str(path))
        assert again == steps, path
        assert same(whole, resumed)


@pytest.mark.parametrize(
    "given",
    [
        {"duration": 5},
        {"duration": "5 minutes"},
        {"duration": {"years": 1}},
        {"duration": {}},
        {"duration": {"hours": True}},
        {"duration": {"hours": float("nan")}},
        {"duration": {"days": 10**12}},
        {"duration": "99999999999:00:00:00"},
        {"verbose": 1},
        {"duration": timedelta(seconds=-1)},
        {"interval": "batch"},
        {"interval": None},
    ],
)
def test_bad_values_are_refused_when_it_is_made(given: dict[str, Any]) -> None:
    with pytest.raises(MisconfigurationException, match=r"is no duration|choose 'step' or|choose True or"):
        Timer(**given)

"""val_check_interval as a time: a validation each time so much time has gone by."""

from __future__ import annotations

import time
from datetime import timedelta
from typing import Any

import pytest

from gpulayer.pytorch.callbacks import ModelCheckpoint
from gpulayer.pytorch.loops.when import Every
from tests.pytorch.models import Validated, loader, trainer


class Clock(Validated):
    """Each batch takes `seconds`; notes after how many batches it was validated."""

    def __init__(self, seconds: float = 0.0) -> None:
        super().__init__()
        self.seconds = seconds
        self.batches = 0
        self.validated: list[int] = []
        self.times: list[float] = []

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        time.sleep(self.seconds)
        self.batches += 1
        return super().training_step(batch, batch_idx)

    def on_validation_start(self) -> None:
        self.validated.append(self.batches)
        self.times.append(time.monotonic())


@pytest.fixture
def by_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    """A clock that a trigger finds ten seconds later each time that it looks."""
    now = {"seconds": 0.0}

    def clock() -> float:
        now["seconds"] += 10
        return now["seconds"]

    init = Every.__init__
    monkeypatch.setattr(Every, "__init__", lambda self, *args: init(self, *args[:3], clock))


INTERVALS: list[Any] = ["00:00:00:30", {"seconds": 30}, timedelta(seconds=30), "0:00:00:30"]


@pytest.mark.usefixtures("by_batches")
@pytest.mark.parametrize("interval", INTERVALS, ids=str)
def test_each_form(interval: Any) -> None:
    """Every third batch, and the count goes on across epochs, whose ends mean nothing."""
    model, used = Clock(), trainer(val_check_interval=interval, max_epochs=5)
    used.fit(model, loader(4), loader(1))
    assert model.validated == [3, 6, 9, 12, 15, 18]
    assert used.val_check_interval == timedelta(seconds=30)


@pytest.mark.usefixtures("by_batches")
def test_a_minute_and_a_half() -> None:
    model = Clock()
    trainer(val_check_interval={"minutes": 1, "seconds": 30}, max_epochs=5).fit(model, loader(4), loader(1))
    assert model.validated == [9, 18]


@pytest.mark.parametrize("interval", ["00:00:00:01", timedelta(milliseconds=200)], ids=str)
def test_by_the_real_clock(interval: Any) -> None:
    """About each second, in epochs of 0.3 seconds; or in parts of a second."""
    model, begun = Clock(0.03), time.monotonic()
    used = trainer(val_check_interval=interval, max_steps=45)
    used.fit(model, loader(10), loader(1))
    seconds = used.val_check_interval.total_seconds()
    moments = [begun, *model.times]
    assert all(later - earlier >= 0.99 * seconds for earlier, later in zip(moments, model.times, strict=False))
    assert 1 <= len(model.times) <= (time.monotonic() - begun) / seconds
    assert model.batches == 45


@pytest.mark.usefixtures("by_batches")
def test_a_checkpoint_after_each_of_them() -> None:
    saver = ModelCheckpoint("saved", "{step}", monitor="val_loss", save_top_k=-1)
    used = trainer(val_check_interval={"seconds": 30}, max_epochs=5, callbacks=[saver])
    used.fit(Clock(), loader(4), loader(1))
    assert used.current_epoch == 5
    assert len(saver.best_k_models) == 6


def test_a_callback_that_asks_takes_no_validation_away() -> None:
    """A checkpoint by steps asks after each batch whether a score is to come; the validation comes all the same."""
    saver = ModelCheckpoint("saved", "{step}", monitor="val_loss", save_top_k=-1, every_n_train_steps=1)
    model = Clock(0.02)
    # The first score is there before the first save.
    trainer(val_check_interval=timedelta(milliseconds=10), max_steps=6, callbacks=[saver]).fit(
        model, loader(3), loader(1)
    )
    assert model.validated == [1, 2, 3, 4, 5, 6]
    assert len(saver.best_k_models) == 6


@pytest.mark.usefixtures("by_batches")
def test_a_time_that_is_longer_than_the_run() -> None:
    model = Clock()
    trainer(val_check_interval="01:00:00:00", max_epochs=2).fit(model, loader(4), loader(1))
    assert model.validated == []

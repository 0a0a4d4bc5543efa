"""EarlyStopping on scores that are known beforehand."""

from __future__ import annotations

from math import inf, nan
from typing import Any

import pytest

from gpulayer.pytorch.callbacks import EarlyStopping, ModelCheckpoint
from tests.pytorch.models import Line, Scored, loader, trainer


def epochs_run(scores: list[float], **settings: Any) -> tuple[int, EarlyStopping]:
    """How many epochs a run over `scores` has, and the callback."""
    stopping = EarlyStopping("score", **settings)
    used = trainer(max_epochs=len(scores), callbacks=[stopping])
    used.fit(Scored(scores), loader(), loader())
    return used.current_epoch, stopping


@pytest.mark.parametrize(
    ("scores", "patience", "epochs"),
    [
        ([3, 2, 1, 0], 1, 4),  # always better
        ([3, 2, 2, 2, 2, 2], 3, 5),  # 3 checks without a better one, after the second
        ([3, 2, 2, 2, 1, 1, 1, 1, 1], 3, 8),  # a better one starts the count anew
        ([3, 3, 3], 0, 2),  # 0 as 1: the first check is the best so far
        ([1, 2, 3], 1, 2),
    ],
)
def test_patience(scores: list[float], patience: int, epochs: int) -> None:
    assert epochs_run(scores, patience=patience)[0] == epochs


@pytest.mark.parametrize(
    ("mode", "scores", "epochs"),
    [("min", [1, 2, 3, 4], 3), ("max", [1, 2, 3, 4], 4), ("max", [4, 3, 2, 1], 3), ("min", [-1, -2, -3, -4], 4)],
)
def test_modes(mode: str, scores: list[float], epochs: int) -> None:
    assert epochs_run(scores, patience=2, mode=mode)[0] == epochs


@pytest.mark.parametrize(
    ("min_delta", "epochs"),
    [(0.0, 5), (0.05, 5), (0.2, 3), (-0.2, 3)],  # to be better takes more than min_delta; its sign does not matter
)
def test_min_delta(min_delta: float, epochs: int) -> None:
    scores = [1.0, 0.9375, 0.875, 0.8125, 0.75]
    assert epochs_run(scores, patience=2, min_delta=min_delta)[0] == epochs


def test_min_delta_is_counted_from_the_best_that_counted() -> None:
    """Small steps add up: 0.9375 is not enough below 1.0, 0.875 is."""
    epochs, stopping = epochs_run([1.0, 0.9375, 0.875, 0.875], patience=2, min_delta=0.1)
    assert epochs == 4
    assert float(stopping.best_score) == 0.875


@pytest.mark.parametrize("bad", [nan, inf, -inf])
def test_a_score_that_is_no_number_stops_at_once(bad: float) -> None:
    assert epochs_run([3, bad, 1], patience=10)[0] == 2
    assert epochs_run([3, bad, 1], patience=10, check_finite=False)[0] == 3


def test_nan_is_never_the_best() -> None:
    _, stopping = epochs_run([3, nan, 4], patience=10, check_finite=False)
    assert float(stopping.best_score) == 3
    assert stopping.wait_count == 2


def test_thresholds() -> None:
    assert epochs_run([3, 2, 0.5, 0.1], stopping_threshold=1.0)[0] == 3
    assert epochs_run([3, 11, 0.5, 0.1], divergence_threshold=10.0)[0] == 2
    assert epochs_run([0.3, 0.95, 0.99], mode="max", stopping_threshold=0.9)[0] == 2


def test_why_and_when_it_stopped() -> None:
    epochs, stopping = epochs_run([3, 2, 2, 2, 2], patience=2)
    assert stopping.stopped_epoch == epochs - 1 == 3
    assert stopping.stopping_reason_message == "score was not better than 2 for 2 checks."


def test_min_epochs_come_first() -> None:
    stopping = EarlyStopping("score", patience=1)
    used = trainer(max_epochs=9, min_epochs=5, callbacks=[stopping])
    used.fit(Scored([1] * 9), loader(), loader())
    assert used.current_epoch == 5


def test_a_metric_of_training() -> None:
    """Without a validation it looks at the end of the training epoch."""
    used = trainer(max_epochs=50, callbacks=[EarlyStopping("train_loss", patience=1, stopping_threshold=1.0)])
    used.fit(Line(), loader())
    assert 1 < used.current_epoch < 50
    assert float(used.callback_metrics["train_loss"]) < 1.0


def test_it_looks_after_each_validation_where_there_are_several_an_epoch() -> None:
    """Two validations an epoch, both with the epoch's score: the third check without a better one is in epoch 2."""
    used = trainer(max_epochs=9, val_check_interval=0.5, callbacks=[EarlyStopping("score", patience=3)])
    used.fit(Scored([1] * 9), loader(), loader())
    assert used.current_epoch == 2
    assert used.global_step == 8


def test_the_sanity_check_does_not_count() -> None:
    stopping = EarlyStopping("score", patience=2)
    used = trainer(max_epochs=9, num_sanity_val_steps=2, callbacks=[stopping])
    used.fit(Scored([1, 2, 2] + [0] * 6), loader(), loader())
    assert used.current_epoch == 3


def test_patience_goes_on_after_a_resume() -> None:
    """Two checks without a better score, a break, and the third ends the run."""
    scores = [2, 1, 1, 1, 1, 1, 1]
    first = EarlyStopping("score", patience=3)
    saver = ModelCheckpoint("saved", save_last=True)
    trainer(max_epochs=4, callbacks=[first, saver]).fit(Scored(scores), loader(), loader())
    assert first.wait_count == 2

    second = EarlyStopping("score", patience=3)
    used = trainer(max_epochs=7, callbacks=[second, ModelCheckpoint("saved")])
    used.fit(Scored(scores), loader(), loader(), ckpt_path="saved/last.ckpt")
    assert used.current_epoch == 5
    assert second.wait_count == 3
    assert float(second.best_score) == 1


def test_two_monitors_at_once() -> None:
    """Each keeps its own count and its own place in a checkpoint."""
    callbacks = [EarlyStopping("score", patience=5), EarlyStopping("val_loss", patience=1, mode="max")]

    class Both(Scored):
        def validation_step(self, batch: Any, batch_idx: int) -> None:
            super().validation_step(batch, batch_idx)
            self.log("val_loss", float(-self.current_epoch))

    used = trainer(max_epochs=9, callbacks=callbacks)
    used.fit(Both([1] * 9), loader(), loader())
    assert used.current_epoch == 2
    assert callbacks[0].state_key != callbacks[1].state_key
    assert [callback.wait_count for callback in callbacks] == [1, 1]

"""EarlyStopping on scores that are known beforehand."""

from __future__ import annotations

from math import inf, nan
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gpulayer.fabric.utilities.exceptions import MisconfigurationException
from gpulayer.pytorch.callbacks import EarlyStopping, ModelCheckpoint
from gpulayer.pytorch.callbacks.early_stopping import EarlyStoppingReason
from tests.pytorch.models import Line, Scored, loader, same, trainer, weights


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


REASONS: list[tuple[list[float], dict[str, Any], EarlyStoppingReason]] = [
    ([3, 2, 2, 2, 2, 2], {"patience": 2}, EarlyStoppingReason.PATIENCE_EXHAUSTED),
    ([3, nan, 1, 0, 0, 0], {"patience": 9}, EarlyStoppingReason.NON_FINITE_METRIC),
    ([3, 2, 0.5, 0, 0, 0], {"stopping_threshold": 1.0}, EarlyStoppingReason.STOPPING_THRESHOLD),
    ([3, 2, 11, 0, 0, 0], {"divergence_threshold": 10.0}, EarlyStoppingReason.DIVERGENCE_THRESHOLD),
]


@pytest.mark.filterwarnings("ignore:The checkpoint holds the state of callbacks")
@pytest.mark.parametrize("where", ["epochs", "validations"])
@pytest.mark.parametrize(("scores", "settings", "reason"), REASONS)
def test_a_resumed_run_stops_where_the_whole_one_did(
    where: str, scores: list[float], settings: dict[str, Any], reason: EarlyStoppingReason
) -> None:
    """From each file that was saved on the way, that of the last moment included; bit for bit."""
    limits: dict[str, Any] = {} if where == "epochs" else {"val_check_interval": 2, "min_steps": 7}

    def run(path: str | None = None) -> tuple[Any, EarlyStopping, dict[str, Any]]:
        every = ModelCheckpoint("saved", "{step}", save_top_k=-1, every_n_train_steps=1)
        ends = ModelCheckpoint("ends", "{step}", save_top_k=-1, save_on_train_epoch_end=where == "epochs")
        stopping, model = EarlyStopping("score", **settings), Scored(scores)
        used = trainer(max_epochs=len(scores), callbacks=[stopping, *([] if path else [every, ends])], **limits)
        used.fit(model, loader(), loader(), ckpt_path=path)
        return used, stopping, weights(model)

    whole, stopping, ended = run()
    assert stopping.stopping_reason is reason
    assert whole.current_epoch < len(scores)
    files = [*Path("saved").glob("*.ckpt"), *Path("ends").glob("*.ckpt")]
    assert len(files) >= whole.global_step + whole.current_epoch
    for path in files:
        resumed, again, weights_again = run(str(path))
        assert (resumed.global_step, resumed.current_epoch) == (whole.global_step, whole.current_epoch), path
        assert same(ended, weights_again)
        assert {**again.state_dict(), "last_score": 0} == {**stopping.state_dict(), "last_score": 0}


def test_a_run_that_had_ended_trains_no_further_unless_it_is_given_more_patience() -> None:
    """Also from a file that was saved after `fit`; whatever patience it was saved with."""
    scores = [2, 1, 1, 1, 1, 1, 1, 1]
    used = trainer(max_epochs=8, callbacks=[EarlyStopping("score", patience=2)])
    used.fit(Scored(scores), loader(), loader())
    assert used.current_epoch == 4
    used.save_checkpoint("ended.ckpt")
    for patience, epochs in ((2, 4), (1, 4), (4, 6)):
        stopping = EarlyStopping("score", patience=patience)
        used = trainer(max_epochs=8, callbacks=[stopping])
        used.fit(Scored(scores), loader(), loader(), ckpt_path="ended.ckpt")
        assert used.current_epoch == epochs
        assert stopping.stopped_epoch == epochs - 1
        assert stopping.patience == patience


def test_another_threshold_lets_a_run_go_on() -> None:
    scores = [3, 2, 0.5, 0.4, 0.3, 0.1]
    used = trainer(max_epochs=6, callbacks=[EarlyStopping("score", stopping_threshold=1.0)])
    used.fit(Scored(scores), loader(), loader())
    used.save_checkpoint("ended.ckpt")
    stopping = EarlyStopping("score", stopping_threshold=0.35)
    used = trainer(max_epochs=6, callbacks=[stopping])
    used.fit(Scored(scores), loader(), loader(), ckpt_path="ended.ckpt")
    assert used.current_epoch == 5
    assert float(stopping.best_score) == pytest.approx(0.3)


def test_fit_called_again_without_a_checkpoint_trains_on() -> None:
    stopping = EarlyStopping("score", patience=2)
    used = trainer(max_epochs=9, callbacks=[stopping])
    model = Scored([1] * 9)
    used.fit(model, loader(), loader())
    assert used.current_epoch == 3
    used.fit(model, loader(), loader())
    assert used.current_epoch == 4


def test_a_recovery_while_min_epochs_are_not_reached() -> None:
    """Nothing of the stop that was asked for is left."""
    stopping = EarlyStopping("score", patience=1)
    used = trainer(max_epochs=5, min_epochs=4, callbacks=[stopping])
    used.fit(Scored([3, 3, 3, 2, 1]), loader(), loader())
    assert used.current_epoch == 5
    assert (stopping.stopping_reason, stopping.stopping_reason_message) == (EarlyStoppingReason.NOT_STOPPED, None)
    assert stopping.stopped_epoch == 0


def test_fast_dev_run_and_the_metric_of_another_name() -> None:
    used = trainer(fast_dev_run=True, callbacks=[EarlyStopping("unknown")])
    used.fit(Scored([1]), loader(), loader())
    with pytest.raises(
        MisconfigurationException, match=r"monitor='unknown'\)`: no such metric.*\['score', 'train_loss'"
    ):
        trainer(max_epochs=2, callbacks=[EarlyStopping("unknown")]).fit(Scored([1] * 2), loader(), loader())
    with pytest.warns(UserWarning, match="no such metric"):
        trainer(max_epochs=2, callbacks=[EarlyStopping("unknown", strict=False)]).fit(
            Scored([1] * 2), loader(), loader()
        )


def test_lines(caplog: pytest.LogCaptureFixture) -> None:
    """That it stops is always said; with `verbose` each better value, too."""
    for verbose, better in ((False, 0), (True, 2)):
        caplog.clear()
        with caplog.at_level("INFO", logger="gpulayer"):
            epochs_run([3, 2, 2], patience=1, verbose=verbose)
        lines = [record.message for record in caplog.records if record.message.startswith("EarlyStopping")]
        assert len(lines) == better + 1
        assert lines[-1] == "EarlyStopping: score was not better than 2 for 1 checks."


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"monitor": None}, "give the name"),
        ({"monitor": ""}, "give the name"),
        ({"min_delta": inf}, "give a finite number"),
        ({"mode": "auto"}, "choose 'min' or 'max'"),
        ({"patience": -1}, "number of checks from 0"),
        ({"patience": 2.5}, "number of checks from 0"),
        ({"patience": True}, "number of checks from 0"),
        ({"min_delta": None}, "min_delta=None.*give a number"),
        ({"min_delta": "1"}, "give a number"),
        ({"stopping_threshold": nan}, "stopping_threshold=nan.*give a number"),
        ({"divergence_threshold": "high"}, "give a number"),
        ({"strict": None}, "strict=None.*True or False"),
        ({"verbose": 1}, "True or False"),
        ({"check_finite": "yes"}, "True or False"),
        ({"check_on_train_epoch_end": 1}, "True or False"),
        ({"log_rank_zero_only": 0}, "True or False"),
        ({"stopping_threshold": 2.0, "divergence_threshold": 1.0}, "must be below"),
        ({"stopping_threshold": 1.0, "divergence_threshold": 2.0, "mode": "max"}, "must be above"),
    ],
)
def test_bad_values_are_refused_when_it_is_made(given: dict[str, Any], message: str) -> None:
    with pytest.raises(MisconfigurationException, match=message):
        EarlyStopping(**{"monitor": "score", **given})


def test_numbers_of_numpy() -> None:
    EarlyStopping("score", patience=np.int64(2), min_delta=np.float32(0.1), stopping_threshold=np.float64(1))

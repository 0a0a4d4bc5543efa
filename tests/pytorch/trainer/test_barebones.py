"""barebones: the loop alone, to measure its speed."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import gpulayer.pytorch as L
from gpulayer.fabric.utilities.exceptions import MisconfigurationException
from gpulayer.pytorch.callbacks import ModelCheckpoint
from gpulayer.pytorch.loggers import CSVLogger
from tests.pytorch.models import Line, Validated, loader, same, trainer, weights


def barebones(**arguments: Any) -> L.Trainer:
    return L.Trainer(**{"accelerator": "cpu", "barebones": True, **arguments})


@pytest.fixture
def said(capfd: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture) -> Callable[[], str]:
    """What was printed and logged so far."""
    return lambda: "".join(capfd.readouterr()) + caplog.text


CONFLICTS: dict[str, Any] = {
    "enable_checkpointing": True,
    "logger": True,
    "enable_progress_bar": True,
    "enable_model_summary": True,
    "num_sanity_val_steps": 2,
    "log_every_n_steps": 10,
    "fast_dev_run": True,
    "detect_anomaly": True,
}


@pytest.mark.parametrize("name", CONFLICTS)
def test_what_it_cannot_honour_is_refused(name: str) -> None:
    with pytest.raises(MisconfigurationException) as caught:
        barebones(**{name: CONFLICTS[name]})
    for piece in ("barebones=True", f"{name}={CONFLICTS[name]!r}", "Leave it out"):
        assert piece in str(caught.value)


def test_all_of_it_is_named_at_once() -> None:
    with pytest.raises(MisconfigurationException) as caught:
        barebones(**CONFLICTS)
    for name, value in CONFLICTS.items():
        assert f"{name}={value!r}" in str(caught.value)
    assert "Leave them out" in str(caught.value)


def test_other_loggers_are_refused_too() -> None:
    for logger in (CSVLogger("logs"), [CSVLogger("logs")]):
        with pytest.raises(MisconfigurationException, match=r"barebones=True, logger="):
            barebones(logger=logger)
    with pytest.raises(MisconfigurationException, match="ModelCheckpoint"):
        barebones(callbacks=[ModelCheckpoint()])


def test_what_is_switched_off_already_is_fine() -> None:
    off = {name: False if isinstance(value, bool) else 0 for name, value in CONFLICTS.items()}
    used = barebones(**off)
    assert (used.loggers, used.callbacks, used.num_sanity_val_steps, used.log_every_n_steps) == ([], [], 0, 0)


class Logs(Validated):
    """Logs much, and notes what is called."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[str] = []

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        self.log_dict({"a": 1.0, "b": 2.0}, prog_bar=True)
        return super().training_step(batch, batch_idx)

    def on_validation_start(self) -> None:
        self.calls.append("validation")

    def on_train_epoch_end(self) -> None:
        self.calls.append("epoch")


def test_the_loop_trains_and_leaves_nothing(fresh_folder: Path, said: Callable[[], str]) -> None:
    """One warning for each metric; no file and no line."""
    model, used = Logs(), barebones(max_epochs=2)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        used.fit(model, loader(), loader())
    assert [str(warning.message) for warning in caught] == [
        f"`self.log({name!r}, ...)` does nothing in a barebones run." for name in ("a", "b", "train_loss", "val_loss")
    ]
    assert list(fresh_folder.iterdir()) == []
    assert said() == ""
    assert model.calls == ["validation", "epoch"] * 2
    assert (used.global_step, used.callback_metrics, used.logged_metrics) == (8, {}, {})


@pytest.mark.filterwarnings("ignore:.*does nothing in a barebones run")
def test_the_weights_are_those_of_any_other_run() -> None:
    model, plain = Logs(), Logs()
    plain.load_state_dict(model.state_dict())
    barebones(max_epochs=2).fit(model, loader(), loader())
    trainer(max_epochs=2).fit(plain, loader(), loader())
    assert same(weights(model), weights(plain))


@pytest.mark.filterwarnings("ignore:.*does nothing in a barebones run")
def test_evaluations_print_nothing_either(fresh_folder: Path, said: Callable[[], str]) -> None:
    used, model = barebones(), Validated()
    assert used.validate(model, loader()) == {}
    assert used.test(model, loader()) == {}
    assert len(used.predict(model, loader()) or []) == 4
    assert list(fresh_folder.iterdir()) == []
    assert said() == ""


def test_callbacks_still_run() -> None:
    class Counts(L.Callback):
        batches = 0

        def on_train_batch_end(self, *_: Any) -> None:
            self.batches += 1

    class Quiet(Line):
        def training_step(self, batch: Any, batch_idx: int) -> Any:
            return self.loss(batch)

    counts = Counts()
    barebones(callbacks=[counts]).fit(Quiet(), loader())
    assert counts.batches == 4

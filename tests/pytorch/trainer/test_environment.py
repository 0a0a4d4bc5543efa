"""Arguments of the Trainer from environment variables."""

from __future__ import annotations

import inspect
from datetime import timedelta
from typing import Any

import pytest

import gpulayer.pytorch as L
from gpulayer.fabric.utilities.exceptions import MisconfigurationException
from gpulayer.pytorch.callbacks import Timer
from tests.pytorch.models import Line, loader


@pytest.fixture
def set_variable(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Sets PL_TRAINER_<NAME> for this test."""

    def variable(name: str, text: str) -> None:
        monkeypatch.setenv(f"PL_TRAINER_{name.upper()}", text)

    variable("accelerator", "cpu")
    return variable


READ: list[tuple[str, str, Any]] = [
    ("max_epochs", "7", 7),
    ("max_epochs", "-1", -1),
    ("max_steps", "30", 30),
    ("min_steps", "None", None),
    ("limit_train_batches", "3", 3),
    ("limit_train_batches", "0.5", 0.5),
    ("limit_val_batches", "1.0", 1.0),
    ("overfit_batches", "2", 2),
    ("val_check_interval", "0.25", 0.25),
    ("val_check_interval", "100", 100),
    ("val_check_interval", "00:00:15:00", timedelta(minutes=15)),
    ("val_check_interval", "{'minutes': 15}", timedelta(minutes=15)),
    ("num_sanity_val_steps", "0", 0),
    ("gradient_clip_val", "1", 1),
    ("gradient_clip_algorithm", "value", "value"),
    ("accumulate_grad_batches", "4", 4),
    ("fast_dev_run", "2", 2),
    ("inference_mode", "False", False),
    ("detect_anomaly", "True", True),
    ("barebones", "True", True),
    ("precision", "bf16", "bf16-mixed"),
    ("precision", "16-mixed", "16-mixed"),
    ("precision", "64", "64-true"),
    ("default_root_dir", "somewhere", "somewhere"),
    ("sync_batchnorm", "True", True),
]


@pytest.mark.parametrize(("name", "text", "value"), READ)
def test_a_variable_is_read_as_what_it_stands_for(set_variable: Any, name: str, text: str, value: Any) -> None:
    set_variable(name, text)
    found = getattr(L.Trainer(), name)
    assert (found, type(found)) == (value, type(value))


def test_switches(set_variable: Any) -> None:
    set_variable("logger", "False")
    set_variable("enable_checkpointing", "False")
    set_variable("devices", "1")
    set_variable("max_time", "{'hours': 2}")
    used = L.Trainer()
    assert (used.loggers, used.checkpoint_callbacks, used.num_devices) == ([], [], 1)
    assert [type(callback) for callback in used.callbacks] == [Timer]
    set_variable("devices", "auto")
    set_variable("max_time", "00:12:00:00")
    assert L.Trainer().num_devices == 1


def test_a_run_with_variables_alone(set_variable: Any) -> None:
    for name, text in {"max_epochs": "2", "limit_train_batches": "0.5", "logger": "False"}.items():
        set_variable(name, text)
    used = L.Trainer()
    used.fit(Line(), loader(4))
    assert (used.current_epoch, used.global_step) == (2, 4)


def test_what_is_written_in_the_script_wins(set_variable: Any) -> None:
    set_variable("max_epochs", "7")
    set_variable("limit_train_batches", "nonsense")
    used = L.Trainer(max_epochs=3, limit_train_batches=1.0)
    assert (used.max_epochs, used.limit_train_batches) == (3, 1.0)


ARGUMENTS = [
    name
    for name, parameter in inspect.signature(L.Trainer.__init__).parameters.items()
    if parameter.kind is parameter.KEYWORD_ONLY
]
SWITCHES = {"use_distributed_sampler": False, "sync_batchnorm": True, "enable_autolog_hparams": False}


@pytest.mark.parametrize("name", sorted({*ARGUMENTS} - {*SWITCHES, "default_root_dir"}))
def test_each_argument_has_a_variable(set_variable: Any, name: str) -> None:
    """Nonsense is refused, so it was read."""
    set_variable(name, "a b")
    with pytest.raises(MisconfigurationException, match=f"a b|{name}"):
        L.Trainer()


@pytest.mark.parametrize("name", SWITCHES)
def test_switches_that_only_matter_later(set_variable: Any, name: str) -> None:
    set_variable(name, str(SWITCHES[name]))
    assert getattr(L.Trainer(), name) is SWITCHES[name]


WRONG: list[tuple[str, str, tuple[str, ...]]] = [
    ("max_epochs", "ten", ("max_epochs='ten'", "a whole number")),
    ("max_epochs", "1.5", ("max_epochs=1.5", "a whole number")),
    ("limit_train_batches", "half", ("limit_train_batches='half'", "a fraction")),
    ("limit_train_batches", "1.5", ("limit_train_batches=1.5", "a fraction")),
    ("accelerator", "tpu9", ("accelerator='tpu9'", "'auto'")),
    ("precision", "8bit", ("precision='8bit'", "'bf16-mixed'")),
    ("devices", "many", ("devices='many'", "at least 1")),
    ("enable_checkpointing", "yes", ("enable_checkpointing='yes'", "True or False")),
    ("inference_mode", "true", ("inference_mode='true'", "True or False")),
    ("deterministic", "sometimes", ("deterministic='sometimes'", "'warn'")),
    ("gradient_clip_val", "small", ("gradient_clip_val='small'", "a number")),
    ("max_time", "an hour", ("max_time='an hour'", "'DD:HH:MM:SS'")),
    ("val_check_interval", "often", ("val_check_interval='often'", "'DD:HH:MM:SS'")),
    ("logger", "csv", ("logger='csv'", "True for metrics.csv")),
    ("callbacks", "early_stopping", ("early_stopping", "subclasses")),
    ("fast_dev_run", "maybe", ("fast_dev_run='maybe'", "True")),
]


@pytest.mark.parametrize(("name", "text", "pieces"), WRONG)
def test_a_value_that_cannot_be_used(set_variable: Any, name: str, text: str, pieces: tuple[str, ...]) -> None:
    """It is refused as if it stood in the script."""
    set_variable(name, text)
    with pytest.raises(MisconfigurationException) as caught:
        L.Trainer()
    for piece in pieces:
        assert piece in str(caught.value)


def test_a_folder_whose_name_is_a_number(set_variable: Any) -> None:
    set_variable("default_root_dir", "2026")
    assert L.Trainer().default_root_dir == "2026"


def test_they_stay_keywords(set_variable: Any) -> None:
    set_variable("max_epochs", "7")
    with pytest.raises(TypeError, match="no argument `max_epoch`; did you mean `max_epochs`"):
        L.Trainer(max_epoch=3)

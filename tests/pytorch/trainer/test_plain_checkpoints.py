"""What a checkpoint holds beyond plain data is said when it is saved, not when it is needed."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import gpulayer.pytorch as L
from gpulayer.fabric.utilities.exceptions import MisconfigurationException
from tests.pytorch.models import Line, loader, trainer


class Thing:
    """A class of the user's."""


class Keeps(L.Callback):
    def __init__(self, value: Any) -> None:
        self.value = value

    def state_dict(self) -> dict[str, Any]:
        return {"value": self.value}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.value = state_dict["value"]


class Data(L.DataModule):
    def __init__(self, value: Any) -> None:
        super().__init__()
        self.value = value

    def train_dataloader(self) -> Any:
        return loader()

    def state_dict(self) -> dict[str, Any]:
        return {"value": self.value}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.value = state_dict["value"]


class Full(Line):
    """A module with something of the user's in each place that a checkpoint has for it."""

    def __init__(self, value: Any = None) -> None:
        super().__init__()
        self.save_hyperparameters()
        self.value = value

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        checkpoint["extra"] = [self.value]


def save(value: Any) -> None:
    used = trainer(callbacks=[Keeps(value)])
    used.fit(Full(value), datamodule=Data(value))
    used.save_checkpoint("run.ckpt")


def test_each_place_is_named_in_one_warning() -> None:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        save(Thing())
    (message,) = [str(one.message) for one in caught if "more than plain data" in str(one.message)]
    for place in (
        "['callbacks']['Keeps']['value']",
        "['hyper_parameters']['value']",
        "['Data']['value']",
        "['extra'][0]",
    ):
        assert f"`checkpoint{place}`" in message
    assert f"of {Thing.__module__}.Thing." in message
    with pytest.raises(MisconfigurationException, match=r"add_safe_globals\(\[.*Thing\]\)"):
        trainer(max_epochs=2, callbacks=[Keeps(None)]).fit(Full(), datamodule=Data(None), ckpt_path="run.ckpt")


@pytest.mark.parametrize("value", [Path("data"), np.float64(0.5), np.arange(3), {"a": (1, None)}, torch.ones(2)])
def test_standard_types_need_no_word(value: Any) -> None:
    """Neither when they are saved (a warning would fail this) nor when the run goes on."""
    save(value)
    callback, data = Keeps(None), Data(None)
    used = trainer(max_epochs=2, callbacks=[callback])
    used.fit(Full(), datamodule=data, ckpt_path="run.ckpt")
    assert used.current_epoch == 2
    for found in (callback.value, data.value, Full.load_from_checkpoint("run.ckpt").hparams.value):
        assert type(found) is type(value)
        assert repr(found) == repr(value)


def test_many_places_are_cut_short() -> None:
    with pytest.warns(UserWarning, match=r"\['value'\]\[0\]`.* and \d+ more, of "):
        save([Thing() for _ in range(9)])

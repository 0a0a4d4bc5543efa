"""load_from_checkpoint."""

from __future__ import annotations

from argparse import Namespace
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import gpulayer.pytorch as L
from gpulayer.fabric.utilities.exceptions import MisconfigurationException
from tests.pytorch.models import Line, loader, same, trainer, weights


class Sized(Line):
    def __init__(self, width: int, depth: int = 1, activation: Any = None) -> None:
        super().__init__()
        self.save_hyperparameters(ignore="activation")
        self.wide = nn.Linear(width, depth)
        self.activation = activation


def saved(model: L.Module, **keywords: Any) -> tuple[str, dict[str, torch.Tensor]]:
    """A checkpoint of the trained model, and its weights."""
    used = trainer()
    used.fit(model, loader())
    used.save_checkpoint("model.ckpt", **keywords)
    return "model.ckpt", weights(model)


def test_weights_and_arguments_come_back() -> None:
    path, trained = saved(Sized(3, depth=2))
    loaded = Sized.load_from_checkpoint(path)
    assert (loaded.hparams.width, loaded.hparams.depth) == (3, 2)
    assert same(weights(loaded), trained)
    assert loaded.training


def test_a_path_object_and_an_open_file() -> None:
    path, trained = saved(Sized(3))
    assert same(weights(Sized.load_from_checkpoint(Path(path))), trained)
    with open(path, "rb") as file:
        assert same(weights(Sized.load_from_checkpoint(file)), trained)


def test_weights_alone_are_enough() -> None:
    path, trained = saved(Sized(3), weights_only=True)
    assert same(weights(Sized.load_from_checkpoint(path)), trained)


def test_given_arguments_win() -> None:
    path, _ = saved(Sized(3))
    loaded = Sized.load_from_checkpoint(path, activation="relu", depth=1)
    assert loaded.activation == "relu"


def test_a_given_argument_that_does_not_fit_the_weights() -> None:
    path, _ = saved(Sized(3))
    with pytest.raises(RuntimeError, match=r"size mismatch for wide\.weight"):
        Sized.load_from_checkpoint(path, width=4)


class Unsaved(Line):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.wide = nn.Linear(width, 1)


def test_a_missing_argument_is_named() -> None:
    path, trained = saved(Unsaved(3))
    with pytest.raises(MisconfigurationException) as caught:
        Unsaved.load_from_checkpoint(path)
    for piece in ("Unsaved could not be made from 'model.ckpt'", "'width'", "name=value", "save_hyperparameters()"):
        assert piece in str(caught.value)
    assert same(weights(Unsaved.load_from_checkpoint(path, width=3)), trained)


class Fails(Line):
    def __init__(self, fail: bool = False) -> None:
        super().__init__()
        if fail:
            raise TypeError("unsupported operand: the user's own argument")


def test_an_error_in_init_is_the_users() -> None:
    path, _ = saved(Fails())
    with pytest.raises(TypeError, match="the user's own"):
        Fails.load_from_checkpoint(path, fail=True)


class Longer(Sized):
    """One layer more than what was saved, one less."""

    def __init__(self, width: int, depth: int = 1) -> None:
        super().__init__(width, depth)
        self.added = nn.Linear(1, 1)
        del self.wide


def test_other_weights_than_were_saved() -> None:
    path, trained = saved(Sized(3))
    with pytest.raises(RuntimeError, match=r"Missing key.*added\.weight[\s\S]*Unexpected key.*wide\.weight"):
        Longer.load_from_checkpoint(path)
    loaded = Longer.load_from_checkpoint(path, strict=False)
    assert torch.equal(loaded.net.weight, trained["net.weight"])


def test_a_module_may_say_that_other_weights_are_fine() -> None:
    class Lenient(Longer):
        strict_loading = False

    path, trained = saved(Sized(3))
    assert torch.equal(Lenient.load_from_checkpoint(path).net.weight, trained["net.weight"])
    with pytest.raises(RuntimeError, match="Missing key"):
        Lenient.load_from_checkpoint(path, strict=True)


def test_where_to() -> None:
    path, _ = saved(Sized(3))
    assert Sized.load_from_checkpoint(path, map_location="cpu").device.type == "cpu"


def test_hyperparameters_from_a_file() -> None:
    path, trained = saved(Unsaved(3))
    Path("hparams.yaml").write_text("width: 3\n")
    Path("hparams.csv").write_text("key,value\nwidth,3\n")
    for file in ("hparams.yaml", "hparams.csv"):
        assert same(weights(Unsaved.load_from_checkpoint(path, hparams_file=file)), trained)
    Path("hparams.json").write_text("{}")
    with pytest.raises(MisconfigurationException, match=r"'hparams\.json'.*\.yaml or a \.csv"):
        Unsaved.load_from_checkpoint(path, hparams_file="hparams.json")


@dataclass
class Config:
    width: int


class Configured(Line):
    """Its hyperparameters are one argument."""

    def __init__(self, conf: Any) -> None:
        super().__init__()
        self.save_hyperparameters(conf)
        width = conf["width"] if isinstance(conf, dict) else conf.width
        self.wide = nn.Linear(width, 1)


@pytest.mark.parametrize("conf", [{"width": 3}, Namespace(width=3), Config(3)], ids=["dict", "Namespace", "dataclass"])
def test_hyperparameters_that_are_one_object(conf: Any) -> None:
    path, trained = saved(Configured(conf))
    loaded = Configured.load_from_checkpoint(path)
    assert same(weights(loaded), trained)
    assert loaded.hparams.width == 3


class OpenArguments(Line):
    def __init__(self, width: int, **more: Any) -> None:
        super().__init__()
        self.save_hyperparameters()
        self.more = more


def test_keywords_of_any_name() -> None:
    path, _ = saved(OpenArguments(3, a=1, b="x"))
    assert OpenArguments.load_from_checkpoint(path).more == {"a": 1, "b": "x"}


def test_a_module_may_take_more_from_the_checkpoint() -> None:
    class Keeps(Line):
        counted = 0

        def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
            checkpoint["counted"] = 42

        def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
            self.counted = checkpoint["counted"]

    path, _ = saved(Keeps())
    assert Keeps.load_from_checkpoint(path).counted == 42


def test_layers_that_configure_model_makes() -> None:
    """They are made before the weights are put into them."""

    class Late(Line):
        def configure_model(self) -> None:
            if not hasattr(self, "late"):
                self.late = nn.Linear(2, 2)

    path, trained = saved(Late())
    assert same(weights(Late.load_from_checkpoint(path)), trained)


def test_a_loaded_model_goes_on() -> None:
    """It predicts, and trains anew from its weights."""
    path, _ = saved(Sized(3))
    loaded = Sized.load_from_checkpoint(path)
    before = weights(loaded)
    used = trainer()
    used.fit(loaded, loader())
    assert used.global_step == 4
    assert not same(before, weights(loaded))

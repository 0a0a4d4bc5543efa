"""save_hyperparameters: the arguments an object was made with."""

from __future__ import annotations

from argparse import Namespace
from copy import deepcopy
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import yaml

import gpulayer.pytorch as L
from gpulayer.fabric.utilities.exceptions import MisconfigurationException
from tests.pytorch.models import Line, loader


class Base(L.Module):
    def __init__(self, size: int = 1, *, rate: float = 0.5) -> None:
        super().__init__()
        self.save_hyperparameters()


def test_all_arguments() -> None:
    model = Base(3)
    assert dict(model.hparams) == {"size": 3, "rate": 0.5}
    assert model.hparams.size == 3
    assert model.hparams["rate"] == 0.5


def test_names_of_some() -> None:
    class Some(L.Module):
        def __init__(self, a: int, b: int, c: int) -> None:
            super().__init__()
            self.save_hyperparameters("a", "c")

    assert dict(Some(1, 2, 3).hparams) == {"a": 1, "c": 3}


@pytest.mark.parametrize("ignore", ["net", ["net"], ("net", "missing")])
def test_ignored(ignore: Any) -> None:
    class Ignores(L.Module):
        def __init__(self, net: Any, rate: float) -> None:
            super().__init__()
            self.save_hyperparameters(ignore=ignore)
            self.net = net

    assert dict(Ignores(torch.nn.ReLU(), 0.1).hparams) == {"rate": 0.1}


def test_keywords_of_any_name() -> None:
    class Open(L.Module):
        def __init__(self, a: int, **more: Any) -> None:
            super().__init__()
            self.save_hyperparameters()

    assert dict(Open(1, b=2, c=3).hparams) == {"a": 1, "b": 2, "c": 3}


def test_the_value_that_was_passed_rather_than_what_became_of_it() -> None:
    """save_hyperparameters comes first, as the guides show it; a later change of the name does not matter."""

    class Changes(L.Module):
        def __init__(self, layers: list[int] | None = None) -> None:
            super().__init__()
            self.save_hyperparameters()
            layers = layers or [1, 2]
            self.layers = layers

    assert dict(Changes().hparams) == {"layers": None}


# -- chains of classes ------------------------------------------------------------------------------------------------


def test_a_subclass_without_an_init() -> None:
    class Plain(Base):
        pass

    assert dict(Plain(4).hparams) == {"size": 4, "rate": 0.5}


def test_the_arguments_of_a_subclass_count_too() -> None:
    """Only the base calls save_hyperparameters."""

    class Child(Base):
        def __init__(self, depth: int, size: int = 9) -> None:
            super().__init__(size + 1)

    assert dict(Child(2).hparams) == {"size": 9, "rate": 0.5, "depth": 2}


def test_both_call_it() -> None:
    class Child(Base):
        def __init__(self, depth: int, **more: Any) -> None:
            super().__init__(**more)
            self.save_hyperparameters()

    assert dict(Child(2, size=7).hparams) == {"size": 7, "rate": 0.5, "depth": 2}


def test_three_generations() -> None:
    class Child(Base):
        def __init__(self, depth: int, *arguments: Any, **keywords: Any) -> None:
            super().__init__(*arguments, **keywords)

    class Grandchild(Child):
        def __init__(self, width: int, **keywords: Any) -> None:
            super().__init__(depth=1, **keywords)

    assert dict(Grandchild(5, size=2).hparams) == {"width": 5, "depth": 1, "size": 2, "rate": 0.5}


def test_a_module_made_inside_another_keeps_its_own() -> None:
    class Outer(L.Module):
        def __init__(self, name: str) -> None:
            super().__init__()
            self.save_hyperparameters()
            self.inner = Base(8)

    outer = Outer("o")
    assert dict(outer.hparams) == {"name": "o"}
    assert dict(outer.inner.hparams) == {"size": 8, "rate": 0.5}


# -- one object -------------------------------------------------------------------------------------------------------


@dataclass
class Config:
    size: int = 1
    layers: list[int] = field(default_factory=lambda: [1])


@pytest.mark.parametrize(
    "config", [{"size": 1, "layers": [1]}, Namespace(size=1, layers=[1]), Config()], ids=["dict", "Namespace", "data"]
)
def test_one_object_that_holds_them_all(config: Any) -> None:
    class Configured(L.Module):
        def __init__(self, conf: Any, other: int = 0) -> None:
            super().__init__()
            self.save_hyperparameters(conf)

    assert dict(Configured(config).hparams) == {"size": 1, "layers": [1]}


def test_several_calls_add_up() -> None:
    class Twice(L.Module):
        def __init__(self, a: int) -> None:
            super().__init__()
            self.save_hyperparameters()
            self.save_hyperparameters({"b": 2})

    assert dict(Twice(1).hparams) == {"a": 1, "b": 2}


def test_a_name_that_is_no_argument() -> None:
    class Wrong(L.Module):
        def __init__(self, size: int) -> None:
            super().__init__()
            self.save_hyperparameters("sise")

    with pytest.raises(MisconfigurationException, match=r"\['sise'\] are no arguments .* \['size'\]"):
        Wrong(1)


def test_something_that_holds_none() -> None:
    class Wrong(L.Module):
        def __init__(self, size: int) -> None:
            super().__init__()
            self.save_hyperparameters(size)

    with pytest.raises(MisconfigurationException, match="a dict, a Namespace or a dataclass; got int: 3"):
        Wrong(3)


# -- what they are for ------------------------------------------------------------------------------------------------


def test_they_can_be_changed_and_the_first_ones_are_remembered() -> None:
    model = Base(3)
    model.hparams.size = 4
    model.hparams["rate"] = 1.0
    assert dict(model.hparams) == {"size": 4, "rate": 1.0}
    assert dict(model.hparams_initial) == {"size": 3, "rate": 0.5}


def test_a_missing_one_is_named() -> None:
    with pytest.raises(AttributeError, match=r"'sise'; there are \['rate', 'size'\]"):
        _ = Base().hparams.sise


def test_none_were_saved() -> None:
    assert dict(Line().hparams) == {}


def test_copies_keep_them() -> None:
    copied = deepcopy(Base(3))
    assert dict(copied.hparams) == {"size": 3, "rate": 0.5}


class Trained(Line):
    def __init__(self, size: int, folder: Any = None, logged: bool = True) -> None:
        super().__init__()
        self.save_hyperparameters(logger=logged)


class Data(L.DataModule):
    def __init__(self, batch: int = 2) -> None:
        super().__init__()
        self.save_hyperparameters()

    def train_dataloader(self) -> Any:
        return loader(size=self.hparams.batch)


def fit(model: L.Module, data: L.DataModule, **arguments: Any) -> Path:
    """The folder of a run."""
    trainer = L.Trainer(accelerator="cpu", **arguments)
    trainer.fit(model, datamodule=data)
    return Path(trainer.log_dir or "")


def test_loggers_get_those_of_the_module_and_the_data() -> None:
    folder = fit(Trained(3), Data())
    assert yaml.safe_load((folder / "hparams.yaml").read_text()) == {
        "size": 3, "folder": None, "logged": True, "batch": 2,
    }  # fmt: skip


def test_loggers_get_none_where_that_is_wanted() -> None:
    folder = fit(Trained(3, logged=False), Data())
    assert yaml.safe_load((folder / "hparams.yaml").read_text()) == {"batch": 2}
    assert not (fit(Trained(3), Data(), enable_autolog_hparams=False) / "hparams.yaml").exists()


def test_one_name_with_two_values() -> None:
    class Clash(Data):
        def __init__(self, size: int = 4) -> None:
            super().__init__()

    with pytest.raises(MisconfigurationException, match="both have a hyperparameter 'size', 3 and 4: rename one"):
        fit(Trained(3), Clash())


@pytest.mark.parametrize("make", [lambda *numbers: torch.tensor(numbers), lambda *numbers: np.array(numbers)])
def test_one_name_with_two_values_that_are_arrays(make: Any) -> None:
    class Clash(Data):
        def __init__(self, size: Any) -> None:
            super().__init__()
            self.save_hyperparameters()

    fit(Trained(make(1, 2)), Clash(make(1, 2)))
    with pytest.raises(MisconfigurationException, match="both have a hyperparameter 'size'"):
        fit(Trained(make(1, 2)), Clash(make(1, 3)))


@pytest.mark.parametrize("value", [torch.float32, torch.ones(2), torch.device("cpu"), (1, 2), {1, 2}, Path("data")])
def test_a_checkpoint_with_usual_hyperparameters_can_be_loaded(value: Any) -> None:
    """What people pass to a model: its own checkpoint is loaded without further ado."""
    trainer = L.Trainer(accelerator="cpu", logger=False)
    trainer.fit(Trained(3, value), loader())
    loaded = Trained.load_from_checkpoint(trainer.checkpoint_callback.best_model_path)
    found = loaded.hparams.folder
    assert type(found) is type(value)
    assert torch.equal(found, value) if isinstance(value, torch.Tensor) else found == value


class Optics:
    """A class of the user's own."""


def test_a_checkpoint_with_other_objects_names_their_class() -> None:
    """When it is saved, and when it is loaded, with the lines that allow it."""
    trainer = L.Trainer(accelerator="cpu", logger=False)
    with pytest.warns(UserWarning, match=r"`checkpoint\['hyper_parameters'\]\['folder'\]`, of .*Optics"):
        trainer.fit(Trained(3, Optics()), loader())
    path = trainer.checkpoint_callback.best_model_path
    with pytest.raises(MisconfigurationException, match=r"Optics[\s\S]*`weights_only=False`[\s\S]*add_safe_globals"):
        Trained.load_from_checkpoint(path)
    assert type(Trained.load_from_checkpoint(path, weights_only=False).hparams.folder) is Optics


def test_what_cannot_be_pickled_is_left_out_with_a_warning() -> None:
    """A lambda among the arguments must not cost the run its checkpoints."""
    trainer = L.Trainer(accelerator="cpu", logger=False)
    with pytest.warns(UserWarning, match="folder.*pickle"):
        trainer.fit(Trained(3, lambda x: x), loader())
    saved = torch.load(trainer.checkpoint_callback.best_model_path, weights_only=True)
    assert saved["hyper_parameters"] == {"size": 3, "logged": True}

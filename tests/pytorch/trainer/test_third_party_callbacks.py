"""Callbacks of installed packages: real folders with the metadata that pip writes, on the path."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from pathlib import Path

import pytest

import gpulayer.pytorch as L
from gpulayer.fabric.utilities.exceptions import MisconfigurationException
from gpulayer.pytorch.callbacks import EarlyStopping, ModelCheckpoint
from gpulayer.pytorch.trainer.third_party import GROUP
from tests.pytorch.models import trainer

CODE = """
import gpulayer.pytorch as L

class Greets(L.Callback):
    def on_train_start(self, trainer, pl_module):
        print("greetings from", type(self).__name__)

class Waves(Greets):
    pass

def one():
    return Greets()

def several():
    return [Greets(), Waves()]

def none():
    return None

def text():
    return "nonsense"

def kind():
    return Greets

def fails():
    raise RuntimeError("no licence found")

def same():
    return L.callbacks.EarlyStopping("x")

number = 3
"""


def install(folder: Path, name: str, group: str = GROUP, **points: str) -> Path:
    """A package of that name, with entry points, as it lies in site-packages."""
    info = folder / f"{name}-1.2.dist-info"
    info.mkdir(parents=True)
    (folder / f"{name}_module.py").write_text(CODE)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.2\n")
    lines = [f"{point} = {value}" for point, value in points.items()]
    (info / "entry_points.txt").write_text("\n".join([f"[{group}]", *lines, ""]))
    return folder


SCRIPT = """
import logging, sys, warnings
warnings.simplefilter('ignore')
logging.basicConfig(stream=sys.stdout, level=logging.INFO, format="%(message)s")
import gpulayer.pytorch as L
from gpulayer.pytorch.demos.boring_classes import BoringModel
trainer = L.Trainer(max_steps=1, limit_val_batches=0, logger=False, accelerator="cpu")
print([type(callback).__name__ for callback in trainer.callbacks])
trainer.fit(BoringModel())
bare = L.Trainer(barebones=True, accelerator="cpu", max_epochs=1)
print([type(callback).__name__ for callback in bare.callbacks])
"""


def test_a_program_where_packages_with_callbacks_are_installed(tmp_path: Path) -> None:
    install(tmp_path / "site", "greeter", greets="greeter_module:several")
    install(tmp_path / "site", "quiet", none="quiet_module:none", one="quiet_module:Waves")
    install(tmp_path / "site", "other", group="lightning.pytorch.callbacks_factory", x="other_module:fails")
    path = os.pathsep.join([str(tmp_path / "site"), *sys.path])
    environment = {**os.environ, "PYTHONPATH": path}
    done = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, text=True, check=False, env=environment)
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    told = {line for line in lines if line.startswith("The installed package")}
    assert told == {
        "The installed package greeter 1.2 adds callbacks to the Trainer: Greets, Waves.",
        "The installed package quiet 1.2 adds callbacks to the Trainer: Waves.",
    }
    names = next(line for line in lines if line.startswith("["))
    assert sorted(ast.literal_eval(names)) == ["Greets", "ModelCheckpoint", "Waves", "Waves"]
    assert names.endswith("'ModelCheckpoint']")  # which saves what they did
    assert [line for line in lines if line.startswith("greetings")].count("greetings from Waves") == 2
    assert lines[-1] == "[]"  # a measurement of nothing but the loop


@pytest.mark.parametrize(
    ("value", "words"),
    [
        ("broken_module:gone", "AttributeError"),
        ("not_installed_anywhere:one", "ModuleNotFoundError: No module named 'not_installed_anywhere'"),
        ("broken_module:fails", "RuntimeError: no licence found"),
        ("broken_module:number", "TypeError"),
        ("broken_module:text", "what it made holds 'nonsense', of str"),
        ("broken_module:kind", "what it made holds the class Greets: give an object of it"),
    ],
)
def test_one_that_is_broken(value: str, words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The error names the package and its entry point."""
    monkeypatch.syspath_prepend(install(tmp_path, "broken", mine=value))
    with pytest.raises(MisconfigurationException) as caught:
        L.Trainer()
    assert str(caught.value).startswith(f"The entry point `mine = {value}` of the installed package broken 1.2")
    assert words in str(caught.value)
    sys.modules.pop("broken_module", None)


def test_its_place_and_what_the_user_gave(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Behind all others but the savers; its state lies under its own key."""
    monkeypatch.syspath_prepend(install(tmp_path, "stops", mine="stops_module:same"))
    used = trainer(callbacks=[EarlyStopping("y"), ModelCheckpoint("saved")], enable_model_summary=True)
    assert [type(one).__name__ for one in used.callbacks] == [
        "EarlyStopping",
        "ModelSummary",
        "EarlyStopping",
        "ModelCheckpoint",
    ]
    assert [one.monitor for one in used.early_stopping_callbacks] == ["y", "x"]
    with pytest.raises(MisconfigurationException, match="Two callbacks have the state key"):
        trainer(callbacks=[EarlyStopping("x")])


def test_none_where_no_package_has_any() -> None:
    assert L.Trainer(enable_checkpointing=False).callbacks == []

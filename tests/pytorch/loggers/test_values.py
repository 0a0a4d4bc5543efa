"""What the loggers of services share: hyperparameters in plain forms, and which checkpoints are new."""

from __future__ import annotations

import os
from argparse import Namespace
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from gpulayer.fabric.utilities.exceptions import MisconfigurationException
from gpulayer.pytorch.loggers.values import (
    CheckpointsToLog,
    flatten,
    hyperparameters,
    named_numbers,
    optional_package,
)


class Colour(Enum):
    RED = 1


@dataclass
class Size:
    width: int
    height: Any = None


def explode() -> None:
    raise AssertionError("a hyperparameter was called")


def test_hyperparameters_in_plain_forms() -> None:
    given = {
        "number": 1.5, "none": None, "tuple": (1, Colour.RED), "class": torch.nn.ReLU, "function": explode,
        "object": torch.nn.ReLU(), "path": Path("a/b"), "size": Size(1, Namespace(b=2)), "one": torch.tensor([3]),
        5: {"deep": {Path("a")}}, "dtype": torch.float32, "flag": True,
    }  # fmt: skip
    assert hyperparameters(given) == {
        "number": 1.5, "none": None, "tuple": [1, "RED"], "class": "ReLU", "function": "explode",
        "object": "ReLU()", "path": "a/b", "size": {"width": 1, "height": {"b": 2}}, "one": 3,
        "5": {"deep": ["a"]}, "dtype": "torch.float32", "flag": True,
    }  # fmt: skip
    assert hyperparameters(Namespace(a=1)) == {"a": 1}
    assert hyperparameters(None) == {}


def test_numbers_of_numpy() -> None:
    numpy = pytest.importorskip("numpy")
    plain = hyperparameters({"a": numpy.float32(0.5), "b": numpy.int64(2), "c": numpy.bool_(True)})
    assert plain == {"a": 0.5, "b": 2, "c": True}
    assert [type(value) for value in plain.values()] == [float, int, bool]


def test_one_level_out_of_many() -> None:
    given = {"a": {"b": {"c": 1}, "d": 2}, "list": [1, 2], "dicts": [{"x": 1}, {"y": 2}], "size": Size(1), "no": {}}
    assert flatten(given) == {
        "a/b/c": 1, "a/d": 2, "list": [1, 2], "dicts/0/x": 1, "dicts/1/y": 2, "size/width": 1, "size/height": None,
        "no": {},
    }  # fmt: skip
    assert flatten(Namespace(a=Namespace(b=1)), ".") == {"a.b": 1}


def test_named_numbers() -> None:
    vector = torch.ones(2)
    row = named_numbers({"a": torch.tensor(0.5), "b": 1, "c": vector}, "x")
    assert row == {"x-a": 0.5, "x-b": 1, "x-c": vector}
    assert named_numbers({"a": 1.0}) == {"a": 1.0}


def test_a_package_that_lacks_one_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Then to install it again does not help, and the error is its own."""
    (tmp_path / "half_there.py").write_text("import not_there_at_all")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ModuleNotFoundError, match="No module named 'not_there_at_all'"):
        optional_package("half_there", "Logger", "half")
    with pytest.raises(ModuleNotFoundError, match="`Logger` needs the package not_there: pip install 'there'"):
        optional_package("not_there", "Logger", "there")


# -- checkpoints -----------------------------------------------------------------------------------------------------


def callback(**attributes: Any) -> Any:
    """A callback that has saved some files."""
    return SimpleNamespace(**{"save_top_k": 1, "best_model_path": "", "last_model_path": "", **attributes})


def saved(*names: str) -> None:
    """Write files, in this order."""
    for name in names:
        Path(f"{name}.part").write_bytes(os.urandom(8))
        os.replace(f"{name}.part", name)


def names(checkpoints: Any) -> list[str]:
    return [checkpoint.path for checkpoint in checkpoints]


def test_each_file_once_and_again_when_it_is_written_anew() -> None:
    files, to_log = callback(best_k_models={}), CheckpointsToLog("all", "Logger")
    saved("a", "b")
    files.best_k_models = {"b": torch.tensor(2.0), "a": torch.tensor(1.0)}
    files.best_model_path, files.best_model_score = "a", torch.tensor(1.0)
    first, second = to_log.after_save(files)
    assert (first.path, first.score, first.aliases) == ("a", 1.0, ["latest", "best"])
    assert (second.path, second.score, second.aliases) == ("b", 2.0, ["latest"])
    assert second.metadata("settings") == {"score": 2.0, "original_filename": "b", "settings": {"save_top_k": 1}}
    assert names(to_log.after_save(files)) == []
    saved("b")
    assert names(to_log.after_save(files)) == ["b"]


def test_one_that_failed_is_taken_again() -> None:
    files, to_log = (
        callback(best_k_models={"a": torch.tensor(1.0), "b": torch.tensor(2.0)}),
        CheckpointsToLog("all", ""),
    )
    saved("a", "b")
    for checkpoint in to_log.after_save(files):
        if checkpoint.path == "b":
            break  # the logger raised
    assert names(to_log.after_save(files)) == ["b"]


def test_links_and_files_that_are_gone_are_left_out() -> None:
    saved("a")
    os.symlink("a", "last")
    files = callback(last_model_path="last", current_score=None, best_model_path="gone", best_k_models={"a": 1.0})
    assert names(CheckpointsToLog("all", "Logger").after_save(files)) == ["a"]


@pytest.mark.parametrize(("log_model", "keeps", "at_save"), [(True, 1, False), (True, -1, True), ("all", 1, True)])
def test_when(log_model: Any, keeps: int, at_save: bool) -> None:
    saved("a")
    files, to_log = callback(save_top_k=keeps, best_k_models={"a": 1.0}), CheckpointsToLog(log_model, "Logger")
    assert names(to_log.after_save(files)) == ["a"] * at_save
    assert names(to_log.at_end()) == ["a"] * (not at_save)
    assert names(to_log.at_end()) == []


def test_never() -> None:
    saved("a")
    files, to_log = callback(best_k_models={"a": 1.0}), CheckpointsToLog(False, "Logger")
    assert names(to_log.after_save(files)) == names(to_log.at_end()) == []
    with pytest.raises(MisconfigurationException, match=r"`Logger\(log_model='some'\)`: choose 'all'"):
        CheckpointsToLog("some", "Logger")  # type: ignore[arg-type]

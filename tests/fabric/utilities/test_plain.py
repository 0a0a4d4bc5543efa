"""Loading runs no code that a file brings along."""

from __future__ import annotations

import argparse
import collections
import datetime
import decimal
import enum
import fractions
import functools
import io
import os
import pathlib
import sys
import types
import uuid
from typing import Any

import numpy as np
import pytest
import torch
from torch.serialization import safe_globals

from gpulayer.fabric.utilities.files import load_file, save_file
from gpulayer.fabric.utilities.plain import RefusedError, beyond_plain, load_plain


class Colour(enum.Enum):
    RED = 1


class Own:
    """A class of the user's."""


def saved(value: Any) -> io.BytesIO:
    file = io.BytesIO()
    torch.save({"value": value}, file)
    file.seek(0)
    return file


STANDARD = {
    "path": pathlib.Path("a/b"),
    "pure_path": pathlib.PurePosixPath("a"),
    "duration": datetime.timedelta(hours=1),
    "moment": datetime.datetime(2020, 1, 2, tzinfo=datetime.timezone.utc),
    "day": datetime.date(2020, 1, 2),
    "namespace": argparse.Namespace(a=1, where=pathlib.Path("x")),
    "simple_namespace": types.SimpleNamespace(a=[1]),
    "uuid": uuid.UUID(int=7),
    "decimal": decimal.Decimal("1.5"),
    "fraction": fractions.Fraction(1, 3),
    "frozenset": frozenset({1, 2}),
    "range": range(3),
    "slice": slice(1, 2),
    "number": np.float32(1.5),
    "integer": np.int64(3),
    "truth": np.bool_(True),
    "dtype": np.dtype("float32"),
    "array": np.arange(6.0).reshape(2, 3),
    "array_of_text": np.array(["a", "bc"]),
    "torch_dtype": torch.float16,
    "layout": torch.strided,
    "device": torch.device("cpu"),
    "counter": collections.Counter("aab"),
    "complex": 1 + 2j,
    "parameter": torch.nn.Parameter(torch.ones(2)),
}
REFUSED = {
    "enumeration": (Colour.RED, "tests.fabric.utilities.test_plain.Colour"),
    "own_class": (Own(), "tests.fabric.utilities.test_plain.Own"),
    "partial": (functools.partial(print, 1), "functools.partial"),
    "class": (torch.nn.ReLU, "torch.nn.modules.activation.ReLU"),
    "key": ({Colour.RED: 1}, "tests.fabric.utilities.test_plain.Colour"),
    "in_an_array": (np.array([Own()]), "tests.fabric.utilities.test_plain.Own"),
    "deep": ([{"a": (1, Own())}], "tests.fabric.utilities.test_plain.Own"),
    "in_a_namespace": (argparse.Namespace(x=Own()), "tests.fabric.utilities.test_plain.Own"),
}


@pytest.mark.parametrize("name", STANDARD)
def test_standard_types_come_back_as_they_were(name: str) -> None:
    value = STANDARD[name]
    found = load_plain(saved(value))["value"]
    assert type(found) is type(value)
    assert repr(found) == repr(value)
    assert list(beyond_plain(value)) == []


@pytest.mark.parametrize("name", REFUSED)
def test_everything_else_is_refused_and_found_before_it_is_saved(name: str) -> None:
    value, what = REFUSED[name]
    with pytest.raises(RefusedError, match=what.replace(".", r"\.")):
        load_plain(saved(value))
    assert list(beyond_plain(value))


def test_the_places_of_what_is_more_than_plain() -> None:
    value = {"a": {"b": [1, Own()]}, Colour.RED: 1, "c": Own}
    assert [place for place, _ in beyond_plain(value)] == [" (a key)", "['a']['b'][1]", "['c']"]


def test_all_that_is_refused_is_listed_with_the_lines_that_allow_it() -> None:
    """torch names the first alone."""
    file = saved([Own(), functools.partial(print), pathlib.Path("fine")])
    with pytest.raises(RefusedError) as caught:
        load_plain(file, name="run.ckpt")
    own = "tests.fabric.utilities.test_plain"
    assert str(caught.value) == (
        "'run.ckpt' holds more than plain data, and loading that could run code: builtins.print, functools.partial, "
        f"{own}.Own. If you trust where the file is from, pass `weights_only=False`, or allow just these, before it is "
        f"loaded:\n    import functools, {own}\n    torch.serialization.add_safe_globals([print, functools.partial, "
        f"{own}.Own])"
    )


def test_what_the_user_allowed_is_loaded_beside_what_is_harmless() -> None:
    file = saved([Own(), pathlib.Path("a")])
    with safe_globals([Own]):
        own, path = load_plain(file)["value"]
    assert type(own) is Own
    assert path == pathlib.Path("a")


class Evil:
    def __reduce__(self) -> Any:
        return os.system, ("touch evil",)


@pytest.mark.parametrize("value", [Evil(), {"a": [Evil()]}, argparse.Namespace(x=Evil())])
def test_code_in_a_file_does_not_run(value: Any, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    save_file({"state_dict": {}, "value": value}, "run.ckpt")
    with pytest.raises(RefusedError, match="system"):
        load_file("run.ckpt")
    assert os.listdir() == ["run.ckpt"]


def test_stand_ins_for_lightnings_classes_make_nothing() -> None:
    """They are keys of states; a file that has one made is refused."""

    class Posing:
        def __reduce__(self) -> Any:
            return stand_in, ()

    stand_in = type("ModelCheckpoint", (), {"__module__": "pytorch_lightning.callbacks.model_checkpoint"})
    module = types.ModuleType("pytorch_lightning.callbacks.model_checkpoint")
    module.ModelCheckpoint = stand_in  # type: ignore[attr-defined]
    before = sys.modules.get(module.__name__)
    sys.modules[module.__name__] = module
    try:
        key, posing = saved({stand_in: {"best": 1}}), saved(Posing())
    finally:
        del sys.modules[module.__name__]
        if before is not None:
            sys.modules[module.__name__] = before
    (name,) = load_plain(key)["value"]
    assert name.__qualname__ == "ModelCheckpoint"
    with pytest.raises(Exception, match="not made an object of"):
        load_plain(posing)


def test_a_container_that_torch_cannot_fill_is_refused() -> None:
    with pytest.raises(RefusedError, match=r"defaultdict[\s\S]*`weights_only=False`"):
        load_plain(saved(collections.defaultdict(list, a=[1])))


def test_omegaconf() -> None:
    omegaconf = pytest.importorskip("omegaconf")
    for value in ({"a": {"b": [1, 2]}, "c": "${a.b}"}, [1, {"x": 2.0}]):
        made = omegaconf.OmegaConf.create(value)
        found = load_plain(saved(made))["value"]
        assert found == made
        assert type(found) is type(made)
        assert list(beyond_plain(made)) == []


def test_a_missing_package_is_named(tmp_path: pathlib.Path) -> None:
    """A class that cannot be imported, loaded by someone who trusts the file."""
    module = types.ModuleType("gone_package")
    module.Gone = type("Gone", (), {"__module__": "gone_package"})  # type: ignore[attr-defined]
    sys.modules["gone_package"] = module
    save_file({"value": module.Gone()}, tmp_path / "run.ckpt")
    del sys.modules["gone_package"]
    with pytest.raises(Exception, match="'gone_package', which is not installed"):
        load_file(tmp_path / "run.ckpt", weights_only=False)

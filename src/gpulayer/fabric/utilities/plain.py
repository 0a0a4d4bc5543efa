"""Plain data: what a checkpoint may hold so that loading it runs no code.

torch loads tensors, numbers, text and their containers without running code that a file brings along. A few standard
types beyond that are as harmless, such as paths, times and NumPy's arrays, and so are the classes of Lightning's own
that its checkpoints name. They are loaded, too; everything else is refused, all of it at once.
"""

from __future__ import annotations

import datetime
import decimal
import fractions
import pathlib
import pickle
import uuid
from argparse import Namespace
from collections import Counter, OrderedDict, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from importlib import import_module
from types import SimpleNamespace
from typing import Any

import torch
from torch.serialization import get_unsafe_globals_in_checkpoint, safe_globals

from gpulayer.fabric.utilities.exceptions import MisconfigurationException

# What torch itself loads as plain data; tensors come on top.
ATOMS = (type(None), bool, int, float, complex, str, bytes, bytearray, torch.dtype, torch.device, torch.Size,
         torch.layout)  # fmt: skip
CONTAINERS = (list, tuple, set)
MAPPINGS = (dict, OrderedDict, Counter)
TENSORS = (torch.Tensor, torch.nn.Parameter, torch.nn.Buffer)

# Standard types that are loaded here in addition: by the names that files have for them, and how to make one.
STANDARD: dict[str, Callable[..., Any]] = {
    **{
        f"{module}.{name}": pathlib.Path if name.startswith(("Posix", "Windows", "Path")) else pathlib.PurePath
        for module in ("pathlib", "pathlib._local")
        for name in ("Path", "PosixPath", "WindowsPath", "PurePath", "PurePosixPath", "PureWindowsPath")
    },
    **{f"datetime.{name}": getattr(datetime, name) for name in ("date", "datetime", "time", "timedelta", "timezone")},
    "argparse.Namespace": Namespace,
    "types.SimpleNamespace": SimpleNamespace,
    "uuid.UUID": uuid.UUID,
    "decimal.Decimal": decimal.Decimal,
    "fractions.Fraction": fractions.Fraction,
    "builtins.frozenset": frozenset,
    "builtins.range": range,
    "builtins.slice": slice,
}
STANDARD_TYPES = (*dict.fromkeys(STANDARD.values()), pathlib.PurePath)
FILLED = (Namespace, SimpleNamespace, uuid.UUID)  # made empty and then given their attributes, by the class itself

# What OmegaConf's containers name beside its own classes.
OF_OMEGACONF: dict[str, Any] = {
    "typing.Any": Any,
    "collections.defaultdict": defaultdict,
    **{f"builtins.{kind.__name__}": kind for kind in (dict, list, tuple, int, float, bool, str, bytes)},
}

LIGHTNING = ("lightning", "lightning_fabric", "pytorch_lightning")
ENUMERATIONS = ("RunningStage", "TrainerFn", "TrainerStatus", "EarlyStoppingReason", "LightningEnum")


class RefusedError(MisconfigurationException):
    """A file holds objects whose loading could run code."""


def load_plain(file: Any, map_location: Any = None, name: str = "the file") -> Any:
    """`torch.load` of plain data and of the standard types.

    Args:
        file: an open binary file.
        map_location: as in `torch.load`.
        name: of the file, for the error.

    Raises:
        RefusedError: there is more in the file; all of it is listed.
        pickle.UnpicklingError: it is no file of `torch.save`'s.
    """
    start = file.tell() if file.seekable() else None
    try:
        return torch.load(file, map_location=map_location, weights_only=True)
    except pickle.UnpicklingError as error:
        if start is None or not (known := named_in(file, start)):
            raise refused_by_torch(name, error) from error
    if refused := sorted(one for one, objects in known.items() if not objects):
        raise RefusedError(refusal(name, refused))
    file.seek(start)
    try:
        with safe_globals([one for objects in known.values() for one in objects]):
            return torch.load(file, map_location=map_location, weights_only=True)
    except pickle.UnpicklingError as error:
        raise refused_by_torch(name, error) from error


def named_in(file: Any, start: int) -> dict[str, list[Any]]:
    """The classes and functions that a file names beyond torch's plain data, each with what to allow for it.

    Nothing for a file in the format from before torch 1.6, which cannot be searched.
    """
    file.seek(start)
    try:
        return {one: harmless(one) for one in get_unsafe_globals_in_checkpoint(file)}
    except ValueError:
        return {}


def refused_by_torch(name: str, error: pickle.UnpicklingError) -> Exception:
    """The error to raise for one of torch's: as it is, unless torch refused something."""
    _, refused, reason = str(error).partition("WeightsUnpickler error: ")
    if not refused or not reason.strip().startswith(("Unsupported global", "Can only", "Trying to")):
        return error
    return RefusedError(
        f"{name!r} holds more than plain data, and loading that could run code. "
        f"{reason.strip().splitlines()[0].rstrip('.')}. If you trust where the file is from, pass `weights_only=False`."
    )


def harmless(name: str) -> list[Any]:
    """What to allow for a class or function that a file names, if that can run no code of the file's; else nothing."""
    module, _, short = name.rpartition(".")
    package = module.partition(".")[0]
    if name in STANDARD:
        made = STANDARD[name]
        return [made] if made in FILLED else [stand_in(name, made)]
    if package == "numpy":
        return _of_numpy(name, short)
    if name in OF_OMEGACONF:
        return [OF_OMEGACONF[name]]
    if package == "omegaconf":
        return _of_omegaconf(module, short)
    if package in LIGHTNING:
        if short == "AttributeDict":
            return [stand_in(name, dict)]
        if short in ENUMERATIONS:
            return [stand_in(name, _same)]
        if ".callbacks." in name:  # the class as the key of a callback's state
            return [stand_in(name, _refuse_to_make)]
    return []


def stand_in(name: str, make: Callable[..., Any]) -> type:
    """A class with the name that a file has for it. To make one of it calls `make` in its place."""
    module, _, short = name.rpartition(".")

    def new(cls: type, *arguments: Any) -> Any:
        return make(*arguments)

    return type(short, (), {"__module__": module, "__qualname__": short, "__new__": new})


def _same(value: Any) -> Any:
    return value


def _refuse_to_make(*arguments: Any) -> Any:
    raise pickle.UnpicklingError("A class that a checkpoint names as a key is not made an object of.")


def _of_numpy(name: str, short: str) -> list[Any]:
    import numpy

    if name in ("numpy.ndarray", "numpy.dtype"):
        kinds = [getattr(numpy.dtypes, kind) for kind in numpy.dtypes.__all__]
        return [numpy.ndarray, numpy.dtype, *kinds]
    if short in ("_reconstruct", "scalar") and name.endswith(f"core.multiarray.{short}"):
        core = import_module("numpy._core.multiarray" if hasattr(numpy, "_core") else "numpy.core.multiarray")
        return [stand_in(name, getattr(core, short))]
    return []


def _of_omegaconf(module: str, short: str) -> list[Any]:
    try:
        found = getattr(import_module(module), short, None)
    except ImportError:
        return []
    return [found] if isinstance(found, type) else []


def refusal(name: str, refused: list[str]) -> str:
    """The error's text: what was refused, and the line that allows it."""
    modules = sorted({one.rpartition(".")[0] for one in refused} - {"__main__", "builtins"})
    lines = [f"import {', '.join(modules)}"] if modules else []
    classes = ", ".join(one.removeprefix("__main__.").removeprefix("builtins.") for one in refused)
    lines.append(f"torch.serialization.add_safe_globals([{classes}])")
    return (
        f"{name!r} holds more than plain data, and loading that could run code: {', '.join(refused)}. "
        "If you trust where the file is from, pass `weights_only=False`, or allow just these, before it is loaded:\n"
        + "\n".join(f"    {line}" for line in lines)
    )


def beyond_plain(value: Any, at: str = "") -> Iterator[tuple[str, Any]]:
    """The places in nested containers that hold what `load_plain` would refuse, each with what is there.

    Args:
        value: what to look through.
        at: its own place, such as `['hyper_parameters']`.
    """
    kind = type(value)
    if kind in ATOMS or kind in TENSORS:
        return
    if kind in MAPPINGS:
        if not set(map(type, value)) <= set(ATOMS):
            yield from ((f"{at} (a key)", key) for key in value if not is_plain(key))
        for key, entry in value.items():
            if type(entry) not in ATOMS:
                yield from beyond_plain(entry, f"{at}[{key!r}]")
    elif kind in CONTAINERS:
        if not set(map(type, value)) <= set(ATOMS):
            for i, entry in enumerate(value):
                yield from beyond_plain(entry, f"{at}[{i}]")
    elif kind in (Namespace, SimpleNamespace):
        yield from beyond_plain(vars(value), at)
    elif not is_standard(value):
        yield at, value


def is_plain(value: Any) -> bool:
    """Whether `load_plain` loads it."""
    return next(beyond_plain(value), None) is None


def is_standard(value: Any) -> bool:
    """Whether it is of the standard types beyond torch's plain data, or of NumPy's or OmegaConf's."""
    kind = type(value)
    if kind in STANDARD_TYPES or isinstance(value, pathlib.PurePath):
        return not isinstance(value, frozenset) or all(is_plain(entry) for entry in value)
    if kind.__module__ in ("numpy", "numpy.dtypes"):  # an array, a number or a dtype, without objects in it
        return getattr(getattr(value, "dtype", value), "hasobject", True) is False
    return kind.__module__.partition(".")[0] == "omegaconf" and isinstance(value, (Mapping, Sequence))

"""What the loggers of third-party services share: values as they take them, and checkpoints that they have not got."""

from __future__ import annotations

import os
from argparse import Namespace
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields, is_dataclass
from enum import Enum
from importlib import import_module
from typing import TYPE_CHECKING, Any, Literal

from torch import Tensor

from gpulayer.fabric.utilities.exceptions import MisconfigurationException

if TYPE_CHECKING:
    from gpulayer.pytorch.core.callback import Checkpoint

LogModel = Literal["all"] | bool


def optional_package(name: str, wanted_by: str, install: str) -> Any:
    """Import a package that only some users need.

    Args:
        name: the module.
        wanted_by: the class that needs it.
        install: what pip is to install.

    Raises:
        ModuleNotFoundError: it is not installed; the message has the line that installs it.
    """
    try:
        return import_module(name)
    except ModuleNotFoundError as error:
        if error.name != name:  # it is there, but lacks a package of its own
            raise
        raise ModuleNotFoundError(
            f"`{wanted_by}` needs the package {name}: pip install '{install}'", name=name
        ) from None


# -- metrics ---------------------------------------------------------------------------------------------------------


def named_numbers(metrics: Mapping[str, Any], prefix: str = "", separator: str = "-") -> dict[str, Any]:
    """A row of metrics with the prefix before each name, and numbers where there were tensors of one element."""
    start = f"{prefix}{separator}" if prefix else ""
    return {start + name: value.item() if _is_one_number(value) else value for name, value in metrics.items()}


def _is_one_number(value: Any) -> bool:
    return isinstance(value, Tensor) and value.numel() == 1


# -- hyperparameters -------------------------------------------------------------------------------------------------


def hyperparameters(params: Mapping[str, Any] | Namespace | None) -> dict[str, Any]:
    """Hyperparameters in the forms that JSON has; classes and functions by name, other objects as text.

    Functions are named, not called: what they return is not what the user gave.
    """
    return {} if params is None else _plain(params)


def _plain(value: Any) -> Any:
    if isinstance(value, Enum):
        return value.name
    if value is None or isinstance(value, bool | int | float | str):
        return value
    entries = _entries(value)
    if entries is not None:
        return {str(name): _plain(entry) for name, entry in entries.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [_plain(entry) for entry in value]
    if _is_one_number(value) or (type(value).__module__ == "numpy" and getattr(value, "size", 0) == 1):
        return value.item()
    return getattr(value, "__name__", None) or str(value)


def _entries(value: Any) -> Mapping[Any, Any] | None:
    """The entries of a dict, a Namespace or a dataclass; None for anything else."""
    if isinstance(value, Mapping):
        return value
    if isinstance(value, Namespace):
        return vars(value)
    if is_dataclass(value) and not isinstance(value, type):
        return {field.name: getattr(value, field.name) for field in fields(value)}
    return None


def flatten(values: Mapping[str, Any] | Namespace, separator: str = "/") -> dict[str, Any]:
    """One level out of many: `{"a": {"b": 1}}` becomes `{"a/b": 1}`; in lists of dicts the index is a level."""
    flat: dict[str, Any] = {}
    for name, value in (_entries(values) or {}).items():
        if isinstance(value, list) and value and all(isinstance(entry, Mapping) for entry in value):
            value = {str(index): entry for index, entry in enumerate(value)}
        if _entries(value):
            flat.update({f"{name}{separator}{inner}": entry for inner, entry in flatten(value, separator).items()})
        else:
            flat[str(name)] = value
    return flat


# -- checkpoints -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class SavedCheckpoint:
    """A checkpoint's file that a logger is to take.

    Args:
        path: the file.
        score: the monitored metric's value; None without one.
        is_best: whether it is the best so far.
        settings: those of the callback that wrote it.
        callback: the callback's class.
    """

    path: str
    score: float | None
    is_best: bool
    settings: dict[str, Any]
    callback: str

    @property
    def aliases(self) -> list[str]:
        """Names under which a service finds it."""
        return ["latest", "best"] if self.is_best else ["latest"]

    def metadata(self, settings_under: str) -> dict[str, Any]:
        """What a service keeps beside the file."""
        return {
            "score": self.score,
            "original_filename": os.path.basename(self.path),
            settings_under: self.settings,
        }


class CheckpointsToLog:
    """Which files of the checkpoint callbacks a logger has still to take, and when.

    Args:
        log_model: "all": each as it is saved; True: those that are left at the end, or each where the callback keeps
            all; False: none.

    Raises:
        MisconfigurationException: another value.
    """

    SETTINGS = ("monitor", "mode", "save_last", "save_top_k", "save_weights_only", "_every_n_train_steps")

    def __init__(self, log_model: LogModel, logger: str) -> None:
        if log_model not in (True, False, "all"):
            raise MisconfigurationException(
                f"`{logger}(log_model={log_model!r})`: choose 'all' (each checkpoint as it is saved), True (those that "
                "are left at the end) or False (none)."
            )
        self._log_model = log_model
        self._taken: dict[str, tuple[int, int]] = {}
        self._waiting: dict[int, Checkpoint] = {}

    def after_save(self, callback: Checkpoint) -> Iterator[SavedCheckpoint]:
        """Those to take now that `callback` has saved one."""
        if self._log_model == "all" or (self._log_model and getattr(callback, "save_top_k", 0) == -1):
            yield from self._new_files(callback)
        elif self._log_model:
            self._waiting[id(callback)] = callback

    def at_end(self) -> Iterator[SavedCheckpoint]:
        """Those that were to wait for the end of training."""
        for callback in self._waiting.values():
            yield from self._new_files(callback)

    def _new_files(self, callback: Checkpoint) -> Iterator[SavedCheckpoint]:
        """The callback's files, oldest first, that were not taken or were written anew since."""
        scores = {
            getattr(callback, "last_model_path", ""): getattr(callback, "current_score", None),
            getattr(callback, "best_model_path", ""): getattr(callback, "best_model_score", None),
            **getattr(callback, "best_k_models", {}),
        }
        found = []
        for path, score in scores.items():
            if os.path.isfile(path) and not os.path.islink(path):  # a link is the same file again
                status = os.stat(path)
                found.append((status.st_mtime_ns, status.st_ino, path, score))
        for time, node, path, score in sorted(found, key=lambda file: file[:3]):
            if self._taken.get(path) == (time, node):
                continue
            yield SavedCheckpoint(
                path,
                score=None if score is None else float(score),
                is_best=path == getattr(callback, "best_model_path", ""),
                settings={name: getattr(callback, name) for name in self.SETTINGS if hasattr(callback, name)},
                callback=type(callback).__name__,
            )
            self._taken[path] = (time, node)

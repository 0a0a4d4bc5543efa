"""The checkpoints in a run's folder, with the scores that ModelCheckpoint gave them."""

from __future__ import annotations

import os
import re
import warnings
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

# "epoch=3-step=120-val_loss=0.25": what ModelCheckpoint writes into names
IN_A_NAME = re.compile(r"([^\W\d][\w./ ]*)=(-?\d+(?:\.\d+)?(?:[eE][+-]?\d+)?)")


@dataclass
class CheckpointFile:
    """One checkpoint.

    Attributes:
        path: below the run's folder, with "/".
        size: in bytes.
        step: optimizer steps done.
        epoch: the epoch it was saved in, from 0.
        scores: values of the monitored metrics.
        best_by: the metrics by which it is the best.
        problem: why its inside could not be read; "" if it could.
    """

    path: str
    size: int
    step: int | None = None
    epoch: int | None = None
    scores: dict[str, float] = field(default_factory=dict)
    best_by: list[str] = field(default_factory=list)
    problem: str = ""


def read_checkpoints(folder: Path) -> list[CheckpointFile]:
    """All `.ckpt` files (and folders, of sharded checkpoints) of a run, in the order of steps."""
    found: list[CheckpointFile] = []
    states: list[tuple[CheckpointFile, dict[str, Any]]] = []
    for path in _checkpoint_paths(folder):
        file = CheckpointFile(path.relative_to(folder).as_posix(), 0)
        found.append(file)
        _read_name(file)
        try:
            file.size = _size(path)
            content = _load(path)
        except Exception as error:  # a damaged pickle may raise anything
            file.problem = f"not read ({_first_line(error)}); step and score are those of its name"
            continue
        file.step = _whole(content.get("global_step"), file.step)
        file.epoch = _whole(content.get("epoch"), file.epoch)
        states += [(file, state) for state in _states(content)]
    found.sort(key=_order)
    _spread_scores(sorted(states, key=lambda item: _order(item[0])), {file.path: file for file in found})
    return found


def _order(file: CheckpointFile) -> tuple[int, str]:
    return (-1 if file.step is None else file.step, file.path)


def _checkpoint_paths(folder: Path) -> Iterator[Path]:
    for parent, below, files in os.walk(folder):
        yield from (Path(parent, name) for name in files if name.endswith(".ckpt"))
        sharded = [name for name in below if name.endswith(".ckpt")]
        yield from (Path(parent, name) for name in sharded)
        below[:] = [name for name in below if name not in sharded]


def _size(path: Path) -> int:
    if path.is_dir():
        return sum(part.stat().st_size for part in path.rglob("*") if part.is_file())
    return path.stat().st_size


def _load(path: Path) -> dict[str, Any]:
    """What a checkpoint holds: plain data only, so that no file runs code; tensors stay on the disk.

    torch takes seconds to import: only a run with checkpoints pays for it, and a report works without.
    """
    if path.is_dir():
        return {}
    if find_spec("torch") is None:
        raise ModuleNotFoundError("torch is not installed")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about files of other formats
        content = import_module("torch").load(path, map_location="cpu", weights_only=True, mmap=True)
    if not isinstance(content, dict) or "global_step" not in content:
        raise ValueError("no checkpoint of a Trainer")
    return content


def _first_line(error: Exception) -> str:
    text = str(error)
    refused = re.search(r"GLOBAL (\S+)", text)
    if refused:
        return f"it holds an object of {refused[1]}, and loading that could run code"
    return (text.splitlines() or [type(error).__name__])[0][:200].rstrip(". ")


def _states(content: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """The states of those ModelCheckpoints that watched a metric."""
    callbacks = content.get("callbacks")
    for state in callbacks.values() if isinstance(callbacks, dict) else ():
        if isinstance(state, dict) and isinstance(state.get("best_k_models"), dict) and state.get("monitor"):
            yield state


def _spread_scores(states: list[tuple[CheckpointFile, dict[str, Any]]], files: dict[str, CheckpointFile]) -> None:
    """Each state knows the scores of all files that were kept by then; in the order of steps the last one counts."""
    best: dict[str, CheckpointFile | None] = {}
    for holder, state in states:
        monitor = str(state["monitor"])
        best[monitor] = _find(state.get("best_model_path"), files)
        for path, score in state["best_k_models"].items():
            _set_score(_find(path, files), monitor, score)
        if _find(state.get("last_model_path"), files) is holder:
            _set_score(holder, monitor, state.get("current_score"))
    for monitor, file in best.items():
        if file is not None:
            file.best_by.append(monitor)


def _find(path: Any, files: dict[str, CheckpointFile]) -> CheckpointFile | None:
    """The file that a path of the training means; the run's folder may have been moved since, not what is in it."""
    parts = str(path).replace("\\", "/").split("/")
    ends = ("/".join(parts[start:]) for start in range(len(parts)))
    return next((files[end] for end in ends if end in files), None)


def _set_score(file: CheckpointFile | None, monitor: str, score: Any) -> None:
    if file is not None:
        with suppress(TypeError, ValueError, RuntimeError):  # a foreign state: the row stays without a score
            file.scores[monitor] = float(score)


def _read_name(file: CheckpointFile) -> None:
    for name, value in IN_A_NAME.findall(file.path.removesuffix(".ckpt").partition("/")[2] or file.path):
        if name == "step":
            file.step = _whole(float(value), None)
        elif name == "epoch":
            file.epoch = _whole(float(value), None)
        else:
            file.scores[name] = float(value)


def _whole(value: Any, otherwise: int | None) -> int | None:
    return int(value) if isinstance(value, int | float) else otherwise

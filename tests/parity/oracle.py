"""Runs a scenario on Lightning (the oracle, kept quiet) or on GPUlayer (never kept quiet); compares what came out."""

from __future__ import annotations

import importlib
import logging
import math
import re
import warnings
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.parity.recorder import Outcome
    from tests.parity.scenarios import Scenario

LIGHTNING, GPULAYER = "lightning.pytorch", "gpulayer.pytorch"

# What GPUlayer tells the user of some scenarios, as Lightning does; any other warning fails the test.
EXPECTED_WARNINGS = {
    "no_validation_loader": r".*has a `validation_step`, but there is no validation loader",
    "callbacks_of_checkpoint": r"The checkpoint holds the state of callbacks that this Trainer lacks",
    "no_optimizer": r"`configure_optimizers` returned None",
    "no_loss": r"`training_step` returned None",
    "no_batches": r"the .*loader.* has no batches",
    "none_as_batch": r"The training loader gave None in place of a batch",
    "no_batch_indices": r".* gets no `batch_indices` for a DataLoader",
    "no_monitored_metric": r".* watches 'unknown', which was not logged",
}


@contextmanager
def quiet() -> Iterator[None]:
    """No warnings and no log lines: for Lightning only."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        before = logging.root.manager.disable
        logging.disable(logging.WARNING)
        try:
            yield
        finally:
            logging.disable(before)


@cache
def lightning() -> ModuleType:
    with quiet():
        return importlib.import_module(LIGHTNING)


def outcome_of(library: str, scenario: Scenario, folder: Path) -> Outcome:
    folder.mkdir(parents=True, exist_ok=True)
    if library == GPULAYER:
        with warnings.catch_warnings():
            for message in EXPECTED_WARNINGS.values():
                warnings.filterwarnings("ignore", message=message)
            return scenario(importlib.import_module(GPULAYER), folder)
    with quiet():
        return scenario(lightning(), folder)


def first_difference(expected: list[str], found: list[str]) -> str:
    """Empty for equal lists, else where they part and what surrounds it."""
    if expected == found:
        return ""
    both = zip(expected, found, strict=False)
    at = next((i for i, (left, right) in enumerate(both) if left != right), min(len(expected), len(found)))
    window = slice(max(at - 3, 0), at + 4)
    return f"at {at} of {len(expected)} and {len(found)}:\n  expected {expected[window]}\n  found    {found[window]}"


SAVES = re.compile(
    r"checkpoint\.on_(train_batch|validation)_end|\w+\.(state_dict|on_save_checkpoint)\b"
)  # what a ModelCheckpoint calls, whether it is recorded itself or not
AFTER = re.compile(r"module\.on_(train_batch|validation)_end\b")


def savers_last(events: list[str]) -> list[str]:
    """Lightning's events with a save at the end of a batch or a validation after the module's own hook (ADR 0002)."""
    ordered: list[str] = []
    for event in events:
        at = len(ordered)
        while AFTER.match(event) and at and SAVES.match(ordered[at - 1]):
            at -= 1
        ordered.insert(at, event)
    return ordered


def equal(left: Any, right: Any) -> bool:
    """Equality down to the last bit, through containers."""
    if isinstance(left, torch.Tensor) and isinstance(right, torch.Tensor):
        return left.dtype == right.dtype and torch.equal(left, right)
    if isinstance(left, dict) and isinstance(right, dict):
        return list(left) == list(right) and all(equal(left[key], right[key]) for key in left)
    if isinstance(left, list | tuple) and isinstance(right, list | tuple):
        return len(left) == len(right) and all(map(equal, left, right))
    return bool(left == right)


def numbers(value: Any) -> Any:
    """Tensors become numbers, so that metrics of another dtype can be compared."""
    if isinstance(value, torch.Tensor):
        return value.item() if value.numel() == 1 else value.tolist()
    if isinstance(value, dict):
        return {key: numbers(entry) for key, entry in value.items()}
    if isinstance(value, list | tuple):
        return [numbers(entry) for entry in value]
    return value


def close(left: Any, right: Any, tolerance: float = 1e-6) -> bool:
    """Equality of numbers to `tolerance`, through containers; keys of dictionaries in any order."""
    left, right = numbers(left), numbers(right)
    if isinstance(left, dict) and isinstance(right, dict):
        return set(left) == set(right) and all(close(left[key], right[key], tolerance) for key in left)
    if isinstance(left, list) and isinstance(right, list):
        return len(left) == len(right) and all(close(a, b, tolerance) for a, b in zip(left, right, strict=True))
    if isinstance(left, float | int) and isinstance(right, float | int):
        return math.isclose(left, right, rel_tol=tolerance, abs_tol=tolerance) or (left != left and right != right)
    return bool(left == right)


def parting(left: Any, right: Any, at: str = "") -> dict[str, tuple[Any, Any]]:
    """The places where two nested values are not close, each with both values; empty when they agree."""
    if close(left, right):
        return {}
    if isinstance(left, dict) and isinstance(right, dict):
        names = [*left, *(name for name in right if name not in left)]
        pairs = [(f"{at}/{name}", left.get(name, "absent"), right.get(name, "absent")) for name in names]
    elif isinstance(left, list | tuple) and isinstance(right, list | tuple) and len(left) == len(right):
        pairs = [(f"{at}/{i}", one, other) for i, (one, other) in enumerate(zip(left, right, strict=True))]
    else:
        return {at: (left, right)}
    return {place: both for name, one, other in pairs for place, both in parting(one, other, name).items()}

"""What a training step costs in Python calls. A loop by hand over a DataLoader takes 167 of them, Lightning 1,674.

The count does not depend on the machine; it is that of cProfile, the loader and torch's own Python functions included.
"""

from __future__ import annotations

import cProfile
import pstats
from pathlib import Path
from typing import Any

import pytest

from tests.architecture.workload import Net, Validated, batches, trainer


def calls(folder: Path, module: Any, count: int, validation: int = 0, **arguments: Any) -> int:
    """Python calls of a whole run."""
    profile = cProfile.Profile()
    val = batches(validation) if validation else None
    profile.runcall(trainer(folder, **arguments).fit, module, batches(count), val)
    return int(pstats.Stats(profile).total_calls)  # type: ignore[attr-defined]


def calls_per_step(folder: Path, logs: str, **arguments: Any) -> float:
    calls(folder, Net(logs), 10, **arguments)
    return (calls(folder, Net(logs), 300, **arguments) - calls(folder, Net(logs), 100, **arguments)) / 200


@pytest.mark.parametrize(("logs", "budget"), [("", 230), ("one", 260), ("two", 290)])
def test_calls_of_a_training_step(logs: str, budget: int, tmp_path: Path) -> None:
    assert calls_per_step(tmp_path, logs) <= budget


def test_calls_of_a_training_step_with_the_defaults(tmp_path: Path) -> None:
    """metrics.csv and checkpoints on, a row every 50 steps: still within the budget of one self.log."""
    defaults = {"logger": None, "enable_checkpointing": True, "log_every_n_steps": 50}
    assert calls_per_step(tmp_path, "one", **defaults) <= 260


def test_calls_of_a_validation_batch(tmp_path: Path) -> None:
    """With one self.log; the loader alone takes about 40."""

    def total(count: int) -> int:
        return calls(tmp_path, Validated(), 2, count)

    total(10)
    assert (total(300) - total(100)) / 200 <= 80

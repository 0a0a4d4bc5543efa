"""GPUlayer calls hooks in the order that was recorded from Lightning (record_hook_orders.py) for each configuration."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.architecture.record_hook_orders import FOLDER, RECORDED, recorded
from tests.parity.oracle import GPULAYER, first_difference, outcome_of, savers_last
from tests.parity.scenarios import SCENARIOS


@pytest.mark.parametrize("name", RECORDED)
def test_hooks_run_in_the_recorded_order(name: str, tmp_path: Path) -> None:
    events = outcome_of(GPULAYER, SCENARIOS[name], tmp_path).events
    difference = first_difference(savers_last(recorded(name)), events)
    assert not difference, difference


def test_every_recorded_list_is_compared() -> None:
    """No list lies in the folder unused, and none is missing."""
    assert {file.stem for file in FOLDER.glob("*.json")} == set(RECORDED)

"""User code sees the same hooks in the same order on both libraries, and the same trainer state inside them."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.parity.conftest import Pair
from tests.parity.differences import HOOK_ORDER, STATE
from tests.parity.oracle import first_difference, savers_last
from tests.parity.scenarios import SCENARIOS

COMPARED = [name for name in SCENARIOS if name not in HOOK_ORDER]


@pytest.mark.parametrize("name", COMPARED)
def test_hooks_run_in_lightnings_order(name: str, pair: Callable[[str], Pair]) -> None:
    lightning, gpulayer = pair(name)
    difference = first_difference(savers_last(lightning.events), gpulayer.events)
    assert not difference, difference


@pytest.mark.parametrize("name", [name for name in COMPARED if name not in STATE])
def test_hooks_see_the_same_state(name: str, pair: Callable[[str], Pair]) -> None:
    """Epoch, step, stage, train or eval mode, gradients on or off, and in training whether this is the last batch."""
    lightning, gpulayer = pair(name)
    difference = first_difference(savers_last(lightning.views), gpulayer.views)
    assert not difference, difference

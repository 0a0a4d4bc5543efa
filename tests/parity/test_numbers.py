"""The same user code ends with the same weights, counters and answers on both libraries."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import pytest

from tests.parity.conftest import Pair
from tests.parity.differences import COUNTERS, NOTES, RETURNED, STATES, VIEWS, WEIGHTS
from tests.parity.oracle import close, equal, parting
from tests.parity.scenarios import SCENARIOS


def without(left_out: dict[str, str]) -> list[str]:
    return [name for name in SCENARIOS if name not in left_out]


@pytest.mark.parametrize("name", without(WEIGHTS))
def test_weights_are_equal_bit_for_bit(name: str, pair: Callable[[str], Pair]) -> None:
    lightning, gpulayer = pair(name)
    assert lightning.weights
    assert equal(lightning.weights, gpulayer.weights)


@pytest.mark.parametrize("name", without(COUNTERS))
def test_counters_are_equal(name: str, pair: Callable[[str], Pair]) -> None:
    lightning, gpulayer = pair(name)
    assert (gpulayer.global_step, gpulayer.current_epoch) == (lightning.global_step, lightning.current_epoch)


@pytest.mark.parametrize("name", without(VIEWS))
def test_the_loops_views_count_the_same(name: str, pair: Callable[[str], Pair]) -> None:
    """`trainer.fit_loop.epoch_loop.batch_progress` and the like, after the run."""
    lightning, gpulayer = pair(name)
    assert parting(lightning.counts, gpulayer.counts) == {}


@pytest.mark.parametrize("name", without(STATES))
def test_optimizers_and_schedulers_end_in_the_same_state(name: str, pair: Callable[[str], Pair]) -> None:
    lightning, gpulayer = pair(name)
    assert parting(lightning.optimizers, gpulayer.optimizers) == {}
    assert parting(lightning.schedulers, gpulayer.schedulers) == {}


@pytest.mark.parametrize("name", without(WEIGHTS | NOTES))
def test_what_the_scenario_noted_is_equal(name: str, pair: Callable[[str], Pair]) -> None:
    """Learning rates, modes of submodules, gradients, outputs given to hooks, which checkpoints were kept ..."""
    lightning, gpulayer = pair(name)
    assert parting(lightning.notes, gpulayer.notes) == {}


def same_answer(lightning: Any, gpulayer: Any) -> bool:
    """Equality, where Lightning's list of one dict per loader may be a mapping that answers the same indices."""
    if isinstance(lightning, list) and isinstance(gpulayer, Mapping):
        return bool(lightning) == bool(gpulayer) and all(
            close(entry, dict(gpulayer[i])) for i, entry in enumerate(lightning)
        )
    if isinstance(lightning, list) and isinstance(gpulayer, list):
        return len(lightning) == len(gpulayer) and all(map(same_answer, lightning, gpulayer))
    return close(lightning, gpulayer)


@pytest.mark.parametrize("name", without(RETURNED))
def test_returned_values_are_equal(name: str, pair: Callable[[str], Pair]) -> None:
    lightning, gpulayer = pair(name)
    assert same_answer(lightning.returned, gpulayer.returned), (lightning.returned, gpulayer.returned)

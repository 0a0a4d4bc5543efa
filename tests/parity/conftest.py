"""Each scenario runs once per library and session; the tests look at what came out from different sides."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.parity.oracle import GPULAYER, LIGHTNING, outcome_of
from tests.parity.recorder import Outcome
from tests.parity.scenarios import LOG_SCENARIOS, SCENARIOS

Pair = tuple[Outcome, Outcome]


@pytest.fixture(scope="session")
def outcome(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str, str], Outcome]:
    """`outcome(library, scenario)`, run at the first request."""
    kept: dict[tuple[str, str], Outcome | Exception] = {}

    def run(library: str, name: str) -> Outcome | Exception:
        try:
            return outcome_of(library, (SCENARIOS | LOG_SCENARIOS)[name], tmp_path_factory.mktemp("run"))
        except Exception as error:
            return error

    def get(library: str, name: str) -> Outcome:
        if (library, name) not in kept:
            kept[library, name] = run(library, name)
        result = kept[library, name]
        if isinstance(result, Exception):
            raise result
        return result

    return get


@pytest.fixture
def pair(outcome: Callable[[str, str], Outcome]) -> Callable[[str], Pair]:
    """`pair(scenario)`: the outcome on Lightning and that on GPUlayer."""
    return lambda name: (outcome(LIGHTNING, name), outcome(GPULAYER, name))

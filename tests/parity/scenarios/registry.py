"""The table of all scenarios, by name."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any

from tests.parity.recorder import Outcome

Scenario = Callable[[ModuleType, Path], Outcome]
SCENARIOS: dict[str, Scenario] = {}
LOG_SCENARIOS: dict[str, Scenario] = {}


def scenario(function: Scenario) -> Scenario:
    """Registers a function as the scenario of its name."""
    SCENARIOS[function.__name__] = function
    return function


def log_scenario(function: Scenario) -> Scenario:
    """The same for a scenario of `self.log`."""
    LOG_SCENARIOS[function.__name__] = function
    return function


def variants(
    name: str, table: dict[str, Scenario] = SCENARIOS, **cases: dict[str, Any]
) -> Callable[[Callable[..., Outcome]], Callable[..., Outcome]]:
    """Registers one function as several scenarios, `name` with `{}` filled by each case's name."""

    def register(function: Callable[..., Outcome]) -> Callable[..., Outcome]:
        for case, arguments in cases.items():
            table[name.format(case)] = partial(function, **arguments)
        return function

    return register


log_variants = partial(variants, table=LOG_SCENARIOS)

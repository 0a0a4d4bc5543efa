"""User code for both libraries: each scenario takes a namespace `L` and a folder, and returns an `Outcome`.

Nothing here asserts; `tests/parity` compares the outcomes of the two libraries, `tests/architecture` the hooks with
lists recorded from Lightning. All scenarios use fixed data in fixed order on the CPU, and give `max_epochs` (the
libraries' defaults differ).
"""

from tests.parity.scenarios import (
    averaging,
    changed,
    checkpoints,
    configured,
    data,
    duration,
    evaluation,
    finetuning,
    formats,
    logging,
    manual,
    metric_objects,
    modes,
    optimization,
    properties,
    small_callbacks,
    stopping,
    training,
)
from tests.parity.scenarios.registry import LOG_SCENARIOS, SCENARIOS, Scenario

__all__ = [
    "LOG_SCENARIOS",
    "SCENARIOS",
    "Scenario",
    "averaging",
    "changed",
    "checkpoints",
    "configured",
    "data",
    "duration",
    "evaluation",
    "finetuning",
    "formats",
    "logging",
    "manual",
    "metric_objects",
    "modes",
    "optimization",
    "properties",
    "small_callbacks",
    "stopping",
    "training",
]

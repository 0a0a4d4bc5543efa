"""`self.log`: the same names and numbers for callbacks, the progress bar and loggers, with the same steps.

Numbers are compared to 1e-6, not bit for bit: GPUlayer keeps sums and counts in float64, Lightning in float32.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from tests.parity.conftest import Pair
from tests.parity.differences import METRICS
from tests.parity.oracle import GPULAYER, LIGHTNING, close, numbers, outcome_of, parting
from tests.parity.recorder import Lab, Outcome
from tests.parity.scenarios import LOG_SCENARIOS, SCENARIOS
from tests.parity.scenarios.logging import logged_fit, logging_net

COMPARED = [name for name in SCENARIOS | LOG_SCENARIOS if name not in METRICS]
WITH_ROWS = [name for name in LOG_SCENARIOS if name != "log_at_some_steps"]  # its rows: test_deliberate_differences


@pytest.mark.parametrize("name", COMPARED)
def test_final_metrics_are_equal(name: str, pair: Callable[[str], Pair]) -> None:
    """callback_metrics, logged_metrics and progress_bar_metrics after the run."""
    kinds = ("callback_metrics", "logged_metrics", "progress_bar_metrics")
    lightning, gpulayer = ({kind: numbers(getattr(outcome, kind)) for kind in kinds} for outcome in pair(name))
    assert parting(lightning, gpulayer) == {}


def sorted_rows(outcome: Outcome) -> list[tuple[Any, dict[str, float]]]:
    """By step and names: a row may reach GPUlayer's loggers a step later, with the step it belongs to."""
    return sorted(outcome.notes["rows"], key=lambda row: (row[0], sorted(row[1])))


@pytest.mark.parametrize("name", WITH_ROWS)
def test_loggers_get_the_same_rows(name: str, pair: Callable[[str], Pair]) -> None:
    lightning, gpulayer = map(sorted_rows, pair(name))
    assert [(step, sorted(row)) for step, row in gpulayer] == [(step, sorted(row)) for step, row in lightning]
    assert close(lightning, gpulayer), (lightning, gpulayer)


@pytest.mark.parametrize(
    "name",
    [
        name
        for name in LOG_SCENARIOS
        if name not in ("log_to_csv", "log_in_test", "log_in_validate", "metric_object_tested")
    ],
)
def test_callbacks_read_the_same_metrics_during_the_run(name: str, pair: Callable[[str], Pair]) -> None:
    """callback_metrics in on_train_batch_end, on_train_epoch_end, on_validation_(epoch_)end and on_train_end."""
    lightning, gpulayer = (outcome.notes["seen"] for outcome in pair(name))
    assert [moment for moment, _ in gpulayer] == [moment for moment, _ in lightning]
    assert parting(lightning, gpulayer) == {}


@pytest.mark.parametrize("name", LOG_SCENARIOS)
def test_loggers_are_told_the_same_otherwise(name: str, pair: Callable[[str], Pair]) -> None:
    """Hyperparameters, the status at the end, the folder."""
    lightning, gpulayer = (
        {key: value for key, value in outcome.notes.items() if key not in ("rows", "seen")} for outcome in pair(name)
    )
    assert gpulayer == lightning


@pytest.mark.parametrize("name", ["log_in_validate", "log_in_test"])
def test_evaluation_returns_the_epochs_numbers(name: str, pair: Callable[[str], Pair]) -> None:
    lightning, gpulayer = pair(name)
    assert close(lightning.returned[0], dict(gpulayer.returned[0])), (lightning.returned, gpulayer.returned)


def raised_by_log(L: ModuleType, folder: Path, stage: str, *args: Any, **kwargs: Any) -> Outcome:
    """The type of the error that a call of self.log in a step ends with."""
    lab = Lab(L, folder)

    def step(self: Any, batch: Any, batch_idx: int) -> Any:
        self.log(*args, **kwargs)
        return self.net(batch[:, :4]).sum()

    kind = ""
    try:
        logged_fit(lab, logging_net(lab, **{stage: step}))
    except Exception as error:
        kind = "ValueError" if isinstance(error, ValueError) else type(error).__name__
    return Outcome(notes={"kind": kind})


WRONG_CALLS = {
    "neither_step_nor_epoch": ("training_step", ("a", 1.0), {"on_step": False, "on_epoch": False}),
    "neither_in_validation": ("validation_step", ("a", 1.0), {"on_step": False, "on_epoch": False}),
    "text": ("training_step", ("a", "text"), {}),
    "dict": ("training_step", ("a", {"b": 1.0}), {}),
    "unknown_reduction": ("training_step", ("a", 1.0), {"reduce_fx": "median"}),
    "name_with_loader": ("training_step", ("a/dataloader_idx_0", 1.0), {}),
}


@pytest.mark.parametrize("case", WRONG_CALLS)
def test_wrong_calls_raise_the_same_kind_of_error(case: str, tmp_path: Path) -> None:
    stage, args, kwargs = WRONG_CALLS[case]

    def kind(library: str) -> str:
        def scenario(L: ModuleType, folder: Path) -> Outcome:
            return raised_by_log(L, folder, stage, *args, **kwargs)

        return str(outcome_of(library, scenario, tmp_path).notes["kind"])

    assert kind(LIGHTNING)
    assert kind(GPULAYER) == kind(LIGHTNING)

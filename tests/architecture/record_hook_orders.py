"""Records the order of hooks from the real Lightning into hook_orders/*.json, one list per scenario.

Run from the repository's root, with the Lightning version installed that the lists name:

    python -m tests.architecture.record_hook_orders
"""

from __future__ import annotations

import json
import tempfile
from pathlib import Path

from tests.parity.oracle import LIGHTNING, lightning, outcome_of
from tests.parity.scenarios import SCENARIOS

FOLDER = Path(__file__).parent / "hook_orders"

# The configurations whose order users rely on. tests/parity compares all scenarios with a live Lightning.
RECORDED = [
    "plain",
    "several_callbacks",
    "callbacks_of_module",
    "loaders_of_module",
    "reload_dataloaders_every_two",
    "datamodule",
    "accumulation",
    "accumulation_ragged",
    "accumulation_ragged_all_overridden",
    "overridden_optimizer_step",
    "overridden_all",
    "optimizer_step_without_super",
    "lbfgs_with_validation",
    "manual",
    "manual_all_overridden",
    "manual_two_optimizers",
    "scheduler_epoch",
    "scheduler_step",
    "scheduler_step_accumulation",
    "scheduler_plateau_epoch",
    "scheduler_plateau_epoch_overridden",
    "scheduler_plateau_step",
    "scheduler_plateau_step_overridden",
    "val_check_interval_int",
    "val_check_interval_float",
    "val_check_interval_across_epochs",
    "val_every_second_epoch",
    "stop_in_on_train_batch_end",
    "stop_in_on_validation_end",
    "stop_in_on_train_epoch_end",
    "stop_in_batch_end_min_epochs",
    "stop_in_batch_end_min_steps",
    "max_steps_mid_epoch",
    "max_steps_accumulation",
    "max_epochs_zero",
    "limit_train_int",
    "limit_train_float",
    "monitors",
    "monitors_val_check_interval",
    "monitors_patience_spent",
    "checkpoint_every_second_step",
    "gradient_clipping_by_norm",
    "none_from_training_step",
    "skip_epoch_by_module",
    "several_validation_loaders",
    "sanity_check",
    "sanity_check_several_loaders",
    "validate",
    "validate_several_loaders",
    "test",
    "predict",
    "predict_several_loaders",
    "fast_dev_run_true",
    "without_length",
    "without_length_ragged",
    "exception_in_training_step",
    "exception_in_validation_step",
    "resume_after_one_epoch",
]


def recorded(name: str) -> list[str]:
    """The list of a scenario as it was recorded."""
    return list(json.loads((FOLDER / f"{name}.json").read_text())["events"])


def record(name: str) -> None:
    with tempfile.TemporaryDirectory() as folder:
        events = outcome_of(LIGHTNING, SCENARIOS[name], Path(folder)).events
    content = {"scenario": name, "lightning": lightning().__version__, "events": events}
    (FOLDER / f"{name}.json").write_text(json.dumps(content, indent=1) + "\n")


if __name__ == "__main__":
    FOLDER.mkdir(exist_ok=True)
    assert set(RECORDED) <= set(SCENARIOS), set(RECORDED) - set(SCENARIOS)
    for scenario_name in RECORDED:
        record(scenario_name)

"""Where Lightning warns about what is likely a mistake, GPUlayer does."""

from __future__ import annotations

import importlib
from pathlib import Path

import pytest

from tests.parity.oracle import EXPECTED_WARNINGS, GPULAYER
from tests.parity.scenarios import SCENARIOS

SCENARIO_OF = {
    "no_validation_loader": "without_validation",
    "callbacks_of_checkpoint": "ckpt_path_validate",
    "no_optimizer": "optimizers_given_as_nothing",
    "no_loss": "none_from_training_step",
    "no_batches": "validation_loaders_list_with_an_empty_one",
    "none_as_batch": "none_as_a_batch",
    "no_batch_indices": "predictions_written_batch_without_length",
    "no_monitored_metric": "configured_as_monitor_that_is_missing",
}


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize("kind", EXPECTED_WARNINGS)
def test_the_user_is_warned(kind: str, tmp_path: Path) -> None:
    with pytest.warns(UserWarning, match=EXPECTED_WARNINGS[kind]):
        SCENARIOS[SCENARIO_OF[kind]](importlib.import_module(GPULAYER), tmp_path)

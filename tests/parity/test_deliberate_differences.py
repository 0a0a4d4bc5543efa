"""Where GPUlayer is right and Lightning is not: the value that is right, with the number of Lightning's issue."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch

from tests.parity import differences
from tests.parity.oracle import GPULAYER, LIGHTNING, close, equal, outcome_of, savers_last
from tests.parity.recorder import Lab, Outcome, loader, loss_of, network
from tests.parity.scenarios import LOG_SCENARIOS, SCENARIOS
from tests.parity.scenarios.data import any_batch, combined
from tests.parity.scenarios.parts import fitted

Outcomes = Callable[[str, str], Outcome]


def trained_by_hand(loaded: int, batches: int, every: int, epochs: int = 2) -> dict[str, torch.Tensor]:
    """The scenarios' network, trained on the first `batches` by a loop that divides a window by what it holds."""
    torch.manual_seed(7)
    net = network()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)
    for _ in range(epochs):
        rows = list(loader(loaded))[:batches]
        for start in range(0, batches, every):
            window = rows[start : start + every]
            optimizer.zero_grad()
            for batch in window:
                (loss_of(net, batch) / len(window)).backward()
            optimizer.step()
    return {f"net.{name}": value for name, value in net.state_dict().items()}


RAGGED_WINDOWS = {
    "accumulation_ragged": (5, 5, 2),
    "accumulation_ragged_all_overridden": (5, 5, 2),
    "accumulation_of_four_with_three_batches": (3, 3, 4),
    "limit_train_accumulation": (4, 3, 2),
    "val_check_interval_accumulation": (5, 5, 2),
    "without_length_ragged": (5, 5, 2),
}


@pytest.mark.parametrize("name", RAGGED_WINDOWS)
def test_a_ragged_accumulation_window_is_divided_by_what_it_holds(name: str, outcome: Outcomes) -> None:
    """Lightning divides by accumulate_grad_batches all the same, so the last step is too small (issue 19987)."""
    expected = trained_by_hand(*RAGGED_WINDOWS[name])
    assert equal(outcome(GPULAYER, name).weights, expected)
    assert not equal(outcome(LIGHTNING, name).weights, expected), "no difference any more: compare it like the others"


def test_skipping_the_rest_of_an_epoch_moves_no_step_scheduler(outcome: Outcomes) -> None:
    """Three epochs of two steps, skipped at the third batch: 6 and 3 moves beside the constructors' (issue 21296)."""
    events = outcome(GPULAYER, "skip_epoch_with_schedulers").events
    assert events.count("by_step.step") == 1 + 6
    assert events.count("by_epoch.step") == 1 + 3
    assert events.count("module.on_train_epoch_end") == 3
    assert outcome(GPULAYER, "skip_epoch_with_schedulers").global_step == 6


def test_hooks_of_a_skipped_epoch_are_those_of_lightning(outcome: Outcomes) -> None:
    """Only the step scheduler differs: that of epochs has moved when on_train_epoch_end saves a checkpoint."""
    ours, theirs = (
        [event for event in outcome(library, "skip_epoch_with_schedulers").events if not event.startswith("by_step")]
        for library in (GPULAYER, LIGHTNING)
    )
    assert ours == theirs


def test_frequency_of_a_step_scheduler_counts_across_epochs(outcome: Outcomes) -> None:
    """Every third of 2 + 2 + 2 + 2 steps moves it twice; Lightning counts anew in each epoch (issue 17544)."""
    name = "scheduler_step_every_third_across_epochs"
    assert outcome(GPULAYER, name).notes["rates"] == [0.1, 0.1, 0.05, 0.05, 0.05, 0.025, 0.025, 0.025]
    assert outcome(LIGHTNING, name).notes["rates"] != outcome(GPULAYER, name).notes["rates"]


def test_frequency_counts_across_epochs_beside_other_schedulers(outcome: Outcomes) -> None:
    """Eight steps with frequency 3: moves after the third and the sixth, which lie in different epochs."""
    events = outcome(GPULAYER, "configured_as_three_schedulers").events
    steps = [event for event in events if event in ("module.on_before_optimizer_step", "by_step.step")][1:]
    moves = [i for i, event in enumerate(steps) if event == "by_step.step"]
    assert moves == [3, 7]  # after 3 steps, and after 3 more and the first move


def test_frequency_of_a_step_scheduler_counts_optimizer_steps(outcome: Outcomes) -> None:
    """Two batches a step: 6 steps and a frequency of 2 are 3 moves, 4 steps are 2; Lightning counts batches."""
    name = "scheduler_when_step_every_second_accumulation"
    assert outcome(GPULAYER, name).global_step == 6
    assert outcome(GPULAYER, name).events.count("scheduler.step") == 1 + 3
    assert outcome(LIGHTNING, name).events.count("scheduler.step") == 1 + 6
    name = "plateau_step_val_loss_accumulation"
    assert outcome(GPULAYER, name).global_step == 4
    assert outcome(GPULAYER, name).events.count("scheduler.step") == 2
    assert outcome(LIGHTNING, name).events.count("scheduler.step") == 4


SHORTER_THAN_ITS_LIMIT = [name for name, reason in differences.HOOK_ORDER.items() if reason is differences.SHORTER]


@pytest.mark.parametrize("name", SHORTER_THAN_ITS_LIMIT)
def test_an_epoch_shorter_than_its_limit_is_validated(name: str, outcome: Outcomes) -> None:
    """Four batches and a limit of more; Lightning waits for a batch that never comes, and validates never."""
    ours, theirs = outcome(GPULAYER, name), outcome(LIGHTNING, name)
    assert ours.events.count("module.on_validation_start") == ours.current_epoch
    assert theirs.events.count("module.on_validation_start") == 0, "no difference any more"
    others = (
        [event for event in side.events if "valid" not in event and "transfer" not in event] for side in (ours, theirs)
    )
    assert next(others) == next(others)


def test_a_skipped_batch_is_not_counted(outcome: Outcomes) -> None:
    """Two of four batches are trained in each of three epochs; a validation every third trained batch is two."""
    ours = outcome(GPULAYER, "skips_across_epochs")
    assert ours.counts["batches"] == ours.global_step == 6
    before = [event for event in ours.events if event in ("module.on_train_batch_end(batch_idx=0)",
              "module.on_train_batch_end(batch_idx=1)", "module.on_validation_start")]  # fmt: skip
    assert [i for i, event in enumerate(before) if event == "module.on_validation_start"] == [3, 7]


@pytest.mark.parametrize("call", ["validate", "test", "predict"])
def test_a_datamodule_has_a_part_in_its_own_calls(call: str, outcome: Outcomes) -> None:
    """After the fit that it was given to, none of its hooks is called; Lightning calls its `setup` and `teardown`."""
    ours, theirs = (
        [event for event in outcome(library, f"after_a_datamodule_{call}").events if event.startswith("datamodule.")]
        for library in (GPULAYER, LIGHTNING)
    )
    assert ours[-1] == "datamodule.teardown(stage=fit)"
    assert theirs[len(ours)] == "datamodule.prepare_data"


@pytest.mark.parametrize("name", ["precision_16_mixed", "precision_16_mixed_manual"])
def test_float16_on_the_cpu(name: str, outcome: Outcomes) -> None:
    """All steps are computed in float16, the weights stay in 32 bits, and they learn."""
    ours = outcome(GPULAYER, name)
    steps = [entry for entry in ours.notes["seen"] if " out=" in entry]
    assert len(steps) > 8
    assert all("out=float16" in entry and "autocast=float16" in entry for entry in steps)
    assert ours.notes["kinds"]["net.0.weight"] == "float32"
    torch.manual_seed(7)
    before = {f"net.{name}": value for name, value in network().state_dict().items()}
    assert all(ours.weights[name].isfinite().all() and not equal(ours.weights[name], before[name]) for name in before)
    assert (ours.notes["name"], outcome(LIGHTNING, name).notes["name"]) == ("16-mixed", "bf16-mixed")


def test_steps_that_are_not_known_are_infinite(outcome: Outcomes) -> None:
    """Two epochs of a loader without length."""
    infinite = float("inf")
    assert outcome(GPULAYER, "estimated_steps_without_length_unlimited").notes["read"][0] == infinite
    assert outcome(LIGHTNING, "estimated_steps_without_length_unlimited").notes["read"][0] == -1


def test_batches_of_loaders_that_go_together(outcome: Outcomes) -> None:
    """One and three batches in step, the shorter one giving None: three batches come, of one loader so to say."""
    ours = outcome(GPULAYER, "validation_batches_together")
    assert ours.notes["read"] == [[3]] * 4
    assert sum("validation_step(" in event for event in ours.events) == 1 + 2 * 3 + 3


def test_fit_leaves_the_callers_gradient_mode(outcome: Outcomes) -> None:
    """It trains, called in no_grad, and gradients are off again afterwards."""
    ours = outcome(GPULAYER, "gradients_switched_off_by_the_user")
    assert ours.notes["after"].startswith("grad=False")
    assert any("on_after_backward" in event for event in ours.events)


def one_after_another(L: ModuleType, folder: Path) -> Outcome:
    """Two training loaders in a row, with an optimizer step every second batch."""
    lab = Lab(L, folder)
    train = combined(L, {"a": loader(2), "b": loader(4, seed=1)}, "sequential")
    return fitted(lab, any_batch(lab)(), train, loader(1, seed=2), accumulate_grad_batches=2)


def test_training_loaders_one_after_another(tmp_path: Path) -> None:
    """Six batches and three steps an epoch; Lightning refuses this mode in training."""
    ours = outcome_of(GPULAYER, one_after_another, tmp_path)
    assert ours.global_step == 6
    steps = [event for event in ours.events if "training_step" in event]
    assert len(steps) == 12
    assert [step.partition(" ")[2] for step in steps[:6]] == [step.partition(" ")[2] for step in steps[6:]]
    assert len({step.partition(" ")[2] for step in steps}) == 6
    with pytest.raises(ValueError, match="sequential"):
        outcome_of(LIGHTNING, one_after_another, tmp_path)


def test_early_stopping_before_min_epochs_looks_again(outcome: Outcomes) -> None:
    """Patience ran out in the second of five epochs, then the metric recovered (issue 19966)."""
    assert outcome(GPULAYER, "early_stopping_recovers").current_epoch == 5
    assert outcome(LIGHTNING, "early_stopping_recovers").current_epoch == 3


def test_a_resumed_run_has_the_checkpoints_metrics(outcome: Outcomes) -> None:
    """Nothing was left to train, and the metrics are those of the run that wrote the file; Lightning has none."""
    resumed = outcome(GPULAYER, "resume_after_last_epoch").callback_metrics
    assert resumed
    assert close(resumed, outcome(LIGHTNING, "resume_after_one_epoch").callback_metrics)
    assert outcome(LIGHTNING, "resume_after_last_epoch").callback_metrics == {}


def test_last_checkpoint_is_the_newest_state(outcome: Outcomes) -> None:
    """mode="max" on a falling loss keeps the first epoch as best; "last" is the third all the same (issue 20185)."""
    ours = outcome(GPULAYER, "best_and_last")
    assert ours.checkpoints["kept/last.ckpt"]["global_step"] == 9
    assert [ours.checkpoints[file]["global_step"] for file in ours.checkpoints if "last" not in file] == [3]
    best, last = (dict(answer[0])["val_loss"] for answer in ours.returned)
    assert best > last


SAVING = ("state_dict", "on_save_checkpoint")


@pytest.mark.parametrize("name", ["monitors_save_last", "checkpoint_only_last"])
def test_last_checkpoint_is_written_at_every_save_event(name: str, outcome: Outcomes) -> None:
    """Once an event (Lightning: again beside the best, or at the end of training alone); nothing else differs."""
    ours, theirs = outcome(GPULAYER, name), outcome(LIGHTNING, name)
    assert ours.checkpoints["kept/last.ckpt"]["global_step"] == 8
    assert ours.events.count("module.on_save_checkpoint") == 2
    sides = (ours.events, savers_last(theirs.events))
    others = ([event for event in events if not event.endswith(SAVING)] for events in sides)
    assert next(others) == next(others)


def test_a_step_value_is_written_once(outcome: Outcomes) -> None:
    """Lightning repeats the value of a name that was not logged again since the last log point."""
    rows = outcome(GPULAYER, "log_at_some_steps").notes["rows"]
    assert [(step, row["first"]) for step, row in rows if "first" in row] == [(0, 0.0), (4, 1.0)]
    assert [(step, row["every"]) for step, row in rows if "every" in row] == [(i, float(i % 4)) for i in range(8)]
    theirs = [step for step, row in outcome(LIGHTNING, "log_at_some_steps").notes["rows"] if "first" in row]
    assert theirs == list(range(8)), "no difference any more: compare it like the others"


def test_evaluation_answers_as_a_dict_and_as_lightnings_list(outcome: Outcomes) -> None:
    """One dict of all numbers; `result[i]` is what Lightning gives for loader i."""
    answer: Any = outcome(GPULAYER, "validate_several_loaders").returned
    assert isinstance(answer, dict)
    assert set(answer) == {"val_loss/dataloader_idx_0", "val_loss/dataloader_idx_1"}
    assert dict(answer[1]) == {"val_loss/dataloader_idx_1": answer["val_loss/dataloader_idx_1"]}
    alone: Any = outcome(GPULAYER, "test").returned
    assert dict(alone[0]) == dict(alone)


def test_a_step_that_takes_the_iterator_has_the_ordinary_hooks(outcome: Outcomes) -> None:
    """Each batch is moved by the transfer hooks and numbered from 0; Lightning skips the one and lags in the other."""
    events = outcome(GPULAYER, "training_step_takes_iterator").events
    starts = [event for event in events if event.startswith("module.on_train_batch_start")]
    steps = [event for event in events if event.startswith("module.training_step")]
    assert starts == [step.replace("training_step", "on_train_batch_start") for step in steps]
    assert sum("transfer_batch_to_device" in event for event in events) >= len(steps)


def test_an_error_in_a_validation_leaves_the_model_in_its_modes(outcome: Outcomes) -> None:
    """What on_exception sees; in Lightning the model stays in eval mode, and the next fit trains without dropout."""
    ours, theirs = (outcome(library, "exception_in_validation_step").views[-1] for library in (GPULAYER, LIGHTNING))
    assert "train=True" in ours
    assert "train=False" in theirs


def test_evaluating_nothing_answers_with_empty_collections(outcome: Outcomes) -> None:
    """With a limit of 0, validate and test give no numbers, and predict no predictions."""
    assert outcome(GPULAYER, "evaluation_limited_zero").returned == [{}, {}, []]


def test_each_difference_names_a_scenario() -> None:
    """A renamed scenario must not leave its exception behind."""
    named = {
        *differences.HOOK_ORDER,
        *differences.STATE,
        *differences.WEIGHTS,
        *differences.NOTES,
        *differences.VIEWS,
        *differences.STATES,
        *differences.METRICS,
        *differences.CHECKPOINTS,
        *differences.RETURNED,
    }
    assert named <= set(SCENARIOS | LOG_SCENARIOS)

"""Checkpoints have Lightning's layout and content, and each library goes on from a file that the other wrote."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests.parity.conftest import Pair
from tests.parity.differences import CHECKPOINTS
from tests.parity.oracle import GPULAYER, LIGHTNING, close, equal, outcome_of
from tests.parity.scenarios import SCENARIOS
from tests.parity.scenarios.checkpoints import interrupted, resumed

WRITING = [
    name
    for name in SCENARIOS
    if name.startswith(("monitors", "checkpoint_", "resume_", "load_from", "save_weights")) and name not in CHECKPOINTS
]


def paths(value: Any, at: str = "") -> set[str]:
    """Every path through nested dictionaries: `fit_loop/epoch_progress/total/ready`."""
    if not isinstance(value, dict):
        return {at}
    return {at} | {path for key, entry in value.items() for path in paths(entry, f"{at}/{key}")}


@pytest.mark.parametrize("name", WRITING)
def test_the_same_files_are_written(name: str, pair: Callable[[str], Pair]) -> None:
    lightning, gpulayer = pair(name)
    assert lightning.checkpoints
    assert sorted(gpulayer.checkpoints) == sorted(lightning.checkpoints)


@pytest.mark.parametrize("name", WRITING)
def test_top_level_keys_are_lightnings(name: str, pair: Callable[[str], Pair]) -> None:
    """Keys of our own may come beside them, under our own name."""
    lightning, gpulayer = pair(name)
    for file, expected in lightning.checkpoints.items():
        found = {key for key in gpulayer.checkpoints[file] if not key.startswith("gpulayer")}
        assert found == set(expected), file


@pytest.mark.parametrize("name", WRITING)
def test_loops_have_lightnings_structure(name: str, pair: Callable[[str], Pair]) -> None:
    lightning, gpulayer = pair(name)
    for file, expected in lightning.checkpoints.items():
        assert paths(expected.get("loops")) - paths(gpulayer.checkpoints[file].get("loops")) == set(), file


@pytest.mark.parametrize(
    "part", ["state_dict", "optimizer_states", "lr_schedulers", "epoch", "global_step", "hyper_parameters"]
)
@pytest.mark.parametrize("name", WRITING)
def test_contents_are_equal(name: str, part: str, pair: Callable[[str], Pair]) -> None:
    """Weights, optimizers and schedulers bit for bit, whenever the file was written."""
    lightning, gpulayer = pair(name)
    unequal = [
        (file, expected.get(part), gpulayer.checkpoints[file].get(part))
        for file, expected in lightning.checkpoints.items()
        if not equal(expected.get(part), gpulayer.checkpoints[file].get(part))
    ]
    assert unequal == []


MESSAGE = "stopping_reason_message"  # in each library's own words


@pytest.mark.parametrize("name", WRITING)
def test_states_of_callbacks_are_equal(name: str, pair: Callable[[str], Pair]) -> None:
    """Under the same keys (they name class and arguments), with at least Lightning's entries."""
    lightning, gpulayer = pair(name)
    for file, expected in lightning.checkpoints.items():
        found = gpulayer.checkpoints[file].get("callbacks", {})
        assert list(found) == list(expected.get("callbacks", {})), file
        for key, state in expected.get("callbacks", {}).items():
            ours = {entry: value for entry, value in found[key].items() if entry != MESSAGE}
            theirs = {entry: value for entry, value in state.items() if entry != MESSAGE}
            assert {entry for entry, value in theirs.items() if not close(value, ours.get(entry))} == set(), (file, key)
            assert (state.get(MESSAGE) is None) == (found[key].get(MESSAGE) is None), (file, key)


@pytest.mark.parametrize("name", [name for name in WRITING if name.startswith("resume_")])
def test_progress_after_fit_is_equal(name: str, pair: Callable[[str], Pair]) -> None:
    """The totals of a file saved after a run; those of the epoch in progress say nothing where there is none."""
    lightning, gpulayer = pair(name)
    for file in ("saved.ckpt", "end.ckpt"):
        expected, found = (outcome.checkpoints[file]["loops"]["fit_loop"] for outcome in (lightning, gpulayer))
        assert close(expected["epoch_progress"], found["epoch_progress"]), file
        assert close(expected["epoch_loop.state_dict"], found["epoch_loop.state_dict"]), file
        batches = "epoch_loop.batch_progress"
        assert close(expected[batches]["total"], found[batches]["total"]), file


@pytest.mark.parametrize("adam", [False, True])
@pytest.mark.parametrize(("writer", "reader"), [(LIGHTNING, GPULAYER), (GPULAYER, LIGHTNING)])
def test_one_library_goes_on_where_the_other_was(writer: str, reader: str, adam: bool, tmp_path: Path) -> None:
    """One epoch here, two there: the weights of three epochs at one place, bit for bit, and all states carried over."""
    whole, first, second = (tmp_path / name for name in ("whole", "first", "second"))
    uninterrupted = outcome_of(LIGHTNING, partial(interrupted, epochs=3, adam=adam), whole)
    outcome_of(writer, partial(interrupted, epochs=1, adam=adam), first)
    end = outcome_of(reader, partial(resumed, path=first / "saved.ckpt", adam=adam), second)
    assert equal(end.weights, uninterrupted.weights)
    assert (end.global_step, end.current_epoch, end.notes["count"], end.notes["seen"]) == (6, 3, 6, 11)
    assert equal(
        end.checkpoints["end.ckpt"]["optimizer_states"], uninterrupted.checkpoints["saved.ckpt"]["optimizer_states"]
    )

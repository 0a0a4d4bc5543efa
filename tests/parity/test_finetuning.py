"""Finetuning and pruning: each library goes on from a file that the other wrote."""

from __future__ import annotations

import importlib
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from tests.parity.oracle import GPULAYER, LIGHTNING, equal, outcome_of
from tests.parity.recorder import Lab, Outcome, loader
from tests.parity.scenarios.finetuning import transfer

pytestmark = pytest.mark.filterwarnings("ignore:The checkpoint holds the state of callbacks")


def run(library: str, folder: Path, callback: str, arguments: dict[str, Any], path: Path | None = None) -> Outcome:
    """Four epochs of three batches, with a file after each batch."""

    def scenario(L: ModuleType, folder: Path) -> Outcome:
        lab = Lab(L, folder)
        module = transfer(lab)()
        keeper = lab.callbacks.ModelCheckpoint(folder, "{step}", every_n_train_steps=1, save_top_k=-1)
        callbacks = [getattr(lab.callbacks, callback)(**arguments), *([] if path else [keeper])]
        trainer = lab.trainer(callbacks=callbacks, enable_checkpointing=path is None, max_epochs=4)
        how = {"ckpt_path": path, "weights_only": False} if path else {}
        trainer.fit(module, loader(3, batch_size=4), loader(1), **how)
        outcome = lab.outcome(trainer, module, seen=module.seen)
        outcome.weights = dict(sorted(outcome.weights.items()))
        return outcome

    return outcome_of(library, scenario, folder)


BACKBONE: dict[str, Any] = {"unfreeze_backbone_at_epoch": 1}


@pytest.mark.parametrize("step", [2, 5, 6, 8])
def test_backbone_goes_on_from_lightnings_file(step: int, tmp_path: Path) -> None:
    """Also in mid-epoch, where nothing is drawn at random: bit for bit, which Lightning itself does not."""
    whole = run(LIGHTNING, tmp_path / "whole", "BackboneFinetuning", BACKBONE)
    path = tmp_path / f"whole/step={step}.ckpt"
    resumed = run(GPULAYER, tmp_path / "resumed", "BackboneFinetuning", BACKBONE, path)
    assert resumed.notes["seen"] == whole.notes["seen"][step:]
    assert equal(resumed.weights, whole.weights)


def test_lightning_goes_on_from_our_file(tmp_path: Path) -> None:
    """Before the backbone trains; after that Lightning freezes it (its issue 21901), and the file has its groups."""
    whole = run(GPULAYER, tmp_path / "whole", "BackboneFinetuning", BACKBONE)
    resumed = run(LIGHTNING, tmp_path / "resumed", "BackboneFinetuning", BACKBONE, tmp_path / "whole/step=2.ckpt")
    assert resumed.notes["seen"][-9:] == whole.notes["seen"][3:]
    late = run(LIGHTNING, tmp_path / "late", "BackboneFinetuning", BACKBONE, tmp_path / "whole/step=8.ckpt")
    assert [groups for groups, _, _ in late.notes["seen"][-3:]] == [groups for groups, _, _ in whole.notes["seen"][9:]]


PRUNING: dict[str, Any] = {"pruning_fn": "l1_unstructured", "amount": 0.3, "use_lottery_ticket_hypothesis": False}


def test_pruning_goes_on_from_lightnings_file_with_its_masks(tmp_path: Path) -> None:
    """A file of `make_pruning_permanent=False`, which Lightning itself cannot load."""
    arguments = PRUNING | {"make_pruning_permanent": False}
    whole = run(LIGHTNING, tmp_path / "whole", "ModelPruning", arguments)
    for step in (2, 5, 9):
        path = tmp_path / f"whole/step={step}.ckpt"
        resumed = run(GPULAYER, tmp_path / f"resumed{step}", "ModelPruning", arguments, path)
        masks = [name for name in whole.weights if name.endswith("_mask")]
        assert masks
        assert equal(resumed.weights, whole.weights)
    with pytest.raises(RuntimeError):
        run(LIGHTNING, tmp_path / "failed", "ModelPruning", arguments, path)


def zeros(end: Outcome) -> int:
    return sum(int((value == 0).sum()) for value in end.weights.values())


def test_each_goes_on_from_the_others_pruned_file(tmp_path: Path) -> None:
    """Of ordinary weights. Only ours has the masks, with which what was pruned stays so and more is pruned."""
    for writer in (LIGHTNING, GPULAYER):
        whole = zeros(run(writer, tmp_path / writer, "ModelPruning", PRUNING))
        for reader in (LIGHTNING, GPULAYER):
            folder, path = tmp_path / f"{writer}-{reader}", tmp_path / writer / "step=8.ckpt"
            resumed = zeros(run(reader, folder, "ModelPruning", PRUNING, path))
            assert resumed == whole if writer == reader == GPULAYER else 0 < resumed < whole


@pytest.mark.parametrize("name", ["BaseFinetuning", "BackboneFinetuning", "ModelPruning"])
def test_the_same_public_methods(name: str) -> None:
    ours, theirs = (getattr(importlib.import_module(f"{L}.callbacks"), name) for L in (GPULAYER, LIGHTNING))
    own = {method for method in vars(theirs) if not method.startswith("_")}
    assert {method for method in own if not hasattr(ours, method)} == set()

"""ModelCheckpoint keeps the same files, under the same names, as Lightning's, and says the same of them."""

from __future__ import annotations

import importlib
import inspect
import random
from dataclasses import dataclass, field
from datetime import timedelta
from math import inf, nan
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset

from tests.parity.oracle import GPULAYER, LIGHTNING, lightning, quiet

SCORED: dict[str, Any] = {"monitor": "score"}


@dataclass
class Kept:
    """What a run left behind.

    Attributes:
        files: epoch and step that each file holds, by its path.
        best: what the callback says of the best, paths below the run's folder.
        last: the last file.
        raised: the kind of error that ended the run.
    """

    files: dict[str, tuple[int, int]] = field(default_factory=dict)
    best: dict[str, Any] = field(default_factory=dict)
    last: str = ""
    raised: str = ""


def batches(count: int) -> DataLoader[Any]:
    return DataLoader(TensorDataset(torch.randn(2 * count, 4)), batch_size=2)


def module_of(L: ModuleType, scores: list[float], fails_at: int, validates: bool) -> Any:
    class Net(L.LightningModule):  # type: ignore[name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.net, self.validations = torch.nn.Linear(4, 1), 0

        def training_step(self, batch: Any, batch_idx: int) -> Any:
            if self.global_step == fails_at:
                raise ZeroDivisionError
            loss = self.net(batch[0]).mean()
            self.log("train/loss", float(self.global_step % 3))
            return loss

        def configure_optimizers(self) -> Any:
            return torch.optim.SGD(self.parameters(), lr=0.1)

        if validates:

            def validation_step(self, batch: Any, batch_idx: int) -> None: ...

            def on_validation_epoch_end(self) -> None:
                self.log("score", scores[self.validations % len(scores)])
                self.validations += 1

    return Net()


def kept_by(
    library: str,
    folder: Path,
    arguments: dict[str, Any],
    scores: list[float],
    fails_at: int = -1,
    validates: bool = True,
    **of_trainer: Any,
) -> Kept:
    """Train on a library, with four batches an epoch and an epoch for each score."""
    folder.mkdir(parents=True)
    L = lightning() if library == LIGHTNING else importlib.import_module(library)
    saver = L.callbacks.ModelCheckpoint(dirpath=folder / "kept", **arguments)
    settings = {"max_epochs": len(scores), "enable_progress_bar": False, "enable_model_summary": False, **of_trainer}
    torch.manual_seed(0)
    kept = Kept()
    with quiet():
        used = L.Trainer(accelerator="cpu", logger=False, callbacks=[saver], num_sanity_val_steps=0, **settings)
        loaders = (batches(4), batches(1)) if validates else (batches(4),)
        try:
            used.fit(module_of(L, scores, fails_at, validates), *loaders)
        except ZeroDivisionError as error:
            kept.raised = type(error).__name__

    def name(path: str) -> str:
        return Path(path).relative_to(folder.resolve()).as_posix() if path else ""

    for file in sorted(folder.rglob("*.*")):
        content = torch.load(file, weights_only=False)
        kept.files[file.relative_to(folder).as_posix()] = (content["epoch"], content["global_step"])
    kept.best = {
        "best": name(saver.best_model_path),
        "score": None if saver.best_model_score is None else float(saver.best_model_score),
        "kth": (name(saver.kth_best_model_path), str(float(saver.kth_value))),
        "all": {name(path): str(float(score)) for path, score in saver.best_k_models.items()},
        "key": saver.state_key,
    }
    kept.last = name(saver.last_model_path)
    return kept


SETTINGS: dict[str, dict[str, Any]] = {
    "default": {},
    "all": {"save_top_k": -1},
    "none": {"save_top_k": 0},
    "all scored": {**SCORED, "save_top_k": -1},
    "none scored": {**SCORED, "save_top_k": 0},
    "no epochs": {"every_n_epochs": 0},
    "no steps": {"every_n_train_steps": 0},
    "every second epoch": {"every_n_epochs": 2, "save_top_k": -1},
    "every fifth step": {"every_n_train_steps": 5, "save_top_k": -1},
    "by a step's own metric": {
        "every_n_train_steps": 1,
        "monitor": "train/loss",
        "save_top_k": 3,
        "filename": "{step}",
    },
    "before there is a score": {**SCORED, "every_n_train_steps": 3},
    "each time": {"train_time_interval": timedelta(microseconds=1), "save_top_k": -1},
    "never in time": {"train_time_interval": timedelta(hours=1), "save_top_k": -1},
    "last": {"save_last": True},
    "last as a link": {"save_last": "link"},
    "no last": {"save_last": False},
    "last alone": {**SCORED, "save_top_k": 0, "save_last": True, "every_n_train_steps": 4},
    "after validation": {**SCORED, "save_on_train_epoch_end": False, "save_top_k": -1},
    "named": {"filename": "{epoch:02d}-{score:.2f}-{step}", "save_top_k": -1},
    "named without names": {"filename": "a-{epoch}-{score:.1f}", "auto_insert_metric_name": False},
    "a metric with a slash": {"filename": "{epoch}-{train/loss:.1f}"},
    "a metric with a slash, without names": {"filename": "{train/loss:.1f}", "auto_insert_metric_name": False},
    "a metric as it is": {"filename": "{score}"},
    "a metric that is missing": {"filename": "{unknown}-{other:.1f}-{third:d}"},
    "one name": {**SCORED, "filename": "model", "save_top_k": 2},
    "one name for all": {**SCORED, "filename": "model", "save_top_k": -1},
    "one name without numbers": {**SCORED, "filename": "model", "save_top_k": 2, "enable_version_counter": False},
    "weights": {"save_weights_only": True, "save_last": True},
}


@pytest.mark.parametrize("name", SETTINGS)
def test_the_same_files(name: str, tmp_path: Path) -> None:
    scores = [3.0, 1.0, 2.0]
    theirs, ours = (kept_by(library, tmp_path / library, SETTINGS[name], scores) for library in (LIGHTNING, GPULAYER))
    assert without_epoch_of_the_end(ours) == without_epoch_of_the_end(theirs)


def without_epoch_of_the_end(kept: Kept) -> Kept:
    """Lightning writes some last files after the epoch was counted, ours in the epoch whose step they hold."""
    kept.files = {file: (0 if "last" in file else epoch, step) for file, (epoch, step) in kept.files.items()}
    return kept


TRAINERS: dict[str, dict[str, Any]] = {
    "two validations an epoch": {"val_check_interval": 0.5},
    "a validation each batch": {"val_check_interval": 1},
    "a validation every second epoch": {"check_val_every_n_epoch": 2},
    "accumulated": {"accumulate_grad_batches": 3},
    "steps": {"max_steps": 7},
    "without validation": {"validates": False},
}


@pytest.mark.parametrize("at_epoch_end", [None, True, False])
@pytest.mark.parametrize("name", TRAINERS)
def test_the_same_moments(name: str, at_epoch_end: bool | None, tmp_path: Path) -> None:
    arguments = {"save_top_k": -1, "save_on_train_epoch_end": at_epoch_end}
    theirs, ours = (
        kept_by(library, tmp_path / library, arguments, [3.0, 1.0], **TRAINERS[name])
        for library in (LIGHTNING, GPULAYER)
    )
    assert ours == theirs


@pytest.mark.parametrize("fails_at", [0, 4, 6])
@pytest.mark.parametrize("arguments", [SCORED, {"save_last": True}, {"save_top_k": 0}], ids=str)
def test_the_same_files_after_an_exception(arguments: dict[str, Any], fails_at: int, tmp_path: Path) -> None:
    arguments = {"save_on_exception": True, **arguments}
    theirs, ours = (
        kept_by(library, tmp_path / library, arguments, [3.0, 1.0], fails_at) for library in (LIGHTNING, GPULAYER)
    )
    assert ours.raised
    assert ours == theirs


@pytest.mark.parametrize("seed", range(8))
def test_any_scores(seed: int, tmp_path: Path) -> None:
    """With ties, infinities and NaN, for any number to keep, in both directions."""
    drawn = random.Random(seed)
    scores = drawn.choices([1.0, 2.0, 3.0, inf, -inf, nan], weights=[3, 3, 3, 1, 1, 2], k=8)
    arguments = {**SCORED, "mode": drawn.choice(["min", "max"]), "save_top_k": drawn.choice([1, 2, 3, 5, -1])}
    theirs, ours = (
        kept_by(library, tmp_path / library, arguments, scores, limit_train_batches=1)
        for library in (LIGHTNING, GPULAYER)
    )
    assert ours == theirs


def test_the_arguments_are_lightnings() -> None:
    """In their order, with their defaults; ours come last."""
    theirs, ours = (
        inspect.signature(library.callbacks.ModelCheckpoint).parameters
        for library in (lightning(), importlib.import_module(GPULAYER))
    )
    assert list(ours)[: len(theirs)] == list(theirs)
    assert list(ours)[len(theirs) :] == ["on_save_error"]
    assert {name: given.default for name, given in ours.items() if name in theirs} == {
        name: given.default for name, given in theirs.items()
    }


def test_public_names_are_lightnings() -> None:
    theirs, ours = (library.callbacks.ModelCheckpoint for library in (lightning(), importlib.import_module(GPULAYER)))
    assert {name for name in dir(theirs) if not name.startswith("_")} - set(dir(ours)) == set()
    assert {name for name in vars(theirs()) if not name.startswith("_")} - set(vars(ours())) == set()


# -- what differs on purpose ------------------------------------------------------------------------------------------


def test_the_last_file_is_the_newest(tmp_path: Path) -> None:
    """Also where the newest is none of the best, and where training ends between two saves (issue 20185)."""
    for number, arguments in enumerate(({**SCORED, "save_last": True}, {"save_last": True, "every_n_epochs": 2})):
        theirs, ours = (
            kept_by(library, tmp_path / f"{number}{library}", arguments, [3.0, 1.0, 2.0])
            for library in (LIGHTNING, GPULAYER)
        )
        assert ours.files["kept/last.ckpt"][1] == 12
        assert theirs.files["kept/last.ckpt"][1] == 8
        ours.files.pop("kept/last.ckpt")
        theirs.files.pop("kept/last.ckpt")
        assert ours == theirs


def test_a_score_is_that_of_the_validation_that_follows(tmp_path: Path) -> None:
    """Every fourth step is an epoch's last (issue 20185)."""
    arguments = {**SCORED, "every_n_train_steps": 4, "save_top_k": -1, "filename": "{epoch}"}
    theirs, ours = (
        kept_by(library, tmp_path / library, arguments, [3.0, 1.0, 2.0]) for library in (LIGHTNING, GPULAYER)
    )
    assert ours.best["all"] == {f"kept/epoch={i}.ckpt": score for i, score in enumerate(("3.0", "1.0", "2.0"))}
    assert theirs.best["all"] == {"kept/epoch=1.ckpt": "3.0", "kept/epoch=2.ckpt": "1.0"}


def test_all_are_kept_also_where_they_have_one_name(tmp_path: Path) -> None:
    """Two saves an epoch under a name that tells epochs apart only; Lightning keeps the second."""
    arguments = {"filename": "{epoch}", "every_n_train_steps": 2, "save_top_k": -1}
    theirs, ours = (kept_by(library, tmp_path / library, arguments, [1.0, 2.0]) for library in (LIGHTNING, GPULAYER))
    assert sorted(step for _, step in ours.files.values()) == [2, 4, 6, 8]
    assert sorted(step for _, step in theirs.files.values()) == [4, 8]


def test_a_fast_run_writes_nothing(tmp_path: Path) -> None:
    arguments = {"save_last": True}
    theirs, ours = (
        kept_by(library, tmp_path / library, arguments, [1.0], fast_dev_run=True) for library in (LIGHTNING, GPULAYER)
    )
    assert ours.files == {}
    assert list(theirs.files) == ["kept/last.ckpt"]

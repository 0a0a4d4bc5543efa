"""TrackioLogger: trackio's database, read back with sqlite3."""

from __future__ import annotations

import json
import pickle
import sqlite3
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

import gpulayer.pytorch as L
from gpulayer.fabric.utilities.exceptions import MisconfigurationException
from gpulayer.fabric.utilities.rank_zero import rank_zero_only
from gpulayer.pytorch.loggers import TrackioLogger
from gpulayer.pytorch.loggers.logger import DummyExperiment
from tests.pytorch.loggers.runs import Told, agrees, fit


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The folder of all databases; trackio reads it from the environment once a program."""
    folder = tmp_path_factory.mktemp("trackio")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TRACKIO_DIR", str(folder))
        trackio = pytest.importorskip("trackio")
        yield Path(trackio.TRACKIO_DIR)


def logger_for(project: str, **arguments: Any) -> TrackioLogger:
    return TrackioLogger(project=project, auto_log_cpu=False, **arguments)


class Project:
    """What the database of a project holds: rows as (run, step, metrics), and the config of each run."""

    def __init__(self, folder: Path, name: str) -> None:
        with sqlite3.connect(folder / f"{name}.db") as database:
            rows = database.execute("SELECT run_id, step, metrics FROM metrics ORDER BY id").fetchall()
            configs = database.execute("SELECT run_id, config FROM configs").fetchall()
        database.close()
        self.rows = [(run, step, json.loads(metrics)) for run, step, metrics in rows]
        self.configs = {
            run: {name: value for name, value in json.loads(config).items() if not name.startswith("_")}
            for run, config in configs
        }

    def series(self, run: str, name: str) -> list[tuple[int, float]]:
        """A metric's values with their steps."""
        return [(step, metrics[name]) for of, step, metrics in self.rows if of == run and name in metrics]


def test_fit_and_test_are_one_run(folder: Path) -> None:
    """All rows at their steps, and the hyperparameters, are there when the call returns."""
    logger = logger_for("digits", name="first", prefix="x")
    trainer = fit(logger)
    project = Project(folder, "digits")
    assert logger.version is not None
    for name in ("train_loss", "val_loss", "epoch"):
        assert agrees(project.series(logger.version, f"x-{name}"), name)
    hparams = {"lr": 0.05, "layers": [1, 2], "activation": "ReLU", "nested": {"width": {"first": 3}}, "text": "a"}
    assert project.configs == {logger.version: hparams}
    assert logger.name == "digits"
    assert (logger.save_dir, logger.log_dir) == (None, None)
    assert len(list(Path("digits", logger.version, "checkpoints").glob("*.ckpt"))) == 2
    L.Trainer(logger=logger, accelerator="cpu").test(Told(), [(torch.ones(1, 4), torch.ones(1, 1))])
    project = Project(folder, "digits")
    assert len(project.series(logger.version, "x-test_loss")) == 1
    assert list(project.configs) == [logger.version]
    assert project.configs[logger.version] == {**hparams, "nested": None}  # of the module that was tested
    assert trainer.global_step == 8


def test_a_failed_run_keeps_its_rows(folder: Path) -> None:
    class Breaks(Told):
        def training_step(self, batch: Any, batch_idx: int) -> Any:
            if self.global_step == 5:
                raise ValueError("the user's own")
            return super().training_step(batch, batch_idx)

    logger = logger_for("breaks")
    with pytest.raises(ValueError, match="the user's own"):
        fit(logger, Breaks())
    assert logger.version
    assert [step for step, _ in Project(folder, "breaks").series(logger.version, "train_loss")] == [0, 1, 2, 3, 4]


def test_a_name_that_was_there_goes_on(folder: Path) -> None:
    versions = []
    for step, name in enumerate(["one", "one", "two"]):
        logger = logger_for("again", name=name)
        logger.log_hyperparams({"step": step, "_own": step})
        logger.log_metrics({"a": torch.tensor(0.5)}, step=step)
        logger.finalize("success")
        versions.append(logger.version)
    assert versions[0] == versions[1] != versions[2]
    project = Project(folder, "again")
    assert project.series(str(versions[0]), "a") == [(0, 0.5), (1, 0.5)]
    assert project.configs[versions[2]] == {"step": 2, "own": 2}


def test_two_loggers_at_once(folder: Path) -> None:
    """trackio ends a run when the next one begins; its rows go on to be written."""
    first, second = logger_for("first"), logger_for("second")
    for step in range(3):
        for logger in (first, second):
            logger.log_metrics({"a": float(step)}, step=step)
    for logger in (first, second):
        logger.finalize("success")
        assert logger.version
        assert Project(folder, logger.name).series(logger.version, "a") == [(0, 0.0), (1, 1.0), (2, 2.0)]


def test_a_logger_is_pickled_before_its_run(folder: Path) -> None:
    logger = pickle.loads(pickle.dumps(logger_for("pickled")))
    assert not (folder / "pickled.db").exists()
    logger.log_metrics({"a": 1.0}, step=2)
    logger.finalize("success")
    assert Project(folder, "pickled").series(logger.version, "a") == [(2, 1.0)]


def test_a_folder_of_its_own(folder: Path) -> None:
    """One a program: the same may be given again, another not."""
    assert TrackioLogger(save_dir=folder).save_dir == str(folder)
    with pytest.raises(MisconfigurationException, match=r"save_dir='.*/other'.*trackio writes to '.*' already"):
        TrackioLogger(save_dir="other")


def test_other_ranks_write_nothing(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rank_zero_only, "rank", 1)
    logger = logger_for("nothing")
    assert isinstance(logger.experiment, DummyExperiment)
    logger.log_metrics({"a": 1.0}, step=0)
    logger.log_hyperparams({"a": 1})
    logger.finalize("success")
    assert logger.version is None
    assert not (folder / "nothing.db").exists()


def test_without_the_package(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "trackio", None)
    with pytest.raises(ModuleNotFoundError, match=r"needs the package trackio: pip install 'gpulayer\[trackio\]'"):
        TrackioLogger()

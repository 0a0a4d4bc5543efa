"""Which files a run leaves, and where."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

import gpulayer.pytorch as L
from gpulayer.fabric.utilities.exceptions import MisconfigurationException
from gpulayer.pytorch.callbacks import EarlyStopping, LearningRateMonitor, ModelCheckpoint
from gpulayer.pytorch.loggers import CSVLogger
from tests.pytorch.models import Line, Validated, loader


def everything(folder: Path) -> list[str]:
    """Every file and every empty folder under a folder."""
    found = []
    for here, folders, files in os.walk(folder):
        found += [str((Path(here) / name).relative_to(folder)) for name in files]
        if not folders and not files and Path(here) != folder:
            found.append(f"{Path(here).relative_to(folder)}/")
    return sorted(found)


class Kept(Validated):
    def __init__(self, size: int = 1) -> None:
        super().__init__()
        self.save_hyperparameters()


def test_the_default_layout(fresh_folder: Path) -> None:
    used = L.Trainer(accelerator="cpu", max_epochs=2)
    used.fit(Kept(), loader(), loader())
    assert everything(fresh_folder) == [
        "runs/Kept/version_0/checkpoints/epoch=1-step=8.ckpt",
        "runs/Kept/version_0/hparams.yaml",
        "runs/Kept/version_0/metrics.csv",
    ]
    assert used.log_dir == os.path.join("runs", "Kept", "version_0")


def test_each_trainer_gets_a_version_and_each_model_a_folder(fresh_folder: Path) -> None:
    for model in (Line(), Line(), Kept()):
        L.Trainer(accelerator="cpu", enable_checkpointing=False).fit(
            model, loader(), *[loader()] * isinstance(model, Kept)
        )
    assert sorted(str(path.relative_to("runs")) for path in Path("runs").glob("*/*")) == [
        "Kept/version_0", "Line/version_0", "Line/version_1",
    ]  # fmt: skip


def test_one_trainer_writes_all_its_calls_into_one_folder(fresh_folder: Path) -> None:
    model, used = Line(), L.Trainer(accelerator="cpu", enable_checkpointing=False, log_every_n_steps=1)
    used.fit(model, loader())
    used.test(model, loader())
    assert everything(fresh_folder) == ["runs/Line/version_0/metrics.csv"]
    lines = Path("runs/Line/version_0/metrics.csv").read_text().splitlines()
    assert lines[0] == "epoch,step,train_loss,test_loss"
    assert len(lines) == 1 + 4 + 1


def test_default_root_dir(fresh_folder: Path) -> None:
    used = L.Trainer(accelerator="cpu", default_root_dir=fresh_folder / "here", log_every_n_steps=1)
    used.fit(Line(), loader())
    assert everything(fresh_folder) == [
        "here/Line/version_0/checkpoints/epoch=0-step=4.ckpt",
        "here/Line/version_0/metrics.csv",
    ]
    assert used.default_root_dir == str(fresh_folder / "here")


def test_without_a_logger(fresh_folder: Path) -> None:
    L.Trainer(accelerator="cpu", logger=False).fit(Line(), loader())
    assert everything(fresh_folder) == ["checkpoints/epoch=0-step=4.ckpt"]


def test_with_nothing_to_write(fresh_folder: Path) -> None:
    used = L.Trainer(accelerator="cpu", logger=False, enable_checkpointing=False)
    used.fit(Validated(), loader(), loader())
    used.validate(Validated(), loader())
    used.predict(Validated(), loader())
    assert everything(fresh_folder) == []


def test_the_folder_of_a_logger_of_ones_own(fresh_folder: Path) -> None:
    logger = CSVLogger("logs", name="mine", version="first")
    L.Trainer(accelerator="cpu", logger=logger, log_every_n_steps=1).fit(Line(), loader())
    assert everything(fresh_folder) == [
        "logs/mine/first/checkpoints/epoch=0-step=4.ckpt",
        "logs/mine/first/metrics.csv",
    ]


def test_several_loggers(fresh_folder: Path) -> None:
    loggers = [CSVLogger("a", "x"), CSVLogger("b", "y")]
    used = L.Trainer(accelerator="cpu", logger=loggers, log_every_n_steps=1)
    used.fit(Line(), loader())
    assert everything(fresh_folder) == [
        "a/x/version_0/checkpoints/epoch=0-step=4.ckpt",
        "a/x/version_0/metrics.csv",
        "b/y/version_0/metrics.csv",
    ]
    assert Path("a/x/version_0/metrics.csv").read_bytes() == Path("b/y/version_0/metrics.csv").read_bytes()
    assert used.logger is loggers[0]


@pytest.mark.parametrize("batches", [True, 1, 3])
def test_fast_dev_run_writes_nothing(fresh_folder: Path, batches: Any) -> None:
    """Whatever writes is switched off, also where the user asked for it."""
    used = L.Trainer(
        accelerator="cpu",
        fast_dev_run=batches,
        max_epochs=7,
        logger=CSVLogger("logs"),
        callbacks=[ModelCheckpoint("saved", monitor="missing", save_last=True), EarlyStopping("missing"),
                   LearningRateMonitor()],
    )  # fmt: skip
    model = Kept()
    used.fit(model, loader(), loader())
    assert (used.global_step, used.current_epoch) == (int(batches), 1)
    assert "val_loss" in used.callback_metrics
    assert set(used.validate(model, loader())) == {"val_loss"}
    assert set(used.test(model, loader())) == {"test_loss"}
    assert len(used.predict(model, loader()) or []) == int(batches)
    assert everything(fresh_folder) == []


def test_fast_dev_run_off_is_no_trial(fresh_folder: Path) -> None:
    for off in (False, 0):
        used = L.Trainer(accelerator="cpu", fast_dev_run=off, logger=False, enable_checkpointing=False)
        used.fit(Line(), loader())
        assert used.global_step == 4


def test_making_a_trainer_writes_nothing(fresh_folder: Path) -> None:
    L.Trainer(accelerator="cpu")
    assert everything(fresh_folder) == []


def test_asking_for_the_folder_before_a_run_claims_none(fresh_folder: Path) -> None:
    """The run's folder is named after the module, which is not known yet."""
    used = L.Trainer(accelerator="cpu", enable_checkpointing=False, log_every_n_steps=1)
    _ = used.log_dir
    assert everything(fresh_folder) == []
    used.fit(Line(), loader())
    assert everything(fresh_folder) == ["runs/Line/version_0/metrics.csv"]


def test_a_mistake_leaves_no_folder(fresh_folder: Path) -> None:
    """What cannot start claims no version."""
    with pytest.raises(MisconfigurationException):
        L.Trainer(accelerator="cpu").fit(L.Module(), loader())
    with pytest.raises(MisconfigurationException):
        L.Trainer(accelerator="cpu").fit(Line())
    assert everything(fresh_folder) == []


def test_save_checkpoint_writes_where_it_is_told(fresh_folder: Path) -> None:
    used = L.Trainer(accelerator="cpu", logger=False, enable_checkpointing=False)
    used.fit(Line(), loader())
    used.save_checkpoint("deep/folder/model.ckpt")
    assert everything(fresh_folder) == ["deep/folder/model.ckpt"]

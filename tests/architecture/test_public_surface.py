"""Every public name under each mirrored path is pinned: a name that goes or comes does so on purpose."""

from __future__ import annotations

import importlib
import json

import pytest

from tests.architecture.record_public_surface import FILE, mirrored_paths, public_names

FROZEN: dict[str, list[str]] = json.loads(FILE.read_text())


def test_every_mirrored_path_is_pinned() -> None:
    """A module that has Lightning's name is one that people import from."""
    assert sorted(FROZEN) == sorted(mirrored_paths())


@pytest.mark.parametrize("path", FROZEN)
def test_names_are_those_that_were_frozen(path: str) -> None:
    """After a deliberate change run record_public_surface.py."""
    assert public_names(path) == FROZEN[path]


@pytest.mark.parametrize("path", FROZEN)
def test_every_name_can_be_imported(path: str) -> None:
    module = importlib.import_module(path)
    assert [name for name in FROZEN[path] if not hasattr(module, name)] == []


LIGHTNING_NAMES = {
    "gpulayer.pytorch": ["Callback", "LightningDataModule", "LightningModule", "Trainer", "seed_everything"],
    "gpulayer.pytorch.callbacks": ["Callback", "EarlyStopping", "ModelCheckpoint"],
    "gpulayer.pytorch.loggers": ["CSVLogger", "Logger"],
    "gpulayer.pytorch.trainer": ["Trainer"],
    "gpulayer.pytorch.trainer.states": ["RunningStage", "TrainerFn", "TrainerState", "TrainerStatus"],
    "gpulayer.pytorch.core.module": ["LightningModule"],
    "gpulayer.pytorch.core.datamodule": ["LightningDataModule"],
    "gpulayer.pytorch.core.optimizer": ["LightningOptimizer"],
    "gpulayer.pytorch.callbacks.early_stopping": ["EarlyStopping"],
    "gpulayer.pytorch.callbacks.model_checkpoint": ["ModelCheckpoint"],
    "gpulayer.pytorch.utilities.exceptions": ["MisconfigurationException"],
    "gpulayer.pytorch.core.mixins": ["HyperparametersMixin"],
    "gpulayer.pytorch.demos.boring_classes": [
        "BoringDataModule",
        "BoringModel",
        "ManualOptimBoringModel",
        "RandomDataset",
        "RandomIterableDataset",
    ],
    "gpulayer.pytorch.plugins": ["CheckpointIO", "Precision"],
    "gpulayer.pytorch.utilities": ["AttributeDict"],
    "gpulayer.pytorch.utilities.rank_zero": ["rank_zero_only"],
    "gpulayer.pytorch.utilities.types": ["LRSchedulerConfig", "STEP_OUTPUT"],
    "gpulayer.pytorch.strategies": ["SingleDeviceStrategy", "Strategy"],
    "gpulayer.pytorch.accelerators": ["Accelerator", "CPUAccelerator", "CUDAAccelerator"],
}


@pytest.mark.parametrize("path", LIGHTNING_NAMES)
def test_names_that_lightning_code_imports_are_there(path: str) -> None:
    """Those that training on one device needs; more come with their features."""
    module = importlib.import_module(path)
    assert [name for name in LIGHTNING_NAMES[path] if not hasattr(module, name)] == []


def test_aliases_are_one_class() -> None:
    import gpulayer.pytorch as L

    assert L.LightningModule is L.Module
    assert L.LightningDataModule is L.DataModule

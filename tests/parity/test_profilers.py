"""Profilers beside Lightning's: the same arguments, and the same actions as often as there."""

from __future__ import annotations

import importlib
import inspect
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch

import gpulayer.pytorch as L
from gpulayer.pytorch import profilers
from tests.parity.oracle import lightning, quiet

ACTIONS = (
    "[Strategy]SingleDeviceStrategy.training_step",
    "[Strategy]SingleDeviceStrategy.validation_step",
    "[Strategy]SingleDeviceStrategy.test_step",
    "[Strategy]SingleDeviceStrategy.predict_step",
    "[Strategy]SingleDeviceStrategy.backward",
    "[Strategy]SingleDeviceStrategy.batch_to_device",
    "[LightningModule]Model.optimizer_step",
    "[LightningModule]Model.configure_gradient_clipping",
    "[LightningModule]Model.lr_scheduler_step",
    "[LightningModule]Model.on_train_batch_start",
    "[LightningModule]Model.on_validation_epoch_end",
    "[Callback]Mine.on_train_epoch_end",
    "save_checkpoint",
    "mine",
)


def counted(library: Any, call: str, folder: Path) -> dict[str, int]:
    """How often each action was done in a call of one library's Trainer."""
    began: Counter[str] = Counter()

    class Counts(library.profilers.Profiler):  # type: ignore[misc]
        def start(self, action_name: str) -> None:
            began[action_name] += 1

        def stop(self, action_name: str) -> None:
            pass

    class Model(library.LightningModule):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.layer = torch.nn.Linear(4, 1)

        def training_step(self, batch: torch.Tensor, batch_idx: int) -> torch.Tensor:
            with self.trainer.profiler.profile("mine"):
                loss: torch.Tensor = self.layer(batch).sum()
            return loss

        def validation_step(self, batch: torch.Tensor, batch_idx: int) -> None:
            self.log("loss", self.layer(batch).sum())

        test_step = validation_step

        def predict_step(self, batch: torch.Tensor, batch_idx: int) -> Any:
            return self.layer(batch)

        def on_train_batch_start(self, batch: Any, batch_idx: int) -> None:
            pass

        def on_validation_epoch_end(self) -> None:
            pass

        def configure_optimizers(self) -> Any:
            optimizer = torch.optim.SGD(self.parameters(), 0.01)
            return [optimizer], [torch.optim.lr_scheduler.StepLR(optimizer, 1)]

    class Mine(library.Callback):  # type: ignore[misc]
        def on_train_epoch_end(self, trainer: Any, pl_module: Any) -> None:
            pass

    Model.__qualname__ = "Model"
    trainer = library.Trainer(
        accelerator="cpu", max_epochs=2, default_root_dir=folder, profiler=Counts(), callbacks=[Mine()], logger=False,
        enable_progress_bar=False, enable_model_summary=False, gradient_clip_val=1.0, enable_checkpointing=True,
    )  # fmt: skip
    loaders = [torch.utils.data.DataLoader(torch.ones(6, 4), batch_size=2) for _ in range(2 if call == "fit" else 1)]
    getattr(trainer, call)(Model(), *loaders)
    names = {name: name.replace(f"{Mine.__qualname__}.", "Mine.") for name in began}
    return {names[name]: count for name, count in began.items()}


@pytest.mark.parametrize("call", ["fit", "validate", "test", "predict"])
def test_actions_are_as_many(call: str, tmp_path: Path) -> None:
    with quiet():
        importlib.import_module("lightning.pytorch.profilers")
        theirs = counted(lightning(), call, tmp_path / "lightning")
    ours = counted(L, call, tmp_path / "gpulayer")
    theirs = {name.split("{")[0]: count for name, count in theirs.items()}
    assert {name: ours.get(name) for name in ACTIONS} == {name: theirs.get(name) for name in ACTIONS}


@pytest.mark.parametrize("name", profilers.__all__)
def test_arguments_are_theirs(name: str) -> None:
    with quiet():
        theirs = importlib.import_module("lightning.pytorch.profilers")
    for method in ("__init__", "setup", "teardown", "start", "stop", "profile", "describe", "summary"):
        expected = inspect.signature(getattr(getattr(theirs, name), method)).parameters.values()
        found = inspect.signature(getattr(getattr(profilers, name), method)).parameters.values()
        assert [(p.name, p.kind, p.default) for p in found] == [(p.name, p.kind, p.default) for p in expected], method

"""What a progress bar is told, on Lightning and here: totals, names of stages, metrics."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader

from tests.parity.oracle import GPULAYER, LIGHTNING, lightning, quiet


def story(library: str, folder: Path) -> list[Any]:
    """What the bar's properties answer in the hooks of a fit, a validation, a test and a prediction."""
    L = importlib.import_module(library)
    loggers = importlib.import_module(f"{library}.loggers")
    bars = importlib.import_module(f"{library}.callbacks.progress")
    base = importlib.import_module(f"{library}.callbacks.progress.progress_bar")
    told: list[Any] = []

    class Told(bars.ProgressBar):  # type: ignore[name-defined, misc]
        def on_validation_batch_start(
            self, trainer: Any, module: Any, batch: Any, batch_idx: int, dataloader_idx: int = 0
        ) -> None:
            if self.has_dataloader_changed(dataloader_idx):
                told.append(("val loader", dataloader_idx, self.total_val_batches_current_dataloader))

        def on_validation_end(self, trainer: Any, module: Any) -> None:
            self.reset_dataloader_idx_tracker()

        def on_train_epoch_start(self, trainer: Any, module: Any) -> None:
            told.append((trainer.current_epoch, self.total_train_batches, self.total_val_batches))

        def on_train_batch_end(self, trainer: Any, module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
            told.append(self.get_metrics(trainer, module))

        def on_test_batch_start(self, *args: Any) -> None:
            self.has_dataloader_changed(0)
            told.append(("test", self.total_test_batches_current_dataloader))

        def on_predict_batch_start(self, *args: Any) -> None:
            self.has_dataloader_changed(0)
            told.append(("predict", self.total_predict_batches_current_dataloader))

    class Module(L.LightningModule):  # type: ignore[name-defined, misc]
        def __init__(self) -> None:
            super().__init__()
            self.layer = torch.nn.Linear(2, 1)

        def training_step(self, batch: Any, batch_idx: int) -> Any:
            loss = self.layer(batch).sum()
            self.log("shown", float(batch_idx), prog_bar=True)
            self.log("both", float(batch_idx), prog_bar=True, on_step=True, on_epoch=True)
            self.log("hidden", 1.0)
            return loss

        def validation_step(self, batch: Any, batch_idx: int, dataloader_idx: int = 0) -> None:
            self.log("val", float(batch_idx), prog_bar=True)

        def test_step(self, batch: Any, batch_idx: int) -> None:
            self.log("test", 1.0, prog_bar=True)

        def predict_step(self, batch: Any, batch_idx: int) -> int:
            return 1

        def configure_optimizers(self) -> Any:
            return torch.optim.SGD(self.parameters(), 0.1)

    def loader(batches: int) -> Any:
        return DataLoader(torch.ones(batches, 2), batch_size=1)

    bar = Told()
    told += [bar.sanity_check_description, bar.train_description, bar.validation_description, bar.test_description,
             bar.predict_description]  # fmt: skip
    trainer = L.Trainer(
        accelerator="cpu", max_epochs=4, check_val_every_n_epoch=2, num_sanity_val_steps=1, callbacks=[bar],
        logger=loggers.CSVLogger(folder, version=3), enable_checkpointing=False, enable_model_summary=False,
        default_root_dir=folder, limit_train_batches=3, log_every_n_steps=1,
    )  # fmt: skip
    module = Module()
    trainer.fit(module, loader(4), [loader(2), loader(3)])
    trainer.validate(module, loader(2), verbose=False)
    trainer.test(module, loader(2), verbose=False)
    trainer.predict(module, loader(2))
    told.append(base.get_standard_metrics(trainer))
    trainer.logger = loggers.CSVLogger(folder, version="a_long_name")
    told.append(base.get_standard_metrics(trainer))
    return told


def test_a_bar_is_told_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    lightning()
    with quiet():
        theirs = story(LIGHTNING, tmp_path / "lightning")
    ours = story(GPULAYER, tmp_path / "gpulayer")
    assert ours == theirs
    assert {"v_num": 3, "shown": 0.0, "both_step": 0.0} in ours

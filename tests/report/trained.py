"""Real runs to report on."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import gpulayer.pytorch as L
from gpulayer.pytorch.callbacks import LearningRateMonitor, ModelCheckpoint

HOSTILE = "<script>document.title='hacked'</script>"


class Line(L.Module):
    """Fits the sum of four numbers."""

    def __init__(self, lr: float, note: str = HOSTILE, optimizer: dict[str, Any] | None = None) -> None:
        super().__init__()
        self.save_hyperparameters()
        self.network = nn.Linear(4, 1)

    def training_step(self, batch: list[Tensor], batch_idx: int) -> Tensor:
        loss = self.loss(batch)
        self.log("loss", loss, on_step=True, on_epoch=True)
        self.log(f"{HOSTILE}/größe", loss.detach() * 2)
        return loss

    def validation_step(self, batch: list[Tensor], batch_idx: int) -> None:
        self.log("val_loss", self.loss(batch))

    def loss(self, batch: list[Tensor]) -> Tensor:
        rows, sums = batch
        return nn.functional.mse_loss(self.network(rows), sums)

    def configure_optimizers(self) -> Any:
        optimizer = torch.optim.SGD(self.parameters(), lr=self.hparams.lr)
        return [optimizer], [torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9)]


def data() -> DataLoader[Any]:
    """Eight batches."""
    rows = torch.randn(64, 4, generator=torch.Generator().manual_seed(0))
    return DataLoader(TensorDataset(rows, rows.sum(1, keepdim=True)), batch_size=8)


def train(folder: Path, lr: float, epochs: int = 3) -> Path:
    """A run of `Line` below a folder; returns the run's own folder."""
    torch.manual_seed(0)
    trainer = L.Trainer(
        default_root_dir=folder,
        max_epochs=epochs,
        log_every_n_steps=2,
        callbacks=[ModelCheckpoint(monitor="val_loss", save_top_k=2, save_last=True), LearningRateMonitor()],
    )
    trainer.fit(Line(lr, optimizer={"name": "SGD", "nesterov": False}), data(), data())
    assert trainer.log_dir is not None
    return Path(trainer.log_dir)

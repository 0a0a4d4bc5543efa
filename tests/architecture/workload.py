"""The run that the architecture numbers are taken on: a linear layer, batches of ones, as little as can be."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

import gpulayer.pytorch as L


class Net(L.Module):
    """Trains a layer; `logs` names the calls of self.log in each step."""

    def __init__(self, logs: str = "") -> None:
        super().__init__()
        self.layer, self.logs = torch.nn.Linear(4, 1), logs

    def training_step(self, batch: torch.Tensor, batch_idx: int) -> torch.Tensor:
        loss = self.layer(batch).sum()
        if self.logs:
            self.log("loss", loss)
        if self.logs == "two":
            self.log("loss_of_epoch", loss, prog_bar=True, on_step=True, on_epoch=True)
        return loss

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), 0.01)


class Validated(Net):
    """Also has a validation step with one log."""

    def validation_step(self, batch: torch.Tensor, batch_idx: int) -> None:
        self.log("val_loss", self.layer(batch).sum(), prog_bar=True)


class Ones(torch.utils.data.Dataset):
    def __init__(self, count: int) -> None:
        self.count = count

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.ones(2, 4)


def batches(count: int) -> torch.utils.data.DataLoader:
    return torch.utils.data.DataLoader(Ones(count), batch_size=None)


def trainer(folder: Path, **arguments: Any) -> L.Trainer:
    """No logger and no checkpoints unless asked for; log points further apart than the run is long."""
    plain: dict[str, Any] = {
        "accelerator": "cpu",
        "devices": 1,
        "max_epochs": 1,
        "logger": False,
        "enable_checkpointing": False,
        "default_root_dir": folder,
        "log_every_n_steps": 10_000,
        "num_sanity_val_steps": 0,
    }
    return L.Trainer(**(plain | arguments))

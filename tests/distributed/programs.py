"""Programs of users, run as processes of their own, in several processes."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

PATIENCE = 120  # seconds; nothing here takes nearly as long on an idle machine

MODEL = """
import os, signal, time
import torch
import gpulayer.pytorch as L
from torch.utils.data import DataLoader, TensorDataset

torch.set_default_dtype(torch.float64)


class Net(L.LightningModule):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Tanh(), torch.nn.Linear(8, 1))

    def training_step(self, batch, batch_idx):
        x, y = batch
        loss = (self.layer(x) - y).pow(2).mean()
        self.log("loss", loss, on_epoch=True)
        return loss

    def validation_step(self, batch, batch_idx):
        x, y = batch
        self.log("val", (self.layer(x) - y).pow(2).mean())

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), 0.05, momentum=0.9)


def rows(number):
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(number, 4, generator=generator)
    return TensorDataset(x, x.sum(1, keepdim=True))


def trainer(devices, **arguments):
    quiet = dict(logger=False, enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False)
    return L.Trainer(accelerator="cpu", devices=devices, **{**quiet, "max_epochs": 2, **arguments})


torch.manual_seed(0)
"""


@dataclass
class Ended:
    """How a program ended.

    Args:
        code: the exit code of rank 0.
        output: what all ranks wrote.
        errors: what all ranks wrote on the error stream.
        seconds: from its start to its end.
    """

    code: int
    output: str
    errors: str
    seconds: float


def run(folder: Path, body: str, **variables: str) -> Ended:
    """Run a program that begins with MODEL.

    Args:
        folder: where.
        body: the rest of the program.
        **variables: for its environment.
    """
    (folder / "program.py").write_text(MODEL + body)
    began = time.monotonic()
    ended = subprocess.run(
        [sys.executable, "program.py"],
        cwd=folder,
        env={**os.environ, **variables},
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )
    return Ended(ended.returncode, ended.stdout, ended.stderr, time.monotonic() - began)

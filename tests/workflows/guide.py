"""The guide's code blocks, with the import changed, and real digits for them to learn."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path
from typing import Any

import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset, TensorDataset

import gpulayer.pytorch as L

IMPORTS = {"import lightning as L": "import gpulayer.pytorch as L", "from lightning.pytorch": "from gpulayer.pytorch"}


@cache
def blocks() -> dict[str, str]:
    """The code under each heading of guide.txt."""
    text = Path(__file__).with_name("guide.txt").read_text(encoding="utf-8")
    parts = re.split(r"^=== (.+)\n", text, flags=re.MULTILINE)
    return dict(zip(parts[1::2], parts[2::2], strict=True))


def block(heading: str) -> str:
    """One block after the import change, and nothing else."""
    code = blocks()[heading]
    for lightning, ours in IMPORTS.items():
        code = code.replace(lightning, ours)
    return code


def execute(code: str, **names: Any) -> dict[str, Any]:
    """Run a block that may use `names`; what it defines is returned."""
    module = {"__name__": "guide", "L": L, "torch": torch, "nn": nn, "DataLoader": DataLoader, **names}
    exec(compile(code, "guide.txt", "exec"), module)
    return module


@cache
def digits() -> tuple[Tensor, Tensor]:
    """All 1,797 scans as rows of 28 * 28 numbers from 0 to 1: 8 x 8 pixels, each made 3 x 3, with a border of 2."""
    scans = load_digits()
    images = torch.tensor(scans.images, dtype=torch.float32) / 16
    large = images.repeat_interleave(3, dim=1).repeat_interleave(3, dim=2)
    return nn.functional.pad(large, (2, 2, 2, 2)).flatten(1), torch.tensor(scans.target)


def dataset(start: int, stop: int) -> Dataset[Any]:
    """Scans `start` to `stop` with their digits."""
    images, targets = digits()
    return TensorDataset(images[start:stop], targets[start:stop])


def loader(start: int, stop: int, shuffle: bool = False) -> DataLoader[Any]:
    return DataLoader(dataset(start, stop), batch_size=32, shuffle=shuffle)


class Classifier(nn.Sequential):
    """What the guide calls MyModel where the batches are pairs: scores of the ten digits."""

    def __init__(self) -> None:
        super().__init__(nn.Linear(28 * 28, 64), nn.ReLU(), nn.Linear(64, 10))


class Autoencoder(nn.Module):
    """What the guide calls MyModel where `model(batch)` is the loss: how badly it redraws the batch."""

    def __init__(self) -> None:
        super().__init__()
        self.redraw = nn.Sequential(nn.Linear(28 * 28, 32), nn.ReLU(), nn.Linear(32, 28 * 28))

    def forward(self, batch: Tensor) -> Tensor:
        return nn.functional.mse_loss(self.redraw(batch), batch)


def accuracy(model: nn.Module, start: int, stop: int) -> float:
    """The share of scans that `model` reads right."""
    images, targets = digits()
    with torch.no_grad():
        return float((model(images[start:stop]).argmax(1) == targets[start:stop]).double().mean())

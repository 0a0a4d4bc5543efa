"""A small fit with everything that a logger is told of, and what must have reached it."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import gpulayer.pytorch as L
from gpulayer.pytorch.callbacks import ModelCheckpoint
from gpulayer.pytorch.loggers import CSVLogger, Logger
from tests.pytorch.models import Validated, loader


class Told(Validated):
    """Has hyperparameters of many forms."""

    def __init__(
        self, lr: float = 0.05, layers: Any = (1, 2), activation: Any = nn.ReLU, nested: Any = None, text: str = "a"
    ) -> None:
        super().__init__(lr)
        self.save_hyperparameters()


def fit(logger: Logger, model: L.Module | None = None, **arguments: Any) -> L.Trainer:
    """Two epochs of four steps, each step logged, into `logger` and, for comparison, into csv/run/metrics.csv."""
    torch.manual_seed(0)
    trainer = L.Trainer(
        logger=[logger, CSVLogger("csv", name=None, version="run")],
        **{
            "max_epochs": 2,
            "accelerator": "cpu",
            "log_every_n_steps": 1,
            "callbacks": [ModelCheckpoint(monitor="val_loss", save_top_k=2)],
            **arguments,
        },
    )
    trainer.fit(model or Told(nested={"width": {"first": 3}}), loader(), loader())
    return trainer


def expected(name: str, folder: str | Path = ".") -> list[tuple[int, float]]:
    """A metric's steps and values, as metrics.csv has them."""
    with Path(folder, "csv/run/metrics.csv").open(newline="") as file:
        rows = list(csv.DictReader(file, restval=""))
    return [(int(row["step"]), float(row[name])) for row in rows if row[name]]


def agrees(found: list[tuple[int, float]], name: str, folder: str | Path = ".") -> bool:
    """Whether these are the metric's steps, and its values to as many digits as text formats keep."""
    wanted = expected(name, folder)
    assert wanted
    assert [step for step, _ in found] == [step for step, _ in wanted]
    return [value for _, value in found] == pytest.approx([value for _, value in wanted], rel=1e-12)

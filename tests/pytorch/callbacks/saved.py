"""Runs with scores that are known beforehand, and what they leave on the disk."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

import gpulayer.pytorch as L
from gpulayer.pytorch.callbacks import ModelCheckpoint
from tests.pytorch.models import Scored, loader, trainer


def run(scores: Sequence[float], saver: ModelCheckpoint, **arguments: Any) -> L.Trainer:
    """One epoch of four steps for each score."""
    used = trainer(max_epochs=len(scores), callbacks=[saver], **arguments)
    used.fit(Scored(scores), loader(), loader())
    return used


def files(folder: str = "saved") -> list[str]:
    return sorted(file.name for file in Path(folder).iterdir())


def epochs(folder: str = "saved") -> list[int]:
    """The epochs of the checkpoints in a folder."""
    return sorted(read(file)["epoch"] for file in Path(folder).iterdir())


def read(path: str | Path) -> dict[str, Any]:
    content: dict[str, Any] = torch.load(path, weights_only=True)
    return content


def steps(folder: str = "saved") -> list[int]:
    return sorted(read(file)["global_step"] for file in Path(folder).iterdir())

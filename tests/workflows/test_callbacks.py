"""Workflow "callbacks for monitoring"."""

from __future__ import annotations

import csv
import re
from pathlib import Path

import torch

from tests.workflows.guide import Classifier, block, execute, loader


def test_callbacks_for_monitoring() -> None:
    """The model is that of workflow 2 with a small network as MyModel; the loaders hold digits."""
    model = execute(block("Workflow 2: validation and testing, the model"), MyModel=Classifier)["LitModel"]()
    names = execute(
        block("Workflow 4: callbacks for monitoring"),
        model=model,
        train_loader=loader(0, 400, shuffle=True),
        val_loader=loader(1000, 1300),
    )
    trainer, checkpoint, early_stop = names["trainer"], names["checkpoint"], names["early_stop"]

    with Path("runs/LitModel/version_0/metrics.csv").open() as file:
        rows = list(csv.DictReader(file))
    losses = [float(row["val_loss"]) for row in rows if row["val_loss"]]

    # stops when there was no improvement for 5 epochs, and not before
    assert trainer.current_epoch == len(losses) < 100
    assert early_stop.wait_count == 5
    assert losses.index(min(losses)) == len(losses) - 6
    assert float(early_stop.best_score) == min(losses)

    # keeps the best 3, under names of the template
    folder = Path("runs/LitModel/version_0/checkpoints")
    saved = sorted(file.name for file in folder.iterdir())
    best = sorted(range(len(losses)), key=losses.__getitem__)[:3]
    assert saved == sorted(f"model-epoch={epoch:02d}-val_loss={losses[epoch]:.2f}.ckpt" for epoch in best)
    assert re.fullmatch(r"model-epoch=\d\d-val_loss=\d\.\d\d\.ckpt", Path(checkpoint.best_model_path).name)
    assert float(checkpoint.best_model_score) == min(losses)
    assert torch.load(checkpoint.best_model_path, weights_only=True)["epoch"] == best[0]

    # logs the learning rate once an epoch
    rates = [(int(row["epoch"]), float(row["lr-Adam"])) for row in rows if row["lr-Adam"]]
    assert rates == [(epoch, 1e-3) for epoch in range(len(losses))]

"""Workflow "validation and testing"."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest
import torch
from torch import nn

from tests.workflows.guide import Classifier, accuracy, block, digits, execute, loader

MODEL = block("Workflow 2: validation and testing, the model")
RUN = block("Workflow 2: validation and testing, the run")


def test_validation_and_testing() -> None:
    """MyModel is a small network, the loaders hold digits; nothing else is substituted."""
    model = execute(MODEL, MyModel=Classifier)["LitModel"]()
    names = execute(
        RUN, model=model, train_loader=loader(0, 1200), val_loader=loader(1200, 1500), test_loader=loader(1500, 1797)
    )
    trainer = names["trainer"]

    with Path("runs/LitModel/version_0/metrics.csv").open() as file:
        rows = list(csv.DictReader(file))
    validated = [row for row in rows if row["val_loss"]]
    assert [int(row["epoch"]) for row in validated] == list(range(10))  # validation runs every epoch
    assert float(validated[-1]["val_loss"]) < float(validated[0]["val_loss"]) / 2
    assert float(validated[-1]["val_acc"]) == pytest.approx(accuracy(model.model, 1200, 1500), rel=1e-7)

    images, targets = digits()
    with torch.no_grad():
        expected = float(nn.functional.cross_entropy(model.model(images[1500:]).double(), targets[1500:]))
    assert float(trainer.callback_metrics["test_loss"]) == pytest.approx(expected, rel=1e-5)
    assert [float(row["test_loss"]) for row in rows if row["test_loss"]] == pytest.approx([expected], rel=1e-5)
    assert list(Path("runs/LitModel/version_0/checkpoints").iterdir())


def test_results_of_a_test_answer_by_name_and_by_number() -> None:
    """`trainer.test(...)` gives a dict; code written for Lightning asks for `[0]`."""
    model = execute(MODEL, MyModel=Classifier)["LitModel"]()
    names = execute(
        RUN.replace("trainer.test", "result = trainer.test").replace("max_epochs=10", "max_epochs=1"),
        model=model,
        train_loader=loader(0, 64),
        val_loader=loader(64, 128),
        test_loader=loader(128, 192),
    )
    assert names["result"]["test_loss"] == names["result"][0]["test_loss"]

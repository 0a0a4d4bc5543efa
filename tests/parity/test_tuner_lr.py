"""The learning rate finder beside Lightning's: the same rates and losses, and another reading of them."""

from __future__ import annotations

import importlib
import inspect
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset

from tests.parity.oracle import GPULAYER, LIGHTNING, quiet

BIAS = 0.98  # the weight of what came before in the smoothed loss


def found_by(library: str, **options: Any) -> tuple[Any, list[int]]:
    """What the Tuner finds, and the batches that it trained on."""
    L, tuner = importlib.import_module(library), importlib.import_module(f"{library}.tuner")
    seen: list[int] = []

    class Net(L.LightningModule):  # type: ignore[name-defined,misc]
        def __init__(self) -> None:
            super().__init__()
            self.lr = 0.1
            self.layer = torch.nn.Linear(4, 1)

        def training_step(self, batch: Any, batch_idx: int) -> Any:
            seen.append(batch_idx)
            return (self.layer(batch[0]) - batch[1]).pow(2).mean()

        def configure_optimizers(self) -> Any:
            return torch.optim.SGD(self.parameters(), lr=self.lr)

    torch.manual_seed(0)
    x = torch.randn(48, 4)
    model, data = Net(), DataLoader(TensorDataset(x, x.sum(1, keepdim=True)), 8)
    trainer = L.Trainer(
        accelerator="cpu",
        max_epochs=100,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    return tuner.Tuner(trainer).lr_find(model, data, **options), seen


OPTIONS: list[dict[str, Any]] = [
    {"num_training": 30},
    {"num_training": 30, "mode": "linear", "max_lr": 0.5},
    {"num_training": 40, "min_lr": 1e-6, "max_lr": 0.1, "early_stop_threshold": None},
    {"num_training": 60, "max_lr": 100.0},
]


@pytest.mark.parametrize("options", OPTIONS, ids=lambda options: "_".join(f"{k}={v}" for k, v in options.items()))
def test_rates_and_losses(options: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with quiet():
        theirs, their_batches = found_by(LIGHTNING, **options, update_attr=False)
    ours, our_batches = found_by(GPULAYER, **options, update_attr=False)
    steps = min(len(ours.results["lr"]), len(theirs.results["lr"]))
    assert steps > 25  # the threshold may be met a few steps sooner or later, for the first losses differ
    assert our_batches[:steps] == their_batches[:steps]
    assert ours.results["lr"][:steps] == pytest.approx(theirs.results["lr"][:steps], rel=1e-12)
    unbiased = [
        loss * (1 - BIAS ** (step + 2)) / (1 - BIAS ** (step + 1)) for step, loss in enumerate(theirs.results["loss"])
    ]
    assert ours.results["loss"][:steps] == pytest.approx(unbiased[:steps], rel=1e-5)
    assert (ours.lr_min, ours.lr_max, ours.num_training, ours.mode) == (
        theirs.lr_min,
        theirs.lr_max,
        theirs.num_training,
        theirs.mode,
    )


def test_the_same_reading_of_the_same_losses_with_linear_rates() -> None:
    theirs = importlib.import_module(f"{LIGHTNING}.tuner.lr_finder")._LRFinder("linear", 0.0, 1.0, 50)
    ours = importlib.import_module(f"{GPULAYER}.tuner.lr_finder")._LRFinder("linear", 0.0, 1.0, 50)
    losses = torch.randn(50, generator=torch.Generator().manual_seed(0)).cumsum(0).tolist()
    theirs.results = ours.results = {"lr": [step / 50 for step in range(50)], "loss": losses}
    for skips in ((10, 1), (0, 1), (20, 5)):
        assert ours.suggestion(*skips) == theirs.suggestion(*skips)


@pytest.mark.parametrize(
    ("path", "name"),
    [
        ("callbacks", "LearningRateFinder.__init__"),
        ("tuner", "Tuner.lr_find"),
        ("tuner.lr_finder", "_LRFinder.plot"),
        ("tuner.lr_finder", "_LRFinder.suggestion"),
    ],
)
def test_the_same_arguments(path: str, name: str) -> None:
    def arguments(library: str) -> list[tuple[str, Any]]:
        found: Any = importlib.import_module(f"{library}.{path}")
        for part in name.split("."):
            found = getattr(found, part)
        return [(each.name, each.default) for each in inspect.signature(found).parameters.values()]

    assert arguments(GPULAYER) == arguments(LIGHTNING)

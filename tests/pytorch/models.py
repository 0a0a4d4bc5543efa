"""Models and data small enough to follow by hand."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, IterableDataset, TensorDataset

import gpulayer.pytorch as L

FEATURES = 4


def dataset(samples: int = 8, seed: int = 0) -> TensorDataset:
    """Random rows, each with its sum."""
    rows = torch.randn(samples, FEATURES, generator=torch.Generator().manual_seed(seed))
    return TensorDataset(rows, rows.sum(1, keepdim=True))


def loader(batches: int = 4, size: int = 2, **arguments: Any) -> DataLoader[Any]:
    """`batches` batches of `size` rows."""
    return DataLoader(dataset(batches * size), batch_size=size, **arguments)


class Stream(IterableDataset[Any]):
    """The rows of `dataset`, without a length."""

    def __init__(self, samples: int) -> None:
        self.samples = samples

    def __iter__(self) -> Iterator[Any]:
        return iter(list(dataset(self.samples)))


def stream(batches: int = 4, size: int = 2) -> DataLoader[Any]:
    """`batches` batches of `size` rows, from a loader without a length."""
    return DataLoader(Stream(batches * size), batch_size=size)


class Line(L.Module):
    """One linear layer that learns the sum of a row."""

    def __init__(self, lr: float = 0.05) -> None:
        super().__init__()
        self.lr = lr
        self.net = nn.Linear(FEATURES, 1)

    def forward(self, x: Tensor) -> Tensor:
        prediction: Tensor = self.net(x)
        return prediction

    def loss(self, batch: Any) -> Tensor:
        x, y = batch
        return nn.functional.mse_loss(self(x), y)

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        loss = self.loss(batch)
        self.log("train_loss", loss)
        return loss

    def test_step(self, batch: Any, batch_idx: int) -> Any:
        self.log("test_loss", self.loss(batch))

    def predict_step(self, batch: Any, batch_idx: int) -> Any:
        return self(batch[0])

    def configure_optimizers(self) -> Any:
        return torch.optim.SGD(self.parameters(), lr=self.lr, momentum=0.9)


class Validated(Line):
    """A Line with a validation."""

    def validation_step(self, batch: Any, batch_idx: int) -> Any:
        self.log("val_loss", self.loss(batch))


class Scored(Line):
    """Its validation in epoch i logs the i-th of `scores` as "score"."""

    def __init__(self, scores: Sequence[float]) -> None:
        super().__init__()
        self.scores = list(scores)

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        self.log("score", self.scores[self.current_epoch])


def trainer(**arguments: Any) -> L.Trainer:
    """A Trainer on the CPU that writes nothing and checks nothing, unless told."""
    callbacks = arguments.get("callbacks", [])
    saves = any(isinstance(callback, L.callbacks.Checkpoint) for callback in callbacks)
    quiet = {"accelerator": "cpu", "logger": False, "enable_checkpointing": saves, "num_sanity_val_steps": 0}
    return L.Trainer(**{**quiet, **arguments})


def weights(model: nn.Module) -> dict[str, Tensor]:
    """A copy of the weights."""
    return {name: value.detach().clone() for name, value in model.state_dict().items()}


def same(one: dict[str, Tensor], other: dict[str, Tensor]) -> bool:
    """Whether two sets of weights are equal, bit for bit."""
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)

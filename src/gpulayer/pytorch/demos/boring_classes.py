"""The smallest model and data that use every stage: for tests, bug reports and trying things out."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset, IterableDataset, Subset

from gpulayer.pytorch.core.datamodule import DataModule
from gpulayer.pytorch.core.module import Module

FEATURES = 32
SAMPLES = 64


class RandomDataset(Dataset[Tensor]):
    """`length` random vectors of `size` numbers."""

    def __init__(self, size: int, length: int) -> None:
        self.len = length
        self.data = torch.randn(length, size)

    def __getitem__(self, index: int) -> Tensor:
        return self.data[index]

    def __len__(self) -> int:
        return self.len


class RandomDictDataset(Dataset[dict[str, Tensor]]):
    """Samples that are dicts of two vectors, "a" and "b"."""

    def __init__(self, size: int, length: int) -> None:
        self.len = length
        self.data = torch.randn(length, size)

    def __getitem__(self, index: int) -> dict[str, Tensor]:
        return {"a": self.data[index], "b": self.data[index] + 1}

    def __len__(self) -> int:
        return self.len


class RandomIterableDataset(IterableDataset[Tensor]):
    """A stream of `count` random vectors, without a length."""

    def __init__(self, size: int, count: int) -> None:
        self.count = count
        self.size = size

    def __iter__(self) -> Iterator[Tensor]:
        for _ in range(self.count):
            yield torch.randn(self.size)


class RandomIterableDatasetWithLen(RandomIterableDataset):
    """A stream that knows its length."""

    def __len__(self) -> int:
        return self.count


class BoringModel(Module):
    """One linear layer that learns to give ones; nothing more."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(FEATURES, 2)

    def forward(self, x: Tensor) -> Tensor:
        output: Tensor = self.layer(x)
        return output

    def loss(self, preds: Tensor, labels: Tensor | None = None) -> Tensor:
        """Mean squared distance of `preds` to ones."""
        labels = torch.ones_like(preds) if labels is None else labels
        return nn.functional.mse_loss(preds, labels)

    def step(self, batch: Any) -> Tensor:
        """The loss of a batch."""
        return self.loss(self(batch))

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        return {"loss": self.step(batch)}

    def validation_step(self, batch: Any, batch_idx: int) -> Any:
        return {"x": self.step(batch)}

    def test_step(self, batch: Any, batch_idx: int) -> Any:
        return {"y": self.step(batch)}

    def configure_optimizers(self) -> Any:
        optimizer = torch.optim.SGD(self.parameters(), lr=0.1)
        return [optimizer], [torch.optim.lr_scheduler.StepLR(optimizer, step_size=1)]

    def _loader(self) -> DataLoader[Tensor]:
        return DataLoader(RandomDataset(FEATURES, SAMPLES))

    def train_dataloader(self) -> Any:
        return self._loader()

    def val_dataloader(self) -> Any:
        return self._loader()

    def test_dataloader(self) -> Any:
        return self._loader()

    def predict_dataloader(self) -> Any:
        return self._loader()


class ManualOptimBoringModel(BoringModel):
    """BoringModel that steps its optimizer itself."""

    def __init__(self) -> None:
        super().__init__()
        self.automatic_optimization = False

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        optimizer = self.optimizers()
        loss = self.step(batch)
        optimizer.zero_grad()
        self.manual_backward(loss)
        optimizer.step()
        return loss


class BoringDataModule(DataModule):
    """The data of BoringModel: one random set, split for the stages."""

    def __init__(self) -> None:
        super().__init__()
        self.checkpoint_state: str | None = None

    def prepare_data(self) -> None:
        self.random_full = RandomDataset(FEATURES, SAMPLES * 4)

    def setup(self, stage: str) -> None:
        self.random_full = RandomDataset(FEATURES, SAMPLES * 4)
        parts = [Subset(self.random_full, range(SAMPLES * part, SAMPLES * (part + 1))) for part in range(4)]
        self.random_train, self.random_val, self.random_test, self.random_predict = parts

    def train_dataloader(self) -> Any:
        return DataLoader(self.random_train)

    def val_dataloader(self) -> Any:
        return DataLoader(self.random_val)

    def test_dataloader(self) -> Any:
        return DataLoader(self.random_test)

    def predict_dataloader(self) -> Any:
        return DataLoader(self.random_predict)


class BoringDataModuleNoLen(BoringDataModule):
    """BoringDataModule without a length of its own, as every DataModule."""


class IterableBoringDataModule(DataModule):
    """Streams in place of sets."""

    def train_dataloader(self) -> Any:
        return DataLoader(RandomIterableDataset(FEATURES, SAMPLES))

    def val_dataloader(self) -> Any:
        return DataLoader(RandomIterableDataset(FEATURES, SAMPLES))

    def test_dataloader(self) -> Any:
        return DataLoader(RandomIterableDataset(FEATURES, SAMPLES))

    def predict_dataloader(self) -> Any:
        return DataLoader(RandomIterableDataset(FEATURES, SAMPLES))

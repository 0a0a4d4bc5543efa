"""The training runs that are killed: small, and with everything that makes it hard to go on exactly.

A run is one process's call of `train`; it is started again with the same arguments until it comes to its end.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset, IterableDataset

import gpulayer.pytorch as L
from gpulayer.pytorch.callbacks import LearningRateMonitor, ModelCheckpoint
from gpulayer.pytorch.loggers import CSVLogger
from gpulayer.pytorch.plugins.io import AsyncCheckpointIO

SAMPLES, FEATURES, BATCH, EPOCHS = 64, 16, 8, 2
SAVE_EVERY = 2  # optimizer steps
FOLDERS = ("best", "steps")  # of checkpoints


class Noisy(Dataset[tuple[Tensor, int]]):
    """Samples with random augmentation: where there are no workers, it draws from the main process's random numbers."""

    def __len__(self) -> int:
        return SAMPLES

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        return torch.full((FEATURES,), index / SAMPLES) + 0.1 * torch.randn(FEATURES), index


class Plain(Noisy):
    """The same without noise, for workers."""

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        return torch.full((FEATURES,), index / SAMPLES), index


class Stream(IterableDataset[tuple[Tensor, int]]):
    """Samples one after another, without a length; it keeps its place."""

    def __init__(self) -> None:
        self.at = 0

    def __iter__(self) -> Iterator[tuple[Tensor, int]]:
        while self.at < SAMPLES:
            self.at += 1
            yield Noisy()[self.at - 1]
        self.at = 0

    def state_dict(self) -> dict[str, Any]:
        return {"at": self.at}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.at = state["at"]


class Net(L.LightningModule):
    """A regression with dropout, whose moving average of the weights is kept in `on_train_batch_end`."""

    def __init__(self, journal: str, width: int) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(FEATURES, width), nn.ReLU(), nn.Dropout(0.2), nn.Linear(width, 1))
        self.register_buffer("average", torch.zeros(width, FEATURES))
        self.journal = journal

    def note(self, kind: str, what: Any) -> None:
        """One line, which is there whole as soon as this returns."""
        line = json.dumps({"process": os.getpid(), "kind": kind, "epoch": self.current_epoch, "what": what}) + "\n"
        with open(self.journal, "ab", buffering=0) as file:
            file.write(line.encode())

    def on_train_start(self) -> None:
        self.note("start", self.trainer.progress.batch)

    def loss(self, batch: Any) -> Tensor:
        x, index = batch
        target = torch.sin(4 * index / SAMPLES)
        return nn.functional.mse_loss(self.net(x).squeeze(-1), target.float())

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        batches = list(batch.values()) if isinstance(batch, dict) else [batch]
        self.note("batch", [batch_idx, [index.tolist() for _, index in batches]])
        loss = torch.stack([self.loss(one) for one in batches]).mean()
        self.log("train_loss", loss, on_step=True, on_epoch=True)
        return loss

    def on_train_batch_end(self, *_: Any) -> None:
        self.average.lerp_(self.net[0].weight.detach(), 0.1)  # type: ignore[union-attr, operator, arg-type]

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        self.log("val_loss", self.loss(batch) + 0.01 * torch.rand(()))

    def configure_optimizers(self) -> Any:
        optimizer = torch.optim.AdamW(self.parameters(), lr=0.01)
        scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 3, gamma=0.8)
        return [optimizer], [{"scheduler": scheduler, "interval": "step"}]


def shuffled(data: Dataset[Any], **arguments: Any) -> DataLoader[Any]:
    return DataLoader(data, BATCH, shuffle=True, **arguments)


LOADERS: dict[str, Callable[[], Any]] = {
    "shuffled": lambda: shuffled(Noisy()),
    "accumulated": lambda: shuffled(Noisy()),
    "several": lambda: {"one": shuffled(Noisy()), "other": shuffled(Plain())},
    "stream": lambda: DataLoader(Stream(), BATCH),
    "background": lambda: shuffled(Noisy()),
    "workers": lambda: shuffled(Plain(), num_workers=2),
}
KINDS = tuple(LOADERS)


def train(kind: str, folder: str, width: int) -> None:
    """Train in `folder`, going on from the last checkpoint there; writes `end.json` when all is done.

    Args:
        kind: one of KINDS.
        folder: the run's; it holds `journal`, `logs` and the FOLDERS.
        width: of the hidden layer: the larger, the longer a save takes.
    """
    warnings.simplefilter("ignore")
    logging.getLogger("gpulayer").setLevel(logging.ERROR)
    os.chdir(folder)
    L.seed_everything(5, verbose=False)
    module = Net(os.path.abspath("journal"), width)
    best = ModelCheckpoint("best", "{epoch}-{step}-{val_loss:.4f}", monitor="val_loss", save_top_k=2, save_last=True)
    steps = ModelCheckpoint("steps", "{step}", every_n_train_steps=SAVE_EVERY, save_last=True)
    trainer = L.Trainer(
        max_epochs=EPOCHS,
        accelerator="cpu",
        accumulate_grad_batches=3 if kind == "accumulated" else 1,
        val_check_interval=4,
        log_every_n_steps=1,
        callbacks=[best, steps, LearningRateMonitor()],
        logger=CSVLogger("logs", name=None, version="run"),
        plugins=[AsyncCheckpointIO()] if kind == "background" else None,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(module, LOADERS[kind](), DataLoader(Plain(), BATCH), ckpt_path="last")
    chosen = torch.load(best.best_model_path, weights_only=True)
    end = {
        "step": trainer.global_step,
        "weights": digest(module.state_dict()),
        "optimizer": digest(trainer.optimizers[0].state_dict()),
        "metrics": {name: float(value) for name, value in sorted(trainer.callback_metrics.items())},
        "best": [os.path.basename(best.best_model_path), float(best.best_model_score or 0), digest(chosen)],
        "files": sorted(str(file) for folder in FOLDERS for file in Path(folder).iterdir()),
        "metrics.csv": Path("logs/run/metrics.csv").read_text(),
    }
    Path("end.json.new").write_text(json.dumps(end))
    os.replace("end.json.new", "end.json")


def digest(value: Any) -> str:
    """A hash of every number in nested dicts and lists, but of those that no two runs have in common: paths, times."""
    found = hashlib.sha256()

    def add(one: Any) -> None:
        if isinstance(one, dict):
            for key in sorted(one, key=str):
                if "path" not in str(key) and "dirpath" not in str(key):
                    found.update(str(key).encode())
                    add(one[key])
        elif isinstance(one, (list, tuple)):
            for item in one:
                add(item)
        elif isinstance(one, Tensor):
            found.update(one.detach().contiguous().cpu().numpy().tobytes())
        else:
            found.update(str(one).encode())

    add(
        {key: value[key] for key in value if key not in ("callbacks", "gpulayer")} if isinstance(value, dict) else value
    )
    return found.hexdigest()

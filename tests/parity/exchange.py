"""One run that saves at a chosen moment, and goes on from a file, on either library."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from torch.optim.lr_scheduler import ReduceLROnPlateau, StepLR
from torch.utils.data import DataLoader, TensorDataset

BATCHES, SIZE, FEATURES = 4, 2, 3
PLAIN, STATEFUL, TORCHDATA = "plain", "stateful", "torchdata"


def dataset(batches: int = BATCHES, seed: int = 0) -> TensorDataset:
    """Rows, their sums, and the number of the batch that a row belongs to."""
    rows = torch.randn(batches * SIZE, FEATURES, generator=torch.Generator().manual_seed(seed))
    return TensorDataset(rows, rows.sum(1, keepdim=True), torch.arange(batches).repeat_interleave(SIZE))


class Stateful:
    """A loader that knows its place, as few lines as that can be."""

    def __init__(self) -> None:
        self.inner, self.at, self.start = DataLoader(dataset(), batch_size=SIZE), 0, 0

    def __len__(self) -> int:
        return BATCHES

    def __iter__(self) -> Iterator[Any]:
        start, self.start = self.start, 0
        self.at = start
        for batch in list(self.inner)[start:]:
            self.at += 1
            yield batch

    def state_dict(self) -> dict[str, Any]:
        return {"at": self.at}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.at = self.start = state["at"]


def training_loader(kind: str) -> Any:
    if kind == TORCHDATA:
        return pytest.importorskip("torchdata.stateful_dataloader").StatefulDataLoader(dataset(), batch_size=SIZE)
    return Stateful() if kind == STATEFUL else DataLoader(dataset(), batch_size=SIZE)


def optimizer_of(name: str, parameters: Any) -> torch.optim.Optimizer:
    if name == "adam":
        return torch.optim.Adam(parameters, lr=0.1)
    return torch.optim.SGD(parameters, lr=0.1, momentum=0.9)


@dataclass
class Setting:
    """What a run is about.

    Args:
        optimizer: "adam" or "sgd".
        scheduler: "step" or "plateau", and its settings.
        loader: which kind.
        validates: whether there is validation.
        manual: two optimizers, stepped by the module.
        epochs: how many.
        trainer: more arguments of the Trainer.
        plugins: of the library, more arguments of the Trainer.
    """

    optimizer: str = "adam"
    scheduler: tuple[str, dict[str, Any]] | None = None
    loader: str = PLAIN
    validates: bool = False
    manual: bool = False
    epochs: int = 2
    trainer: dict[str, Any] = field(default_factory=dict)
    plugins: Callable[[ModuleType], dict[str, Any]] | None = None


@dataclass
class End:
    """What a run was at its end."""

    seen: list[tuple[int, int]]  # epoch and batch of each training step
    validated: int
    weights: dict[str, torch.Tensor]
    optimizers: list[dict[str, Any]]
    schedulers: list[dict[str, Any]]
    counts: tuple[int, int, int]  # epochs, optimizer steps, the loggers' step


def module_of(L: ModuleType, setting: Setting) -> Any:
    class Net(L.LightningModule):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.net, self.other = torch.nn.Linear(FEATURES, 1), torch.nn.Linear(FEATURES, 1)
            self.automatic_optimization = not setting.manual
            self.seen: list[tuple[int, int]] = []
            self.validated = 0

        def loss(self, batch: Any) -> torch.Tensor:
            return torch.nn.functional.mse_loss(self.net(batch[0]) + self.other(batch[0]), batch[1])

        def training_step(self, batch: Any, batch_idx: int) -> Any:
            self.seen.append((self.current_epoch, int(batch[2][0])))
            loss = self.loss(batch)
            self.log("loss", loss, on_step=True, on_epoch=True)
            if not setting.manual:
                return loss
            for optimizer in self.optimizers():
                optimizer.zero_grad()
            self.manual_backward(loss)
            for optimizer in self.optimizers():
                optimizer.step()
            return None

        def validation_step(self, batch: Any, batch_idx: int) -> None:
            self.validated += 1
            self.log("val_loss", self.loss(batch))

        def configure_optimizers(self) -> Any:
            if setting.manual:
                return [optimizer_of("adam", self.net.parameters()), optimizer_of("sgd", self.other.parameters())]
            optimizer = optimizer_of(setting.optimizer, self.parameters())
            if setting.scheduler is None:
                return optimizer
            kind, more = setting.scheduler
            scheduler = (
                StepLR(optimizer, 1, 0.9)
                if kind == "step"
                else ReduceLROnPlateau(optimizer, patience=0, threshold=10.0)
            )
            return {"optimizer": optimizer, "lr_scheduler": {"scheduler": scheduler, **more}}

    return Net()


def saver_of(L: ModuleType, file: Path, moment: tuple[str, int] | None) -> Any:
    """A callback that saves in the n-th call of a hook, as ModelCheckpoint does after all others."""
    callbacks = importlib.import_module(f"{L.__name__}.callbacks")

    class Saves(callbacks.Checkpoint):  # type: ignore[misc, name-defined]
        calls = 0

    def hook(self: Any, trainer: Any, *_: Any) -> None:
        assert moment is not None
        self.calls += not trainer.sanity_checking
        if self.calls == moment[1] and not file.exists():
            trainer.save_checkpoint(file)

    if moment is not None:
        setattr(Saves, moment[0], hook)
    return Saves()


def run(
    library: str,
    folder: Path,
    setting: Setting,
    moment: tuple[str, int] | None = None,
    ckpt_path: Path | None = None,
    callbacks: list[Any] | None = None,
) -> End:
    """Train; save `folder/saved.ckpt` at a moment, or go on from a file."""
    L = importlib.import_module(library)
    torch.manual_seed(7)
    module = module_of(L, setting)
    trainer = L.Trainer(
        accelerator="cpu",
        devices=1,
        default_root_dir=folder,
        enable_progress_bar=False,
        enable_model_summary=False,
        logger=False,
        num_sanity_val_steps=0,
        max_epochs=setting.epochs,
        callbacks=[*(callbacks or []), saver_of(L, folder / "saved.ckpt", moment)],
        **setting.trainer,
        **(setting.plugins(L) if setting.plugins is not None else {}),
    )
    validation = DataLoader(dataset(2, seed=5), batch_size=SIZE) if setting.validates else None
    trainer.fit(module, training_loader(setting.loader), validation, ckpt_path=ckpt_path)
    return End(
        seen=module.seen,
        validated=module.validated,
        weights={name: value.detach().clone() for name, value in module.state_dict().items()},
        optimizers=[optimizer.state_dict() for optimizer in trainer.optimizers],
        schedulers=[config.scheduler.state_dict() for config in trainer.lr_scheduler_configs],
        counts=(trainer.current_epoch, trainer.global_step, trainer.fit_loop.epoch_loop._batches_that_stepped),
    )

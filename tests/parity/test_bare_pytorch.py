"""GPUlayer trains exactly as a loop written by hand over the same loader: on one seed, weights equal bit for bit."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, Dataset, TensorDataset

from tests.parity.oracle import equal
from tests.parity.recorder import FEATURES, loss_of, rows

EPOCHS = 3


class Noisy(Dataset):
    """Augments each row at random in the main process, from the same random state as dropout."""

    def __init__(self, data: torch.Tensor) -> None:
        self.data = data

    def __len__(self) -> int:
        return len(self.data)

    def __getitem__(self, index: int) -> tuple[torch.Tensor]:
        return (self.data[index] + 0.1 * torch.randn(FEATURES + 1),)


@dataclass
class Case:
    """What both sides have in common; the loop by hand reads it as the Trainer does."""

    optimizer: Callable[..., torch.optim.Optimizer] = torch.optim.SGD
    options: dict[str, Any] = field(default_factory=lambda: {"lr": 0.1})
    dropout: float = 0.0
    shuffle: bool = False
    batches: int = 5
    accumulate: int = 1
    scheduler: str | None = None
    clip_norm: float | None = None
    clip_value: float | None = None
    augment: bool = False

    def network(self) -> torch.nn.Module:
        return torch.nn.Sequential(
            torch.nn.Linear(FEATURES, 8),
            torch.nn.BatchNorm1d(8),
            torch.nn.ReLU(),
            torch.nn.Dropout(self.dropout),
            torch.nn.Linear(8, 1),
        )

    def loader(self) -> DataLoader:
        data = rows(4 * self.batches)
        return DataLoader(Noisy(data) if self.augment else TensorDataset(data), batch_size=4, shuffle=self.shuffle)

    def optimizers(self, net: torch.nn.Module) -> tuple[torch.optim.Optimizer, Any]:
        optimizer = self.optimizer(net.parameters(), **self.options)
        return optimizer, torch.optim.lr_scheduler.StepLR(optimizer, 1, gamma=0.7) if self.scheduler else None


CASES = {
    "sgd": Case(),
    "momentum": Case(options={"lr": 0.05, "momentum": 0.9, "weight_decay": 0.01}),
    "adam": Case(optimizer=torch.optim.Adam, options={"lr": 0.01}),
    "adamw_foreach": Case(optimizer=torch.optim.AdamW, options={"lr": 0.01, "foreach": True}),
    "dropout_shuffle": Case(dropout=0.5, shuffle=True),
    "dropout_shuffle_adam": Case(optimizer=torch.optim.Adam, options={"lr": 0.01}, dropout=0.5, shuffle=True),
    "dropout_shuffle_random_augmentation": Case(dropout=0.5, shuffle=True, augment=True),
    "accumulation": Case(batches=6, accumulate=2, dropout=0.5, shuffle=True),
    "accumulation_ragged": Case(batches=5, accumulate=3, dropout=0.5, shuffle=True),
    "scheduler_by_epoch": Case(scheduler="epoch"),
    "scheduler_by_step": Case(scheduler="step"),
    "scheduler_by_step_accumulation": Case(batches=6, accumulate=2, scheduler="step"),
    "clip_norm": Case(clip_norm=0.1),
    "clip_value": Case(clip_value=0.01),
    "clip_norm_accumulation": Case(batches=6, accumulate=2, clip_norm=0.1),
}


def by_hand(case: Case) -> dict[str, torch.Tensor]:
    torch.manual_seed(11)
    net, loader = case.network(), case.loader()
    optimizer, scheduler = case.optimizers(net)
    for _ in range(EPOCHS):
        for i, (batch,) in enumerate(loader):
            window = min(case.accumulate, case.batches - i // case.accumulate * case.accumulate)
            if i % case.accumulate == 0:
                optimizer.zero_grad()
            loss = loss_of(net, batch)
            (loss / window if window > 1 else loss).backward()
            if (i + 1) % case.accumulate and i + 1 < case.batches:
                continue
            if case.clip_norm:
                torch.nn.utils.clip_grad_norm_(net.parameters(), case.clip_norm)
            if case.clip_value:
                torch.nn.utils.clip_grad_value_(net.parameters(), case.clip_value)
            optimizer.step()
            if case.scheduler == "step":
                scheduler.step()
        if case.scheduler == "epoch":
            scheduler.step()
    return dict(net.state_dict())


def module_of(case: Case, validated: bool) -> Any:
    import gpulayer.pytorch as L

    class Net(L.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net = case.network()

        def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
            loss = loss_of(self.net, batch[0])
            self.log("loss", loss, on_epoch=True, batch_size=len(batch[0]))
            return loss

        def configure_optimizers(self) -> Any:
            optimizer, scheduler = case.optimizers(self.net)
            if scheduler is None:
                return optimizer
            return {"optimizer": optimizer, "lr_scheduler": {"scheduler": scheduler, "interval": case.scheduler}}

    class Validated(Net):
        def validation_step(self, batch: Any, batch_idx: int) -> None:
            self.log("val_loss", loss_of(self.net, batch[0]), batch_size=len(batch[0]))

    return Validated() if validated else Net()


def by_trainer(
    case: Case, folder: Path, validation: DataLoader | None = None, **arguments: Any
) -> dict[str, torch.Tensor]:
    import gpulayer.pytorch as L

    torch.manual_seed(11)
    module, loader = module_of(case, validation is not None), case.loader()
    trainer = L.Trainer(
        accelerator="cpu",
        devices=1,
        max_epochs=EPOCHS,
        default_root_dir=folder,
        accumulate_grad_batches=case.accumulate,
        gradient_clip_val=case.clip_norm or case.clip_value,
        gradient_clip_algorithm="value" if case.clip_value else "norm",
        **arguments,
    )
    trainer.fit(module, loader, validation)
    return dict(module.net.state_dict())


@pytest.mark.parametrize("name", CASES)
def test_weights_are_those_of_a_loop_by_hand(name: str, tmp_path: Path) -> None:
    """With the Trainer's defaults: metrics.csv and a checkpoint are written beside."""
    assert equal(by_trainer(CASES[name], tmp_path), by_hand(CASES[name]))


@pytest.mark.parametrize("interval", [1.0, 2])
def test_validation_leaves_no_trace_in_training(interval: float, tmp_path: Path) -> None:
    """Shuffled validation and the sanity check draw random numbers; training sees none of it (issues 16827, 20204)."""
    case = CASES["dropout_shuffle_random_augmentation"]
    validation = DataLoader(Noisy(rows(8, seed=1)), batch_size=4, shuffle=True)
    arguments = {"val_check_interval": interval, "num_sanity_val_steps": 2}
    assert equal(by_trainer(case, tmp_path, validation, **arguments), by_hand(case))

"""Manual optimization, learning-rate schedulers, and the forms of configure_optimizers."""

from __future__ import annotations

from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from torch.optim.lr_scheduler import ReduceLROnPlateau, StepLR

from tests.parity.recorder import STEP_HOOKS, Lab, Outcome, loader
from tests.parity.scenarios.parts import fitted, scheduled
from tests.parity.scenarios.registry import scenario, variants


@variants(
    "manual{}",
    **{
        "": {"count": 1},
        "_all_overridden": {"count": 1, "overrides": STEP_HOOKS},
        "_two_optimizers": {"count": 2},
        "_every_second_batch": {"count": 1, "every": 2},
        "_schedulers": {"count": 2, "schedule": True},
    },
)
def manual(
    L: ModuleType, folder: Path, count: int, overrides: Any = (), every: int = 1, schedule: bool = False
) -> Outcome:
    lab = Lab(L, folder, overrides)

    class Net(lab.Net):
        def __init__(self) -> None:
            super().__init__()
            self.automatic_optimization = False

        def training_step(self, batch: Any, batch_idx: int) -> None:
            loss = super().training_step(batch, batch_idx)
            optimizers = [self.optimizers()] if count == 1 else self.optimizers()
            self.manual_backward(loss / every)
            for optimizer in optimizers if (batch_idx + 1) % every == 0 else ():
                optimizer.step()
                optimizer.zero_grad()
            for scheduler in self.lr_schedulers() if schedule else ():
                scheduler.step()

        def configure_optimizers(self) -> Any:
            self.note("configure_optimizers")
            optimizers = [torch.optim.SGD(part.parameters(), lr=0.1) for part in (self.net[0], self.net[2])]
            schedulers = [lab.scheduler(StepLR, o, step_size=1, gamma=0.5) for o in optimizers] if schedule else []
            return (optimizers, schedulers) if count == 2 else lab.optimizer(self)

    return fitted(lab, Net(), loader(4), loader(1, seed=1))


@scenario
def manual_toggled(L: ModuleType, folder: Path) -> Outcome:
    """Two optimizers in turn, each seeing only its own parameters as trainable; clipping by hand."""
    lab = Lab(L, folder)
    seen: list[list[bool]] = []

    class Net(lab.Net):
        def __init__(self) -> None:
            super().__init__()
            self.automatic_optimization = False

        def training_step(self, batch: Any, batch_idx: int) -> None:
            for optimizer in self.optimizers():
                self.toggle_optimizer(optimizer)
                seen.append([p.requires_grad for p in self.parameters()])
                optimizer.zero_grad()
                self.manual_backward(super().training_step(batch, batch_idx))
                self.clip_gradients(optimizer, gradient_clip_val=0.1, gradient_clip_algorithm="norm")
                optimizer.step()
                self.untoggle_optimizer(optimizer)

        def configure_optimizers(self) -> Any:
            return [torch.optim.SGD(part.parameters(), lr=0.1) for part in (self.net[0], self.net[2])]

    module, trainer = Net(), lab.trainer()
    trainer.fit(module, loader(3))
    return lab.outcome(trainer, module, toggled=seen)


STEP_LR = {"kind": StepLR, "step_size": 1, "gamma": 0.5}
PLATEAU = {"kind": ReduceLROnPlateau, "patience": 0, "factor": 0.5, "threshold": 10.0}


@variants(
    "scheduler_{}",
    epoch=STEP_LR | {"interval": "epoch"},
    epoch_overridden=STEP_LR | {"interval": "epoch", "overrides": ["lr_scheduler_step"]},
    epoch_every_second=STEP_LR | {"interval": "epoch", "frequency": 2, "max_epochs": 4},
    step=STEP_LR | {"interval": "step"},
    step_every_third_across_epochs=STEP_LR | {"interval": "step", "frequency": 3, "batches": 2, "max_epochs": 4},
    step_every_second=STEP_LR | {"interval": "step", "frequency": 2},
    step_accumulation=STEP_LR | {"interval": "step", "accumulate_grad_batches": 2, "batches": 5},
    step_val_check=STEP_LR | {"interval": "step", "val_check_interval": 2},
    epoch_val_check=STEP_LR | {"interval": "epoch", "val_check_interval": 2},
    plateau_epoch=PLATEAU | {"interval": "epoch", "monitor": "val_loss"},
    plateau_epoch_train_loss=PLATEAU | {"interval": "epoch", "monitor": "train_loss"},
    plateau_step=PLATEAU | {"interval": "step", "monitor": "train_loss"},
    plateau_step_overridden=PLATEAU | {"interval": "step", "monitor": "train_loss", "overrides": ["lr_scheduler_step"]},
    plateau_epoch_overridden=PLATEAU | {"interval": "epoch", "monitor": "val_loss", "overrides": ["lr_scheduler_step"]},
    plateau_step_val_check=PLATEAU
    | {"interval": "step", "monitor": "val_loss", "val_check_interval": 2, "frequency": 2},
)
def one_scheduler(
    L: ModuleType,
    folder: Path,
    kind: type,
    interval: str,
    batches: int = 4,
    overrides: Any = (),
    monitor: str | None = None,
    frequency: int = 1,
    max_epochs: int = 2,
    val_check_interval: int | None = None,
    accumulate_grad_batches: int = 1,
    **arguments: Any,
) -> Outcome:
    lab = Lab(L, folder, overrides)
    module = scheduled(lab, kind, interval, monitor, frequency, **arguments)()
    rates: list[float] = []

    class Rates(lab.callback_class()):
        def on_train_batch_end(self, trainer: Any, pl_module: Any, *args: Any) -> None:
            super().on_train_batch_end(trainer, pl_module, *args)
            rates.append(trainer.optimizers[0].param_groups[0]["lr"])

    trainer = lab.trainer(
        callbacks=[Rates()],
        max_epochs=max_epochs,
        val_check_interval=val_check_interval,
        accumulate_grad_batches=accumulate_grad_batches,
    )
    trainer.fit(module, loader(batches), loader(1, seed=1))
    return lab.outcome(trainer, module, rates=rates)


@variants(
    "optimizers_given_as_{}", list={"form": 0}, two_lists={"form": 1}, list_of_dicts={"form": 2}, nothing={"form": 3}
)
def optimizers_given_as(L: ModuleType, folder: Path, form: int) -> Outcome:
    lab = Lab(L, folder)

    class Net(lab.Net):
        def configure_optimizers(self) -> Any:
            self.note("configure_optimizers")
            optimizer = lab.optimizer(self)
            scheduler = lab.scheduler(StepLR, optimizer, step_size=1)
            return [
                [optimizer],
                ([optimizer], [scheduler]),
                ({"optimizer": optimizer, "lr_scheduler": scheduler},),
                None,
            ][form]

    return fitted(lab, Net())

"""When validation runs and when training ends: intervals, limits, should_stop, max_steps, loaders without length."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

from torch.optim.lr_scheduler import StepLR

from tests.parity.recorder import Lab, Outcome, loader
from tests.parity.scenarios.parts import fitted, scheduled
from tests.parity.scenarios.registry import scenario, variants


@variants(
    "val_{}",
    check_interval_int={"batches": 5, "val_check_interval": 2},
    check_interval_float={"batches": 4, "val_check_interval": 0.5},
    check_interval_float_ragged={"batches": 5, "val_check_interval": 0.4},
    check_interval_across_epochs={"val_check_interval": 3, "check_val_every_n_epoch": None},
    check_interval_accumulation={"batches": 5, "val_check_interval": 2, "accumulate_grad_batches": 2},
    check_interval_float_of_a_limited_stream={
        "batches": 5,
        "length": False,
        "limit_train_batches": 4,
        "val_check_interval": 0.5,
    },
    every_second_epoch={"check_val_every_n_epoch": 2, "max_epochs": 4},
    every_second_epoch_and_interval={"check_val_every_n_epoch": 2, "val_check_interval": 2, "max_epochs": 3},
    never={"limit_val_batches": 0},
    limited={"limit_val_batches": 1},
    limited_by_fraction={"limit_val_batches": 0.5, "limit_train_batches": 0.5},
)
def val_when(L: ModuleType, folder: Path, batches: int = 4, length: bool = True, **arguments: Any) -> Outcome:
    return fitted(Lab(L, folder), train=loader(batches, length=length), val=loader(2, seed=1), **arguments)


@variants(
    "limit_train_{}",
    int={"limit_train_batches": 2},
    zero={"limit_train_batches": 0},
    float={"limit_train_batches": 0.75},
    accumulation={"limit_train_batches": 3, "accumulate_grad_batches": 2},
)
def limit_train(L: ModuleType, folder: Path, **arguments: Any) -> Outcome:
    return fitted(Lab(L, folder), train=loader(4), val=loader(1, seed=1), **arguments)


@variants(
    "stop_in_{}",
    on_train_start={"where": "on_train_start"},
    on_train_epoch_start={"where": "on_train_epoch_start"},
    on_train_batch_start={"where": "on_train_batch_start"},
    training_step={"where": "training_step"},
    on_train_batch_end={"where": "on_train_batch_end"},
    on_validation_end={"where": "on_validation_end", "val_check_interval": 2},
    on_train_epoch_end={"where": "on_train_epoch_end"},
    on_train_batch_end_accumulation={"where": "on_train_batch_end", "accumulate_grad_batches": 3},
    batch_end_min_epochs={"where": "on_train_batch_end", "min_epochs": 2},
    batch_end_min_steps={"where": "on_train_batch_end", "min_steps": 3},
    epoch_end_min_epochs={"where": "on_train_epoch_end", "min_epochs": 2},
)
def stop_in(L: ModuleType, folder: Path, where: str, **arguments: Any) -> Outcome:
    """trainer.should_stop is set in the first call of one hook."""
    lab = Lab(L, folder)
    module, calls = stopping(lab, where)(), iter(range(1000))
    module.stops = lambda: next(calls) == 0
    return fitted(lab, module, loader(4), loader(1, seed=1), max_epochs=4, **arguments)


def stopping(lab: Lab, where: str) -> type:
    class Net(lab.Net):
        stops: Callable[[], bool]

    def hook(self: Any, *args: Any) -> Any:
        answer = getattr(super(Net, self), where)(*args)
        if self.stops():
            self.trainer.should_stop = True
        return answer

    def step(self: Any, batch: Any, batch_idx: int) -> Any:
        return hook(self, batch, batch_idx)

    setattr(Net, where, step if where == "training_step" else hook)
    return Net


@variants(
    "max_steps_{}",
    mid_epoch={"max_steps": 5, "max_epochs": 4},
    end_of_epoch={"max_steps": 4, "max_epochs": 4},
    unlimited_epochs={"max_steps": 6, "max_epochs": -1},
    accumulation={"max_steps": 3, "max_epochs": 4, "accumulate_grad_batches": 2},
    zero={"max_steps": 0, "max_epochs": 4},
    one={"max_steps": 1, "max_epochs": 4},
)
def max_steps(L: ModuleType, folder: Path, **arguments: Any) -> Outcome:
    return fitted(Lab(L, folder), train=loader(4), val=loader(1, seed=1), **arguments)


@scenario
def max_epochs_zero(L: ModuleType, folder: Path) -> Outcome:
    return fitted(Lab(L, folder), val=loader(1, seed=1), max_epochs=0)


@variants("fast_dev_run_{}", true={"fast_dev_run": True}, two={"fast_dev_run": 2})
def fast_dev_run(L: ModuleType, folder: Path, **arguments: Any) -> Outcome:
    lab = Lab(L, folder)
    monitors = [lab.monitor("EarlyStopping", "early_stopping", monitor="val_loss")]
    module = scheduled(lab, StepLR, "epoch", step_size=1)()
    return fitted(lab, module, loader(4), loader(3, seed=1), callbacks=[lab.callback(), *monitors], **arguments)


@variants(
    "without_length{}",
    **{
        "": {},
        "_accumulation": {"accumulate_grad_batches": 2},
        "_ragged": {"batches": 5, "accumulate_grad_batches": 2},
        "_val_check_interval": {"batches": 5, "val_check_interval": 2},
        "_limited": {"batches": 5, "limit_train_batches": 3},
        "_step_scheduler": {"batches": 3, "schedule": True},
    },
)
def without_length(L: ModuleType, folder: Path, batches: int = 4, schedule: bool = False, **arguments: Any) -> Outcome:
    lab = Lab(L, folder)
    module = scheduled(lab, StepLR, "epoch", step_size=1)() if schedule else lab.Net()
    return fitted(lab, module, loader(batches, length=False), loader(2, seed=1, length=False), **arguments)

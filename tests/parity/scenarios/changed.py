"""What user code changes while it runs: schedulers made in hooks, other optimizers, another bound, more callbacks."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from torch.optim.lr_scheduler import StepLR

from tests.parity.recorder import Lab, Outcome, loader
from tests.parity.scenarios.manual import backward_and_step, manual_net
from tests.parity.scenarios.parts import fitted, plain_module
from tests.parity.scenarios.registry import scenario, variants

MOMENTS = ("on_fit_start", "on_train_start", "on_train_epoch_start")


def changing(base: type, moment: str, change: Callable[[Any], Any], epoch: int = 0) -> type:
    """The network, and in the `moment` of one epoch what `change` does."""
    original = getattr(base, moment)

    def hook(self: Any, *args: Any) -> Any:
        answer = original(self, *args)
        if self.current_epoch == epoch:
            change(self)
        return answer

    return type(base.__name__, (base,), {moment: hook})


@variants(
    "scheduler_made_in_{}",
    **{
        f"{moment}_of_the_{name}": {"moment": moment, "name": name} for moment in MOMENTS for name in ("inner", "outer")
    },
)
def scheduler_made_in(L: ModuleType, folder: Path, moment: str, name: str) -> Outcome:
    """Of the optimizer itself or of the one that the module sees; torch does not warn that it was not stepped."""
    lab = Lab(L, folder)

    def make(module: Any) -> None:
        optimizer = module.trainer.optimizers[0] if name == "inner" else module.optimizers()
        module.scheduler = StepLR(optimizer, step_size=1, gamma=0.5)

    class Net(plain_module(lab)):
        def on_train_batch_end(self, *args: Any) -> None:
            self.scheduler.step()
            lab.journal.note(f"lr={self.trainer.optimizers[0].param_groups[0]['lr']}")

    module, trainer = changing(Net, moment, make)(), lab.trainer()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        trainer.fit(module, loader(2))
    told = [str(warning.message) for warning in caught if "lr_scheduler" in str(warning.message)]
    return lab.outcome(trainer, module, told=told)


@scenario
def manual_scheduler_of_the_outer(L: ModuleType, folder: Path) -> Outcome:
    lab = Lab(L, folder)

    def step(module: Any, batch: Any, i: int) -> None:
        backward_and_step(module, batch, module.optimizers())
        module.scheduler.step()
        module.note(f"lr={module.optimizers().param_groups[0]['lr']}")

    def make(module: Any) -> None:
        module.scheduler = StepLR(module.optimizers(), step_size=1, gamma=0.5)

    return fitted(lab, changing(manual_net(lab, step), "on_train_start", make)())


def other_optimizer(module: Any) -> None:
    module.trainer.optimizers = [torch.optim.Adam(module.parameters(), lr=0.01)]


def bound(module: Any) -> None:
    module.trainer.gradient_clip_val = 1e-3


def no_bound(module: Any) -> None:
    module.trainer.gradient_clip_val = None


def by_value(module: Any) -> None:
    module.trainer.gradient_clip_val, module.trainer.gradient_clip_algorithm = 1e-3, "value"


def two_a_step(module: Any) -> None:
    module.trainer.accumulate_grad_batches = 2


CHANGES: dict[str, dict[str, Any]] = {
    f"{name}_in_{moment}": {"moment": moment, "change": change, **more}
    for name, change, more in (
        ("optimizer", other_optimizer, {}),
        ("bound", bound, {}),
        ("no_bound", no_bound, {"gradient_clip_val": 1e-3}),
        ("bound_by_value", by_value, {}),
        ("accumulation", two_a_step, {}),
    )
    for moment in ("on_train_start", "on_train_epoch_start", "on_train_batch_start", "on_train_batch_end")
    # Lightning counts new windows at once: tests/pytorch/trainer/test_changed_in_hooks.py has what is right.
    if not (name == "accumulation" and "batch" in moment)
}


@variants("changed_{}", **CHANGES)
def changed(L: ModuleType, folder: Path, moment: str, change: Callable[[Any], Any], **arguments: Any) -> Outcome:
    """On a network that overrides nothing else, in the second epoch too."""
    lab = Lab(L, folder)
    return fitted(lab, changing(plain_module(lab), moment, change)(), train=loader(4), **arguments)


@variants("changed_later_{}", **{name: case for name, case in CHANGES.items() if "train_start" not in name})
def changed_later(L: ModuleType, folder: Path, moment: str, change: Callable[[Any], Any], **arguments: Any) -> Outcome:
    lab = Lab(L, folder)
    return fitted(lab, changing(plain_module(lab), moment, change, epoch=1)(), train=loader(4), **arguments)


@variants("callback_added_in_{}", **{moment: {"moment": moment} for moment in MOMENTS})
def callback_added(L: ModuleType, folder: Path, moment: str) -> Outcome:
    lab = Lab(L, folder)
    late = lab.callback("late")
    Net = changing(lab.Net, moment, lambda module: module.trainer.callbacks.append(late))
    return fitted(lab, Net(), val=loader(1, seed=1), callbacks=[lab.callback()], num_sanity_val_steps=1)


@variants("outputs_of_none_{}", automatic={}, manual={"manual": True}, accumulated={"accumulate_grad_batches": 2})
def outputs_of_none(L: ModuleType, folder: Path, manual: bool = False, **arguments: Any) -> Outcome:
    """What `on_train_batch_end` is given."""
    lab, seen = Lab(L, folder), []

    class Net(lab.Net):
        def __init__(self) -> None:
            super().__init__()
            self.automatic_optimization = not manual

        def training_step(self, batch: Any, batch_idx: int) -> None:
            self.note(f"training_step(batch_idx={batch_idx})")

        def on_train_batch_end(self, outputs: Any, batch: Any, batch_idx: int) -> None:
            super().on_train_batch_end(outputs, batch, batch_idx)
            seen.append(dict(outputs))

    module, trainer = Net(), lab.trainer(**arguments)
    trainer.fit(module, loader(3))
    return lab.outcome(trainer, module, seen=seen)


@scenario
def optimizers_after_fit(L: ModuleType, folder: Path) -> Outcome:
    """What a module still has after `fit`, and in a validation after it."""
    lab, seen = Lab(L, folder), []

    def look(module: Any) -> None:
        optimizer, scheduler = module.optimizers(), module.lr_schedulers()
        rate = optimizer.param_groups[0]["lr"]
        seen.append((rate, type(scheduler).__name__, scheduler.get_last_lr(), isinstance(optimizer, torch.optim.SGD)))

    class Net(plain_module(lab)):
        def on_validation_start(self) -> None:
            look(self)

        def configure_optimizers(self) -> Any:
            optimizer = lab.optimizer(self)
            return [optimizer], [StepLR(optimizer, step_size=1, gamma=0.5)]

    module, trainer = Net(), lab.trainer()
    trainer.fit(module, loader(2))
    look(module)
    trainer.validate(module, loader(1, seed=1), verbose=False)
    look(module)
    module.optimizers(use_pl_optimizer=False).zero_grad()
    return lab.outcome(trainer, module, seen=seen)


@scenario
def validated_without_optimizers(L: ModuleType, folder: Path) -> Outcome:
    lab = Lab(L, folder)
    module, trainer = plain_module(lab)(), lab.trainer()
    trainer.validate(module, loader(1, seed=1), verbose=False)
    return lab.outcome(trainer, module, seen=[module.optimizers(), module.lr_schedulers()])

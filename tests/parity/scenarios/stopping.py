"""Every mix of what ends training: limits of epochs and steps, should_stop from each hook, -1, stopping monitors."""

from __future__ import annotations

from itertools import product
from pathlib import Path
from types import ModuleType
from typing import Any

from torch.optim.lr_scheduler import StepLR

from tests.parity.recorder import Lab, Outcome, loader
from tests.parity.scenarios.parts import fitted, scheduled
from tests.parity.scenarios.registry import scenario, variants

HOOKS = """
    on_fit_start on_train_start on_train_epoch_start on_train_batch_start training_step on_before_zero_grad
    on_before_backward on_after_backward on_before_optimizer_step on_train_batch_end on_train_epoch_end
    on_validation_start on_validation_epoch_start on_validation_batch_start validation_step on_validation_batch_end
    on_validation_epoch_end on_validation_end configure_optimizers setup
""".split()


def stops_in(lab: Lab, base: type, where: str, at: int) -> type:
    """A network that asks to stop in the call number `at` of one hook."""

    class Net(base):
        calls = 0

        def count(self) -> None:
            self.calls += 1
            if self.calls == at + 1:
                self.trainer.should_stop = True

    if where.endswith("_step") and not where.startswith("on_"):

        def step(self: Any, batch: Any, batch_idx: int, *args: Any) -> Any:
            self.count()
            return getattr(super(Net, self), where)(batch, batch_idx, *args)

        def training_step(self: Any, batch: Any, batch_idx: int) -> Any:
            return step(self, batch, batch_idx)

        setattr(Net, where, training_step if where == "training_step" else step)
    else:

        def hook(self: Any, *args: Any, **kwargs: Any) -> Any:
            answer = getattr(super(Net, self), where)(*args, **kwargs)
            self.count()
            return answer

        setattr(Net, where, hook)
    return Net


MIXES: dict[str, dict[str, Any]] = {
    "": {},
    "_min_epochs": {"min_epochs": 2},
    "_min_steps": {"min_steps": 6},
    "_accumulation": {"accumulate_grad_batches": 2},
    "_validating_by_batches": {"val_check_interval": 2},
}


# The hooks between which it matters whether validation, schedulers and the rest of the epoch still come.
MIXED_HOOKS = """
    on_train_epoch_start training_step on_before_optimizer_step on_train_batch_end on_validation_start validation_step
    on_validation_end on_train_epoch_end
""".split()


@variants(
    "asked_in_{}",
    **{
        f"{where}{mix}": {"where": where, **arguments}
        for where in HOOKS
        for mix, arguments in MIXES.items()
        if not mix or where in MIXED_HOOKS
    },
)
def asked_in(L: ModuleType, folder: Path, where: str, at: int = 0, **arguments: Any) -> Outcome:
    """should_stop, set in one of the hooks: the first call, or in a hook of each batch the second."""
    lab = Lab(L, folder)
    at = 1 if "batch" in where or where.endswith("_step") else at
    module = stops_in(lab, scheduled(lab, StepLR, "epoch", step_size=1), where, at)()
    return fitted(lab, module, loader(4), loader(2, seed=1), **{"max_epochs": 4} | arguments)


@variants(
    "asked_late_in_{}",
    train_batch_end={"where": "on_train_batch_end", "at": 6},
    train_batch_end_of_last={"where": "on_train_batch_end", "at": 3},
    train_batch_end_accumulation={"where": "on_train_batch_end", "at": 4, "accumulate_grad_batches": 2},
    train_batch_end_of_last_min_epochs={"where": "on_train_batch_end", "at": 3, "min_epochs": 1},
    train_epoch_end={"where": "on_train_epoch_end", "at": 1},
    train_epoch_end_min_epochs={"where": "on_train_epoch_end", "at": 1, "min_epochs": 2},
    train_epoch_end_min_epochs_more={"where": "on_train_epoch_end", "at": 1, "min_epochs": 3},
    train_epoch_start={"where": "on_train_epoch_start", "at": 1},
    validation_end={"where": "on_validation_end", "at": 1},
    validation_end_min_steps={"where": "on_validation_end", "at": 0, "min_steps": 9},
    validation_end_min_steps_reached={"where": "on_validation_end", "at": 1, "min_steps": 8},
    train_batch_end_second_epoch_only={"where": "on_train_batch_end", "at": 5, "check_val_every_n_epoch": 3},
    train_batch_end_across={
        "where": "on_train_batch_end",
        "at": 5,
        "check_val_every_n_epoch": None,
        "val_check_interval": 5,
    },
)
def asked_late_in(L: ModuleType, folder: Path, where: str, at: int, **arguments: Any) -> Outcome:
    lab = Lab(L, folder)
    module = stops_in(lab, scheduled(lab, StepLR, "epoch", step_size=1), where, at)()
    return fitted(lab, module, loader(4), loader(2, seed=1), **{"max_epochs": 4} | arguments)


@scenario
def asked_and_taken_back(L: ModuleType, folder: Path) -> Outcome:
    """should_stop is a flag that may be unset again before it is read."""
    lab = Lab(L, folder)

    class Net(lab.Net):
        def on_train_batch_start(self, batch: Any, batch_idx: int) -> Any:
            super().on_train_batch_start(batch, batch_idx)
            self.trainer.should_stop = True

        def on_train_batch_end(self, outputs: Any, batch: Any, batch_idx: int) -> None:
            super().on_train_batch_end(outputs, batch, batch_idx)
            self.trainer.should_stop = self.trainer.current_epoch == 1 and batch_idx == 1

    return fitted(lab, Net(), loader(4), loader(1, seed=1), max_epochs=4)


EPOCHS: tuple[int | None, ...] = (2, -1)
STEPS = (3, 4, 5)
ACCUMULATE = (1, 2)
MIN_EPOCHS = (None, 3)


def mixes() -> dict[str, dict[str, Any]]:
    found = {}
    for epochs, steps, accumulate, least in product(EPOCHS, STEPS, ACCUMULATE, MIN_EPOCHS):
        name = f"{'any' if epochs == -1 else epochs}_epochs_{steps}_steps_accumulate_{accumulate}_least_{least}"
        found[name] = {
            "max_epochs": epochs,
            "max_steps": steps,
            "accumulate_grad_batches": accumulate,
            "min_epochs": least,
        }
    return found


@variants("ends_after_{}", **mixes())
def ends_after(L: ModuleType, folder: Path, **arguments: Any) -> Outcome:
    lab = Lab(L, folder)
    module = scheduled(lab, StepLR, "epoch", step_size=1)()
    return fitted(lab, module, loader(4), loader(1, seed=1), **arguments)


@variants(
    "stopper_{}",
    min_epochs={"min_epochs": 3},
    min_steps={"min_steps": 9},
    val_check_interval={"val_check_interval": 2},
    val_check_interval_min_epochs={"val_check_interval": 2, "min_epochs": 2},
    train_loss={"monitor": "train_loss"},
    at_training_epochs_end={"monitor": "val_loss", "check_on_train_epoch_end": True},
    in_validation={"monitor": "train_loss", "check_on_train_epoch_end": False},
    patience_one={"patience": 1},
    threshold={"stopping_threshold": 10.0},
    diverged={"divergence_threshold": 0.01},
    accumulation={"accumulate_grad_batches": 2},
    second_epoch={"check_val_every_n_epoch": 2},
)
def stopper(
    L: ModuleType,
    folder: Path,
    monitor: str = "val_loss",
    patience: int = 0,
    check_on_train_epoch_end: bool | None = None,
    stopping_threshold: float | None = None,
    divergence_threshold: float | None = None,
    **arguments: Any,
) -> Outcome:
    """EarlyStopping with a metric that never gets better by so much."""
    lab = Lab(L, folder)
    callback = lab.monitor(
        "EarlyStopping",
        "stopper",
        monitor=monitor,
        patience=patience,
        min_delta=100.0,
        check_on_train_epoch_end=check_on_train_epoch_end,
        stopping_threshold=stopping_threshold,
        divergence_threshold=divergence_threshold,
    )
    module = scheduled(lab, StepLR, "epoch", step_size=1)()
    trainer = lab.trainer(callbacks=[lab.callback(), callback], **{"max_epochs": 5} | arguments)
    trainer.fit(module, loader(4), loader(2, seed=1))
    return lab.outcome(trainer, module, stopped=callback.stopped_epoch, waited=callback.wait_count)


@variants(
    "skips_{}",
    each_epoch={"at": lambda epoch, i: i == 2},
    at_the_first={"at": lambda epoch, i: i == 0 and epoch == 0},
    in_the_second_epoch={"at": lambda epoch, i: epoch == 1 and i == 1},
    at_the_last={"at": lambda epoch, i: i == 3},
    validating_by_batches={"at": lambda epoch, i: i == 2, "val_check_interval": 2},
    across_epochs={"at": lambda epoch, i: i == 2, "val_check_interval": 3, "check_val_every_n_epoch": None},
    accumulation={"at": lambda epoch, i: i == 2, "accumulate_grad_batches": 2},
    within_a_window={"at": lambda epoch, i: i == 1, "accumulate_grad_batches": 2},
    within_a_window_of_two={"at": lambda epoch, i: i == 3, "accumulate_grad_batches": 2},
    max_steps={"at": lambda epoch, i: i == 2, "max_steps": 5, "max_epochs": -1},
    asking_to_stop={"at": lambda epoch, i: i == 2, "stop": True},
    without_length={"at": lambda epoch, i: i == 2, "length": False},
)
def skips(L: ModuleType, folder: Path, at: Any, stop: bool = False, length: bool = True, **arguments: Any) -> Outcome:
    """on_train_batch_start returns -1: the rest of the epoch is left out."""
    lab = Lab(L, folder)

    class Net(lab.Net):
        def on_train_batch_start(self, batch: Any, batch_idx: int) -> Any:
            super().on_train_batch_start(batch, batch_idx)
            if not at(self.current_epoch, batch_idx):
                return None
            self.trainer.should_stop = stop
            return -1

    return fitted(lab, Net(), loader(4, length=length), loader(1, seed=1), **{"max_epochs": 3} | arguments)


@variants(
    "goes_on_{}",
    more_epochs={"then": {"max_epochs": 3}},
    more_steps={"max_steps": 3, "then": {"max_steps": 7}},
    nothing_left={"then": {}},
    after_a_stop={"stop": True, "then": {}},
)
def goes_on(L: ModuleType, folder: Path, then: dict[str, int], stop: bool = False, **arguments: Any) -> Outcome:
    """fit() once more on the same Trainer, with its limits raised."""
    lab = Lab(L, folder)
    module = stops_in(lab, lab.Net, "on_train_batch_end", 1)() if stop else lab.Net()
    trainer = lab.trainer(**arguments)
    trainer.fit(module, loader(4), loader(1, seed=1))
    for name, value in then.items():
        setattr(trainer.fit_loop if "epochs" in name else trainer.fit_loop.epoch_loop, name, value)
    trainer.fit(module, loader(4), loader(1, seed=1))
    return lab.outcome(trainer, module)

"""Validation, test and predict, alone and after fit; a DataModule; errors of the user."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import torch

from tests.parity.recorder import FEATURES, Lab, Outcome, loader, loss_of
from tests.parity.scenarios.parts import Evaluated, data_of, fitted, plain_module
from tests.parity.scenarios.registry import scenario, variants


@scenario
def several_validation_loaders(L: ModuleType, folder: Path) -> Outcome:
    return fitted(Lab(L, folder), val=[loader(2, seed=1), loader(1, seed=2)])


@variants(
    "sanity_check{}",
    **{
        "": {"num_sanity_val_steps": 2},
        "_all": {"num_sanity_val_steps": -1},
        "_several_loaders": {"num_sanity_val_steps": 1, "loaders": 2},
        "_val_limited": {"num_sanity_val_steps": 2, "limit_val_batches": 1},
        "_every_second_epoch": {"num_sanity_val_steps": 2, "check_val_every_n_epoch": 2},
    },
)
def sanity_check(L: ModuleType, folder: Path, loaders: int = 1, **arguments: Any) -> Outcome:
    val = [loader(3, seed=1), loader(1, seed=2)][:loaders]
    return fitted(Lab(L, folder), train=loader(2), val=val if loaders > 1 else val[0], **arguments)


EVALUATION_LOADERS = {
    "": lambda: loader(2, extra_rows=1, seed=1),
    "_several_loaders": lambda: [loader(2, seed=1), loader(1, seed=2)],
    "_without_length": lambda: loader(2, seed=1, length=False),
}


@variants("validate{}", **{name: {"loaders": make} for name, make in EVALUATION_LOADERS.items()})
def validate_alone(L: ModuleType, folder: Path, loaders: Callable[[], Any]) -> Outcome:
    lab = Lab(L, folder)
    module, trainer = Evaluated.of(lab)(), lab.trainer()
    return lab.outcome(trainer, module, trainer.validate(module, loaders(), verbose=False))


@variants("test{}", **{name: {"loaders": make} for name, make in EVALUATION_LOADERS.items()})
def test_alone(L: ModuleType, folder: Path, loaders: Callable[[], Any]) -> Outcome:
    lab = Lab(L, folder)
    module, trainer = Evaluated.of(lab)(), lab.trainer()
    return lab.outcome(trainer, module, trainer.test(module, loaders(), verbose=False))


@variants("predict{}", **{name: {"loaders": make} for name, make in EVALUATION_LOADERS.items()})
def predict_alone(L: ModuleType, folder: Path, loaders: Callable[[], Any]) -> Outcome:
    lab = Lab(L, folder)
    module, trainer = lab.Net(), lab.trainer()
    return lab.outcome(trainer, module, trainer.predict(module, loaders()))


@variants("evaluation_limited_{}", int={"limit": 1}, float={"limit": 0.5}, zero={"limit": 0})
def evaluation_limited(L: ModuleType, folder: Path, limit: int | float) -> Outcome:
    lab = Lab(L, folder)
    module = Evaluated.of(lab)()
    trainer = lab.trainer(limit_val_batches=limit, limit_test_batches=limit, limit_predict_batches=limit)
    returned = [
        trainer.validate(module, loader(4, seed=1), verbose=False),
        trainer.test(module, loader(4, seed=2), verbose=False),
        trainer.predict(module, loader(4, seed=3)),
    ]
    return lab.outcome(trainer, module, returned)


@scenario
def fit_then_evaluate(L: ModuleType, folder: Path) -> Outcome:
    """One Trainer for all four: counters and metrics after each."""
    lab = Lab(L, folder)
    module, trainer, seen = Evaluated.of(lab)(), lab.trainer(), []
    calls = (
        lambda: trainer.fit(module, loader(3), loader(1, seed=1)),
        lambda: trainer.validate(module, loader(2, seed=1), verbose=False),
        lambda: trainer.test(module, loader(2, seed=2), verbose=False),
        lambda: trainer.predict(module, loader(1, seed=3), return_predictions=False),
    )
    for call in calls:
        call()
        seen.append(
            (trainer.global_step, trainer.current_epoch, sorted(trainer.callback_metrics), trainer.state.status.value)
        )
    return lab.outcome(trainer, module, seen=seen)


@scenario
def fit_again(L: ModuleType, folder: Path) -> Outcome:
    """fit() on the same Trainer goes on from where it was once max_epochs is raised."""
    lab = Lab(L, folder)
    module, trainer = lab.Net(), lab.trainer(max_epochs=1)
    trainer.fit(module, loader(3))
    trainer.fit_loop.max_epochs = 2
    trainer.fit(module, loader(3))
    return lab.outcome(trainer, module)


@scenario
def frozen_part_stays_in_eval(L: ModuleType, folder: Path) -> Outcome:
    """Validation puts each submodule back into the mode it was in. The mode hooks are not overridden here."""
    lab = Lab(L, folder)
    modes: list[list[bool]] = []

    class Net(L.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.net = torch.nn.Sequential(torch.nn.Linear(FEATURES, 2), torch.nn.Dropout(0.5), torch.nn.Linear(2, 1))

        def on_train_epoch_start(self) -> None:
            self.net[1].eval()

        def training_step(self, batch: Any, batch_idx: int) -> Any:
            modes.append([part.training for part in self.modules()])
            return loss_of(self.net, batch)

        def validation_step(self, batch: Any, batch_idx: int) -> None:
            modes.append([part.training for part in self.modules()])

        def configure_optimizers(self) -> Any:
            return lab.optimizer(self)

    module, trainer = Net(), lab.trainer(val_check_interval=1)
    trainer.fit(module, loader(2), loader(1, seed=1))
    return lab.outcome(trainer, module, modes=modes)


@scenario
def datamodule(L: ModuleType, folder: Path) -> Outcome:
    """All four with one DataModule: the module's own transfer hooks are not overridden, so the DataModule's count."""
    lab = Lab(L, folder)
    module, data, trainer = plain_module(lab)(), data_of(lab)(), lab.trainer(num_sanity_val_steps=1)
    trainer.fit(module, datamodule=data)
    returned = [
        trainer.validate(module, datamodule=data, verbose=False),
        trainer.test(module, datamodule=data, verbose=False),
        trainer.predict(module, datamodule=data),
    ]
    return lab.outcome(trainer, module, returned)


@variants("after_a_datamodule_{}", **{call: {"call": call} for call in ("validate", "test", "predict")})
def after_a_datamodule(L: ModuleType, folder: Path, call: str) -> Outcome:
    """Fit with a DataModule, then a call with loaders of its own."""
    lab = Lab(L, folder)
    module, trainer = Evaluated.of(lab)(), lab.trainer(max_epochs=1)
    trainer.fit(module, datamodule=data_of(lab)())
    quiet = {} if call == "predict" else {"verbose": False}
    return lab.outcome(trainer, module, getattr(trainer, call)(module, loader(2, seed=5), **quiet))


@variants(
    "exception_in_{}",
    **{
        name: {"where": name}
        for name in ("training_step", "validation_step", "on_train_epoch_start", "configure_optimizers")
    },
)
def exception_in(L: ModuleType, folder: Path, where: str) -> Outcome:
    """The user's exception comes out unwrapped, after on_exception of callbacks and DataModule."""
    lab = Lab(L, folder)

    def fails(self: Any, *args: Any) -> Any:
        self.note(f"{where} fails")
        raise ZeroDivisionError("the user's own")

    def fails_in_step(self: Any, batch: Any, batch_idx: int, dataloader_idx: int = 0) -> Any:
        fails(self)

    module_class = type("Net", (lab.Net,), {where: fails_in_step if where.endswith("_step") else fails})
    module, trainer = module_class(), lab.trainer(callbacks=[lab.callback("first"), lab.callback("second")])
    raised = ""
    try:
        trainer.fit(module, datamodule=data_of(lab)())
    except ZeroDivisionError as error:
        raised = repr(error)
    status = trainer.state.status
    return lab.outcome(trainer, module, raised=raised, status=getattr(status, "value", status), cause=None)

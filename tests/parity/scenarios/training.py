"""The order of one training step and of epochs: callbacks, accumulation, overridden steps, clipping, skipping."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from torch.optim.lr_scheduler import StepLR

from tests.parity.recorder import STEP_HOOKS, Lab, Outcome, loader, loss_of
from tests.parity.scenarios.parts import fitted, scheduled, with_loaders
from tests.parity.scenarios.registry import scenario, variants


@scenario
def plain(L: ModuleType, folder: Path) -> Outcome:
    return fitted(Lab(L, folder), val=loader(2, seed=1))


@scenario
def without_validation(L: ModuleType, folder: Path) -> Outcome:
    return fitted(Lab(L, folder))


@scenario
def several_callbacks(L: ModuleType, folder: Path) -> Outcome:
    lab = Lab(L, folder)
    return fitted(lab, val=loader(1, seed=1), callbacks=[lab.callback("first"), lab.callback("second")])


@scenario
def callbacks_of_module(L: ModuleType, folder: Path) -> Outcome:
    """configure_callbacks adds one and replaces one of the same class."""
    lab = Lab(L, folder)
    given, replacing = lab.callback_class("given"), lab.callback_class("other")

    class Net(lab.Net):
        def configure_callbacks(self) -> Any:
            super().configure_callbacks()
            return [replacing(), *self.same_class()]

        def same_class(self) -> list[Any]:
            instance = given()
            instance.who = "replacement"
            return [instance]

    return fitted(lab, Net(), callbacks=[given(), lab.callback("kept")], max_epochs=1)


@scenario
def loaders_of_module(L: ModuleType, folder: Path) -> Outcome:
    lab = Lab(L, folder)
    module = with_loaders(lab)()
    trainer = lab.trainer()
    trainer.fit(module)
    trainer.validate(module, verbose=False)
    trainer.test(module, verbose=False)
    predictions = trainer.predict(module)
    return lab.outcome(trainer, module, predictions)


@variants("reload_dataloaders_every_{}", one={"every": 1}, two={"every": 2})
def reload_dataloaders(L: ModuleType, folder: Path, every: int) -> Outcome:
    lab = Lab(L, folder)
    module = with_loaders(lab)()
    trainer = lab.trainer(max_epochs=3, reload_dataloaders_every_n_epochs=every)
    trainer.fit(module)
    return lab.outcome(trainer, module)


@variants(
    "accumulation{}",
    **{
        "": {"batches": 4},
        "_ragged": {"batches": 5},
        "_ragged_all_overridden": {"batches": 5, "overrides": STEP_HOOKS},
        "_of_four_with_three_batches": {"batches": 3, "every": 4},
    },
)
def accumulation(L: ModuleType, folder: Path, batches: int, every: int = 2, overrides: Any = ()) -> Outcome:
    lab = Lab(L, folder, overrides)
    return fitted(lab, train=loader(batches), val=loader(1, seed=1), accumulate_grad_batches=every)


@variants(
    "overridden_{}",
    **{name: {"names": [name]} for name in STEP_HOOKS},
    all={"names": STEP_HOOKS},
)
def overridden(L: ModuleType, folder: Path, names: Any) -> Outcome:
    lab = Lab(L, folder, names)
    return fitted(lab, scheduled(lab, StepLR, "epoch", step_size=1)(), gradient_clip_val=0.5)


@scenario
def optimizer_step_without_super(L: ModuleType, folder: Path) -> Outcome:
    """A closure that the user calls, and a step that the user takes."""
    lab = Lab(L, folder)

    class Net(lab.Net):
        def optimizer_step(self, epoch: int, batch_idx: int, optimizer: Any, optimizer_closure: Any = None) -> None:
            self.note(f"optimizer_step(epoch={epoch}, batch_idx={batch_idx})")
            optimizer_closure()
            if batch_idx != 1:
                optimizer.step()

    return fitted(lab, Net())


@scenario
def zero_grad_at_step_end(L: ModuleType, folder: Path) -> Outcome:
    """Gradients can be read in on_train_batch_end, since they are zeroed only before the next backward."""
    lab = Lab(L, folder)
    seen: list[float] = []

    class Net(lab.Net):
        def on_train_batch_end(self, outputs: Any, batch: Any, batch_idx: int) -> None:
            super().on_train_batch_end(outputs, batch, batch_idx)
            seen.append(float(self.net[0].weight.grad.sum()))

    module, trainer = Net(), lab.trainer()
    trainer.fit(module, loader(3))
    return lab.outcome(trainer, module, gradients=seen)


@variants(
    "lbfgs{}", **{"": {}, "_with_validation": {"val": True}, "_optimizer_step": {"overrides": ["optimizer_step"]}}
)
def lbfgs(L: ModuleType, folder: Path, val: bool = False, overrides: Any = ()) -> Outcome:
    lab = Lab(L, folder, overrides)
    lab.optimizer = lambda module: torch.optim.LBFGS(module.parameters(), lr=0.1, max_iter=3)
    return fitted(lab, train=loader(2), val=loader(1, seed=1) if val else None)


class Sharpness(torch.optim.SGD):
    """Steps with the gradients of a point nearby, so it computes the loss twice; like SAM (arXiv 2010.01412)."""

    def step(self, closure: Any = None) -> Any:
        with torch.enable_grad():
            loss = closure()
        with torch.no_grad():
            moved = [(p, 0.05 * p.grad.sign()) for group in self.param_groups for p in group["params"]]
            for parameter, by in moved:
                parameter.add_(by)
        with torch.enable_grad():
            closure()
        with torch.no_grad():
            for parameter, by in moved:
                parameter.sub_(by)
        super().step()
        return loss


@variants(
    "optimizer_with_two_closures{}",
    **{"": {}, "_accumulation": {"accumulate_grad_batches": 2}, "_clipping": {"gradient_clip_val": 0.01}},
)
def optimizer_with_two_closures(L: ModuleType, folder: Path, **arguments: Any) -> Outcome:
    """An optimizer of the user's own, which needs the closure."""
    lab = Lab(L, folder)
    lab.optimizer = lambda module: Sharpness(module.parameters(), lr=0.1)
    return fitted(lab, train=loader(4), **arguments)


@variants(
    "training_step_returns_{}",
    tensor={"answer": lambda loss: loss},
    dict={"answer": lambda loss: {"loss": loss, "extra": 1}},
    tensor_accumulation={"answer": lambda loss: loss, "accumulate_grad_batches": 2},
    tensor_overridden={"answer": lambda loss: loss, "overrides": ["optimizer_step"]},
)
def training_step_returns(
    L: ModuleType, folder: Path, answer: Callable[[torch.Tensor], Any], overrides: Any = (), **arguments: Any
) -> Outcome:
    """What on_train_batch_end is given."""
    lab = Lab(L, folder, overrides)
    kinds: list[str] = []

    class Net(lab.Net):
        def training_step(self, batch: Any, batch_idx: int) -> Any:
            return answer(super().training_step(batch, batch_idx))

        def on_train_batch_end(self, outputs: Any, batch: Any, batch_idx: int) -> None:
            super().on_train_batch_end(outputs, batch, batch_idx)
            kinds.append(shape_of(outputs))

    module, trainer = Net(), lab.trainer(**arguments)
    trainer.fit(module, loader(4))
    return lab.outcome(trainer, module, outputs=kinds)


def shape_of(outputs: Any) -> str:
    """What on_train_batch_end was given, as text: keys, whether a graph hangs on it, and the value."""
    if isinstance(outputs, dict):
        return str({key: shape_of(value) for key, value in outputs.items()})
    if isinstance(outputs, torch.Tensor):
        return f"tensor {outputs.item():.6f} graph={outputs.requires_grad}"
    return repr(outputs)


@variants(
    "none_from_training_step{}",
    **{
        "": {},
        "_accumulation": {"accumulate_grad_batches": 2},
        "_all_overridden": {"overrides": STEP_HOOKS},
    },
)
def none_from_training_step(L: ModuleType, folder: Path, overrides: Any = (), **arguments: Any) -> Outcome:
    lab = Lab(L, folder, overrides)

    class Net(lab.Net):
        def training_step(self, batch: Any, batch_idx: int) -> Any:
            loss = super().training_step(batch, batch_idx)
            return None if batch_idx == 1 else loss

    return fitted(lab, Net(), loader(4), max_epochs=1, **arguments)


@variants("skip_epoch_by_{}", module={"where": "module"}, callback={"where": "callback"})
def skip_epoch(L: ModuleType, folder: Path, where: str) -> Outcome:
    """on_train_batch_start returns -1 at the third batch, which skips the rest; only the module's answer counts."""
    lab = Lab(L, folder)

    class Net(lab.Net):
        def on_train_batch_start(self, batch: Any, batch_idx: int) -> Any:
            super().on_train_batch_start(batch, batch_idx)
            return -1 if where == "module" and batch_idx == 2 else None

    class Skips(lab.callback_class()):
        def on_train_batch_start(self, trainer: Any, pl_module: Any, batch: Any, batch_idx: int) -> Any:
            super().on_train_batch_start(trainer, pl_module, batch, batch_idx)
            return -1 if where == "callback" and batch_idx == 2 else None

    return fitted(lab, Net(), loader(4), loader(1, seed=1), callbacks=[Skips()])


@scenario
def skip_epoch_with_schedulers(L: ModuleType, folder: Path) -> Outcome:
    """As above with an epoch and a step scheduler: here GPUlayer differs on purpose."""
    lab = Lab(L, folder)

    class Net(lab.Net):
        def on_train_batch_start(self, batch: Any, batch_idx: int) -> Any:
            super().on_train_batch_start(batch, batch_idx)
            return -1 if batch_idx == 2 else None

        def configure_optimizers(self) -> Any:
            optimizer = lab.optimizer(self)
            by_epoch = lab.scheduler(StepLR, optimizer, "by_epoch", step_size=100)
            by_step = lab.scheduler(StepLR, optimizer, "by_step", step_size=100)
            return [optimizer], [by_epoch, {"scheduler": by_step, "interval": "step"}]

    return fitted(lab, Net(), loader(5), max_epochs=3)


@scenario
def gradient_clipping_by_norm(L: ModuleType, folder: Path) -> Outcome:
    return fitted(Lab(L, folder), gradient_clip_val=0.1)


@scenario
def gradient_clipping_by_value(L: ModuleType, folder: Path) -> Outcome:
    return fitted(Lab(L, folder), gradient_clip_val=0.01, gradient_clip_algorithm="value", accumulate_grad_batches=3)


@variants("training_step_takes_{}", batch_only={"form": "batch"}, iterator={"form": "iterator"})
def training_step_takes(L: ModuleType, folder: Path, form: str) -> Outcome:
    lab = Lab(L, folder)

    class BatchOnly(lab.Net):
        def training_step(self, batch: Any) -> Any:
            self.note("training_step")
            return loss_of(self.net, batch)

    class FromIterator(lab.Net):
        def training_step(self, dataloader_iter: Iterator[Any]) -> Any:
            batch, batch_idx, _ = next(dataloader_iter)
            self.note(f"training_step(batch_idx={batch_idx})")
            return loss_of(self.net, batch)

    return fitted(lab, {"batch": BatchOnly, "iterator": FromIterator}[form]())

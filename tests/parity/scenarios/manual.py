"""Manual optimization: closures, several optimizers, toggling, schedulers, clipping and accumulation by hand."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from torch.optim.lr_scheduler import ReduceLROnPlateau, StepLR

from tests.parity.recorder import STEP_HOOKS, Lab, Outcome, loader, loss_of
from tests.parity.scenarios.logging import logged_fit
from tests.parity.scenarios.parts import fitted
from tests.parity.scenarios.registry import log_variants, scenario, variants

Step = Callable[[Any, Any, int], Any]


def one(lab: Lab, module: Any) -> Any:
    return lab.optimizer(module)


def two(lab: Lab, module: Any) -> Any:
    """An optimizer for each layer."""
    return [torch.optim.SGD(part.parameters(), lr=0.1, momentum=0.9) for part in (module.net[0], module.net[2])]


def overlapping(lab: Lab, module: Any) -> Any:
    """The first optimizer has all parameters, the second those of the last layer alone."""
    return [torch.optim.SGD(part.parameters(), lr=0.1) for part in (module.net, module.net[2])]


def with_schedulers(lab: Lab, module: Any) -> Any:
    optimizers = two(lab, module)
    return optimizers, [lab.scheduler(StepLR, optimizer, step_size=1, gamma=0.5) for optimizer in optimizers]


def with_one_scheduler(lab: Lab, module: Any) -> Any:
    optimizer = lab.optimizer(module)
    return {"optimizer": optimizer, "lr_scheduler": lab.scheduler(StepLR, optimizer, step_size=2, gamma=0.5)}


def with_plateau(lab: Lab, module: Any) -> Any:
    optimizer = lab.optimizer(module)
    plateau = lab.scheduler(ReduceLROnPlateau, optimizer, patience=0, factor=0.5, threshold=10.0)
    return [optimizer], [plateau]


def manual_net(lab: Lab, step: Step, configure: Any = one, **hooks: Callable[..., Any]) -> type:
    """A network whose training step is `step`; `hooks` run after the recorded ones."""

    class Net(lab.Net):
        def __init__(self) -> None:
            super().__init__()
            self.automatic_optimization = False

        def training_step(self, batch: Any, batch_idx: int) -> Any:
            self.note(f"training_step(batch_idx={batch_idx})")
            return step(self, batch, batch_idx)

        def configure_optimizers(self) -> Any:
            self.note("configure_optimizers")
            return configure(lab, self)

    for name, action in hooks.items():
        setattr(Net, name, after(Net, name, action))
    return Net


def after(Net: type, name: str, action: Callable[..., Any]) -> Callable[..., Any]:
    original = getattr(Net, name)

    def hook(self: Any, *args: Any) -> Any:
        answer = original(self, *args)
        action(self)
        return answer

    return hook


def backward_and_step(module: Any, batch: Any, optimizer: Any) -> torch.Tensor:
    optimizer.zero_grad()
    loss = loss_of(module.net, batch)
    module.manual_backward(loss)
    optimizer.step()
    return loss


def by_closure(module: Any, batch: Any, i: int) -> None:
    optimizer = module.optimizers()

    def closure() -> torch.Tensor:
        optimizer.zero_grad()
        loss = loss_of(module.net, batch)
        module.manual_backward(loss)
        return loss

    returned = optimizer.step(closure=closure)
    module.note(f"step returned {returned.item():.6f}")


def closure_by_position(module: Any, batch: Any, i: int) -> None:
    def closure() -> torch.Tensor:
        module.zero_grad()
        loss = loss_of(module.net, batch)
        module.manual_backward(loss)
        return loss

    module.optimizers().step(closure)


def closures_of_two(module: Any, batch: Any, i: int) -> None:
    for number, optimizer in enumerate(module.optimizers()):

        def closure(optimizer: Any = optimizer, number: int = number) -> None:
            module.note(f"closure of {number}")
            optimizer.zero_grad()
            module.manual_backward(loss_of(module.net, batch))

        optimizer.step(closure=closure)


def second_in_turn(module: Any, batch: Any, i: int) -> None:
    """As a GAN is often trained: the second optimizer steps every third batch."""
    first, second = module.optimizers()
    backward_and_step(module, batch, first)
    if i % 3 == 2:
        backward_and_step(module, batch, second)


def without_counting(module: Any, batch: Any, i: int) -> None:
    """The optimizer itself: neither hooks nor global_step know of its step."""
    optimizer = module.optimizers(use_pl_optimizer=False)
    module.note(type(optimizer).__name__)
    backward_and_step(module, batch, optimizer)


def inner_optimizer(module: Any, batch: Any, i: int) -> None:
    backward_and_step(module, batch, module.optimizers().optimizer)


def toggled(module: Any, batch: Any, i: int) -> None:
    for optimizer in module.optimizers():
        module.toggle_optimizer(optimizer)
        module.note(grads(module))
        backward_and_step(module, batch, optimizer)
        module.untoggle_optimizer(optimizer)
        module.note(grads(module))


def toggled_block(module: Any, batch: Any, i: int) -> None:
    for optimizer in module.optimizers():
        with module.toggled_optimizer(optimizer):
            module.note(grads(module))
            backward_and_step(module, batch, optimizer)
        module.note(grads(module))


def toggle_model(module: Any, batch: Any, i: int) -> None:
    """The optimizer's own context: its parameters alone require gradients."""
    for optimizer in module.optimizers():
        with optimizer.toggle_model(sync_grad=i % 2 == 1):
            module.note(grads(module))
            backward_and_step(module, batch, optimizer)
        module.note(grads(module))


def toggled_with_a_frozen_layer(module: Any, batch: Any, i: int) -> None:
    """What the user froze stays frozen after toggling."""
    module.net[0].requires_grad_(False)
    second = module.optimizers()[1]
    for optimizer in reversed(module.optimizers()):
        module.toggle_optimizer(optimizer)
        module.note(grads(module))
        module.untoggle_optimizer(optimizer)
        module.note(grads(module))
    backward_and_step(module, batch, second)


def grads(module: Any) -> str:
    return "".join("1" if parameter.requires_grad else "0" for parameter in module.parameters())


def every_batch_and_epoch(module: Any, batch: Any, i: int) -> None:
    """One scheduler by step, the other at the epoch's end; by the optimizers, in order."""
    for optimizer in module.optimizers():
        backward_and_step(module, batch, optimizer)
    by_step, by_epoch = module.lr_schedulers()
    by_step.step()
    if module.trainer.is_last_batch and (module.trainer.current_epoch + 1) % 2 == 0:
        by_epoch.step()


def one_scheduler(module: Any, batch: Any, i: int) -> None:
    backward_and_step(module, batch, module.optimizers())
    module.lr_schedulers().step()


def plain_step(module: Any, batch: Any, i: int) -> None:
    backward_and_step(module, batch, module.optimizers())


def step_plateau(module: Any) -> None:
    module.lr_schedulers().step(module.trainer.callback_metrics["val_loss"])


def clipped(algorithm: str | None) -> Step:
    def step(module: Any, batch: Any, i: int) -> None:
        optimizer = module.optimizers()
        optimizer.zero_grad()
        module.manual_backward(loss_of(module.net, batch))
        module.clip_gradients(optimizer, gradient_clip_val=0.02, gradient_clip_algorithm=algorithm)
        optimizer.step()

    return step


def clipped_without_a_bound(module: Any, batch: Any, i: int) -> None:
    optimizer = module.optimizers()
    optimizer.zero_grad()
    module.manual_backward(loss_of(module.net, batch))
    module.clip_gradients(optimizer)
    optimizer.step()


def accumulated(module: Any, batch: Any, i: int) -> None:
    """Every third batch, and the rest at the epoch's end, clipped once."""
    optimizer = module.optimizers()
    module.manual_backward(loss_of(module.net, batch) / 3)
    if (i + 1) % 3 == 0 or module.trainer.is_last_batch:
        module.clip_gradients(optimizer, gradient_clip_val=0.1, gradient_clip_algorithm="norm")
        optimizer.step()
        optimizer.zero_grad()


def several_steps_a_batch(module: Any, batch: Any, i: int) -> None:
    for _ in range(3):
        backward_and_step(module, batch, module.optimizers())


def graph_kept(module: Any, batch: Any, i: int) -> None:
    """Arguments of manual_backward reach Tensor.backward."""
    optimizer = module.optimizers()
    optimizer.zero_grad()
    loss = loss_of(module.net, batch)
    module.manual_backward(loss, retain_graph=True)
    module.manual_backward(loss * 0.5, torch.tensor(2.0))
    optimizer.step()


def no_step_at_all(module: Any, batch: Any, i: int) -> None:
    """An epoch in which nothing steps."""


def zeroed_by_the_module(module: Any, batch: Any, i: int) -> None:
    module.zero_grad()
    module.manual_backward(loss_of(module.net, batch))
    module.optimizers().step()


def by_index(module: Any, batch: Any, i: int) -> None:
    """`optimizers()` gives the same objects each time, which pass for the optimizer's class."""
    optimizers = module.optimizers()
    module.note(
        f"{type(optimizers).__name__} {len(optimizers)} same={optimizers[0] is module.optimizers()[0]} "
        f"sgd={isinstance(optimizers[0], torch.optim.SGD)} groups={len(optimizers[0].param_groups)} "
        f"schedulers={module.lr_schedulers()}"
    )
    backward_and_step(module, batch, optimizers[i % 2])


MANUAL = {
    "closure": {"step": by_closure},
    "closure_by_position": {"step": closure_by_position},
    "closures_of_two": {"step": closures_of_two, "configure": two},
    "closure_overridden": {"step": by_closure, "overrides": STEP_HOOKS},
    "second_in_turn": {"step": second_in_turn, "configure": two},
    "without_counting": {"step": without_counting},
    "inner_optimizer": {"step": inner_optimizer},
    "toggled_in_turn": {"step": toggled, "configure": two},
    "toggled_overlapping": {"step": toggled, "configure": overlapping},
    "toggled_block": {"step": toggled_block, "configure": overlapping},
    "toggle_model": {"step": toggle_model, "configure": two},
    "toggled_with_a_frozen_layer": {"step": toggled_with_a_frozen_layer, "configure": two},
    "schedulers_by_step_and_epoch": {"step": every_batch_and_epoch, "configure": with_schedulers},
    "one_scheduler": {"step": one_scheduler, "configure": with_one_scheduler},
    "clipped_by_norm": {"step": clipped("norm")},
    "clipped_by_value": {"step": clipped("value")},
    "clipped_by_default": {"step": clipped(None)},
    "clipped_without_a_bound": {"step": clipped_without_a_bound},
    "accumulated": {"step": accumulated, "batches": 5},
    "several_steps_a_batch": {"step": several_steps_a_batch},
    "several_steps_a_batch_max_steps": {"step": several_steps_a_batch, "max_steps": 7},
    "second_in_turn_max_steps": {"step": second_in_turn, "configure": two, "max_steps": 5},
    "several_steps_min_steps": {"step": several_steps_a_batch, "min_steps": 6, "stop": True},
    "graph_kept": {"step": graph_kept},
    "no_step_at_all": {"step": no_step_at_all},
    "no_step_max_steps": {"step": no_step_at_all, "max_steps": 1},
    "zeroed_by_the_module": {"step": zeroed_by_the_module},
    "by_index": {"step": by_index, "configure": two},
    "val_check_interval": {"step": second_in_turn, "configure": two, "val_check_interval": 2},
    "val_across_epochs": {
        "step": second_in_turn,
        "configure": two,
        "val_check_interval": 3,
        "check_val_every_n_epoch": None,
    },
}


@variants("manually_{}", **MANUAL)
def manually(
    L: ModuleType,
    folder: Path,
    step: Step,
    configure: Any = one,
    overrides: Any = (),
    batches: int = 4,
    stop: bool = False,
    **arguments: Any,
) -> Outcome:
    lab = Lab(L, folder, overrides)

    def ask_to_stop(module: Any) -> None:
        module.trainer.should_stop = True

    hooks = {"on_train_batch_end": ask_to_stop} if stop else {}
    module = manual_net(lab, step, configure, **hooks)()
    return fitted(lab, module, loader(batches), loader(1, seed=1), **arguments)


@variants("manual_returns_{}", tensor={"form": 0}, dict={"form": 1}, nothing={"form": 2}, dict_without_loss={"form": 3})
def manual_returns(L: ModuleType, folder: Path, form: int) -> Outcome:
    """What on_train_batch_end is given."""
    lab, given = Lab(L, folder), []

    def step(module: Any, batch: Any, i: int) -> Any:
        loss = backward_and_step(module, batch, module.optimizers())
        return [loss, {"loss": loss, "size": len(batch)}, None, {"size": len(batch)}][form]

    class Net(manual_net(lab, step)):
        def on_train_batch_end(self, outputs: Any, batch: Any, batch_idx: int) -> None:
            super().on_train_batch_end(outputs, batch, batch_idx)
            given.append({name: str(value) for name, value in outputs.items()})

    module, trainer = Net(), lab.trainer()
    trainer.fit(module, loader(3))
    return lab.outcome(trainer, module, given=given)


@scenario
def manual_plateau(L: ModuleType, folder: Path) -> Outcome:
    """A scheduler that watches a metric, stepped by hand after validation."""
    lab = Lab(L, folder)

    class Net(manual_net(lab, plain_step, with_plateau, on_validation_epoch_end=step_plateau)):
        def validation_step(self, batch: Any, batch_idx: int, dataloader_idx: int = 0) -> None:
            self.log("val_loss", super().validation_step(batch, batch_idx, dataloader_idx), batch_size=len(batch))

    return fitted(lab, Net(), loader(4), loader(2, seed=1), max_epochs=3, val_check_interval=2)


@scenario
def manual_lbfgs(L: ModuleType, folder: Path) -> Outcome:
    """An optimizer that calls the closure several times a step."""
    lab = Lab(L, folder)
    lab.optimizer = lambda module: torch.optim.LBFGS(module.parameters(), lr=0.1, max_iter=3)
    return fitted(lab, manual_net(lab, by_closure)(), loader(2))


@variants("manual_gradients_{}", of_the_last_fit={"again": True}, of_the_user={"again": False})
def manual_gradients(L: ModuleType, folder: Path, again: bool) -> Outcome:
    """Gradients from before a fit do not get into its first step."""
    lab = Lab(L, folder)

    def step(module: Any, batch: Any, i: int) -> None:
        optimizer = module.optimizers()
        module.manual_backward(loss_of(module.net, batch))
        if i % 2 == 0:
            optimizer.step()
            optimizer.zero_grad()

    module, trainer = manual_net(lab, step)(), lab.trainer(max_epochs=1)
    if again:
        trainer.fit(module, loader(2))
        trainer.fit_loop.max_epochs = 2
    else:
        loss_of(module.net, next(iter(loader(1, seed=3)))).backward()
    trainer.fit(module, loader(2))
    return lab.outcome(trainer, module)


@scenario
def manual_stops_in_step(L: ModuleType, folder: Path) -> Outcome:
    lab = Lab(L, folder)

    def step(module: Any, batch: Any, i: int) -> None:
        backward_and_step(module, batch, module.optimizers())
        module.trainer.should_stop = i == 1

    return fitted(lab, manual_net(lab, step)(), loader(4), loader(1, seed=1))


@scenario
def manual_skips_the_rest(L: ModuleType, folder: Path) -> Outcome:
    lab = Lab(L, folder)

    class Net(manual_net(lab, one_scheduler, with_one_scheduler)):
        def on_train_batch_start(self, batch: Any, batch_idx: int) -> Any:
            super().on_train_batch_start(batch, batch_idx)
            return -1 if batch_idx == 2 else None

    return fitted(lab, Net(), loader(4), loader(1, seed=1))


@scenario
def manual_checkpoints(L: ModuleType, folder: Path) -> Outcome:
    """Every two optimizer steps, of two optimizers: which steps the files have."""
    lab = Lab(L, folder)
    keeper = lab.callbacks.ModelCheckpoint(dirpath=folder / "kept", every_n_train_steps=4, save_top_k=-1)
    module = manual_net(lab, closures_of_two, two)()
    return fitted(lab, module, loader(4), callbacks=[lab.callback(), keeper], enable_checkpointing=True)


def logs_both(module: Any, batch: Any, i: int) -> None:
    for number, optimizer in enumerate(module.optimizers()):
        loss = backward_and_step(module, batch, optimizer)
        module.log(f"loss_{number}", loss, on_step=True, on_epoch=True, prog_bar=True, batch_size=len(batch))


def logs_when_it_steps(module: Any, batch: Any, i: int) -> None:
    loss = loss_of(module.net, batch)
    module.manual_backward(loss / 2)
    module.log("loss", loss, on_epoch=True, batch_size=len(batch))
    if i % 2:
        optimizer = module.optimizers()
        optimizer.step()
        optimizer.zero_grad()


@log_variants(
    "log_manual_{}",
    two_optimizers={"step": logs_both, "configure": two},
    two_optimizers_every_second={"step": logs_both, "configure": two, "log_every_n_steps": 2},
    accumulated={"step": logs_when_it_steps},
    accumulated_every_third={"step": logs_when_it_steps, "log_every_n_steps": 3},
)
def log_manual(L: ModuleType, folder: Path, step: Step, configure: Any = one, **arguments: Any) -> Outcome:
    lab = Lab(L, folder)
    return logged_fit(lab, manual_net(lab, step, configure)(), **arguments)

"""Every form that `configure_optimizers` may return, closures, and the step hooks overridden alone and together."""

from __future__ import annotations

from collections.abc import Callable
from itertools import combinations
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from torch.optim import lr_scheduler
from torch.optim.lr_scheduler import ReduceLROnPlateau, StepLR

from tests.parity.recorder import STEP_HOOKS, Lab, Outcome, loader
from tests.parity.scenarios.parts import fitted, scheduled
from tests.parity.scenarios.registry import scenario, variants


class Halves:
    """A scheduler that is none of torch's: `step` halves the rate."""

    def __init__(self, optimizer: torch.optim.Optimizer) -> None:
        self.optimizer, self.moves = optimizer, 0

    def step(self, *args: Any) -> None:
        self.moves += 1
        for group in self.optimizer.param_groups:
            group["lr"] /= 2

    def state_dict(self) -> dict[str, Any]:
        return {"moves": self.moves}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.moves = state_dict["moves"]


def step_lr(lab: Lab, optimizer: Any, who: str = "scheduler") -> Any:
    return lab.scheduler(StepLR, optimizer, who, step_size=1, gamma=0.5)


def plateau(lab: Lab, optimizer: Any) -> Any:
    return lab.scheduler(ReduceLROnPlateau, optimizer, "plateau", patience=0, factor=0.5, threshold=10.0)


Form = Callable[[Lab, Any], Any]
FORMS: dict[str, Form] = {
    "optimizer": lambda lab, o: o,
    "tuple_of_one": lambda lab, o: (o,),
    "dict": lambda lab, o: {"optimizer": o},
    "dict_with_scheduler": lambda lab, o: {"optimizer": o, "lr_scheduler": step_lr(lab, o)},
    "dict_with_config": lambda lab, o: {
        "optimizer": o,
        "lr_scheduler": {"scheduler": step_lr(lab, o), "interval": "step", "frequency": 2, "name": "mine"},
    },
    "dict_with_monitor": lambda lab, o: {"optimizer": o, "lr_scheduler": plateau(lab, o), "monitor": "val_loss"},
    "monitor_in_config": lambda lab, o: {
        "optimizer": o,
        "lr_scheduler": {"scheduler": plateau(lab, o), "monitor": "train_loss", "strict": True},
    },
    "monitor_that_is_missing": lambda lab, o: {
        "optimizer": o,
        "lr_scheduler": {"scheduler": plateau(lab, o), "monitor": "unknown", "strict": False},
    },
    "list_of_dicts": lambda lab, o: [{"optimizer": o, "lr_scheduler": {"scheduler": step_lr(lab, o)}}],
    "list_of_dicts_without_schedulers": lambda lab, o: [{"optimizer": o}],
    "two_lists": lambda lab, o: ([o], [step_lr(lab, o)]),
    "list_of_two_lists": lambda lab, o: [[o], [step_lr(lab, o)]],
    "two_lists_no_schedulers": lambda lab, o: ([o], []),
    "list_and_scheduler": lambda lab, o: ([o], step_lr(lab, o)),
    "list_and_config": lambda lab, o: ([o], {"scheduler": step_lr(lab, o), "interval": "step"}),
    "two_schedulers": lambda lab, o: (
        [o],
        [step_lr(lab, o, "by_epoch"), {"scheduler": step_lr(lab, o, "by_step"), "interval": "step"}],
    ),
    "three_schedulers": lambda lab, o: (
        [o],
        [
            {"scheduler": plateau(lab, o), "monitor": "val_loss"},
            {"scheduler": step_lr(lab, o, "by_step"), "interval": "step", "frequency": 3},
            {"scheduler": step_lr(lab, o, "second_epoch"), "frequency": 2},
        ],
    ),
    "plateau_not_on_plateau": lambda lab, o: {
        "optimizer": o,
        "lr_scheduler": {"scheduler": step_lr(lab, o), "reduce_on_plateau": False, "monitor": "val_loss"},
    },
    "one_cycle": lambda lab, o: {
        "optimizer": o,
        "lr_scheduler": {"scheduler": lr_scheduler.OneCycleLR(o, 0.1, total_steps=8), "interval": "step"},
    },
    "warm_restarts": lambda lab, o: {"optimizer": o, "lr_scheduler": lr_scheduler.CosineAnnealingWarmRestarts(o, 2)},
    "sequential": lambda lab, o: {
        "optimizer": o,
        "lr_scheduler": {
            "scheduler": lr_scheduler.SequentialLR(
                o, [lr_scheduler.ConstantLR(o, 0.1), lr_scheduler.ExponentialLR(o, 0.9)], milestones=[3]
            ),
            "interval": "step",
        },
    },
    "chained": lambda lab, o: {
        "optimizer": o,
        "lr_scheduler": lr_scheduler.ChainedScheduler([StepLR(o, 1), lr_scheduler.ExponentialLR(o, 0.9)]),
    },
    "lambda": lambda lab, o: {
        "optimizer": o,
        "lr_scheduler": {"scheduler": lr_scheduler.LambdaLR(o, lambda n: 0.9**n), "interval": "step"},
    },
}


def returning(lab: Lab, form: Form) -> type:
    """A network that logs `train_loss` and `val_loss`, and returns `form` of its optimizer."""

    class Net(scheduled(lab, StepLR, "epoch")):
        def configure_optimizers(self) -> Any:
            self.note("configure_optimizers")
            return form(lab, lab.optimizer(self))

    return Net


@variants("configured_as_{}", **{name: {"form": form} for name, form in FORMS.items()})
def configured_as(L: ModuleType, folder: Path, form: Form) -> Outcome:
    """The rates after each batch, and what the trainer made of it."""
    lab, rates, read = Lab(L, folder), [], []

    class Rates(lab.callback_class()):
        def on_train_start(self, trainer: Any, pl_module: Any) -> None:
            super().on_train_start(trainer, pl_module)
            names = ("interval", "frequency", "reduce_on_plateau", "monitor", "strict", "name")
            read.extend(
                [getattr(config, name) for name in names if name != "name" or config.name]
                for config in trainer.lr_scheduler_configs
            )
            found = pl_module.lr_schedulers()
            read.append(type(found).__name__ if isinstance(found, list | None) else "one scheduler")
            read.append(isinstance(pl_module.optimizers(), torch.optim.SGD))

        def on_train_batch_end(self, trainer: Any, pl_module: Any, *args: Any) -> None:
            super().on_train_batch_end(trainer, pl_module, *args)
            rates.append([group["lr"] for group in trainer.optimizers[0].param_groups])

    module, trainer = returning(lab, form)(), lab.trainer(callbacks=[Rates()])
    trainer.fit(module, loader(4), loader(1, seed=1))
    return lab.outcome(trainer, module, rates=rates, read=read)


@variants(
    "scheduler_of_ones_own_{}",
    by_epoch={"interval": "epoch"},
    by_step={"interval": "step"},
    by_step_accumulation={"interval": "step", "accumulate_grad_batches": 2},
    on_plateau={"interval": "epoch", "reduce_on_plateau": True, "monitor": "val_loss"},
)
def scheduler_of_ones_own(L: ModuleType, folder: Path, accumulate_grad_batches: int = 1, **plan: Any) -> Outcome:
    """Not one of torch's, moved by the module's own lr_scheduler_step."""
    lab, moves = Lab(L, folder), []

    class Net(scheduled(lab, StepLR, "epoch")):
        def configure_optimizers(self) -> Any:
            optimizer = lab.optimizer(self)
            return {"optimizer": optimizer, "lr_scheduler": {"scheduler": Halves(optimizer), **plan}}

        def lr_scheduler_step(self, scheduler: Any, metric: Any) -> None:
            moves.append((type(scheduler).__name__, None if metric is None else float(metric), self.global_step))
            scheduler.step()

    module, trainer = Net(), lab.trainer(accumulate_grad_batches=accumulate_grad_batches)
    trainer.fit(module, loader(4), loader(1, seed=1))
    return lab.outcome(trainer, module, moves=moves)


PLATEAU = {"kind": ReduceLROnPlateau, "patience": 0, "factor": 0.5, "threshold": 10.0}


@variants(
    "plateau_{}",
    step_every_second=PLATEAU | {"interval": "step", "frequency": 2, "monitor": "train_loss"},
    step_accumulation=PLATEAU | {"interval": "step", "monitor": "train_loss", "accumulate_grad_batches": 2},
    step_val_loss_accumulation=PLATEAU
    | {"interval": "step", "monitor": "val_loss", "frequency": 2, "val_check_interval": 2}
    | {"accumulate_grad_batches": 2},
    epoch_every_second=PLATEAU | {"interval": "epoch", "frequency": 2, "monitor": "val_loss", "max_epochs": 4},
    epoch_val_check=PLATEAU | {"interval": "epoch", "monitor": "val_loss", "val_check_interval": 2},
    epoch_max_steps=PLATEAU | {"interval": "epoch", "monitor": "train_loss", "max_steps": 6},
    epoch_train_loss_ends_in_epoch=PLATEAU | {"interval": "epoch", "monitor": "train_loss", "max_steps": 4},
)
def plateau_when(
    L: ModuleType, folder: Path, kind: type, interval: str, monitor: str, frequency: int = 1, **arguments: Any
) -> Outcome:
    lab = Lab(L, folder)
    of_scheduler = {name: arguments.pop(name) for name in ("patience", "factor", "threshold")}
    module = scheduled(lab, kind, interval, monitor, frequency, **of_scheduler)()
    return fitted(lab, module, loader(4), loader(1, seed=1), **arguments)


@variants(
    "scheduler_when_{}",
    epoch_max_steps_mid_epoch={"interval": "epoch", "max_steps": 6},
    epoch_max_steps_at_end={"interval": "epoch", "max_steps": 4},
    step_max_steps={"interval": "step", "max_steps": 6},
    epoch_accumulation={"interval": "epoch", "accumulate_grad_batches": 4},
    epoch_unlimited={"interval": "epoch", "max_epochs": -1, "max_steps": 10},
    step_limited={"interval": "step", "limit_train_batches": 3},
    step_every_second_accumulation={"interval": "step", "frequency": 2, "accumulate_grad_batches": 2, "batches": 6},
    step_without_length={"interval": "step", "length": False},
    epoch_without_length={"interval": "epoch", "length": False},
    epoch_without_length_limited={"interval": "epoch", "length": False, "limit_train_batches": 2},
    epoch_val_across_epochs={"interval": "epoch", "val_check_interval": 3, "check_val_every_n_epoch": None},
    step_second_epoch={"interval": "epoch", "frequency": 2, "max_epochs": 5},
)
def scheduler_when(
    L: ModuleType,
    folder: Path,
    interval: str,
    batches: int = 4,
    length: bool = True,
    frequency: int = 1,
    **arguments: Any,
) -> Outcome:
    lab = Lab(L, folder)
    module = scheduled(lab, StepLR, interval, frequency=frequency, step_size=1, gamma=0.5)()
    return fitted(lab, module, loader(batches, length=length), loader(1, seed=1), **arguments)


@variants(
    "lbfgs_with_{}",
    accumulation={"accumulate_grad_batches": 2, "batches": 4},
    accumulation_max_steps={"accumulate_grad_batches": 2, "batches": 4, "max_steps": 3},
    clipping={"gradient_clip_val": 0.1},
    clipping_by_value={"gradient_clip_val": 0.01, "gradient_clip_algorithm": "value"},
    step_scheduler={"interval": "step"},
    all_overridden={"overrides": STEP_HOOKS},
    all_overridden_accumulation={"overrides": STEP_HOOKS, "accumulate_grad_batches": 2, "batches": 4},
    line_search={"line_search_fn": "strong_wolfe"},
    line_search_accumulation={"line_search_fn": "strong_wolfe", "accumulate_grad_batches": 2, "batches": 4},
)
def lbfgs_with(
    L: ModuleType,
    folder: Path,
    batches: int = 3,
    overrides: Any = (),
    interval: str = "epoch",
    line_search_fn: str | None = None,
    **arguments: Any,
) -> Outcome:
    lab = Lab(L, folder, overrides)
    lab.optimizer = lambda module: torch.optim.LBFGS(
        module.parameters(), lr=0.1, max_iter=3, line_search_fn=line_search_fn
    )
    module = scheduled(lab, StepLR, interval, step_size=2, gamma=0.5)()
    return fitted(lab, module, loader(batches), loader(1, seed=1), **arguments)


PAIRS = {"_".join(pair): {"names": pair} for pair in combinations(STEP_HOOKS, 2)}
ALONE = {f"{name}_accumulation": {"names": [name], "accumulate_grad_batches": 2} for name in STEP_HOOKS}


@variants(
    "overriding_{}",
    **PAIRS,
    **ALONE,
    all_accumulation={"names": STEP_HOOKS, "accumulate_grad_batches": 2},
    all_by_value={"names": STEP_HOOKS, "gradient_clip_algorithm": "value"},
    all_but_optimizer_step={"names": [name for name in STEP_HOOKS if name != "optimizer_step"]},
)
def overriding(L: ModuleType, folder: Path, names: Any, **arguments: Any) -> Outcome:
    lab = Lab(L, folder, names)
    module = scheduled(lab, StepLR, "step", step_size=1)()
    return fitted(lab, module, loader(4), loader(1, seed=1), **{"gradient_clip_val": 0.5} | arguments)


def own_clipping(self: Any, optimizer: Any, gradient_clip_val: Any = None, gradient_clip_algorithm: Any = None) -> None:
    """By the built-in function, at every second step."""
    self.note(f"configure_gradient_clipping({gradient_clip_val}, {getattr(gradient_clip_algorithm, 'value', None)})")
    if self.trainer.global_step % 2 == 0:
        self.clip_gradients(optimizer, gradient_clip_val=0.01, gradient_clip_algorithm="norm")


def own_zero_grad(self: Any, epoch: int, batch_idx: int, optimizer: Any) -> None:
    optimizer.zero_grad(set_to_none=False)
    self.note(f"zeroed {[float(parameter.grad.abs().sum()) for parameter in self.parameters() if _has(parameter)]}")


def _has(parameter: torch.nn.Parameter) -> bool:
    return parameter.grad is not None


def own_backward(self: Any, loss: torch.Tensor, *args: Any, **kwargs: Any) -> None:
    self.note(f"backward args={args} kwargs={kwargs}")
    (loss * 0.5).backward()


def warm_up(self: Any, epoch: int, batch_idx: int, optimizer: Any, optimizer_closure: Any = None) -> None:
    """The rate rises over the first steps, as in many a user's optimizer_step."""
    optimizer.step(closure=optimizer_closure)
    self.note(f"stepped step={self.trainer.global_step}")
    if self.trainer.global_step < 3:
        for group in optimizer.param_groups:
            group["lr"] = 0.1 * (self.trainer.global_step + 1) / 3


def every_second(self: Any, epoch: int, batch_idx: int, optimizer: Any, optimizer_closure: Any = None) -> None:
    """Steps at every second batch only; the closure runs at each."""
    if batch_idx % 2:
        optimizer.step(closure=optimizer_closure)
    else:
        optimizer_closure()


def closure_twice(self: Any, epoch: int, batch_idx: int, optimizer: Any, optimizer_closure: Any = None) -> None:
    loss = optimizer_closure()
    self.note(f"closure gave {float(loss):.6f} graph={loss.requires_grad}")
    optimizer.step(closure=optimizer_closure)


def through_super(self: Any, *args: Any, **kwargs: Any) -> None:
    self.note(f"optimizer_step given {len(args)} and {sorted(kwargs)}")
    super(type(self), self).optimizer_step(*args, **kwargs)


def own_scheduler_step(self: Any, scheduler: Any, metric: Any) -> None:
    self.note(f"lr_scheduler_step({metric})")
    scheduler.step(epoch=self.current_epoch * 2)


@variants(
    "own_{}",
    clipping={"configure_gradient_clipping": own_clipping},
    clipping_and_backward={"configure_gradient_clipping": own_clipping, "backward": own_backward},
    zero_grad={"optimizer_zero_grad": own_zero_grad},
    zero_grad_accumulation={"optimizer_zero_grad": own_zero_grad, "accumulate_grad_batches": 2},
    backward={"backward": own_backward},
    backward_accumulation={"backward": own_backward, "accumulate_grad_batches": 2},
    step_warm_up={"optimizer_step": warm_up},
    step_warm_up_accumulation={"optimizer_step": warm_up, "accumulate_grad_batches": 2},
    step_every_second={"optimizer_step": every_second},
    step_every_second_and_zero_grad={"optimizer_step": every_second, "optimizer_zero_grad": own_zero_grad},
    step_closure_twice_accumulation={"optimizer_step": closure_twice, "accumulate_grad_batches": 2},
    step_closure_twice={"optimizer_step": closure_twice},
    step_closure_twice_clipped={"optimizer_step": closure_twice, "gradient_clip_val": 0.01},
    step_through_super={"optimizer_step": through_super},
    step_and_all={
        "optimizer_step": warm_up,
        "optimizer_zero_grad": own_zero_grad,
        "backward": own_backward,
        "configure_gradient_clipping": own_clipping,
    },
)
def own(L: ModuleType, folder: Path, **given: Any) -> Outcome:
    """What users write into these hooks, which is more than a call of super()."""
    lab = Lab(L, folder)
    hooks = {name: given.pop(name) for name in list(given) if name in STEP_HOOKS}
    module = type("Net", (scheduled(lab, StepLR, "epoch", step_size=1),), hooks)()
    return fitted(lab, module, loader(4), loader(1, seed=1), **given)


@scenario
def own_scheduler_step_with_an_epoch(L: ModuleType, folder: Path) -> Outcome:
    """As schedulers of other libraries want it."""
    lab, moves = Lab(L, folder), []

    class Net(scheduled(lab, StepLR, "epoch", step_size=1)):
        def lr_scheduler_step(self, scheduler: Any, metric: Any) -> None:
            moves.append((self.current_epoch, self.global_step, metric))
            scheduler.step()

    module, trainer = Net(), lab.trainer(max_epochs=3)
    trainer.fit(module, loader(3))
    return lab.outcome(trainer, module, moves=moves)


ESTIMATES: dict[str, dict[str, Any]] = {
    "plain": {},
    "accumulation": {"accumulate_grad_batches": 2},
    "ragged_accumulation": {"accumulate_grad_batches": 3},
    "max_steps": {"max_steps": 7},
    "max_steps_only": {"max_steps": 7, "max_epochs": -1},
    "unlimited": {"max_epochs": -1, "stop": True},
    "limited": {"limit_train_batches": 4, "accumulate_grad_batches": 2},
    "fraction": {"limit_train_batches": 0.5},
    "without_length": {"length": False, "max_steps": 3},
    "without_length_unlimited": {"length": False},
    "without_length_limited": {"length": False, "limit_train_batches": 3},
    "overfit": {"overfit_batches": 2},
    "fast_dev_run": {"fast_dev_run": 3},
    "max_epochs_zero": {"max_epochs": 0},
    "several_loaders": {"loaders": True, "accumulate_grad_batches": 2},
}


@variants("estimated_steps_{}", **ESTIMATES)
def estimated_steps(
    L: ModuleType, folder: Path, length: bool = True, stop: bool = False, loaders: bool = False, **arguments: Any
) -> Outcome:
    """`trainer.estimated_stepping_batches`, where schedulers are made and later."""
    lab, read = Lab(L, folder), []

    class Net(lab.Net):
        def training_step(self, batch: Any, batch_idx: int) -> Any:
            self.trainer.should_stop = stop
            return super().training_step(batch["a"] if loaders else batch, batch_idx)

        def configure_optimizers(self) -> Any:
            read.append(self.trainer.estimated_stepping_batches)
            return super().configure_optimizers()

        def on_train_epoch_start(self) -> None:
            super().on_train_epoch_start()
            read.append((self.trainer.estimated_stepping_batches, self.trainer.num_training_batches))

    module, trainer = Net(), lab.trainer(**arguments)
    train = loader(6, length=length)
    trainer.fit(module, {"a": train, "b": loader(3)} if loaders else train)
    return lab.outcome(trainer, module, read=read)

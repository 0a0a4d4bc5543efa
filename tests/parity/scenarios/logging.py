"""Scenarios of `self.log`: which numbers callbacks, the progress bar and loggers see, under which names, at which step.

Each takes a namespace `L` and a folder, as those of `scenarios.py` do. Beside the final metrics an outcome holds in
its notes the rows that reached a logger and what the metrics were at several moments of the run.
"""

from __future__ import annotations

import csv
from collections.abc import Callable
from itertools import product
from pathlib import Path
from types import ModuleType
from typing import Any

import torch

from tests.parity.recorder import FEATURES, Lab, Outcome, loader, loss_of
from tests.parity.scenarios.registry import log_scenario, log_variants

FLAGS = {"unset": None, "yes": True, "no": False}


def recording_logger(lab: Lab) -> Any:
    """A Logger that keeps what reaches it: rows as (step, metrics), hyperparameters, and how it was told the end."""

    class Rows(lab.loggers.Logger):
        def __init__(self) -> None:
            super().__init__()
            self.rows: list[tuple[int | None, dict[str, float]]] = []
            self.hyperparameters: list[dict[str, Any]] = []
            self.ends: list[str] = []

        name, version, save_dir = "rows", 0, None

        def log_metrics(self, metrics: dict[str, float], step: int | None = None) -> None:
            self.rows.append((step, {key: float(value) for key, value in metrics.items()}))

        def log_hyperparams(self, params: Any, *args: Any, **kwargs: Any) -> None:
            self.hyperparameters.append(dict(params))

        def finalize(self, status: str) -> None:
            self.ends.append(status)

    return Rows()


def watcher(lab: Lab, seen: list[tuple[str, dict[str, Any]]]) -> Any:
    """A callback that notes callback_metrics where people read them."""

    def reads(name: str) -> Callable[..., None]:
        def hook(self: Any, trainer: Any, pl_module: Any, *args: Any) -> None:
            seen.append((name, {key: float(value) for key, value in trainer.callback_metrics.items()}))

        return hook

    moments = (
        "on_train_batch_end",
        "on_train_epoch_end",
        "on_validation_epoch_end",
        "on_validation_end",
        "on_train_end",
    )
    return type("Watcher", (lab.L.Callback,), {name: reads(name) for name in moments})()


def logging_net(lab: Lab, **methods: Callable[..., Any]) -> Any:
    """A network that overrides the two steps, the optimizer, and what is given."""

    class Net(lab.L.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.net = torch.nn.Linear(FEATURES, 1)

        def training_step(self, batch: torch.Tensor, batch_idx: int) -> Any:
            return loss_of(self.net, batch)

        def validation_step(self, batch: torch.Tensor, batch_idx: int) -> Any:
            return loss_of(self.net, batch)

        def configure_optimizers(self) -> Any:
            return torch.optim.SGD(self.parameters(), lr=0.1)

    return type("Net", (Net,), methods)()


def logged_fit(lab: Lab, module: Any, train: Any = None, val: Any = None, **arguments: Any) -> Outcome:
    """Fit two epochs on batches of 2, 2, 2 and 1 rows, every step a log point unless said otherwise."""
    rows, seen = recording_logger(lab), []
    trainer = lab.trainer(**{"logger": rows, "log_every_n_steps": 1, "callbacks": [watcher(lab, seen)]} | arguments)
    train = loader(3, extra_rows=1) if train is None else train
    trainer.fit(module, train, loader(2, extra_rows=1, seed=1) if val is None else val)
    return lab.outcome(trainer, module, rows=rows.rows, seen=seen, hyperparameters=rows.hyperparameters, ends=rows.ends)


# ---- when and how: on_step, on_epoch, logger, prog_bar, reduce_fx ---------------------------------


def on_flags(*useless: tuple[str, str]) -> dict[str, dict[str, Any]]:
    """All pairs of on_step and on_epoch but those that ask for nothing, which are errors."""
    pairs = [pair for pair in product(FLAGS, FLAGS) if pair not in useless]
    return {f"{step}_step_{epoch}_epoch": {"on_step": FLAGS[step], "on_epoch": FLAGS[epoch]} for step, epoch in pairs}


@log_variants("log_training_{}", **on_flags(("no", "no"), ("no", "unset")))
def log_in_training(L: ModuleType, folder: Path, **flags: Any) -> Outcome:
    lab = Lab(L, folder)

    def training_step(self: Any, batch: torch.Tensor, batch_idx: int) -> Any:
        loss = loss_of(self.net, batch)
        self.log("loss", loss, batch_size=len(batch), prog_bar=True, **flags)
        return loss

    return logged_fit(lab, logging_net(lab, training_step=training_step))


@log_variants("log_validation_{}", **on_flags(("no", "no"), ("unset", "no")))
def log_in_validation(L: ModuleType, folder: Path, **flags: Any) -> Outcome:
    lab = Lab(L, folder)

    def validation_step(self: Any, batch: torch.Tensor, batch_idx: int) -> None:
        self.log("val", loss_of(self.net, batch), batch_size=len(batch), prog_bar=True, **flags)

    return logged_fit(lab, logging_net(lab, validation_step=validation_step))


@log_variants(
    "log_{}",
    **{
        f"{'with' if logger else 'without'}_logger_{'with' if bar else 'without'}_bar": {
            "logger": logger,
            "prog_bar": bar,
        }
        for logger, bar in product((True, False), (True, False))
    },
)
def log_to(L: ModuleType, folder: Path, **flags: Any) -> Outcome:
    lab = Lab(L, folder)

    def training_step(self: Any, batch: torch.Tensor, batch_idx: int) -> Any:
        loss = loss_of(self.net, batch)
        self.log("loss", loss, batch_size=len(batch), on_step=True, on_epoch=True, **flags)
        return loss

    def validation_step(self: Any, batch: torch.Tensor, batch_idx: int) -> None:
        self.log("val", loss_of(self.net, batch), batch_size=len(batch), **flags)

    return logged_fit(lab, logging_net(lab, training_step=training_step, validation_step=validation_step))


@log_variants(
    "log_reduced_by_{}",
    **{name: {"reduce_fx": name} for name in ("mean", "sum", "min", "max")},
    torch_mean={"reduce_fx": torch.mean},
    torch_sum={"reduce_fx": torch.sum},
    torch_max={"reduce_fx": torch.max},
)
def log_reduced(L: ModuleType, folder: Path, reduce_fx: Any) -> Outcome:
    lab = Lab(L, folder)

    def training_step(self: Any, batch: torch.Tensor, batch_idx: int) -> Any:
        loss = loss_of(self.net, batch)
        self.log("loss", loss, batch_size=len(batch), on_step=True, on_epoch=True, reduce_fx=reduce_fx)
        self.log("index", float(batch_idx), batch_size=len(batch), on_step=False, on_epoch=True, reduce_fx=reduce_fx)
        return loss

    def validation_step(self: Any, batch: torch.Tensor, batch_idx: int) -> None:
        self.log("val", loss_of(self.net, batch), batch_size=len(batch), reduce_fx=reduce_fx)

    return logged_fit(lab, logging_net(lab, training_step=training_step, validation_step=validation_step))


@log_variants("log_every_{}_steps", two={"n": 2}, three={"n": 3}, fifty={"n": 50})
def log_every(L: ModuleType, folder: Path, n: int) -> Outcome:
    lab = Lab(L, folder)

    def training_step(self: Any, batch: torch.Tensor, batch_idx: int) -> Any:
        loss = loss_of(self.net, batch)
        self.log("loss", loss, batch_size=len(batch))
        self.log("both", loss, batch_size=len(batch), on_step=True, on_epoch=True)
        return loss

    return logged_fit(lab, logging_net(lab, training_step=training_step), log_every_n_steps=n, max_epochs=3)


@log_variants("log_weighted_{}", given={"given": True}, found_in_batch={"given": False})
def log_weighted(L: ModuleType, folder: Path, given: bool) -> Outcome:
    """A smaller last batch counts less, whether the size is given or found in the batch."""
    lab = Lab(L, folder)

    def log(self: Any, name: str, batch: torch.Tensor, batch_idx: int) -> None:
        self.log(name, float(batch_idx), on_epoch=True, **({"batch_size": len(batch)} if given else {}))

    def training_step(self: Any, batch: torch.Tensor, batch_idx: int) -> Any:
        log(self, "train", batch, batch_idx)
        return loss_of(self.net, batch)

    def validation_step(self: Any, batch: torch.Tensor, batch_idx: int) -> None:
        log(self, "val", batch, batch_idx)

    return logged_fit(lab, logging_net(lab, training_step=training_step, validation_step=validation_step))


# ---- what and where from --------------------------------------------------------------------------


@log_scenario
def log_dict(L: ModuleType, folder: Path) -> Outcome:
    lab = Lab(L, folder)

    def training_step(self: Any, batch: torch.Tensor, batch_idx: int) -> Any:
        loss = loss_of(self.net, batch)
        self.log_dict({"a": loss, "b": 2.0 * loss}, on_step=True, on_epoch=True, prog_bar=True, batch_size=len(batch))
        self.log_dict({"c": float(batch_idx)}, batch_size=len(batch))
        return loss

    return logged_fit(lab, logging_net(lab, training_step=training_step))


@log_scenario
def log_kinds_of_values(L: ModuleType, folder: Path) -> Outcome:
    """Python numbers, integer and double tensors, and one-element vectors."""
    lab = Lab(L, folder)
    values = {
        "int": 3,
        "float": 0.5,
        "bool": True,
        "long": torch.tensor(4),
        "double": torch.tensor(0.25, dtype=torch.float64),
        "half": torch.tensor(0.75, dtype=torch.float16),
        "vector": torch.tensor([1.5]),
    }

    def training_step(self: Any, batch: torch.Tensor, batch_idx: int) -> Any:
        for name, value in values.items():
            self.log(name, value, batch_size=len(batch), on_step=True, on_epoch=True)
        return loss_of(self.net, batch)

    return logged_fit(lab, logging_net(lab, training_step=training_step))


TRAINING_HOOKS = [
    "on_train_start",
    "on_train_epoch_start",
    "on_train_batch_start",
    "on_before_zero_grad",
    "on_before_backward",
    "on_after_backward",
    "on_before_optimizer_step",
    "on_train_batch_end",
    "on_train_epoch_end",
]
VALIDATION_HOOKS = [
    "on_validation_start",
    "on_validation_epoch_start",
    "on_validation_batch_start",
    "on_validation_batch_end",
    "on_validation_epoch_end",
]


def logs_hook(name: str, calls: dict[str, int], of_callback: bool = False) -> Callable[..., None]:
    """A hook that logs how often it was called, under its own name."""

    def hook(self: Any, *args: Any) -> None:
        module = args[1] if of_callback else self
        prefix = "callback" if of_callback else "module"
        calls[name] = calls.get(name, 0) + 1
        module.log(f"{prefix}_{name}", float(calls[name]), batch_size=1)

    return hook


@log_variants("log_from_{}_hooks", training={"hooks": TRAINING_HOOKS}, validation={"hooks": VALIDATION_HOOKS})
def log_from_module_hooks(L: ModuleType, folder: Path, hooks: list[str]) -> Outcome:
    """Each hook has its own defaults of on_step and on_epoch."""
    lab, calls = Lab(L, folder), {}
    module = logging_net(lab, **{name: logs_hook(name, calls) for name in hooks})
    return logged_fit(lab, module, val=[loader(2, seed=1)], accumulate_grad_batches=1)


@log_scenario
def log_from_callback_hooks(L: ModuleType, folder: Path) -> Outcome:
    lab, calls, rows = Lab(L, folder), {}, []
    names = [*TRAINING_HOOKS, *VALIDATION_HOOKS]
    callback = type("Logs", (L.Callback,), {name: logs_hook(name, calls, of_callback=True) for name in names})()
    return logged_fit(lab, logging_net(lab), callbacks=[callback, watcher(lab, rows)])


@log_scenario
def log_same_name_in_both_stages(L: ModuleType, folder: Path) -> Outcome:
    lab = Lab(L, folder)

    def step(self: Any, batch: torch.Tensor, batch_idx: int) -> Any:
        loss = loss_of(self.net, batch)
        self.log("loss", loss, batch_size=len(batch), on_epoch=True)
        return loss

    return logged_fit(lab, logging_net(lab, training_step=step, validation_step=step))


@log_scenario
def log_own_step(L: ModuleType, folder: Path) -> Outcome:
    """A metric called "step" is the x of the row it would be part of."""
    lab = Lab(L, folder)

    def validation_step(self: Any, batch: torch.Tensor, batch_idx: int) -> None:
        self.log("val", loss_of(self.net, batch), batch_size=len(batch))
        self.log("step", 10.0 * (self.current_epoch + 1), batch_size=1)

    return logged_fit(lab, logging_net(lab, validation_step=validation_step))


@log_scenario
def log_at_some_steps(L: ModuleType, folder: Path) -> Outcome:
    """A name logged at the first batch of an epoch only: see test_deliberate_differences."""
    lab = Lab(L, folder)

    def training_step(self: Any, batch: torch.Tensor, batch_idx: int) -> Any:
        if batch_idx == 0:
            self.log("first", float(self.current_epoch), batch_size=1)
        self.log("every", float(batch_idx), batch_size=1)
        return loss_of(self.net, batch)

    return logged_fit(lab, logging_net(lab, training_step=training_step))


@log_variants(
    "log_under_accumulation{}",
    **{"": {"n": 1}, "_every_second": {"n": 2}},
)
def log_under_accumulation(L: ModuleType, folder: Path, n: int) -> Outcome:
    lab = Lab(L, folder)

    def training_step(self: Any, batch: torch.Tensor, batch_idx: int) -> Any:
        self.log("index", float(batch_idx), batch_size=1, on_step=True, on_epoch=True)
        return loss_of(self.net, batch)

    module = logging_net(lab, training_step=training_step)
    return logged_fit(lab, module, loader(4), accumulate_grad_batches=2, log_every_n_steps=n)


@log_scenario
def log_in_manual_optimization(L: ModuleType, folder: Path) -> Outcome:
    """Rows count batches in which the optimizer stepped, not optimizers."""
    lab = Lab(L, folder)

    def training_step(self: Any, batch: torch.Tensor, batch_idx: int) -> None:
        loss = loss_of(self.net, batch)
        self.log("index", float(batch_idx), batch_size=1)
        for optimizer in self.optimizers():
            optimizer.zero_grad()
        self.manual_backward(loss)
        for optimizer in self.optimizers():
            optimizer.step()

    def configure_optimizers(self: Any) -> Any:
        return [torch.optim.SGD([self.net.weight], lr=0.1), torch.optim.SGD([self.net.bias], lr=0.1)]

    module = logging_net(lab, training_step=training_step, configure_optimizers=configure_optimizers)
    module.automatic_optimization = False
    return logged_fit(lab, module)


# ---- evaluation -----------------------------------------------------------------------------------


@log_variants(
    "log_several_loaders{}",
    **{"": {}, "_without_index": {"add_dataloader_idx": False}, "_step_and_epoch": {"on_step": True, "on_epoch": True}},
)
def log_several_loaders(L: ModuleType, folder: Path, **flags: Any) -> Outcome:
    lab = Lab(L, folder)
    unique = flags.get("add_dataloader_idx") is False

    def validation_step(self: Any, batch: torch.Tensor, batch_idx: int, dataloader_idx: int = 0) -> None:
        name = f"val_{dataloader_idx}" if unique else "val"
        self.log(name, loss_of(self.net, batch), batch_size=len(batch), prog_bar=True, **flags)

    def on_validation_epoch_end(self: Any) -> None:
        self.log("whole", 1.0)

    module = logging_net(lab, validation_step=validation_step, on_validation_epoch_end=on_validation_epoch_end)
    return logged_fit(lab, module, val=[loader(2, seed=1), loader(1, extra_rows=1, seed=2)])


@log_scenario
def log_sanity_check_leaves_nothing(L: ModuleType, folder: Path) -> Outcome:
    lab = Lab(L, folder)

    def validation_step(self: Any, batch: torch.Tensor, batch_idx: int) -> None:
        self.log("val", loss_of(self.net, batch), batch_size=len(batch))

    return logged_fit(lab, logging_net(lab, validation_step=validation_step), num_sanity_val_steps=2, max_epochs=1)


@log_variants("log_val_check_interval{}", **{"": {}, "_every_third": {"log_every_n_steps": 3}})
def log_val_check_interval(L: ModuleType, folder: Path, **arguments: Any) -> Outcome:
    """Training means are of the whole epoch though validation comes in between."""
    lab = Lab(L, folder)

    def training_step(self: Any, batch: torch.Tensor, batch_idx: int) -> Any:
        loss = loss_of(self.net, batch)
        self.log("loss", loss, batch_size=len(batch), on_step=True, on_epoch=True)
        return loss

    def validation_step(self: Any, batch: torch.Tensor, batch_idx: int) -> None:
        self.log("val", loss_of(self.net, batch), batch_size=len(batch), on_step=True, on_epoch=True)

    module = logging_net(lab, training_step=training_step, validation_step=validation_step)
    return logged_fit(lab, module, val_check_interval=2, **arguments)


@log_variants(
    "log_until_it_stops{}",
    **{"": {}, "_min_epochs": {"min_epochs": 1}, "_accumulation": {"accumulate_grad_batches": 2}},
)
def log_until_it_stops(L: ModuleType, folder: Path, **arguments: Any) -> Outcome:
    """should_stop at a step that is no log point: what the last step logged reaches the loggers all the same."""
    lab = Lab(L, folder)

    def training_step(self: Any, batch: torch.Tensor, batch_idx: int) -> Any:
        loss = loss_of(self.net, batch)
        self.log("loss", loss, batch_size=len(batch))
        self.trainer.should_stop = batch_idx == 1
        return loss

    return logged_fit(lab, logging_net(lab, training_step=training_step), log_every_n_steps=3, **arguments)


@log_variants(
    "log_within_a_window_{}",
    every_batch={"val_check_interval": 1},
    every_third={"val_check_interval": 3},
    of_four={"val_check_interval": 2, "accumulate_grad_batches": 4},
)
def log_within_a_window(L: ModuleType, folder: Path, **arguments: Any) -> Outcome:
    """A validation between two batches that share an optimizer step has that step's number."""
    lab = Lab(L, folder)

    def training_step(self: Any, batch: torch.Tensor, batch_idx: int) -> Any:
        loss = loss_of(self.net, batch)
        self.log("loss", loss, batch_size=len(batch))
        return loss

    def validation_step(self: Any, batch: torch.Tensor, batch_idx: int) -> None:
        self.log("val", loss_of(self.net, batch), batch_size=len(batch))

    module = logging_net(lab, training_step=training_step, validation_step=validation_step)
    return logged_fit(lab, module, loader(4), **{"accumulate_grad_batches": 2} | arguments)


@log_variants("log_in_{}", validate={"verb": "validate"}, test={"verb": "test"})
def log_in_evaluation(L: ModuleType, folder: Path, verb: str) -> Outcome:
    """Rows and returned values of validate and test."""
    lab = Lab(L, folder)

    def step(self: Any, batch: torch.Tensor, batch_idx: int) -> None:
        self.log("mean", loss_of(self.net, batch), batch_size=len(batch), prog_bar=True)
        self.log("each", float(batch_idx), batch_size=1, on_step=True, on_epoch=True)
        self.log("hidden", 1.0, batch_size=1, logger=False)

    module, rows = logging_net(lab, validation_step=step, test_step=step), recording_logger(lab)
    trainer = lab.trainer(logger=rows, callbacks=[])
    returned = getattr(trainer, verb)(module, loader(2, extra_rows=1, seed=1), verbose=False)
    return lab.outcome(trainer, module, returned, rows=rows.rows, ends=rows.ends)


# ---- loggers --------------------------------------------------------------------------------------


@log_scenario
def log_hyperparameters(L: ModuleType, folder: Path) -> Outcome:
    lab = Lab(L, folder)

    class Net(type(logging_net(lab))):
        def __init__(self, width: int = 3, rate: float = 0.5) -> None:
            super().__init__()
            self.save_hyperparameters()

    return logged_fit(lab, Net(rate=0.25))


@log_scenario
def log_to_csv(L: ModuleType, folder: Path) -> Outcome:
    """The rows of metrics.csv as dictionaries of what is filled in."""
    lab = Lab(L, folder)

    def training_step(self: Any, batch: torch.Tensor, batch_idx: int) -> Any:
        loss = loss_of(self.net, batch)
        self.log("loss", loss, batch_size=len(batch), on_step=True, on_epoch=True)
        return loss

    def validation_step(self: Any, batch: torch.Tensor, batch_idx: int) -> None:
        self.log("val", loss_of(self.net, batch), batch_size=len(batch))

    module = logging_net(lab, training_step=training_step, validation_step=validation_step)
    logger = lab.loggers.CSVLogger(folder, name="csv", version=3)
    trainer = lab.trainer(logger=logger, log_every_n_steps=2, callbacks=[])
    trainer.fit(module, loader(3, extra_rows=1), loader(2, seed=1))
    with (folder / "csv" / "version_3" / "metrics.csv").open() as file:
        table = [{key: float(cell) for key, cell in row.items() if cell} for row in csv.DictReader(file)]
    rows = [(int(row.pop("step")), row) for row in table]
    return lab.outcome(trainer, module, rows=rows, log_dir=Path(trainer.log_dir).relative_to(folder).as_posix())

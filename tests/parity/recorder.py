"""Notes every hook that a library calls, in order, with the few arguments that tell one call from another.

A `Lab` belongs to one run of one scenario: it takes the namespace `L` (Lightning's or GPUlayer's) and a folder, hands
out base classes whose hooks are recorded, builds the Trainer, and gathers what came out in an `Outcome`.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from torch.utils.data import DataLoader, IterableDataset, TensorDataset

FEATURES = 4

# What each hook is called with, after `self` (and after trainer and module in a callback). The noted ones are in NOTED.
SHARED_HOOKS = {
    "setup": "stage",
    "teardown": "stage",
    "on_fit_start": "",
    "on_fit_end": "",
    "on_train_start": "",
    "on_train_end": "",
    "on_train_epoch_start": "",
    "on_train_epoch_end": "",
    "on_train_batch_start": "batch batch_idx",
    "on_train_batch_end": "outputs batch batch_idx",
    "on_before_zero_grad": "optimizer",
    "on_before_backward": "loss",
    "on_after_backward": "",
    "on_before_optimizer_step": "optimizer",
    "on_save_checkpoint": "checkpoint",
    "on_load_checkpoint": "checkpoint",
}
for _stage in ("validation", "test", "predict"):
    for _moment in ("start", "end", "epoch_start", "epoch_end"):
        SHARED_HOOKS[f"on_{_stage}_{_moment}"] = ""
    SHARED_HOOKS[f"on_{_stage}_batch_start"] = "batch batch_idx dataloader_idx"
    SHARED_HOOKS[f"on_{_stage}_batch_end"] = "outputs batch batch_idx dataloader_idx"

CALLBACK_HOOKS = SHARED_HOOKS | {
    "on_sanity_check_start": "",
    "on_sanity_check_end": "",
    "on_exception": "exception",
    "state_dict": "",
    "load_state_dict": "state",
}
TRANSFER_HOOKS = {
    "on_before_batch_transfer": "batch dataloader_idx",
    "transfer_batch_to_device": "batch device dataloader_idx",
    "on_after_batch_transfer": "batch dataloader_idx",
}
MODULE_HOOKS = (
    SHARED_HOOKS
    | TRANSFER_HOOKS
    | {
        "prepare_data": "",
        "configure_model": "",
        "configure_callbacks": "",
        "on_validation_model_eval": "",
        "on_validation_model_train": "",
        "on_validation_model_zero_grad": "",
        "on_test_model_eval": "",
        "on_test_model_train": "",
        "on_predict_model_eval": "",
    }
)
DATAMODULE_HOOKS = TRANSFER_HOOKS | {
    "prepare_data": "",
    "setup": "stage",
    "teardown": "stage",
    "on_exception": "exception",
    "state_dict": "",
    "load_state_dict": "state",
}
# A module that leaves these alone may be trained on a shorter path; a scenario says which of them it overrides.
STEP_HOOKS = {
    "optimizer_step": "epoch batch_idx optimizer optimizer_closure",
    "optimizer_zero_grad": "epoch batch_idx optimizer",
    "backward": "loss",
    "configure_gradient_clipping": "optimizer gradient_clip_val gradient_clip_algorithm",
    "lr_scheduler_step": "scheduler metric",
}
NOTED = ("stage", "epoch", "batch_idx", "dataloader_idx", "gradient_clip_val", "gradient_clip_algorithm")
# A single loader's hooks get no dataloader_idx from some versions: then its default, 0, is what counts.
DEFAULTS = {"dataloader_idx": 0}


@dataclass
class Outcome:
    """What one scenario did on one library."""

    events: list[str] = field(default_factory=list)
    views: list[str] = field(default_factory=list)
    weights: dict[str, torch.Tensor] = field(default_factory=dict)
    optimizers: list[dict[str, Any]] = field(default_factory=list)
    schedulers: list[dict[str, Any]] = field(default_factory=list)
    counts: dict[str, Any] = field(default_factory=dict)
    callback_metrics: dict[str, Any] = field(default_factory=dict)
    logged_metrics: dict[str, Any] = field(default_factory=dict)
    progress_bar_metrics: dict[str, Any] = field(default_factory=dict)
    global_step: int = 0
    current_epoch: int = 0
    returned: Any = None
    checkpoints: dict[str, dict[str, Any]] = field(default_factory=dict)
    notes: dict[str, Any] = field(default_factory=dict)


class Journal:
    """The events of a run, and beside each what a hook could read off the trainer at that moment."""

    def __init__(self) -> None:
        self.events: list[str] = []
        self.views: list[str] = []

    def note(self, event: str, trainer: Any = None, module: torch.nn.Module | None = None) -> None:
        self.events.append(event)
        if trainer is not None and module is not None and not any(part in event for part in UNSEEN):
            self.views.append(f"{event}: {view(event, trainer, module)}")


# Between two states, so that what is seen there says nothing.
UNSEEN = ("_model_", "transfer", "configure_", "_checkpoint", "_dataloader")


def view(event: str, trainer: Any, module: torch.nn.Module) -> str:
    """The state that user code most often asks for inside a hook, as text."""
    stage = trainer.state.stage
    seen = {
        "epoch": trainer.current_epoch,
        "step": trainer.global_step,
        "stage": getattr(stage, "value", stage),
        "train": module.training,
        "grad": torch.is_grad_enabled(),
    }
    if "train_batch" in event or "training_step" in event:
        seen["last"] = trainer.is_last_batch
    return " ".join(f"{name}={value}" for name, value in seen.items())


def describe(names: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> str:
    """The noted arguments of a call as text: `(batch_idx=0, dataloader_idx=1)`, or nothing."""
    given = dict(zip(names.split(), args, strict=False)) | kwargs
    present = {name: given.get(name, DEFAULTS.get(name)) for name in names.split() if name in NOTED}
    shown = ", ".join(f"{name}={getattr(value, 'value', value)}" for name, value in present.items())
    return f"({shown})" if shown else ""


def trainer_of(module: Any) -> Any:
    """The trainer that a module is attached to, or None (Lightning raises when there is none)."""
    try:
        return module.trainer
    except RuntimeError:
        return None


def module_hook(journal: Journal, who: str, name: str, names: str, base: type) -> Callable[..., Any]:
    original = getattr(base, name)

    def hook(self: Any, *args: Any, **kwargs: Any) -> Any:
        module = self if isinstance(self, torch.nn.Module) else None
        trainer = trainer_of(self) if name.startswith("on_") else None
        journal.note(f"{who}.{name}{describe(names, args, kwargs)}", trainer, module)
        return original(self, *args, **kwargs)

    return hook


def callback_hook(journal: Journal, name: str, names: str, base: type) -> Callable[..., Any]:
    original = getattr(base, name)
    is_state = name in ("state_dict", "load_state_dict")

    def hook(self: Any, *args: Any, **kwargs: Any) -> Any:
        given = args if is_state else args[2:]
        trainer, module = (None, None) if is_state else args[:2]
        seen = trainer if name.startswith("on_") else None
        journal.note(f"{self.who}.{name}{describe(names, given, kwargs)}", seen, module)
        return original(self, *args, **kwargs)

    return hook


def recorded_callback(journal: Journal, base: type, who: str) -> type:
    """A subclass of `base`, of the same name (it is part of the state's key), that notes every hook."""
    hooks: dict[str, Any] = {
        name: callback_hook(journal, name, names, base) for name, names in CALLBACK_HOOKS.items() if hasattr(base, name)
    }
    return type(base.__name__, (base,), hooks | {"who": who})


def ordinary_callback(journal: Journal, base: type, who: str) -> type:
    """A recorded `Callback` whose state has its own key: the recorder makes each of them one with state."""
    return type(who, (recorded_callback(journal, base, who),), {"state_key": property(lambda self: self.who)})


def recorded_owner(journal: Journal, base: type, who: str, table: dict[str, str]) -> type:
    """A subclass of a Module or DataModule class that notes the hooks of `table`."""
    return type(
        f"Recorded{base.__name__}",
        (base,),
        {n: module_hook(journal, who, n, names, base) for n, names in table.items()},
    )


def network() -> torch.nn.Sequential:
    """A network small enough that a run costs next to nothing, with one non-linearity."""
    return torch.nn.Sequential(torch.nn.Linear(FEATURES, 3), torch.nn.Tanh(), torch.nn.Linear(3, 1))


def rows(count: int, seed: int = 0) -> torch.Tensor:
    """Fixed data that no run's random state touches: features and, last, the target."""
    return torch.randn(count, FEATURES + 1, generator=torch.Generator().manual_seed(seed))


def loss_of(net: torch.nn.Module, batch: torch.Tensor) -> torch.Tensor:
    return torch.nn.functional.mse_loss(net(batch[:, :FEATURES]), batch[:, FEATURES:])


def state_of(scheduler: Any) -> dict[str, Any]:
    """A scheduler's state without the functions in it, which are the scenario's own in each library."""
    return {name: value for name, value in scheduler.state_dict().items() if not callable(value)}


def counts_of(trainer: Any) -> dict[str, Any]:
    """What code written for Lightning reads of the loops after a run."""
    fit = trainer.fit_loop
    return {
        "batches": fit.epoch_loop.batch_progress.total.processed,
        "epochs": fit.epoch_progress.current.completed,
        "batch_idx": fit.epoch_loop.total_batch_idx,
        "step": fit.epoch_loop.global_step,
        "window": fit.epoch_loop._batches_that_stepped,
    }


def without_folder(value: Any, folder: str) -> Any:
    """The paths in a checkpoint with the test's own folder taken out, so that two runs can be compared."""
    if isinstance(value, str):
        return value.replace(folder, "FOLDER")
    if isinstance(value, dict):
        return {without_folder(key, folder): without_folder(entry, folder) for key, entry in value.items()}
    return value


class Stream(IterableDataset):
    """Rows without a length."""

    def __init__(self, data: torch.Tensor) -> None:
        self.data = data

    def __iter__(self) -> Iterable[torch.Tensor]:
        return iter(self.data)


def collate(items: list[Any]) -> torch.Tensor:
    return torch.stack([item[0] if isinstance(item, tuple | list) else item for item in items])


def loader(batches: int, batch_size: int = 2, extra_rows: int = 0, seed: int = 0, length: bool = True) -> DataLoader:
    """A loader in fixed order; `extra_rows` adds a smaller last batch, `length=False` hides how many there are."""
    data = rows(batches * batch_size + extra_rows, seed)
    dataset = TensorDataset(data) if length else Stream(data)
    return DataLoader(dataset, batch_size=batch_size, collate_fn=collate)


class Lab:
    """The recorded base classes of one run, its Trainer, and what came out."""

    def __init__(self, L: ModuleType, folder: Path, overrides: Iterable[str] = ()) -> None:
        torch.manual_seed(7)
        self.L, self.folder, self.journal = L, folder, Journal()
        self.callbacks = importlib.import_module(f"{L.__name__}.callbacks")
        self.loggers = importlib.import_module(f"{L.__name__}.loggers")
        steps = {name: STEP_HOOKS[name] for name in overrides}
        self.Module = recorded_owner(self.journal, L.LightningModule, "module", MODULE_HOOKS | steps)
        self.DataModule = recorded_owner(self.journal, L.LightningDataModule, "datamodule", DATAMODULE_HOOKS)
        self.Net = self._network_class()

    def callback(self, who: str = "callback") -> Any:
        return self.callback_class(who)()

    def callback_class(self, who: str = "callback") -> type:
        return ordinary_callback(self.journal, self.L.Callback, who)

    def monitor(self, name: str, who: str, **arguments: Any) -> Any:
        """A recorded EarlyStopping or ModelCheckpoint."""
        return recorded_callback(self.journal, getattr(self.callbacks, name), who)(**arguments)

    def trainer(self, **arguments: Any) -> Any:
        """A quiet Trainer on the CPU; a scenario adds what it is about."""
        quiet: dict[str, Any] = {
            "accelerator": "cpu",
            "devices": 1,
            "default_root_dir": self.folder,
            "enable_progress_bar": False,
            "enable_model_summary": False,
            "enable_checkpointing": False,
            "logger": False,
            "num_sanity_val_steps": 0,
            "max_epochs": 2,
        }
        if "callbacks" not in arguments:
            arguments["callbacks"] = [self.callback()]
        return self.L.Trainer(**(quiet | arguments))

    def outcome(self, trainer: Any, module: torch.nn.Module, returned: Any = None, **notes: Any) -> Outcome:
        files = sorted(self.folder.rglob("*.ckpt"))
        return Outcome(
            events=self.journal.events,
            views=self.journal.views,
            weights={name: value.detach().clone() for name, value in module.state_dict().items()},
            optimizers=[optimizer.state_dict() for optimizer in trainer.optimizers],
            schedulers=[state_of(config.scheduler) for config in trainer.lr_scheduler_configs],
            counts=counts_of(trainer),
            callback_metrics=dict(trainer.callback_metrics),
            logged_metrics=dict(trainer.logged_metrics),
            progress_bar_metrics=dict(trainer.progress_bar_metrics),
            global_step=trainer.global_step,
            current_epoch=trainer.current_epoch,
            returned=returned,
            checkpoints={str(f.relative_to(self.folder)): self._read(f) for f in files},
            notes=notes,
        )

    def _read(self, file: Path) -> dict[str, Any]:
        return dict(without_folder(torch.load(file, weights_only=False), str(self.folder)))

    def _network_class(lab) -> type:
        journal = lab.journal

        class Net(lab.Module):  # type: ignore[name-defined]
            """A small regression whose steps are recorded; SGD by default."""

            def __init__(self) -> None:
                super().__init__()
                self.net = network()

            def note(self, event: str) -> None:
                journal.note(f"module.{event}", trainer_of(self), self)

            def training_step(self, batch: torch.Tensor, batch_idx: int) -> Any:
                self.note(f"training_step(batch_idx={batch_idx})")
                return loss_of(self.net, batch)

            def validation_step(self, batch: torch.Tensor, batch_idx: int, dataloader_idx: int = 0) -> Any:
                self.note(f"validation_step(batch_idx={batch_idx}, dataloader_idx={dataloader_idx})")
                return loss_of(self.net, batch)

            def test_step(self, batch: torch.Tensor, batch_idx: int, dataloader_idx: int = 0) -> Any:
                self.note(f"test_step(batch_idx={batch_idx}, dataloader_idx={dataloader_idx})")
                return loss_of(self.net, batch)

            def predict_step(self, batch: torch.Tensor, batch_idx: int, dataloader_idx: int = 0) -> Any:
                self.note(f"predict_step(batch_idx={batch_idx}, dataloader_idx={dataloader_idx})")
                return self.net(batch[:, :FEATURES])

            def configure_optimizers(self) -> Any:
                self.note("configure_optimizers")
                return lab.optimizer(self)

        return Net

    def optimizer(self, module: torch.nn.Module) -> torch.optim.Optimizer:
        return torch.optim.SGD(module.parameters(), lr=0.1, momentum=0.9)

    def scheduler(self, kind: type, optimizer: torch.optim.Optimizer, who: str = "scheduler", **arguments: Any) -> Any:
        """A learning-rate scheduler that notes each step (its constructor takes one)."""
        journal = self.journal

        class Recorded(kind):  # type: ignore[misc, valid-type]
            def step(self, *args: Any, **kwargs: Any) -> Any:
                journal.note(f"{who}.step")
                return super().step(*args, **kwargs)

        return Recorded(optimizer, **arguments)

"""What a hook can read off the trainer and the module, as text."""

from __future__ import annotations

from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from torch.optim.lr_scheduler import StepLR

from tests.parity.recorder import Lab, Outcome, loader
from tests.parity.scenarios.parts import Evaluated, data_of, plain_module, scheduled
from tests.parity.scenarios.registry import scenario, variants

OF_TRAINER = """
    num_training_batches num_val_batches num_sanity_val_batches num_test_batches num_predict_batches
    estimated_stepping_batches max_epochs min_epochs max_steps min_steps global_rank local_rank node_rank world_size
    num_nodes num_devices device_ids is_global_zero precision training validating testing predicting sanity_checking
    evaluating interrupted received_sigterm accumulate_grad_batches gradient_clip_val gradient_clip_algorithm
    limit_train_batches limit_val_batches limit_test_batches limit_predict_batches num_sanity_val_steps
    check_val_every_n_epoch val_check_interval val_check_batch log_every_n_steps fast_dev_run
    enable_validation current_epoch global_step is_last_batch should_stop ckpt_path scaler loggers logger
    checkpoint_callback checkpoint_callbacks early_stopping_callback early_stopping_callbacks progress_bar_callback
    reload_dataloaders_every_n_epochs
""".split()
OF_MODULE = """
    current_epoch global_step global_rank local_rank device dtype automatic_optimization on_gpu logger loggers
    example_input_array strict_loading training
""".split()
OF_CONFIG = ("interval", "frequency", "reduce_on_plateau", "monitor", "strict", "name")


def text(value: Any) -> Any:
    """Numbers and strings as they are; of an object its class, for the libraries' own differ."""
    value = getattr(value, "value", value)
    if isinstance(value, int | float | str | None):
        return value
    if isinstance(value, list | tuple):
        return [text(entry) for entry in value]
    return str(value) if isinstance(value, torch.device | torch.dtype) else type(value).__name__


def read(trainer: Any, module: Any, train: Any, val: Any) -> dict[str, Any]:
    """Every property by name, and whether the objects are those that were given."""
    return {
        **{f"trainer.{name}": text(getattr(trainer, name, "absent")) for name in OF_TRAINER},
        **{f"module.{name}": text(getattr(module, name, "absent")) for name in OF_MODULE},
        "config": [
            {name: text(getattr(config, name)) for name in OF_CONFIG} for config in trainer.lr_scheduler_configs
        ],
        "optimizers": text(trainer.optimizers),
        "root_device": str(trainer.strategy.root_device),
        "same": [
            trainer.train_dataloader is train,
            trainer.val_dataloaders is val,
            trainer.lightning_module is module,
            trainer.model is module,
            module.trainer is trainer,
            trainer.optimizers[0] is trainer.lr_scheduler_configs[0].scheduler.optimizer,
        ],
        "fn": text(trainer.state.fn),
        "stage": text(trainer.state.stage),
        "status": text(trainer.state.status),
    }


@scenario
def trainer_properties(L: ModuleType, folder: Path) -> Outcome:
    """Read in training, in validation, in the sanity check, and after the run."""
    lab, seen = Lab(L, folder), {}
    train, val = loader(5), loader(3, seed=1)

    def reads(moment: str) -> Any:
        def hook(self: Any, trainer: Any, pl_module: Any, *args: Any) -> None:
            found = read(trainer, pl_module, train, val)
            if trainer.sanity_checking:
                found.pop("trainer.num_training_batches")  # in Lightning infinite until the sanity check is over
            seen.setdefault(f"{moment} {trainer.sanity_checking}", found)

        return hook

    moments = ("on_train_start", "on_train_batch_end", "on_validation_batch_end", "on_train_end")
    reader = type("Reader", (L.Callback,), {moment: reads(moment) for moment in moments})()
    stopper = lab.callbacks.EarlyStopping("val_loss")

    class Net(scheduled(lab, StepLR, "step", step_size=1)):
        def configure_optimizers(self) -> Any:
            seen["estimate"] = self.trainer.estimated_stepping_batches
            return super().configure_optimizers()

    trainer = lab.trainer(
        callbacks=[reader, stopper],
        accumulate_grad_batches=2,
        limit_train_batches=4,
        limit_val_batches=0.7,
        gradient_clip_val=1.0,
        val_check_interval=0.5,
        num_sanity_val_steps=1,
        min_epochs=1,
    )
    module = Net()
    trainer.fit(module, train, val)
    lasting = [name for name in OF_TRAINER if name != "estimated_stepping_batches"]
    after = {name: text(getattr(trainer, name, "absent")) for name in lasting}
    return lab.outcome(trainer, module, **seen, after=after, root=str(trainer.default_root_dir) == str(folder))


# Left out: what is about fit alone, and what `limits_left_out` and `batches_before_they_are_known` look at.
APART = "estimated_stepping_batches num_sanity_val_batches enable_validation min_epochs num_training_batches".split()
OF_CALLS = [name for name in OF_TRAINER if name not in APART]


def read_call(trainer: Any, module: Any) -> dict[str, Any]:
    """What any of the four calls may be asked for."""
    loaders = ("train_dataloader", "val_dataloaders", "test_dataloaders", "predict_dataloaders")
    return {
        **{f"trainer.{name}": text(getattr(trainer, name, "absent")) for name in OF_CALLS},
        **{f"module.{name}": text(getattr(module, name, "absent")) for name in OF_MODULE},
        **{name: text(getattr(trainer, name)) for name in loaders},
        "fn": text(trainer.state.fn),
        "stage": text(trainer.state.stage),
        "status": text(trainer.state.status),
        "attached": (trainer.lightning_module is module, module.trainer is trainer),
        "datamodule": trainer.datamodule is not None,
        "finished": text(trainer.state.finished),
        "callbacks": len(trainer.callbacks),
        "model": trainer.model is module,
        "strategy": str(trainer.strategy.root_device),
        "metrics": sorted(trainer.callback_metrics),
        "log_dir": str(trainer.log_dir) == str(trainer.default_root_dir),
    }


def property_reader(lab: Lab, moments: Any, seen: dict[str, Any]) -> Any:
    def reads(moment: str) -> Any:
        def hook(self: Any, trainer: Any, pl_module: Any, *args: Any, **kwargs: Any) -> None:
            seen.setdefault(f"{moment} {trainer.sanity_checking}", read_call(trainer, pl_module))

        return hook

    return type("Reader", (lab.L.Callback,), {moment: reads(moment) for moment in moments})()


def moments_of(stage: str) -> list[str]:
    ends = ("start", "epoch_start", "batch_start", "batch_end", "epoch_end", "end")
    return [f"on_{stage}_{end}" for end in ends]


CALLS = {"validate": "validation", "test": "test", "predict": "predict"}


@variants(
    "properties_in_{}",
    **{
        f"{call}{name}": {"call": call, "several": several}
        for call in CALLS
        for name, several in (("", False), ("_of_several", True))
    },
)
def properties_in(L: ModuleType, folder: Path, call: str, several: bool) -> Outcome:
    """In each hook of a call alone, and after it."""
    lab, seen = Lab(L, folder), {}
    reader = property_reader(lab, [*moments_of(CALLS[call]), "teardown"], seen)
    trainer = lab.trainer(callbacks=[reader], limit_val_batches=2, limit_test_batches=2, limit_predict_batches=2)
    module = Evaluated.of(lab)()
    loaders = [loader(3, seed=1), loader(1, seed=2)] if several else loader(3, seed=1)
    verbose = {} if call == "predict" else {"verbose": False}
    getattr(trainer, call)(module, loaders, **verbose)
    return lab.outcome(trainer, module, **seen, after=read_call(trainer, module))


@variants(
    "properties_in_fit{}",
    **{
        "": {},
        "_without_limits": {"limit_train_batches": None, "limit_val_batches": None},
        "_with_datamodule": {"datamodule": True},
        "_without_length": {"length": False, "limit_train_batches": None, "limit_val_batches": None},
        "_without_length_limited": {"length": False},
        "_max_steps": {"max_steps": 3, "max_epochs": -1},
        "_overfit": {"overfit_batches": 2, "limit_train_batches": None, "limit_val_batches": None},
        "_fast_dev_run": {"fast_dev_run": 2, "limit_train_batches": None, "limit_val_batches": None},
        "_sanity_check": {"num_sanity_val_steps": 1},
        "_validating_by_batches": {"val_check_interval": 2, "check_val_every_n_epoch": None},
    },
)
def properties_in_fit(
    L: ModuleType, folder: Path, datamodule: bool = False, length: bool = True, **arguments: Any
) -> Outcome:
    """In the hooks of training and of the validation within."""
    lab, seen = Lab(L, folder), {}
    moments = [*moments_of("train")[:1], "on_train_epoch_start", "on_train_batch_start", "on_train_batch_end"]
    moments += ["on_train_epoch_end", "on_train_end", "on_fit_end", *moments_of("validation"), "on_before_zero_grad"]
    limits = {"limit_train_batches": 3, "limit_val_batches": 2} | arguments
    trainer = lab.trainer(callbacks=[property_reader(lab, moments, seen)], **limits)
    module = Evaluated.of(lab)()
    if datamodule:
        trainer.fit(module, datamodule=data_of(lab)())
    else:
        trainer.fit(module, loader(4, length=length), loader(3, seed=1, length=length))
    return lab.outcome(trainer, module, **seen, after=read_call(trainer, module))


@scenario
def properties_of_one_trainer(L: ModuleType, folder: Path) -> Outcome:
    """One Trainer for all four calls: what is left of one in the next."""
    lab, after = Lab(L, folder), {}
    module, trainer = plain_module(lab)(), lab.trainer()
    trainer.fit(module, loader(3), loader(2, seed=1))
    after["fit"] = read_call(trainer, module)
    for call in CALLS:
        verbose = {} if call == "predict" else {"verbose": False}
        getattr(trainer, call)(module, loader(2, seed=1), **verbose)
        after[call] = {name: value for name, value in read_call(trainer, module).items() if not of_others(name)}
    return lab.outcome(trainer, module, **after)


def of_others(name: str) -> bool:
    """Whether it tells of the data of a call; GPUlayer keeps those of the last fit until the next."""
    return "dataloader" in name or name.startswith("trainer.num_")


@scenario
def limits_left_out(L: ModuleType, folder: Path) -> Outcome:
    """What stands for "no least number": `trainer.current_epoch < trainer.min_epochs` is written in many a callback."""
    lab = Lab(L, folder)
    trainer, module = lab.trainer(), lab.Net()
    trainer.fit(module, loader(2))
    return lab.outcome(trainer, module, least=(trainer.min_epochs, trainer.min_steps), most=trainer.max_steps)


@scenario
def batches_before_they_are_known(L: ModuleType, folder: Path) -> Outcome:
    """`num_training_batches` until the loader is made: a number that shows a wrong use, in schedules for one."""
    lab, seen = Lab(L, folder), {}

    class Net(lab.Net):
        def setup(self, stage: str) -> None:
            seen["setup"] = self.trainer.num_training_batches

        def configure_optimizers(self) -> Any:
            seen["configure_optimizers"] = self.trainer.num_training_batches
            return super().configure_optimizers()

        def on_train_start(self) -> None:
            super().on_train_start()
            seen["on_train_start"] = self.trainer.num_training_batches

    trainer, module = lab.trainer(), Net()
    trainer.fit(module, loader(2))
    return lab.outcome(trainer, module, **seen)

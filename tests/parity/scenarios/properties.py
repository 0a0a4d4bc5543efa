"""What a hook can read off the trainer and the module, as text."""

from __future__ import annotations

from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from torch.optim.lr_scheduler import StepLR

from tests.parity.recorder import Lab, Outcome, loader
from tests.parity.scenarios.parts import scheduled
from tests.parity.scenarios.registry import scenario

OF_TRAINER = """
    num_training_batches num_val_batches num_sanity_val_batches num_test_batches num_predict_batches
    estimated_stepping_batches max_epochs min_epochs max_steps min_steps global_rank local_rank node_rank world_size
    num_nodes num_devices device_ids is_global_zero precision training validating testing predicting sanity_checking
    evaluating interrupted received_sigterm accumulate_grad_batches gradient_clip_val gradient_clip_algorithm
    limit_train_batches limit_val_batches limit_test_batches limit_predict_batches num_sanity_val_steps
    check_val_every_n_epoch val_check_interval log_every_n_steps fast_dev_run
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

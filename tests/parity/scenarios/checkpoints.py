"""Monitors, when checkpoints are written, resuming, and weights and arguments read back from a file."""

from __future__ import annotations

from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from torch.optim.lr_scheduler import StepLR

from tests.parity.recorder import FEATURES, Lab, Outcome, loader
from tests.parity.scenarios.parts import Evaluated, data_of, fitted, scheduled
from tests.parity.scenarios.registry import scenario, variants


@variants(
    "monitors{}",
    **{
        "": {"monitor": "val_loss"},
        "_val_check_interval": {"monitor": "val_loss", "val_check_interval": 2},
        "_train_loss": {"monitor": "train_loss"},
        "_patience_spent": {"monitor": "val_loss", "patience": 1, "min_delta": 100.0, "max_epochs": 6},
        "_save_last": {"monitor": "val_loss", "save_top_k": 1, "save_last": True},
    },
)
def monitors(
    L: ModuleType,
    folder: Path,
    monitor: str,
    patience: int = 3,
    min_delta: float = 0.0,
    save_top_k: int = 2,
    **others: Any,
) -> Outcome:
    """EarlyStopping and ModelCheckpoint, given before an ordinary callback: they run after it where order matters."""
    lab = Lab(L, folder)
    keeps = {"dirpath": folder / "kept", "filename": "{epoch}-{step}", "save_top_k": save_top_k}
    keeps["save_last"] = others.pop("save_last", None)
    stopper = lab.monitor("EarlyStopping", "early_stopping", monitor=monitor, patience=patience, min_delta=min_delta)
    keeper = lab.monitor("ModelCheckpoint", "checkpoint", monitor=monitor, **keeps)
    module = scheduled(lab, StepLR, "epoch", step_size=1, gamma=0.5)()
    trainer = lab.trainer(callbacks=[keeper, stopper, lab.callback()], enable_checkpointing=True, **others)
    trainer.fit(module, loader(4), loader(2, seed=1))
    names = {Path(path).name: float(score) for path, score in keeper.best_k_models.items()}
    return lab.outcome(
        trainer,
        module,
        kept=names,
        best=Path(keeper.best_model_path).name,
        score=float(keeper.best_model_score),
        last=Path(keeper.last_model_path).name,
        stopped_epoch=stopper.stopped_epoch,
        waited=stopper.wait_count,
        stopper_score=float(stopper.best_score),
    )


@scenario
def early_stopping_recovers(L: ModuleType, folder: Path) -> Outcome:
    """Patience runs out before min_epochs, and each epoch afterwards is a new best."""
    lab = Lab(L, folder)
    scores = [3.0, 4.0, 2.0, 1.0, 0.5]

    class Net(lab.Net):
        def validation_step(self, batch: Any, batch_idx: int, dataloader_idx: int = 0) -> None:
            super().validation_step(batch, batch_idx, dataloader_idx)
            self.log("score", scores[self.current_epoch], batch_size=1)

    stopper = lab.callbacks.EarlyStopping("score", patience=1)
    return fitted(lab, Net(), loader(2), loader(1, seed=1), callbacks=[stopper], max_epochs=5, min_epochs=3)


@variants(
    "checkpoint_{}",
    every_second_step={"every_n_train_steps": 2, "save_top_k": -1},
    every_second_epoch={"every_n_epochs": 2, "max_epochs": 4, "save_top_k": -1},
    default={},
    no_validation={"validation": False},
    only_last={"save_top_k": 0, "save_last": True},
    weights_only={"save_weights_only": True},
    named={"filename": "run-{epoch:02d}-{train_loss:.2f}", "save_top_k": -1},
    plain_names={"filename": "at{epoch}and{step}", "auto_insert_metric_name": False, "save_top_k": -1},
)
def checkpoint_when(
    L: ModuleType, folder: Path, max_epochs: int = 2, validation: bool = True, **arguments: Any
) -> Outcome:
    lab = Lab(L, folder)
    keeper = lab.callbacks.ModelCheckpoint(dirpath=folder / "kept", **arguments)
    module = scheduled(lab, StepLR, "epoch", step_size=1, gamma=0.5)()
    trainer = lab.trainer(callbacks=[lab.callback(), keeper], enable_checkpointing=True, max_epochs=max_epochs)
    trainer.fit(module, loader(4), loader(1, seed=1) if validation else None)
    return lab.outcome(trainer, module)


class Counting:
    """A callback with state of its own, and a module and a DataModule that add to the checkpoint."""

    @staticmethod
    def callback_of(lab: Lab) -> Any:
        class CountsBatches(lab.callback_class("counter")):
            def __init__(self, what: str = "batches") -> None:
                self.what, self.count = what, 0

            @property
            def state_key(self) -> str:
                return self._generate_state_key(what=self.what)

            def on_train_batch_end(self, trainer: Any, pl_module: Any, *args: Any) -> None:
                super().on_train_batch_end(trainer, pl_module, *args)
                self.count += 1

            def state_dict(self) -> dict[str, Any]:
                super().state_dict()
                return {"count": self.count}

            def load_state_dict(self, state_dict: dict[str, Any]) -> None:
                super().load_state_dict(state_dict)
                self.count = state_dict["count"]

        CountsBatches.__qualname__ = "CountsBatches"
        return CountsBatches()

    @staticmethod
    def module_of(lab: Lab) -> type:
        class Net(scheduled(lab, StepLR, "epoch", step_size=1, gamma=0.5)):
            extra = 0

            def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
                super().on_save_checkpoint(checkpoint)
                checkpoint["extra"] = self.trainer.global_step

            def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
                super().on_load_checkpoint(checkpoint)
                self.extra = checkpoint["extra"]

        return Net

    @staticmethod
    def data_of(lab: Lab) -> type:
        class Data(data_of(lab)):
            seen = 0

            def state_dict(self) -> dict[str, Any]:
                super().state_dict()
                return {"seen": 11}

            def load_state_dict(self, state_dict: dict[str, Any]) -> None:
                super().load_state_dict(state_dict)
                self.seen = state_dict["seen"]

        Data.__qualname__ = "Data"
        return Data


@variants(
    "resume_{}",
    after_one_epoch={"epochs": 1},
    after_two_epochs_adam={"epochs": 2, "adam": True},
    after_last_epoch={"epochs": 3},
)
def resume(L: ModuleType, folder: Path, epochs: int, adam: bool = False) -> Outcome:
    """save_checkpoint after some epochs, then a new Trainer and module go on with ckpt_path to three epochs."""
    interrupted(L, folder, epochs, adam)
    return resumed(L, folder, folder / "saved.ckpt", adam)


def interrupted(L: ModuleType, folder: Path, epochs: int, adam: bool = False) -> Outcome:
    """The first half of `resume`."""
    first = Half(Lab(L, folder), adam, max_epochs=epochs)
    first.trainer.fit(first.module, datamodule=first.data)
    first.trainer.save_checkpoint(folder / "saved.ckpt")
    return first.lab.outcome(first.trainer, first.module)


def resumed(L: ModuleType, folder: Path, path: Path, adam: bool = False) -> Outcome:
    """The second half of `resume`: also for a checkpoint that the other library wrote."""
    second = Half(Lab(L, folder), adam, max_epochs=3)
    second.trainer.fit(second.module, datamodule=second.data, ckpt_path=str(path), weights_only=False)
    second.trainer.save_checkpoint(folder / "end.ckpt")
    notes = {"count": second.counter.count, "extra": second.module.extra, "seen": second.data.seen}
    return second.lab.outcome(second.trainer, second.module, **notes)


class Half:
    """Trainer, module, data and counting callback of one half of a resumed run."""

    def __init__(self, lab: Lab, adam: bool, max_epochs: int) -> None:
        if adam:
            lab.optimizer = lambda module: torch.optim.Adam(module.parameters(), lr=0.01)
        self.lab, self.counter = lab, Counting.callback_of(lab)
        self.module, self.data = Counting.module_of(lab)(), Counting.data_of(lab)()
        self.trainer = lab.trainer(max_epochs=max_epochs, callbacks=[self.counter])


@variants("ckpt_path_{}", validate={"verb": "validate"}, test={"verb": "test"}, predict={"verb": "predict"})
def evaluate_from_file(L: ModuleType, folder: Path, verb: str) -> Outcome:
    """validate, test and predict with ckpt_path take the weights from the file, not the module's."""
    interrupted(L, folder, epochs=1)
    lab = Lab(L, folder)

    class Net(Evaluated.of(lab)):
        """Logs its evaluation loss."""

    module, trainer = Net(), lab.trainer()
    quiet = {} if verb == "predict" else {"verbose": False}
    path = str(folder / "saved.ckpt")
    returned = getattr(trainer, verb)(module, loader(2, seed=1), ckpt_path=path, weights_only=False, **quiet)
    return lab.outcome(trainer, module, returned)


@scenario
def best_and_last(L: ModuleType, folder: Path) -> Outcome:
    """ckpt_path="best" and "last" after fit."""
    lab = Lab(L, folder)
    keeper = lab.callbacks.ModelCheckpoint(
        dirpath=folder / "kept", monitor="val_loss", mode="max", save_top_k=1, save_last=True
    )
    module = scheduled(lab, StepLR, "epoch", step_size=1)()
    trainer = lab.trainer(callbacks=[lab.callback(), keeper], enable_checkpointing=True, max_epochs=3)
    trainer.fit(module, loader(3), loader(2, seed=1))
    returned = [
        trainer.validate(dataloaders=loader(2, seed=1), ckpt_path=which, verbose=False, weights_only=False)
        for which in ("best", "last")
    ]
    return lab.outcome(trainer, module, returned)


def with_hyperparameters(lab: Lab) -> type:
    class Net(lab.Net):
        def __init__(self, width: int, rate: float = 0.1, kind: str = "tanh", ignored: Any = None) -> None:
            super().__init__()
            self.save_hyperparameters(ignore=["ignored"])
            self.net = torch.nn.Sequential(torch.nn.Linear(FEATURES, width), torch.nn.Linear(width, 1))

    return Net


@scenario
def load_from_checkpoint(L: ModuleType, folder: Path) -> Outcome:
    """save_hyperparameters stores the arguments; load_from_checkpoint builds the module with them, or with others."""
    lab = Lab(L, folder)
    net = with_hyperparameters(lab)
    module, trainer = net(3, rate=0.5, ignored=object()), lab.trainer(max_epochs=1)
    trainer.fit(module, loader(3))
    trainer.save_checkpoint(folder / "saved.ckpt")
    loaded = net.load_from_checkpoint(folder / "saved.ckpt")
    changed = net.load_from_checkpoint(str(folder / "saved.ckpt"), rate=0.25, map_location="cpu")
    return lab.outcome(
        trainer,
        loaded,
        hparams=[dict(m.hparams) for m in (module, loaded, changed)],
        rate_as_attribute=loaded.hparams.rate,
        initial=dict(module.hparams_initial),
        training=loaded.training,
        equal=all(torch.equal(a, b) for a, b in zip(module.parameters(), loaded.parameters(), strict=True)),
    )


@scenario
def save_weights_only(L: ModuleType, folder: Path) -> Outcome:
    lab = Lab(L, folder)
    module, trainer = lab.Net(), lab.trainer()
    trainer.fit(module, loader(3))
    trainer.save_checkpoint(folder / "weights.ckpt", weights_only=True)
    return lab.outcome(trainer, module)

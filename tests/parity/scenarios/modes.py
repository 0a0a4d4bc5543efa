"""Train and eval mode, gradients and inference mode in every hook, and what is left of them after a run."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import torch

from tests.parity.recorder import FEATURES, Lab, Outcome, loader, loss_of
from tests.parity.scenarios.parts import fitted
from tests.parity.scenarios.registry import scenario, variants


def grads() -> str:
    return f"grad={torch.is_grad_enabled()} inference={torch.is_inference_mode_enabled()}"


MOMENTS = """
    setup on_fit_start on_train_start on_train_epoch_start on_train_batch_start on_before_backward on_after_backward
    on_before_optimizer_step on_train_batch_end on_train_epoch_end on_train_end on_fit_end teardown
    on_validation_start on_validation_epoch_start on_validation_batch_start on_validation_batch_end
    on_validation_epoch_end on_validation_end on_test_start on_test_epoch_start on_test_batch_start on_test_batch_end
    on_test_epoch_end on_test_end on_predict_start on_predict_epoch_start on_predict_batch_start on_predict_batch_end
    on_predict_epoch_end on_predict_end on_sanity_check_start on_sanity_check_end
""".split()


def with_parts(lab: Lab, seen: list[str]) -> type:
    """A network with a batch norm and dropout that notes the mode of each part."""

    class Net(lab.L.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.net = torch.nn.Sequential(
                torch.nn.Linear(FEATURES, 3),
                torch.nn.BatchNorm1d(3),
                torch.nn.Dropout(0.0),  # random numbers differ: see `dropout_is_drawn_the_same`
                torch.nn.Linear(3, 1),
            )

        def look(self, where: str) -> None:
            modes = "".join("T" if part.training else "e" for part in self.modules())
            seen.append(f"{where}: {modes} {grads()}")

        def training_step(self, batch: Any, batch_idx: int) -> Any:
            self.look("training_step")
            return loss_of(self.net, batch)

        def validation_step(self, batch: Any, batch_idx: int) -> Any:
            self.look("validation_step")
            self.log("val_loss", loss_of(self.net, batch), batch_size=len(batch))

        def test_step(self, batch: Any, batch_idx: int) -> Any:
            self.look("test_step")
            self.log("test_loss", loss_of(self.net, batch), batch_size=len(batch))

        def predict_step(self, batch: Any, batch_idx: int) -> Any:
            self.look("predict_step")
            return self.net(batch[:, :FEATURES])

        def configure_optimizers(self) -> Any:
            self.look("configure_optimizers")
            return torch.optim.SGD(self.parameters(), lr=0.1)

    return Net


def watching(lab: Lab) -> Any:
    """A callback that notes the module's modes in each hook."""

    def hook_of(name: str) -> Callable[..., None]:
        def hook(self: Any, trainer: Any, pl_module: Any, *args: Any, **kwargs: Any) -> None:
            pl_module.look(name)

        return hook

    return type("Watching", (lab.L.Callback,), {name: hook_of(name) for name in MOMENTS})()


def all_calls(lab: Lab, module: Any, seen: list[str], **arguments: Any) -> Outcome:
    trainer = lab.trainer(callbacks=[watching(lab)], num_sanity_val_steps=1, val_check_interval=1, **arguments)
    trainer.fit(module, loader(2, batch_size=3), loader(1, batch_size=3, seed=1))
    module.look("after fit")
    returned = [
        trainer.validate(module, loader(1, seed=1), verbose=False),
        trainer.test(module, loader(1, seed=1), verbose=False),
        trainer.predict(module, loader(1, seed=1)),
    ]
    module.look("after all")
    trainer.fit_loop.max_epochs = 3
    trainer.fit(module, loader(2, batch_size=3), loader(1, batch_size=3, seed=1))
    return lab.outcome(trainer, module, returned, seen=seen)


@variants("modes_{}", inference={"inference_mode": True}, no_grad={"inference_mode": False})
def modes(L: ModuleType, folder: Path, inference_mode: bool) -> Outcome:
    """In every hook of all four calls."""
    lab, seen = Lab(L, folder), []
    return all_calls(lab, with_parts(lab, seen)(), seen, inference_mode=inference_mode)


def in_eval_from_the_start(module: Any) -> None:
    module.net[1].eval()


def all_in_eval(module: Any) -> None:
    module.eval()


def child_in_eval(module: Any) -> None:
    module.net.eval()


def parent_alone(module: Any) -> None:
    """The parts train, what holds them does not."""
    module.training = False


def frozen(module: Any) -> None:
    module.freeze()
    module.net[3].requires_grad_(True)
    module.net[3].train()


PREPARED = {
    "in_eval_from_the_start": in_eval_from_the_start,
    "all_in_eval": all_in_eval,
    "child_in_eval": child_in_eval,
    "parent_alone": parent_alone,
    "frozen": frozen,
}


@variants("modes_kept_{}", **{name: {"prepare": prepare} for name, prepare in PREPARED.items()})
def modes_kept(L: ModuleType, folder: Path, prepare: Callable[[Any], None]) -> Outcome:
    """What the user put into eval mode before the run stays there."""
    lab, seen = Lab(L, folder), []
    module = with_parts(lab, seen)()
    prepare(module)
    return all_calls(lab, module, seen)


@variants(
    "modes_changed_in_{}",
    **{
        name: {"where": name}
        for name in (
            "setup",
            "on_fit_start",
            "on_train_start",
            "on_train_epoch_start",
            "on_train_batch_start",
            "on_validation_start",
            "on_validation_epoch_end",
            "on_validation_end",
            "on_train_epoch_end",
        )
    },
)
def modes_changed_in(L: ModuleType, folder: Path, where: str) -> Outcome:
    """The batch norm is put into eval mode, all else into train mode, in one of the hooks."""
    lab, seen = Lab(L, folder), []

    class Net(with_parts(lab, seen)):
        pass

    def hook(self: Any, *args: Any, **kwargs: Any) -> None:
        self.train()
        self.net[1].eval()

    setattr(Net, where, hook)
    return all_calls(lab, Net(), seen)


def train_all(self: Any) -> None:
    self.look("own train")
    self.train()


def eval_some(self: Any) -> None:
    """Dropout stays on in evaluation."""
    self.look("own eval")
    self.eval()
    self.net[2].train()


@variants(
    "modes_of_ones_own_{}",
    validation_eval={"on_validation_model_eval": eval_some},
    validation_train={"on_validation_model_train": train_all},
    both={"on_validation_model_eval": eval_some, "on_validation_model_train": train_all},
    test={"on_test_model_eval": eval_some, "on_test_model_train": train_all},
    predict={"on_predict_model_eval": eval_some},
    zero_grad={"on_validation_model_zero_grad": lambda self: self.look("own zero_grad")},
)
def modes_of_ones_own(L: ModuleType, folder: Path, **hooks: Any) -> Outcome:
    lab, seen = Lab(L, folder), []
    module = type("Net", (with_parts(lab, seen),), hooks)()
    return all_calls(lab, module, seen)


@scenario
def gradients_asked_for_in_validation(L: ModuleType, folder: Path) -> Outcome:
    """`torch.enable_grad()` in validation_step, with inference_mode=False for the calls of their own."""
    lab, seen = Lab(L, folder), []

    class Net(with_parts(lab, seen)):
        def validation_step(self, batch: Any, batch_idx: int) -> None:
            with torch.enable_grad():
                inputs = batch[:, :FEATURES].clone().requires_grad_()
                (slope,) = torch.autograd.grad(self.net(inputs).sum(), inputs)
            self.log("slope", slope.norm(), batch_size=1)

    return all_calls(lab, Net(), seen, inference_mode=False)


@scenario
def batch_norm_frozen_while_training(L: ModuleType, folder: Path) -> Outcome:
    """Its running numbers stay as they were."""
    lab, seen = Lab(L, folder), []

    class Net(with_parts(lab, seen)):
        def on_train_epoch_start(self) -> None:
            self.net[1].eval()

    module, trainer = Net(), lab.trainer(val_check_interval=1)
    trainer.fit(module, loader(3, batch_size=3), loader(1, batch_size=3, seed=1))
    return lab.outcome(trainer, module, seen=seen, tracked=module.net[1].num_batches_tracked.item())


@scenario
def dropout_is_drawn_the_same(L: ModuleType, folder: Path) -> Outcome:
    """From one seed, without validation, which would move the random state in Lightning alone."""
    lab, seen = Lab(L, folder), []
    module, trainer = with_parts(lab, seen)(), lab.trainer(max_epochs=3)
    module.net[2].p = 0.5
    torch.manual_seed(3)
    trainer.fit(module, loader(3, batch_size=3))
    return lab.outcome(trainer, module, drawn=torch.rand(1))


@variants("detecting_anomalies_{}", yes={"detect_anomaly": True}, no={"detect_anomaly": False})
def detecting_anomalies(L: ModuleType, folder: Path, detect_anomaly: bool) -> Outcome:
    lab, seen = Lab(L, folder), []

    class Net(lab.Net):
        def training_step(self, batch: Any, batch_idx: int) -> Any:
            seen.append(torch.is_anomaly_enabled())
            return super().training_step(batch, batch_idx)

    module, trainer = Net(), lab.trainer(detect_anomaly=detect_anomaly)
    trainer.fit(module, loader(2))
    return lab.outcome(trainer, module, seen=seen, after=torch.is_anomaly_enabled())


@scenario
def gradients_switched_off_by_the_user(L: ModuleType, folder: Path) -> Outcome:
    """A script that calls fit in no_grad still trains, and is left in no_grad."""
    lab = Lab(L, folder)
    with torch.no_grad():
        outcome = fitted(lab, lab.Net(), val=loader(1, seed=1))
        outcome.notes["after"] = grads()
    return outcome


@variants("fast_run_{}", one={"batches": 1}, three={"batches": 3})
def fast_run(L: ModuleType, folder: Path, batches: int) -> Outcome:
    """fast_dev_run in all four calls, with limits and intervals that it overrules; no file is written."""
    lab = Lab(L, folder)

    class Net(lab.Net):
        def validation_step(self, batch: Any, batch_idx: int, dataloader_idx: int = 0) -> None:
            self.log("val_loss", super().validation_step(batch, batch_idx, dataloader_idx), batch_size=len(batch))

        def test_step(self, batch: Any, batch_idx: int, dataloader_idx: int = 0) -> None:
            self.log("test_loss", super().test_step(batch, batch_idx, dataloader_idx), batch_size=len(batch))

    keeper = lab.callbacks.ModelCheckpoint(monitor="val_loss")
    module = Net()
    trainer = lab.trainer(
        fast_dev_run=batches,
        callbacks=[lab.callback(), keeper],
        max_epochs=5,
        num_sanity_val_steps=2,
        limit_train_batches=0.5,
        val_check_interval=0.25,
        enable_checkpointing=True,
    )
    trainer.fit(module, loader(6), loader(5, seed=1))
    returned = [
        trainer.validate(module, loader(5, seed=1), verbose=False),
        trainer.test(module, loader(5, seed=1), verbose=False),
        trainer.predict(module, loader(5, seed=1)),
    ]
    limits = [getattr(trainer, f"limit_{stage}_batches") for stage in ("train", "val", "test", "predict")]
    files = [str(file.relative_to(folder)) for file in folder.rglob("*") if file.is_file()]
    return lab.outcome(trainer, module, returned, limits=limits, files=files, name=type(trainer.logger).__name__)

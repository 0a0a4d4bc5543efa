"""Number formats: which dtype weights, batches, outputs and gradients have, and where autocast is on."""

from __future__ import annotations

from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from torch.optim.lr_scheduler import StepLR
from torch.utils.data import DataLoader

from tests.parity.recorder import FEATURES, Lab, Outcome, loader, loss_of, network
from tests.parity.scenarios.registry import scenario, variants

PRECISIONS = ("64-true", "bf16-true", "bf16-mixed", "32-true", "16-true")
HOOKS = """
    on_train_start on_train_batch_start on_before_backward on_after_backward on_before_optimizer_step
    on_before_zero_grad on_train_batch_end on_train_epoch_end on_validation_batch_start on_validation_batch_end
    on_validation_epoch_end on_predict_batch_end on_test_batch_end
""".split()


def kind(value: Any) -> str:
    return str(value.dtype).removeprefix("torch.") if isinstance(value, torch.Tensor) else type(value).__name__


def formats() -> str:
    """The format of a new tensor, and that of autocast."""
    cast = torch.get_autocast_dtype("cpu") if torch.is_autocast_enabled("cpu") else None
    return f"new={kind(torch.zeros(1))} autocast={str(cast).removeprefix('torch.')}"


def watched_net(lab: Lab, seen: list[str], manual: bool = False) -> type:
    """Notes the formats in each step and hook."""

    class Net(lab.L.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.net = network()
            self.register_buffer("whole", torch.arange(3))
            self.register_buffer("part", torch.ones(2))
            self.automatic_optimization = not manual

        def look(self, where: str, batch: torch.Tensor) -> torch.Tensor:
            loss = loss_of(self.net, batch)
            seen.append(
                f"{where}: batch={kind(batch)} out={kind(self.net(batch[:, :FEATURES]))} loss={kind(loss)} "
                f"module={self.dtype} made={kind(torch.ones(1) * 2)} {formats()}"
            )
            return loss

        def training_step(self, batch: torch.Tensor, batch_idx: int) -> Any:
            loss = self.look("training_step", batch)
            self.log("train_loss", loss, on_epoch=True, batch_size=len(batch))
            if not manual:
                return loss
            optimizer = self.optimizers()
            optimizer.zero_grad()
            self.manual_backward(loss)
            self.clip_gradients(optimizer, gradient_clip_val=0.1)
            optimizer.step()
            return None

        def validation_step(self, batch: torch.Tensor, batch_idx: int) -> None:
            self.log("val_loss", self.look("validation_step", batch), batch_size=len(batch))

        def test_step(self, batch: torch.Tensor, batch_idx: int) -> None:
            self.log("test_loss", self.look("test_step", batch), batch_size=len(batch))

        def predict_step(self, batch: torch.Tensor, batch_idx: int) -> Any:
            self.look("predict_step", batch)
            return self.net(batch[:, :FEATURES])

        def configure_optimizers(self) -> Any:
            seen.append(f"configure_optimizers: {kind(self.net[0].weight)} {formats()}")
            optimizer = torch.optim.Adam(self.parameters(), lr=0.01, eps=1e-4)
            return [optimizer], [StepLR(optimizer, 1)]

        def on_after_batch_transfer(self, batch: Any, dataloader_idx: int) -> Any:
            seen.append(f"on_after_batch_transfer: {kind(batch)} {formats()}")
            return batch

    def noting(name: str) -> Any:
        def hook(self: Any, *args: Any) -> None:
            gradient = kind(self.net[0].weight.grad)
            seen.append(f"{name}: {kind(args[0]) if args else ''} grad={gradient} {formats()}")

        return hook

    for name in HOOKS:
        setattr(Net, name, noting(name))
    return Net


@variants(
    "precision_{}",
    **{name.replace("-", "_"): {"precision": name} for name in PRECISIONS},
    **{f"{name.replace('-', '_')}_clipped": {"precision": name, "gradient_clip_val": 0.1} for name in PRECISIONS},
    **{
        f"{name.replace('-', '_')}_accumulated": {"precision": name, "accumulate_grad_batches": 2}
        for name in PRECISIONS
    },
    **{f"{name.replace('-', '_')}_manual": {"precision": name, "manual": True} for name in PRECISIONS},
    **{"16_mixed": {"precision": "16-mixed"}, "16_mixed_manual": {"precision": "16-mixed", "manual": True}},
    given_as_64={"precision": 64},
    given_as_bf16={"precision": "bf16"},
    given_as_text_32={"precision": "32"},
    given_as_64_text={"precision": "64"},
)
def precision(L: ModuleType, folder: Path, precision: Any, manual: bool = False, **arguments: Any) -> Outcome:
    """Fit, validate, test and predict; the formats in every hook."""
    lab, seen = Lab(L, folder), []
    module = watched_net(lab, seen, manual)()
    trainer = lab.trainer(precision=precision, callbacks=[], **arguments)
    trainer.fit(module, loader(4), loader(1, seed=1))
    returned = [
        trainer.validate(module, loader(1, seed=1), verbose=False),
        trainer.test(module, loader(1, seed=1), verbose=False),
        trainer.predict(module, loader(1, seed=1)),
    ]
    kinds = {name: kind(value) for name, value in module.state_dict().items()}
    state = [kind(value) for entry in trainer.optimizers[0].state.values() for value in entry.values()]
    notes = {"seen": seen, "kinds": kinds, "state": state, "name": trainer.precision, "dtype": str(module.dtype)}
    return lab.outcome(trainer, module, returned, after=formats(), predicted=kind(returned[2][0]), **notes)


@variants("precision_of_collections_{}", **{name.replace("-", "_"): {"precision": name} for name in PRECISIONS[:3]})
def precision_of_collections(L: ModuleType, folder: Path, precision: str) -> Outcome:
    """Tensors of floating point within a batch are converted, whole numbers and text are not."""
    lab, seen = Lab(L, folder), []

    class Net(lab.L.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.net = network()

        def training_step(self, batch: Any, batch_idx: int) -> Any:
            seen.append({name: kind(value) for name, value in batch.items()} | {"inner": kind(batch["pair"][0])})
            return loss_of(self.net, batch["x"])

        def configure_optimizers(self) -> Any:
            return lab.optimizer(self)

    batch = {
        "x": torch.ones(2, FEATURES + 1),
        "whole": torch.arange(2),
        "flag": torch.tensor([True, False]),
        "complex": torch.zeros(2, dtype=torch.complex64),
        "double": torch.zeros(2, dtype=torch.float64),
        "pair": [torch.ones(2), torch.arange(2)],
        "text": "left alone",
    }
    module, trainer = Net(), lab.trainer(precision=precision)
    trainer.fit(module, DataLoader([batch, batch], batch_size=None, collate_fn=lambda item: item))
    return lab.outcome(trainer, module, seen=seen)


@variants("precision_in_configure_model_{}", **{name.replace("-", "_"): {"precision": name} for name in PRECISIONS})
def precision_in_configure_model(L: ModuleType, folder: Path, precision: str) -> Outcome:
    """Layers made there have the Trainer's format at once, in every call."""
    lab, seen = Lab(L, folder), []

    class Net(lab.L.LightningModule):
        def configure_model(self) -> None:
            seen.append(formats())
            if not hasattr(self, "net"):
                self.net = network()
                seen.append(kind(self.net[0].weight))

        def training_step(self, batch: torch.Tensor, batch_idx: int) -> Any:
            return loss_of(self.net, batch)

        def test_step(self, batch: torch.Tensor, batch_idx: int) -> None:
            self.log("test_loss", loss_of(self.net, batch))

        def configure_optimizers(self) -> Any:
            return lab.optimizer(self)

    module, trainer = Net(), lab.trainer(precision=precision, callbacks=[])
    trainer.fit(module, loader(2))
    returned = trainer.test(module, loader(1), verbose=False)
    return lab.outcome(trainer, module, returned, seen=seen, after=formats())


@variants(
    "precision_of_complex_weights_{}",
    **{name.replace("-", "_"): {"precision": name} for name in ("64-true", "32-true")},
)
def precision_of_complex_weights(L: ModuleType, folder: Path, precision: str) -> Outcome:
    """They stay complex; in 16 bits Lightning loses their imaginary part."""
    lab = Lab(L, folder)

    class Net(lab.L.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.net = network()
            self.wave = torch.nn.Parameter(torch.full((1,), 1 + 2j, dtype=torch.complex64))

        def training_step(self, batch: torch.Tensor, batch_idx: int) -> Any:
            return loss_of(self.net, batch) * self.wave.abs().to(batch.dtype).sum()

        def configure_optimizers(self) -> Any:
            return lab.optimizer(self)

    module, trainer = Net(), lab.trainer(precision=precision)
    trainer.fit(module, loader(3))
    return lab.outcome(trainer, module, kind=kind(module.wave))


@scenario
def precision_of_init_module(L: ModuleType, folder: Path) -> Outcome:
    """Made in the Trainer's format at once."""
    lab = Lab(L, folder)
    trainer = lab.trainer(precision="bf16-true")
    with trainer.init_module():
        module = lab.Net()
    made = kind(module.net[0].weight)
    trainer.fit(module, loader(2))
    return lab.outcome(trainer, module, made=made, after=formats())


@variants("precision_with_steps_within_{}", **{name.replace("-", "_"): {"precision": name} for name in PRECISIONS[:3]})
def precision_with_steps_within(L: ModuleType, folder: Path, precision: str) -> Outcome:
    """Two optimizer steps in one training step: the second is computed with the weights that the first one made."""
    lab, losses = Lab(L, folder), []

    class Net(lab.L.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.net = network()
            self.automatic_optimization = False

        def training_step(self, batch: torch.Tensor, batch_idx: int) -> None:
            optimizer = self.optimizers()
            for _ in range(2):
                optimizer.zero_grad()
                loss = loss_of(self.net, batch)
                losses.append(loss.detach())
                self.manual_backward(loss)
                optimizer.step()

        def configure_optimizers(self) -> Any:
            return lab.optimizer(self)

    module, trainer = Net(), lab.trainer(precision=precision)
    trainer.fit(module, loader(3))
    return lab.outcome(trainer, module, losses=losses)

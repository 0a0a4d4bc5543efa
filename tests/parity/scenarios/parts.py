"""Networks and data that several scenarios share."""

from __future__ import annotations

from typing import Any

from tests.parity.recorder import FEATURES, Lab, Outcome, loader, loss_of


def fitted(lab: Lab, module: Any = None, train: Any = None, val: Any = None, **arguments: Any) -> Outcome:
    """Fit on three training batches (and validation where given) with a recorded callback."""
    module = module or lab.Net()
    trainer = lab.trainer(**arguments)
    trainer.fit(module, loader(3) if train is None else train, val)
    return lab.outcome(trainer, module)


def with_loaders(lab: Lab) -> type:
    class Net(lab.Net):
        def train_dataloader(self) -> Any:
            self.note("train_dataloader")
            return loader(2)

        def val_dataloader(self) -> Any:
            self.note("val_dataloader")
            return loader(1, seed=1)

        def test_dataloader(self) -> Any:
            self.note("test_dataloader")
            return loader(1, seed=2)

        def predict_dataloader(self) -> Any:
            self.note("predict_dataloader")
            return loader(1, seed=3)

    return Net


def scheduled(
    lab: Lab, kind: type, interval: str, monitor: str | None = None, frequency: int = 1, **arguments: Any
) -> type:
    """A network with one scheduler; it logs `train_loss` each step and `val_loss` in validation."""

    class Net(lab.Net):
        def training_step(self, batch: Any, batch_idx: int) -> Any:
            loss = super().training_step(batch, batch_idx)
            self.log("train_loss", loss, batch_size=len(batch))
            return loss

        def validation_step(self, batch: Any, batch_idx: int, dataloader_idx: int = 0) -> Any:
            self.log("val_loss", super().validation_step(batch, batch_idx, dataloader_idx), batch_size=len(batch))

        def configure_optimizers(self) -> Any:
            self.note("configure_optimizers")
            optimizer = lab.optimizer(self)
            plan = {
                "scheduler": lab.scheduler(kind, optimizer, **arguments),
                "interval": interval,
                "frequency": frequency,
            }
            return {"optimizer": optimizer, "lr_scheduler": plan | ({"monitor": monitor} if monitor else {})}

    return Net


def plain_module(lab: Lab) -> type:
    """A network that overrides nothing it need not."""

    class Net(lab.L.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.net = lab.Net().net

        def training_step(self, batch: Any, batch_idx: int) -> Any:
            return loss_of(self.net, batch)

        def validation_step(self, batch: Any, batch_idx: int, dataloader_idx: int = 0) -> None:
            self.log("val_loss", loss_of(self.net, batch), batch_size=len(batch))

        def test_step(self, batch: Any, batch_idx: int) -> None:
            self.log("test_loss", loss_of(self.net, batch), batch_size=len(batch))

        def predict_step(self, batch: Any, batch_idx: int) -> Any:
            return self.net(batch[:, :FEATURES])

        def configure_optimizers(self) -> Any:
            return lab.optimizer(self)

    return Net


class Evaluated:
    """Makes a network log in each evaluation step, so that validate and test return something."""

    @staticmethod
    def of(lab: Lab) -> type:
        class Net(lab.Net):
            def validation_step(self, batch: Any, batch_idx: int, dataloader_idx: int = 0) -> Any:
                loss = super().validation_step(batch, batch_idx, dataloader_idx)
                self.log("val_loss", loss, batch_size=len(batch))

            def test_step(self, batch: Any, batch_idx: int, dataloader_idx: int = 0) -> Any:
                loss = super().test_step(batch, batch_idx, dataloader_idx)
                self.log("test_loss", loss, batch_size=len(batch))
                return {"loss": loss}

        return Net


def data_of(lab: Lab) -> type:
    class Data(lab.DataModule):
        def note(self, event: str) -> None:
            lab.journal.note(f"datamodule.{event}")

        def train_dataloader(self) -> Any:
            self.note("train_dataloader")
            return loader(2)

        def val_dataloader(self) -> Any:
            self.note("val_dataloader")
            return [loader(1, seed=1), loader(1, seed=2)]

        def test_dataloader(self) -> Any:
            self.note("test_dataloader")
            return loader(1, seed=2)

        def predict_dataloader(self) -> Any:
            self.note("predict_dataloader")
            return loader(1, seed=3)

    return Data

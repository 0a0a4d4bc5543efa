"""Train on two loaders at once, and validate on two, one after the other.

A training step gets a batch of each loader: scans with labels, and scans whose labels are kept from it, for which the
network is to give the same answer with and without noise. Each validation loader has its own metrics: look at the
two accuracies.
"""

import torch
from digits import DigitClassifier, DigitsData
from torch import Tensor
from torch.nn import functional as F
from torch.utils.data import DataLoader, random_split

import gpulayer.pytorch as L
from gpulayer.pytorch.utilities import CombinedLoader


class FewLabels(DigitsData):
    """100 scans with labels, and the rest without."""

    def train_dataloader(self) -> CombinedLoader:
        known, unknown = random_split(self.train, [100, len(self.train) - 100], torch.Generator().manual_seed(0))
        loaders = {
            "known": DataLoader(known, batch_size=32, shuffle=True, drop_last=True),
            "unknown": DataLoader(unknown, batch_size=32, shuffle=True, drop_last=True),
        }
        return CombinedLoader(loaders, mode="max_size_cycle")  # the shorter one begins anew until the longer one ends

    def val_dataloader(self) -> list[DataLoader]:
        return [DataLoader(self.val, batch_size=256), DataLoader(self.test, batch_size=256)]


class Consistent(DigitClassifier):
    """A loss on the scans with labels, and a loss of consistency on the others."""

    def training_step(self, batch: dict[str, list[Tensor]], batch_idx: int) -> Tensor:
        images, _ = batch["unknown"]
        noisy = images + 0.1 * torch.randn_like(images)
        difference = F.mse_loss(self(noisy).softmax(1), self(images).softmax(1).detach())
        self.log("difference", difference, on_step=False, on_epoch=True)
        return self.grade(batch["known"], "train") + difference

    def validation_step(self, batch: list[Tensor], batch_idx: int, dataloader_idx: int = 0) -> None:
        self.grade(batch, "val")


def main() -> None:
    L.seed_everything(1)
    trainer = L.Trainer(max_epochs=3, logger=False, enable_checkpointing=False)
    trainer.fit(Consistent(), datamodule=FewLabels())
    print()
    for name in ("val_acc/dataloader_idx_0", "val_acc/dataloader_idx_1"):
        print(f"{name}   {float(trainer.callback_metrics[name]):.1%}")


if __name__ == "__main__":
    main()

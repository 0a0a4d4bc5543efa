"""Find the largest batch size that fits into memory, before training with it.

On a real device memory runs out by itself; here the network asks for far too much when a batch has more than 100 scans,
and the allocator refuses. The callback `BatchSizeFinder` does the same at the start of each `fit`.
"""

import torch
from digits import DigitClassifier, DigitsData
from torch import Tensor
from torch.utils.data import DataLoader

import gpulayer.pytorch as L
from gpulayer.pytorch.tuner import Tuner


class Hungry(DigitClassifier):
    """Asks for a petabyte where a batch has more than 100 scans."""

    def forward(self, images: Tensor) -> Tensor:
        if len(images) > 100:
            torch.empty(2**50, dtype=torch.uint8)
        return super().forward(images)


class ScalableDigits(DigitsData):
    """The tuner sets `batch_size`, and asks for the loaders again."""

    batch_size = 8

    def train_dataloader(self) -> DataLoader:
        return DataLoader(self.train, batch_size=self.batch_size, shuffle=True)

    def val_dataloader(self) -> DataLoader:
        return DataLoader(self.val, batch_size=self.batch_size)


def main() -> None:
    L.seed_everything(1)
    model, data = Hungry(), ScalableDigits()
    trainer = L.Trainer(max_epochs=2, logger=False, enable_checkpointing=False)
    Tuner(trainer).scale_batch_size(model, datamodule=data, mode="binsearch", init_val=16)
    trainer.fit(model, datamodule=data)
    print(f"\nbatch size   {data.batch_size}, the largest one less 5 % to be safe")


if __name__ == "__main__":
    main()

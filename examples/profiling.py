"""See where the time of a training goes: waiting for data, forward, backward, the optimizer, logging.

The report comes at the end of the call: look at the share of data, and at the advice below the table.
`profiler="advanced"` shows Python's functions, `"pytorch"` the operations.
"""

import time

from digits import DigitClassifier, DigitsData
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

import gpulayer.pytorch as L


class Slow(Dataset):
    """A dataset that takes half a millisecond for each scan, as one that reads files does."""

    def __init__(self, scans: Dataset) -> None:
        self.scans = scans

    def __len__(self) -> int:
        return len(self.scans)

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        time.sleep(0.0005)
        return self.scans[index]


class SlowDigits(DigitsData):
    """Try `num_workers=2` here, and the waiting is gone."""

    def train_dataloader(self) -> DataLoader:
        return DataLoader(Slow(self.train), batch_size=64, shuffle=True, num_workers=0)


def main() -> None:
    L.seed_everything(1)
    trainer = L.Trainer(max_epochs=1, profiler="simple", logger=False, enable_checkpointing=False)
    trainer.fit(DigitClassifier(), datamodule=SlowDigits())


if __name__ == "__main__":
    main()

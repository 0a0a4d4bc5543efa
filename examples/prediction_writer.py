"""Write predictions to a file, batch by batch, with the number of the sample that each belongs to.

Nothing is kept in memory, so this works for any amount of data.
"""

import csv
from pathlib import Path
from typing import Any

from digits import DigitClassifier, DigitsData
from torch import Tensor

import gpulayer.pytorch as L
from gpulayer.pytorch.callbacks import BasePredictionWriter


class WriteRows(BasePredictionWriter):
    """Appends a row for each sample."""

    def __init__(self, path: Path) -> None:
        super().__init__(write_interval="batch")
        self.path = path

    def write_on_batch_end(
        self, trainer: L.Trainer, pl_module: L.Module, prediction: Tensor, batch_indices: Any, batch: Any, *_: Any
    ) -> None:
        with self.path.open("a", newline="") as file:
            csv.writer(file).writerows(zip(batch_indices, prediction.tolist(), strict=True))


def main() -> None:
    L.seed_everything(1)
    path = Path("predictions.csv")
    path.unlink(missing_ok=True)
    model, data = DigitClassifier(), DigitsData()
    trainer = L.Trainer(max_epochs=2, callbacks=[WriteRows(path)], logger=False, enable_checkpointing=False)
    trainer.fit(model, datamodule=data)
    trainer.predict(model, datamodule=data, return_predictions=False)

    rows = list(csv.reader(path.open(newline="")))
    right = sum(int(digit) == data.test[int(index)][1] for index, digit in rows)
    print(f"\n{path} has {len(rows)} rows, of which {right / len(rows):.1%} are right. It begins:")
    print("".join(path.open().readlines()[:3]), end="")


if __name__ == "__main__":
    main()

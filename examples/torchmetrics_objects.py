"""Log objects of torchmetrics: they gather over the epoch by themselves, and are reset at its end.

An accuracy of batches can be averaged; an F1 score or a confusion matrix cannot, and is right only over all samples.
Look at `val_f1`, and at the digits that are mistaken for each other most often.
"""

from digits import DigitClassifier, DigitsData
from torch import Tensor
from torchmetrics import MetricCollection
from torchmetrics.classification import MulticlassAccuracy, MulticlassConfusionMatrix, MulticlassF1Score

import gpulayer.pytorch as L


class Measured(DigitClassifier):
    """As before, with metrics."""

    def __init__(self) -> None:
        super().__init__()
        self.val_metrics = MetricCollection(
            {"accuracy": MulticlassAccuracy(10), "f1": MulticlassF1Score(10)}, prefix="val_"
        )
        self.confusion = MulticlassConfusionMatrix(10)

    def validation_step(self, batch: list[Tensor], batch_idx: int) -> None:
        images, labels = batch
        scores = self(images)
        self.val_metrics.update(scores, labels)
        self.confusion.update(scores, labels)
        self.log_dict(self.val_metrics)

    def on_validation_epoch_end(self) -> None:
        counts = self.confusion.compute()
        counts.fill_diagonal_(0)
        self.confused = divmod(int(counts.argmax()), 10)
        self.confusion.reset()


def main() -> None:
    L.seed_everything(1)
    model = Measured()
    trainer = L.Trainer(max_epochs=3, logger=False, enable_checkpointing=False)
    trainer.fit(model, datamodule=DigitsData())
    metrics = {name: round(float(value), 3) for name, value in trainer.callback_metrics.items() if "val_" in name}
    print(f"\n{metrics}; the most frequent mistake: {model.confused[0]} taken for {model.confused[1]}")


if __name__ == "__main__":
    main()

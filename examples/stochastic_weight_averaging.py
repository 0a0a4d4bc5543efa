"""Average the weights of the last epochs, and end with that average.

`swa_epoch_start` is the epoch, from 1, in which the averaging begins, `swa_lrs` the learning rate from then on. Look at
`lr-AdamW`, which goes there, and at the accuracies without and with the average.
"""

from digits import DigitClassifier, DigitsData

import gpulayer.pytorch as L
from gpulayer.pytorch.callbacks import LearningRateMonitor, StochasticWeightAveraging


def train(*callbacks: L.Callback) -> float:
    """Train for eight epochs; the accuracy on the test set."""
    L.seed_everything(1, verbose=False)
    model = DigitClassifier(learning_rate=0.02)
    trainer = L.Trainer(max_epochs=8, callbacks=[LearningRateMonitor("epoch"), *callbacks])
    trainer.fit(model, datamodule=DigitsData())
    return trainer.test(model, datamodule=DigitsData(), verbose=False)["test_acc"]


def main() -> None:
    trained = train()
    averaged = train(StochasticWeightAveraging(swa_lrs=0.01, swa_epoch_start=4, annealing_epochs=1))
    print(f"\ntest accuracy without the average   {trained:.1%}")
    print(f"test accuracy with it               {averaged:.1%}")


if __name__ == "__main__":
    main()

"""Average the weights of the last epochs, which are trained at a constant learning rate.

`swa_epoch_start` is the epoch in which the averaging begins, `swa_lrs` the learning rate from then on.
"""

from digits import DigitClassifier, DigitsData

import gpulayer.pytorch as L
from gpulayer.pytorch.callbacks import LearningRateMonitor, StochasticWeightAveraging


def main() -> None:
    L.seed_everything(1)
    averaging = StochasticWeightAveraging(swa_lrs=0.01, swa_epoch_start=3, annealing_epochs=2)
    trainer = L.Trainer(max_epochs=6, callbacks=[averaging, LearningRateMonitor("epoch")])
    model = DigitClassifier()
    trainer.fit(model, datamodule=DigitsData())
    result = trainer.test(model, datamodule=DigitsData(), verbose=False)
    print(f"\ntest accuracy of the average   {result['test_acc']:.1%}")


if __name__ == "__main__":
    main()

"""Validate and save an exponential moving average of the weights, while training goes on with the weights themselves.

Each validation uses the average, checkpoints hold it, and the module has it at the end. A high learning rate makes the
weights jump, which shows what the average is good for.
"""

from digits import DigitClassifier, DigitsData

import gpulayer.pytorch as L
from gpulayer.pytorch.callbacks import EMAWeightAveraging


def accuracy(*callbacks: L.Callback) -> float:
    """The accuracy on the test set after four epochs."""
    L.seed_everything(1, verbose=False)
    model = DigitClassifier(learning_rate=0.02)
    trainer = L.Trainer(max_epochs=4, callbacks=list(callbacks), logger=False, enable_checkpointing=False)
    trainer.fit(model, datamodule=DigitsData())
    return trainer.test(model, datamodule=DigitsData(), verbose=False)["test_acc"]


def main() -> None:
    trained, averaged = accuracy(), accuracy(EMAWeightAveraging(decay=0.9))
    print(f"\ntest accuracy with the trained weights   {trained:.1%}")
    print(f"test accuracy with their average         {averaged:.1%}")


if __name__ == "__main__":
    main()

"""Validate and save an exponential moving average of the weights, while training goes on with the weights themselves.

Each validation uses the average, checkpoints hold it, and the module has it at the end. A high learning rate makes the
weights jump, which shows what the average is good for. Two trainings: `train_loss` is the same in both, for the average
does not change them; `val_loss` differs.
"""

from digits import DigitClassifier, DigitsData

import gpulayer.pytorch as L
from gpulayer.pytorch.callbacks import EMAWeightAveraging


def train(*callbacks: L.Callback) -> str:
    """Train for four epochs; the grade on the test set."""
    L.seed_everything(1, verbose=False)
    model = DigitClassifier(learning_rate=0.02)
    trainer = L.Trainer(max_epochs=4, callbacks=list(callbacks), logger=False, enable_checkpointing=False)
    trainer.fit(model, datamodule=DigitsData())
    result = trainer.test(model, datamodule=DigitsData(), verbose=False)
    return f"accuracy {result['test_acc']:.1%}, loss {result['test_loss']:.3f}"


def main() -> None:
    trained, averaged = train(), train(EMAWeightAveraging(decay=0.9))
    print(f"\ntest, trained weights   {trained}")
    print(f"test, their average     {averaged}")


if __name__ == "__main__":
    main()

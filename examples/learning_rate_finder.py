"""Find a learning rate in a short training in which it rises from 1e-6 to 1, and draw the loss over it.

The loss falls fastest where the picture marks it. With Adam a tenth of that rate trains well, so that is set here;
without `update_attr=False` it would be the marked one. The search leaves no trace: training begins with the same
weights. The callback `LearningRateFinder` does the same at the start of each `fit`.
"""

from digits import DigitClassifier, DigitsData

import gpulayer.pytorch as L
from gpulayer.pytorch.tuner import Tuner


def main() -> None:
    L.seed_everything(1)
    model, data = DigitClassifier(), DigitsData()
    trainer = L.Trainer(max_epochs=3)
    found = Tuner(trainer).lr_find(model, datamodule=data, min_lr=1e-6, num_training=60, update_attr=False)
    model.hparams.learning_rate = found.suggestion() / 10
    found.plot(suggest=True).savefig("learning_rate.png", dpi=120)
    trainer.fit(model, datamodule=data)

    print(f"\nlearning rate   {model.hparams.learning_rate:.2g}; see learning_rate.png")
    print(f"val_acc         {trainer.callback_metrics['val_acc']:.1%}")


if __name__ == "__main__":
    main()

"""Let several batches share an optimizer step, as if a batch were larger than memory allows.

Counting epochs from 0, as the schedule does, a step is of one batch at first, of two from epoch 1 on, and of four from
epoch 3 on. Look at the optimizer steps of each epoch, and at the number of all, which is known before the first.
"""

from digits import DigitClassifier, DigitsData

import gpulayer.pytorch as L
from gpulayer.pytorch.callbacks import GradientAccumulationScheduler


class Steps(L.Callback):
    """Says how many optimizer steps there will be, and how many each epoch had."""

    def on_train_start(self, trainer: L.Trainer, pl_module: L.Module) -> None:
        print(f"{trainer.estimated_stepping_batches} optimizer steps to come")

    def on_train_epoch_start(self, trainer: L.Trainer, pl_module: L.Module) -> None:
        self.before = trainer.global_step

    def on_train_epoch_end(self, trainer: L.Trainer, pl_module: L.Module) -> None:
        steps = trainer.global_step - self.before
        print(f"epoch {trainer.current_epoch + 1}: {trainer.num_training_batches} batches, {steps} optimizer steps")


def main() -> None:
    L.seed_everything(1)
    schedule = GradientAccumulationScheduler({1: 2, 3: 4})
    trainer = L.Trainer(max_epochs=4, callbacks=[schedule, Steps()], logger=False, enable_checkpointing=False)
    trainer.fit(DigitClassifier(), datamodule=DigitsData())
    print(f"\n{trainer.global_step} optimizer steps in all")


if __name__ == "__main__":
    main()

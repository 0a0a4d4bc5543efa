"""Let several batches share an optimizer step, as if a batch were larger than memory allows.

The schedule makes each step of one batch in epoch 0, of two from epoch 1 on, and of four from epoch 3 on.
"""

from digits import DigitClassifier, DigitsData

import gpulayer.pytorch as L
from gpulayer.pytorch.callbacks import GradientAccumulationScheduler


class Steps(L.Callback):
    """Says how many optimizer steps each epoch had."""

    def on_train_epoch_start(self, trainer: L.Trainer, pl_module: L.Module) -> None:
        self.before = trainer.global_step

    def on_train_epoch_end(self, trainer: L.Trainer, pl_module: L.Module) -> None:
        steps = trainer.global_step - self.before
        print(f"epoch {trainer.current_epoch}: {trainer.num_training_batches} batches, {steps} optimizer steps")


def main() -> None:
    L.seed_everything(1)
    schedule = GradientAccumulationScheduler({1: 2, 3: 4})
    trainer = L.Trainer(max_epochs=4, callbacks=[schedule, Steps()], logger=False, enable_checkpointing=False)
    trainer.fit(DigitClassifier(), datamodule=DigitsData())
    print(f"\n{trainer.global_step} optimizer steps, as `trainer.estimated_stepping_batches` said before")


if __name__ == "__main__":
    main()

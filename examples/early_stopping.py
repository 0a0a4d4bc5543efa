"""Stop when the validation loss has not fallen for three epochs, and keep the weights of the best one.

Look at the last lines: when it stopped, why, and the epoch whose weights are kept (file names count epochs from 0).
"""

from digits import DigitClassifier, DigitsData

import gpulayer.pytorch as L
from gpulayer.pytorch.callbacks import EarlyStopping, ModelCheckpoint


def main() -> None:
    L.seed_everything(1)
    patience = EarlyStopping(monitor="val_loss", patience=3)
    best = ModelCheckpoint(monitor="val_loss", filename="{epoch}-{val_loss:.3f}")
    trainer = L.Trainer(max_epochs=50, callbacks=[patience, best])
    trainer.fit(DigitClassifier(learning_rate=0.02), datamodule=DigitsData())

    print(f"\nstopped after  {trainer.current_epoch} of {trainer.max_epochs} epochs")
    print(f"because        {patience.stopping_reason_message}")
    print(f"best weights   {best.best_model_path}")


if __name__ == "__main__":
    main()

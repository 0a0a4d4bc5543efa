"""Stop when the validation loss has not fallen for three epochs, and go back to the best epoch.

Look at the last lines: the epoch in which it stopped, why, and the epoch whose weights are kept.
"""

from digits import DigitClassifier, DigitsData

import gpulayer.pytorch as L
from gpulayer.pytorch.callbacks import EarlyStopping, ModelCheckpoint


def main() -> None:
    L.seed_everything(1)
    patience = EarlyStopping(monitor="val_loss", patience=3, min_delta=0.005)
    best = ModelCheckpoint(monitor="val_loss", filename="{epoch}-{val_loss:.3f}")
    trainer = L.Trainer(max_epochs=50, callbacks=[patience, best])
    trainer.fit(DigitClassifier(learning_rate=0.01), datamodule=DigitsData())

    print(f"\nstopped in epoch  {patience.stopped_epoch}")
    print(f"because           {patience.stopping_reason_message}")
    print(f"best epoch        {best.best_model_path}")


if __name__ == "__main__":
    main()

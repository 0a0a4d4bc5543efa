"""Log to metrics.csv and to TensorBoard at once, with hyperparameters and a picture.

Look at the two folders that it names. Then run `tensorboard --logdir runs`, or `gpulayer report runs` for a web page.
"""

from pathlib import Path

from digits import DigitClassifier, DigitsData

import gpulayer.pytorch as L
from gpulayer.pytorch.loggers import CSVLogger, TensorBoardLogger


class WithPicture(DigitClassifier):
    """Shows TensorBoard the first scan of the first epoch."""

    def on_train_epoch_start(self) -> None:
        if self.current_epoch == 0:
            self.loggers[1].experiment.add_image("first scan", self.trainer.datamodule.train[0][0])


def main() -> None:
    L.seed_everything(1)
    loggers = [CSVLogger("runs", name="digits"), TensorBoardLogger("runs", name="board")]
    trainer = L.Trainer(max_epochs=2, logger=loggers, log_every_n_steps=5)
    trainer.fit(WithPicture(), datamodule=DigitsData())

    print()
    for logger in loggers:
        print(f"{logger.log_dir} has {', '.join(path.name for path in sorted(Path(logger.log_dir).iterdir()))}")


if __name__ == "__main__":
    main()

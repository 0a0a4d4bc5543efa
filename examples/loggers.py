"""Log to metrics.csv and to TensorBoard at once, with hyperparameters and a picture.

Afterwards: `tensorboard --logdir runs`, or `gpulayer report runs` for a page of its own.
"""

from pathlib import Path

from digits import DigitClassifier, DigitsData

import gpulayer.pytorch as L
from gpulayer.pytorch.loggers import CSVLogger, TensorBoardLogger


class WithPicture(DigitClassifier):
    """Shows TensorBoard the first scan of the first epoch."""

    def on_train_epoch_start(self) -> None:
        if self.current_epoch == 0 and (board := self.trainer.loggers[1].experiment):
            board.add_image("first scan", self.trainer.datamodule.train[0][0])


def main() -> None:
    L.seed_everything(1)
    loggers = [CSVLogger("runs", name="digits"), TensorBoardLogger("runs", name="board")]
    trainer = L.Trainer(max_epochs=2, logger=loggers, log_every_n_steps=5)
    trainer.fit(WithPicture(), datamodule=DigitsData())
    for logger in loggers:
        print(f"{type(logger).__name__}   {[path.name for path in sorted(Path(logger.log_dir).iterdir())]}")


if __name__ == "__main__":
    main()

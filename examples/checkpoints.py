"""Keep the two best epochs and the last one, load one of them, and look at what is in the file.

The best are judged by a metric; the last is what a run that was cut off goes on from (see resume.py).
"""

from pathlib import Path

import torch
from digits import DigitClassifier, DigitsData

import gpulayer.pytorch as L
from gpulayer.pytorch.callbacks import ModelCheckpoint


def main() -> None:
    L.seed_everything(1)
    saver = ModelCheckpoint(
        monitor="val_acc", mode="max", save_top_k=2, save_last=True, filename="{epoch}-{val_acc:.3f}"
    )
    trainer = L.Trainer(max_epochs=4, callbacks=[saver])
    trainer.fit(DigitClassifier(), datamodule=DigitsData())

    for path in sorted(Path(saver.dirpath).iterdir()):
        print(f"kept       {path.name}")
    content = torch.load(saver.best_model_path)
    print(f"holds      epoch {content['epoch']}, step {content['global_step']}, {content['hyper_parameters']}")

    best = DigitClassifier.load_from_checkpoint(saver.best_model_path)
    result = L.Trainer(logger=False).test(best, datamodule=DigitsData(), verbose=False)
    print(f"test       {result['test_acc']:.1%} with the best epoch's weights")


if __name__ == "__main__":
    main()

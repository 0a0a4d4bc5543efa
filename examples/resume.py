"""Break a run off in the middle of an epoch, go on from its last checkpoint, and end with the very same weights.

Shuffling and dropout draw the numbers that they would have drawn, and the next batch is the very next one. Here an
error ends the run; it may as well be `kill -9`.
"""

from contextlib import suppress
from typing import Any

import torch
from digits import DigitClassifier, DigitsData

import gpulayer.pytorch as L
from gpulayer.pytorch.callbacks import ModelCheckpoint


class PowerCut(Exception):
    """What ends the run."""


class Cut(L.Callback):
    """Breaks off in the second epoch."""

    def on_train_batch_end(self, trainer: L.Trainer, pl_module: L.Module, *_: Any) -> None:
        if trainer.global_step == 31:
            raise PowerCut


def train(*callbacks: L.Callback, ckpt_path: str | None = None) -> torch.Tensor:
    """Two epochs of 20 steps, with a checkpoint every 7; the weights at the end."""
    L.seed_everything(1, verbose=False)
    model, saver = DigitClassifier(), ModelCheckpoint(dirpath="resumed", every_n_train_steps=7, save_last=True)
    trainer = L.Trainer(max_epochs=2, callbacks=[saver, *callbacks], logger=False)
    trainer.fit(model, datamodule=DigitsData(), ckpt_path=ckpt_path)
    return torch.cat([parameter.detach().flatten() for parameter in model.parameters()])


def main() -> None:
    whole = train()
    with suppress(PowerCut):
        train(Cut())
    resumed = train(ckpt_path="last")  # that of step 28
    print(f"\nthe same weights, bit for bit: {torch.equal(whole, resumed)}")


if __name__ == "__main__":
    main()

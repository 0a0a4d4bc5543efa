"""Kill a run in the middle of an epoch, start it again, and end with the very same weights as one that was left alone.

Shuffling and dropout draw the numbers that they would have drawn, and the next batch is the very next one. Look at the
epochs that each process trains, and at the last line.
"""

import os
import signal
from multiprocessing import get_context
from typing import Any

import torch
from digits import DigitClassifier, DigitsData

import gpulayer.pytorch as L
from gpulayer.pytorch.callbacks import ModelCheckpoint


class Kill(L.Callback):
    """Ends the process in the second epoch as `kill -9` does: it cannot save or clean up."""

    def on_train_batch_end(self, trainer: L.Trainer, pl_module: L.Module, *_: Any) -> None:
        if trainer.global_step == 31:
            os.kill(os.getpid(), signal.SIGKILL)


def train(folder: str, *callbacks: L.Callback) -> torch.Tensor:
    """Two epochs of 20 steps, with a checkpoint every 7; the weights at the end.

    With "last" a run that was cut off in this folder is gone on with; otherwise a new one begins.
    """
    L.seed_everything(1, verbose=False)
    model, saver = DigitClassifier(), ModelCheckpoint(every_n_train_steps=7, save_last=True)
    trainer = L.Trainer(max_epochs=2, callbacks=[saver, *callbacks], default_root_dir=folder)
    trainer.fit(model, datamodule=DigitsData(), ckpt_path="last")
    return torch.cat([parameter.detach().flatten() for parameter in model.parameters()])


def main() -> None:
    whole = train("whole")
    killed = get_context("spawn").Process(target=train, args=("killed", Kill()))
    killed.start()
    killed.join()
    print(f"the process is gone, with exit code {killed.exitcode}; the same again:")
    resumed = train("killed")
    print(f"\nthe same weights, bit for bit: {torch.equal(whole, resumed)}")


if __name__ == "__main__":
    main()

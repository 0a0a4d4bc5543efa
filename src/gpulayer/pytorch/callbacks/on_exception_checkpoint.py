"""OnExceptionCheckpoint: a checkpoint of the moment at which training broke off."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from gpulayer.fabric.utilities.exceptions import InvalidValueError
from gpulayer.fabric.utilities.files import join
from gpulayer.fabric.utilities.rank_zero import log, rank_zero_info
from gpulayer.fabric.utilities.types import Path
from gpulayer.pytorch.core.callback import Checkpoint

if TYPE_CHECKING:
    from gpulayer.pytorch.core.module import Module
    from gpulayer.pytorch.trainer.trainer import Trainer


class OnExceptionCheckpoint(Checkpoint):
    """Save a checkpoint when an error, or Ctrl+C, ends `fit`; `ckpt_path=` goes on from it.

    A later `fit` that ends well removes the file. `ModelCheckpoint(save_on_exception=True)` does the same beside its
    other checkpoints; this callback alone saves nothing else.

    Args:
        dirpath: the folder, or a URL that fsspec writes.
        filename: the file's name, without ".ckpt".

    Raises:
        InvalidValueError: no folder, or no name.
    """

    FILE_EXTENSION = ".ckpt"

    def __init__(self, dirpath: Path, filename: str = "on_exception") -> None:
        super().__init__()
        for argument, value in (("dirpath", dirpath), ("filename", filename)):
            if not isinstance(value, (str, os.PathLike)) or not os.fspath(value):
                raise InvalidValueError(f"`OnExceptionCheckpoint({argument}={value!r})`: give a path.")
        self.dirpath = os.fspath(dirpath)
        self.filename = os.fspath(filename)

    @property
    def ckpt_path(self) -> str:
        """Where it saves."""
        return join(self.dirpath, self.filename + self.FILE_EXTENSION)

    def on_exception(self, trainer: Trainer, pl_module: Module, exception: BaseException) -> None:
        if trainer.state.fn == "fit":
            checkpoint_io = trainer.strategy.checkpoint_io
            try:
                checkpoint_io.wait()
            except Exception:  # of an earlier save in the background; this one is worth trying all the same
                log.exception("An earlier checkpoint could not be saved in the background:")
            trainer.save_checkpoint(self.ckpt_path)
            checkpoint_io.wait()
            rank_zero_info("Saved %s after %s; `ckpt_path=` goes on from it.", self.ckpt_path, type(exception).__name__)

    def teardown(self, trainer: Trainer, pl_module: Module, stage: str) -> None:
        if stage == "fit" and trainer.is_global_zero:
            trainer.strategy.checkpoint_io.remove_checkpoint(self.ckpt_path)

"""What ModelCheckpoint is made of: its arguments, names of files, ranking, and where its files are."""

from gpulayer.pytorch.core.callback import Checkpoint

__all__ = ["Checkpoint"]

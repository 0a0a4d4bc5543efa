"""A save that was handed to the store, which may work in the background."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from gpulayer.fabric.utilities.files import modified

if TYPE_CHECKING:
    from gpulayer.pytorch.trainer.trainer import Trainer


class Moment(NamedTuple):
    """A moment of a run, and whether a file holds all of it or weights only."""

    epoch: int
    batch: int
    step: int
    position: str
    full: bool

    @classmethod
    def now(cls, trainer: Trainer, full: bool) -> Moment:
        at = trainer.progress
        return cls(at.epoch, at.batch, at.step, at.position, full)


@dataclass
class Save:
    """A file that was handed to the store.

    Args:
        path: where it is to be.
        replaces: when the file that was there before was written; None if there was none.
        before: the attributes of the callback before it, for the case that the file does not come to be.
    """

    path: str
    replaces: float | None
    before: dict[str, Any]

    def arrived(self) -> bool:
        """Whether the file is there. A store that does not answer has not got it."""
        try:
            return written_at(self.path) != self.replaces
        except OSError:
            return False


def written_at(path: str) -> float | None:
    """When a file was written, in seconds since 1970; None if there is none."""
    try:
        return modified(path)
    except (FileNotFoundError, NotADirectoryError):
        return None

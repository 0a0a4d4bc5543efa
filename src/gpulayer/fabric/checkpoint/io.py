"""Where and how checkpoints are stored."""

from abc import ABC, abstractmethod
from typing import Any

from gpulayer.fabric.utilities.files import copy_file, link_file, load_file, remove, save_file


class CheckpointIO(ABC):
    """Where and how checkpoints are stored; outsiders can write their own."""

    @abstractmethod
    def save_checkpoint(self, checkpoint: dict[str, Any], path: str, storage_options: Any = None) -> None:
        """Store `checkpoint` under `path`, whole or not at all."""

    @abstractmethod
    def load_checkpoint(self, path: str, map_location: Any = None, weights_only: bool | None = None) -> dict[str, Any]:
        """What was stored under `path`."""

    @abstractmethod
    def remove_checkpoint(self, path: str) -> None:
        """Delete what is stored under `path`; nothing happens if there is none."""

    def copy_checkpoint(self, source: str, target: str) -> None:
        """Store what is stored under `source` under `target`, too, whole or not at all."""
        self.save_checkpoint(self.load_checkpoint(source), target)

    def link_checkpoint(self, source: str, target: str) -> None:
        """Make `target` a link to `source`, whole or not at all; a copy where there are no links."""
        self.copy_checkpoint(source, target)

    def wait(self) -> None:
        """Return when everything that was handed in is stored, or deleted; raise what went wrong with it."""

    def teardown(self) -> None:
        """Free what this holds; everything was waited for."""


class TorchCheckpointIO(CheckpointIO):
    """`torch.save` and `torch.load` on any path that fsspec reads: local, memory://, s3:// ..."""

    def save_checkpoint(self, checkpoint: dict[str, Any], path: str, storage_options: Any = None) -> None:
        if storage_options is not None:
            raise TypeError(
                "`storage_options` needs a CheckpointIO of your own that takes them; this one writes torch files."
            )
        save_file(checkpoint, path)

    def load_checkpoint(self, path: str, map_location: Any = None, weights_only: bool | None = None) -> dict[str, Any]:
        return load_file(path, map_location, weights_only)

    def copy_checkpoint(self, source: str, target: str) -> None:
        copy_file(source, target)

    def link_checkpoint(self, source: str, target: str) -> None:
        try:
            link_file(source, target)
        except OSError:  # a store, or a disk, without links
            self.copy_checkpoint(source, target)

    def remove_checkpoint(self, path: str) -> None:
        remove(path)

"""Loggers that write into a folder of the run's own, `save_dir/name/version_N`."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from contextlib import suppress
from typing import IO, Any

import fsspec

from gpulayer.fabric.utilities.rank_zero import rank_zero_only, rank_zero_warn
from gpulayer.fabric.utilities.types import Path
from gpulayer.pytorch.loggers.logger import Logger

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]

UNFINISHED = ".unfinished"  # lies in the folder of a run that trains, when it is locked, or was cut off


class FolderLogger(Logger):
    """A logger whose files lie in `save_dir/name/version_N`.

    Args:
        save_dir: the folder of all experiments.
        name: the folder of this experiment in it; None or "" for none.
        version: this run's folder: a number for `version_<number>`, or a name. Default: the next free number.
        prefix: put before each metric's name, with a "-".
    """

    LOGGER_JOIN_CHAR = "-"
    NAME_HPARAMS_FILE = "hparams.yaml"

    def __init__(self, save_dir: Path, name: str | None, version: int | str | None, prefix: str) -> None:
        super().__init__()
        self._save_dir = os.fspath(save_dir).removeprefix("file://")
        self._started_in = os.getcwd()  # the program may change its working folder
        self._name = name
        self._version = version
        self._prefix = prefix
        self._mark: IO[bytes] | None = None
        self.cut_off = False  # whether the folder is that of a run that was cut off, which goes on

    @property
    def name(self) -> str | None:
        return self._name

    @name.setter
    def name(self, name: str) -> None:
        self._name = name

    @property
    def save_dir(self) -> str:
        return self._save_dir

    @property
    def root_dir(self) -> str:
        return os.path.join(os.path.expanduser(os.path.expandvars(self._save_dir)), self._name or "")

    @property
    def version(self) -> int | str:
        if self._version is None:
            self._version = claim_version(self._from_start(self.root_dir))
        return self._version

    def share_version(self, broadcast: Callable[[Any], Any]) -> None:
        """In several processes: take the folder that rank 0 has chosen.

        Args:
            broadcast: gives the value that rank 0 has.
        """
        self._version = broadcast(None if rank_zero_only.rank else self.version)

    @property
    def log_dir(self) -> str:
        version = self.version
        return os.path.join(self.root_dir, version if isinstance(version, str) else f"version_{version}")

    @property
    def folder(self) -> str:
        """`log_dir`, wherever the program has gone since the logger was made."""
        return self._from_start(self.log_dir)

    @property
    def remote(self) -> bool:
        """Whether `save_dir` is a URL."""
        return "://" in self._save_dir

    def go_on_in_folder(self, number: int) -> None:
        """Take the folder of the newest run that was cut off, if the version is still to be chosen.

        The one of a run that is over, or that another process is at, is not taken.

        Args:
            number: which of the Trainer's loggers this is; several may have their folders side by side.
        """
        root = self._from_start(self.root_dir)
        if self.remote or fcntl is None or not os.path.isdir(root):
            return
        versions = sorted(_versions(os.listdir(root)), reverse=True) if self._version is None else [self._version]
        for version in versions:
            folder = version if isinstance(version, str) else f"version_{version}"
            with suppress(OSError):
                self._mark = lock(os.path.join(root, folder, f"{UNFINISHED}-{number}"), new=False)
                self._version, self.cut_off = version, True
                return

    def begin(self, number: int) -> None:
        """Mark the folder: a run trains in it.

        Args:
            number: as in `go_on_in_folder`.
        """
        if self._mark is not None or self.remote or fcntl is None or not os.path.isdir(self.folder):
            return
        try:
            self._mark = lock(os.path.join(self.folder, f"{UNFINISHED}-{number}"), new=True)
        except BlockingIOError:
            rank_zero_warn(
                f"Another process trains in {self.folder!r}, too: their rows and checkpoints get mixed up. Give each "
                "run a folder, or a `version`, of its own."
            )
        except OSError:
            pass  # a folder that may not be written to, or a file system without locks

    def end(self, well: bool) -> None:
        """The run is over; one that did not end well can be gone on with.

        Args:
            well: whether nothing cut it off.
        """
        if self._mark is not None:
            with self._mark, suppress(OSError):
                if well:
                    os.unlink(self._mark.name)
            self._mark = None
        self.cut_off = False

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_mark": None}

    def _from_start(self, path: str) -> str:
        return path if self.remote else os.path.join(self._started_in, path)

    def _prefixed(self, metrics: dict[str, float]) -> dict[str, float]:
        """The metrics under the names that the logger gives them."""
        if not self._prefix:
            return metrics
        return {f"{self._prefix}{self.LOGGER_JOIN_CHAR}{name}": value for name, value in metrics.items()}


def claim_version(root: str) -> int:
    """The next free number of `version_<number>` in a folder or at a URL.

    Its folder is made at once, so that of two processes each gets its own. Object stores know no folders: two runs that
    start there at the same moment must be given versions.
    """
    filesystem, folder = fsspec.core.url_to_fs(root)
    filesystem.makedirs(folder, exist_ok=True)
    names = [path.rstrip("/").rpartition("/")[2] for path in filesystem.ls(folder, detail=False)]
    version = max(_versions(names), default=-1) + 1
    while True:
        try:
            filesystem.mkdir(f"{folder}/version_{version}", create_parents=False)
            return version
        except FileExistsError:
            version += 1


def _versions(names: list[str]) -> list[int]:
    return [int(name[8:]) for name in names if name.startswith("version_") and name[8:].isdigit()]


def lock(path: str, new: bool) -> IO[bytes]:
    """Open a file that no other process may lock meanwhile; the lock ends with the process, however it ends.

    Args:
        path: of a local file.
        new: whether to make it, if it is not there.

    Returns:
        The file.

    Raises:
        BlockingIOError: another process has locked it.
        OSError: it is not there, or cannot be locked.
    """
    file = open(path, "ab" if new else "rb+")  # noqa: SIM115 - open as long as the lock is to hold
    try:
        fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)  # not `flock`, which workers that outlive the process hold
    except OSError as error:
        file.close()
        if error.errno in (errno.EACCES, errno.EAGAIN):
            raise BlockingIOError(error.errno, error.strerror, path) from error
        raise
    return file

"""Loggers that write into a folder of the run's own, `save_dir/name/version_N`."""

from __future__ import annotations

import os

import fsspec

from gpulayer.fabric.utilities.types import Path
from gpulayer.pytorch.loggers.logger import Logger


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
        self._save_dir = os.fspath(save_dir)
        self._started_in = os.getcwd()  # the program may change its working folder
        self._name = name
        self._version = version
        self._prefix = prefix

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
    taken = [int(name[8:]) for name in names if name.startswith("version_") and name[8:].isdigit()]
    version = max(taken, default=-1) + 1
    while True:
        try:
            filesystem.mkdir(f"{folder}/version_{version}", create_parents=False)
            return version
        except FileExistsError:
            version += 1

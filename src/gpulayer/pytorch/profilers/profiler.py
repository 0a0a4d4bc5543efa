"""Profiler: the base class."""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import fsspec

from gpulayer.fabric.utilities.exceptions import MisconfigurationException
from gpulayer.fabric.utilities.files import join
from gpulayer.fabric.utilities.rank_zero import log, rank_zero_info
from gpulayer.fabric.utilities.types import Path

if TYPE_CHECKING:
    from gpulayer.pytorch.trainer.trainer import Trainer


class Profiler(ABC):
    """Told when each action of a run begins and ends. For one of your own, override `start`, `stop` and `summary`.

    Names of actions are those of Lightning where it has such an action, and a saver's hooks begin with "[Checkpoint]".
    In a module, `with self.trainer.profiler.profile("name"):` adds an action.

    Args:
        dirpath: the folder for files. Default: that of the run.
        filename: write the report to `<dirpath>/<call>-<filename>-<rank>.txt`, such as "fit-perf-0.txt". Default: to
            the log.

    Raises:
        MisconfigurationException: an argument cannot be used.
    """

    dirpath: str | None = None  # what a subclass has that does not call `__init__`
    filename: str | None = None
    _trainer: Trainer | None = None  # set while it runs
    _stage: str | None = None
    _local_rank: int | None = None
    _log_dir: str | None = None

    def __init__(self, dirpath: Path | None = None, filename: str | None = None) -> None:
        if dirpath is not None and not isinstance(dirpath, (str, os.PathLike)):
            raise MisconfigurationException(
                f"`{type(self).__name__}(dirpath={dirpath!r})`: give a folder, as a string or a `pathlib.Path`."
            )
        if filename is not None and (not isinstance(filename, str) or not filename or set(filename) & set("/\\")):
            raise MisconfigurationException(
                f"`{type(self).__name__}(filename={filename!r})`: give a name, such as 'perf', which becomes "
                "'fit-perf-0.txt'; the folder is `dirpath`."
            )
        self.dirpath = None if dirpath is None else os.path.expanduser(os.fspath(dirpath))
        self.filename = filename

    # -- what is measured --------------------------------------------------------------------------------------------

    @abstractmethod
    def start(self, action_name: str) -> None:
        """An action begins."""

    @abstractmethod
    def stop(self, action_name: str) -> None:
        """An action ends."""

    @contextmanager
    def profile(self, action_name: str) -> Iterator[str]:
        """What is done within is an action: `with self.trainer.profiler.profile("attention"):`.

        Args:
            action_name: its name in the report.

        Raises:
            MisconfigurationException: the name is no string.
        """
        if not isinstance(action_name, str):
            raise MisconfigurationException(f"`profile({action_name!r})`: give the action's name, a string.")
        self.start(action_name)
        try:
            yield action_name
        finally:
            self.stop(action_name)

    # -- around a call -----------------------------------------------------------------------------------------------

    def setup(self, stage: str, local_rank: int | None = None, log_dir: str | None = None) -> None:
        """A call begins.

        Args:
            stage: "fit", "validate", "test" or "predict".
            local_rank: this process's number.
            log_dir: the folder of the run, if it is known already.
        """
        self._stage, self._local_rank, self._log_dir = stage, local_rank, log_dir

    def teardown(self, stage: str | None) -> None:
        """The call is over, and its report is out."""

    # -- the report --------------------------------------------------------------------------------------------------

    def summary(self) -> str:
        """The whole report of the last call."""
        return ""

    def on_screen(self) -> str:
        """The report as it is logged; where the whole is long, its beginning."""
        return self.summary()

    def describe(self) -> None:
        """Write the report to the file, or else log it; log it, too, if it cannot be written."""
        if self.filename is None:
            if text := self.on_screen():
                rank_zero_info("%s", text)
        elif text := self.summary():
            path = self._path(self.filename, extension=".txt")
            try:
                with fsspec.open(path, "ab", auto_mkdir=True) as file:
                    file.write(f"{text}\n".encode())  # at once, for other processes may write to it, too
            except Exception as error:  # a disk that is full, for one
                name = type(self).__name__
                log.warning("%s could not write its report to %s (%s):\n%s", name, path, error, self.on_screen())

    def _path(self, *names: str, extension: str) -> str:
        """A file of this call and process: `<folder>/<call>-<names>-<rank><extension>`."""
        rank = None if self._local_rank is None else str(self._local_rank)
        parts = [part for part in (self._stage, *names, rank) if part]
        return join(self._folder(), "-".join(parts) + extension)

    def _folder(self) -> str:
        return self.dirpath or self._log_dir or os.getcwd()

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_trainer": None}

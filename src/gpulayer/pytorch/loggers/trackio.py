"""TrackioLogger: trackio, a local dashboard without an account."""

from __future__ import annotations

import os
from argparse import Namespace
from collections.abc import Mapping
from typing import Any

from gpulayer.fabric.utilities.exceptions import MisconfigurationException
from gpulayer.fabric.utilities.rank_zero import rank_zero_only
from gpulayer.fabric.utilities.types import Path
from gpulayer.pytorch.loggers.logger import Logger, rank_zero_experiment
from gpulayer.pytorch.loggers.values import hyperparameters, named_numbers, optional_package


class TrackioLogger(Logger):
    """Logs to trackio: a database on this machine, which `trackio show` draws. No account, no server.

    Rows are written by a thread of trackio's, twice a second, and all are there when a run is over.

    Args:
        name: the run's name. That of an earlier run of the project goes on with it. Default: trackio makes one up.
        project: the project.
        save_dir: the folder of the databases; one for the whole program. Default: `TRACKIO_DIR` from the environment,
            or trackio's own, where `trackio show` looks; for another one say `TRACKIO_DIR=<save_dir> trackio show`.
        prefix: put before each metric's name, with a "-".
        **kwargs: for `trackio.init`: `group`, `config`, `space_id`, `server_url`, `auto_log_gpu` and so on.

    Raises:
        ModuleNotFoundError: trackio is not installed.
        MisconfigurationException: trackio already writes to another folder than `save_dir`.
    """

    LOGGER_JOIN_CHAR = "-"

    def __init__(
        self,
        name: str | None = None,
        project: str = "lightning_logs",
        save_dir: Path | None = None,
        prefix: str = "",
        **kwargs: Any,
    ) -> None:
        super().__init__()
        self._project = project
        self._save_dir = None if save_dir is None else os.path.abspath(os.path.expanduser(save_dir))
        self._prefix = prefix
        self._settings: dict[str, Any] = {"resume": "allow", **kwargs, "name": name}
        self._config: dict[str, Any] = hyperparameters(self._settings.pop("config", None))
        self._experiment: Any = None
        self._version: str | None = None
        self._import()

    def _import(self) -> Any:
        """trackio, which reads its folder from the environment once, when it is imported."""
        if self._save_dir is not None:
            os.environ.setdefault("TRACKIO_DIR", self._save_dir)
        trackio = optional_package("trackio", "TrackioLogger", "gpulayer[trackio]")
        folder = os.path.abspath(trackio.TRACKIO_DIR)
        if self._save_dir is not None and folder != self._save_dir:
            raise MisconfigurationException(
                f"`TrackioLogger(save_dir={self._save_dir!r})`: trackio writes to {folder!r} already, and has one "
                "folder for the whole program. Leave `save_dir` out, or set `TRACKIO_DIR` before the program starts."
            )
        return trackio

    @property
    @rank_zero_experiment
    def experiment(self) -> Any:
        """trackio's run; begun when first asked for."""
        if self._experiment is None:
            self._experiment = self._import().init(self._project, config=self._config, **self._settings)
            self._settings.update(name=self._experiment.name, resume="allow")  # rows after `finalize` go on with it
            self._version = self._experiment.id
        return self._experiment

    @rank_zero_only
    def log_metrics(self, metrics: Mapping[str, Any], step: int | None = None) -> None:
        self.experiment.log(named_numbers(metrics, self._prefix, self.LOGGER_JOIN_CHAR), step=step)

    @rank_zero_only
    def log_hyperparams(self, params: dict[str, Any] | Namespace, *args: Any, **kwargs: Any) -> None:
        # Names that begin with a "_" are trackio's own.
        self._config.update({name.lstrip("_"): value for name, value in hyperparameters(params).items()})
        self.experiment.config.update(self._config)
        self.experiment._config_logged = False  # trackio sends the config with a row: the next one

    @rank_zero_only
    def finalize(self, status: str) -> None:
        """Write what is held in memory. A row that comes later goes on with the run."""
        if self._experiment is None:
            return
        trackio = self._import()
        if trackio.context_vars.current_run.get() is self._experiment:
            trackio.finish()
        else:  # the program has begun another one since
            self._experiment.finish()
        self._experiment = None

    @property
    def name(self) -> str:
        """The project. The run's own name is `logger.experiment.name`."""
        return self._project

    @property
    def version(self) -> str | None:
        """The run's id; None before it has begun."""
        return self._version

    @property
    def save_dir(self) -> str | None:
        """The folder of the databases, and of checkpoints; None for trackio's own."""
        return self._save_dir

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_experiment": None}  # it has a thread

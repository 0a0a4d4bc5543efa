"""CometLogger: Comet, online or into an archive that is uploaded later."""

from __future__ import annotations

import os
from argparse import Namespace
from collections.abc import Mapping
from typing import Any, Literal

from torch import Tensor, nn

from gpulayer.fabric.utilities.exceptions import MisconfigurationException
from gpulayer.fabric.utilities.rank_zero import rank_zero_only, rank_zero_warn
from gpulayer.pytorch.loggers.logger import Logger, rank_zero_experiment
from gpulayer.pytorch.loggers.values import hyperparameters, named_numbers, optional_package

FLUSH_SECONDS = 60  # at the end of a run; what is not sent by then goes on in the background
MODES = (None, "get_or_create", "get", "create")
# Arguments of the logger before Lightning 2.5.1, and today's.
FORMER_NAMES = {
    "experiment_name": "name",
    "project_name": "project",
    "offline": "online",
    "save_dir": "offline_directory",
}


class CometLogger(Logger):
    """Logs to Comet, to its server or into a zip archive that `comet upload` sends later.

    The experiment stays open after training, so that `trainer.test` goes on in it; comet ends it with the process, or
    `logger.experiment.end()` does. The archive of an offline experiment is written then.

    Args:
        api_key: the key of the account. Default: from `comet login` or `COMET_API_KEY`.
        workspace: the workspace. Default: the account's own.
        project: the project. Default: Comet's "Uncategorized".
        experiment_key: the experiment's key, of 32 to 50 letters and digits. That of an earlier one goes on with it.
        mode: "create" always begins an experiment, "get" goes on with the one of `experiment_key`, "get_or_create"
            does what it can.
        online: send to the server (the default), or write an archive.
        prefix: put before each metric's name, with a "_".
        **kwargs: for `comet_ml.ExperimentConfig`: `name`, `tags`, `log_code`, `offline_directory` and so on.

    Raises:
        ModuleNotFoundError: comet-ml is not installed.
        MisconfigurationException: an unknown mode.
    """

    def __init__(
        self,
        *,
        api_key: str | None = None,
        workspace: str | None = None,
        project: str | None = None,
        experiment_key: str | None = None,
        mode: Literal["get_or_create", "get", "create"] | None = None,
        online: bool | None = None,
        prefix: str | None = None,
        **kwargs: Any,
    ) -> None:
        if mode not in MODES:
            raise MisconfigurationException(f"`CometLogger(mode={mode!r})`: choose 'get_or_create', 'get' or 'create'.")
        current = {"project": project, "online": online, **kwargs}
        for former, name in FORMER_NAMES.items():
            if former in current:
                value = current.pop(former)
                rank_zero_warn(f"`CometLogger({former}=...)` is now called `{name}`.")
                if current.get(name) is None:
                    current[name] = not value if former == "offline" else value
        # Comet patches libraries that are imported after it, and complains of those that were imported before.
        os.environ.setdefault("COMET_DISABLE_AUTO_LOGGING", "1")
        comet_ml = optional_package("comet_ml", "CometLogger", "gpulayer[comet]")
        super().__init__()
        self._start: dict[str, Any] = {
            "api_key": api_key,
            "workspace": workspace,
            "project": current.pop("project"),
            "experiment_key": experiment_key,
            "mode": mode,
            "online": current.pop("online"),
        }
        self._config = comet_ml.ExperimentConfig(**current)
        self._prefix = prefix
        self._experiment: Any = None

    @property
    @rank_zero_experiment
    def experiment(self) -> Any:
        """Comet's experiment; begun when first asked for."""
        if self._experiment is None:
            import comet_ml

            self._experiment = comet_ml.start(**self._start, experiment_config=self._config)
            self._start["experiment_key"] = self._experiment.get_key()
            self._start["project"] = self._experiment.project_name or self._start["project"]
            self._experiment.log_other("Created from", "gpulayer")
        return self._experiment

    @rank_zero_only
    def log_metrics(self, metrics: Mapping[str, Any], step: int | None = None) -> None:
        row = named_numbers(metrics)
        epoch = row.pop("epoch", None)  # an axis of its own in Comet
        self.experiment.log_metrics(row, prefix=self._prefix, step=step, epoch=epoch)

    @rank_zero_only
    def log_hyperparams(self, params: dict[str, Any] | Namespace, *args: Any, **kwargs: Any) -> None:
        self.experiment.log_parameters(hyperparameters(params))

    @rank_zero_only
    def log_graph(self, model: nn.Module, input_array: Tensor | None = None) -> None:
        """Log the model's layers."""
        self.experiment.set_model_graph(model)

    @rank_zero_only
    def finalize(self, status: str) -> None:
        """Send what is held in memory, for a minute at most. The experiment stays open."""
        if self._experiment is not None and not self._experiment.flush(timeout=FLUSH_SECONDS):
            rank_zero_warn(
                f"CometLogger could not send everything within {FLUSH_SECONDS} s; comet goes on until the program ends."
            )

    @property
    def name(self) -> str | None:
        """The project."""
        project: str | None = self._start["project"]
        return project

    @property
    def version(self) -> str | None:
        """The experiment's key; None before it has begun, unless it was given."""
        key: str | None = self._start["experiment_key"]
        return key

    @property
    def save_dir(self) -> str | None:
        """The folder of offline archives; None for Comet's own."""
        folder: str | None = self._config.offline_directory
        return folder

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_experiment": None}  # it has threads; the key begins the same experiment again

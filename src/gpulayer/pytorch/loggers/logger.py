"""Logger: where metrics and hyperparameters go."""

from __future__ import annotations

from abc import ABC, abstractmethod
from argparse import Namespace
from typing import Any


class Logger(ABC):
    """Base of all loggers; third parties write theirs by subclassing it."""

    @property
    @abstractmethod
    def name(self) -> str | None:
        """The experiment's name."""

    @property
    @abstractmethod
    def version(self) -> int | str | None:
        """Which run of the experiment."""

    @abstractmethod
    def log_metrics(self, metrics: dict[str, float], step: int | None = None) -> None:
        """Take some numbers of one step."""

    @abstractmethod
    def log_hyperparams(self, params: dict[str, Any] | Namespace, *args: Any, **kwargs: Any) -> None:
        """Take the hyperparameters."""

    @property
    def experiment(self) -> Any:
        """What the logger writes with; made when first asked for."""
        return None

    @property
    def root_dir(self) -> str | None:
        """The folder of all runs of the experiment."""
        return None

    @property
    def log_dir(self) -> str | None:
        """The folder of this run."""
        return None

    @property
    def save_dir(self) -> str | None:
        """The folder of all experiments."""
        return None

    @property
    def group_separator(self) -> str:
        """Between the group and the name of a metric."""
        return "/"

    def log_graph(self, model: Any, input_array: Any = None) -> None:
        """Take the model's graph."""

    def save(self) -> None:
        """Write what is held in memory."""

    def finalize(self, status: str) -> None:
        """The run is over: "success" or "failed"."""
        self.save()

    def after_save_checkpoint(self, checkpoint_callback: Any) -> None:
        """A checkpoint was written."""

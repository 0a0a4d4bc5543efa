"""Logger: where metrics and hyperparameters go."""

from __future__ import annotations

from abc import ABC, abstractmethod
from argparse import Namespace
from collections.abc import Callable
from functools import wraps
from typing import TYPE_CHECKING, Any

from torch import Tensor, nn

from gpulayer.fabric.utilities.rank_zero import rank_zero_only

if TYPE_CHECKING:
    from gpulayer.pytorch.core.callback import Checkpoint


class Logger(ABC):
    """Base of all loggers; third parties write theirs by subclassing it.

    A run calls `log_metrics` and then `save` for each row, `log_hyperparams` and `log_graph` once before its first
    batch, `after_save_checkpoint` for each checkpoint, and `finalize` at its end. A logger that raises in a run does
    not end it: a row for which `log_metrics` raised counts as not written, and is given again later; one that was taken
    counts as written when `save` or `finalize` has worked since.
    """

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
        """Take some numbers of one step.

        Args:
            metrics: values by name.
            step: how many optimizer steps were done before the one that the values are from.
        """

    @abstractmethod
    def log_hyperparams(self, params: dict[str, Any] | Namespace, *args: Any, **kwargs: Any) -> None:
        """Take the hyperparameters.

        Args:
            params: values by name.
            *args: what else a logger may take.
            **kwargs: the same, by name.
        """

    @property
    def experiment(self) -> Any:
        """What the logger writes with; made when first asked for."""
        return None

    @property
    def root_dir(self) -> str | None:
        """The folder of all runs of the experiment; None where there is none."""
        return None

    @property
    def log_dir(self) -> str | None:
        """The folder of this run; None where there is none."""
        return None

    @property
    def save_dir(self) -> str | None:
        """The folder of all experiments; None where there is none."""
        return None

    @property
    def group_separator(self) -> str:
        """Between the group and the name of a metric."""
        return "/"

    def log_graph(self, model: nn.Module, input_array: Tensor | None = None) -> None:
        """Take the model's graph.

        Args:
            model: the model.
            input_array: what its `forward` takes; None: its `example_input_array`.
        """

    def state_dict(self) -> dict[str, Any]:
        """What a checkpoint keeps of how far this logger is, in plain data; nothing by default."""
        return {}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """The run goes on from a checkpoint: what was taken since it was written comes again.

        Args:
            state_dict: what `state_dict` returned; empty if there was no checkpoint yet, and the run begins anew.
        """

    def save(self) -> None:
        """Write what is held in memory."""

    def finalize(self, status: str) -> None:
        """The run is over.

        Args:
            status: "success" or "failed".
        """
        self.save()

    def after_save_checkpoint(self, checkpoint_callback: Checkpoint) -> None:
        """A checkpoint was written.

        Args:
            checkpoint_callback: the callback that did it; it knows the path.
        """


def rank_zero_experiment(function: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Decorator of a logger's `experiment`: what writes on rank 0, and elsewhere an object that takes every call."""

    @wraps(function)
    def experiment(self: Any) -> Any:
        return function(self) if rank_zero_only.rank == 0 else DummyExperiment()

    return experiment


class _TakesEveryCall:
    """Has a method of every name, which does nothing, and is itself each of its items."""

    def __getattr__(self, name: str) -> Callable[..., None]:
        if name.startswith("__"):  # Python asks for these itself, to copy or pickle the object
            raise AttributeError(name)
        return _do_nothing

    def __getitem__(self, index: Any) -> Any:
        return self

    def __setitem__(self, index: Any, value: Any) -> None:
        pass


def _do_nothing(*args: Any, **kwargs: Any) -> None:
    pass


class DummyExperiment(_TakesEveryCall):
    """Stands in for a logger's `experiment` where nothing is to be written."""


class DummyLogger(_TakesEveryCall, Logger):
    """Stands in for a logger where nothing is to be written: the user's code runs as it is."""

    def __init__(self) -> None:
        self._experiment = DummyExperiment()

    @property
    def name(self) -> str:
        return ""

    @property
    def version(self) -> str:
        return ""

    @property
    def experiment(self) -> DummyExperiment:
        return self._experiment

    def log_metrics(self, *args: Any, **kwargs: Any) -> None:
        pass

    def log_hyperparams(self, *args: Any, **kwargs: Any) -> None:
        pass

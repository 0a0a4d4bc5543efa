"""TensorBoardLogger: event files for TensorBoard, and hparams.yaml, in a folder of the run's own."""

from __future__ import annotations

import os
import threading
import warnings
from argparse import Namespace
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext, redirect_stdout, suppress
from importlib.util import find_spec
from io import StringIO
from numbers import Real
from tempfile import TemporaryFile
from typing import Any

import torch
from torch import Tensor, nn

from gpulayer.fabric.utilities.apply import move_data_to_device
from gpulayer.fabric.utilities.rank_zero import rank_zero_only, rank_zero_warn
from gpulayer.fabric.utilities.seed import isolate_rng
from gpulayer.fabric.utilities.types import Path
from gpulayer.pytorch.core.module import Module
from gpulayer.pytorch.core.saving import save_hparams
from gpulayer.pytorch.loggers.folders import FolderLogger
from gpulayer.pytorch.loggers.logger import rank_zero_experiment
from gpulayer.pytorch.loggers.values import flatten, hyperparameters


class TensorBoardLogger(FolderLogger):
    """Writes event files for TensorBoard, and `hparams.yaml`, into `save_dir/name/version_N/sub_dir`.

    Each row is on the disk when `log_metrics` returns. At a URL the writer sends rows in the background.

    Args:
        save_dir: the folder of all experiments, or a URL that fsspec writes.
        name: the folder of this experiment in it; None or "" for none.
        version: this run's folder: a number for `version_<number>`, or a name. Default: the next free number.
        log_graph: write the module's graph, traced with its `example_input_array`.
        default_hp_metric: write -1 as `hp_metric` beside hyperparameters that come without a metric, for TensorBoard
            shows them only beside one.
        prefix: put before each metric's name, with a "-".
        sub_dir: a folder in this run's folder, for the event files and `hparams.yaml`.
        **kwargs: for `SummaryWriter`: `max_queue`, `flush_secs`, `purge_step`, `filename_suffix`.

    Raises:
        ModuleNotFoundError: neither tensorboard nor tensorboardX is installed.
    """

    def __init__(
        self,
        save_dir: Path,
        name: str | None = "lightning_logs",
        version: int | str | None = None,
        log_graph: bool = False,
        default_hp_metric: bool = True,
        prefix: str = "",
        sub_dir: Path | None = None,
        **kwargs: Any,
    ) -> None:
        if find_spec("tensorboard") is None and find_spec("tensorboardX") is None:
            raise ModuleNotFoundError(
                "`TensorBoardLogger` needs the package tensorboard: pip install 'gpulayer[tensorboard]'",
                name="tensorboard",
            )
        super().__init__(save_dir, name or "", version, prefix)
        self.sub_dir = None if sub_dir is None else os.fspath(sub_dir)
        self.hparams: dict[str, Any] = {}
        self._hparams_unsaved = False
        self._log_graph = log_graph
        self._default_hp_metric = default_hp_metric
        self._arguments = kwargs
        self._experiment: Any = None

    @property
    def log_dir(self) -> str:
        return super().log_dir if self.sub_dir is None else os.path.join(super().log_dir, self.sub_dir)

    @property
    @rank_zero_experiment
    def experiment(self) -> Any:
        """The `SummaryWriter`, for images, histograms and all else that TensorBoard shows."""
        if self._experiment is None:
            if not self.remote:
                _check_room(self.folder)
            self._experiment = _tensorboard().SummaryWriter(log_dir=self.folder, **self._arguments)
        return self._experiment

    @rank_zero_only
    def log_metrics(self, metrics: dict[str, Any], step: int | None = None) -> None:
        """Write numbers, as scalars of their names. A dict of numbers becomes one chart with a line for each.

        Raises:
            ValueError: a value is no number; nothing was written.
        """
        numbers = {name: _number_or_numbers(name, value) for name, value in self._prefixed(metrics).items()}
        with self._writing() as writer:
            for name, value in numbers.items():
                if isinstance(value, dict):
                    writer.add_scalars(name, value, step)
                else:
                    writer.add_scalar(name, value, step)

    @rank_zero_only
    def log_hyperparams(
        self, params: dict[str, Any] | Namespace, metrics: dict[str, Any] | float | None = None, step: int | None = None
    ) -> None:
        """Write hyperparameters for the tab HPARAMS, and keep them for `hparams.yaml`.

        Args:
            params: values by name; nested ones are shown as `outer/inner`.
            metrics: what they led to, shown beside them and as scalars; a number is the `hp_metric`.
            step: the step of these metrics.
        """
        self.hparams.update(vars(params) if isinstance(params, Namespace) else params)
        self._hparams_unsaved = True
        if metrics is None:
            metrics = {"hp_metric": -1} if self._default_hp_metric else {}
        elif not isinstance(metrics, dict):
            metrics = {"hp_metric": metrics}
        if not metrics:
            return
        self.log_metrics(metrics, step)
        shown = {name: _shown(value) for name, value in flatten(hyperparameters(params)).items()}
        with self._writing() as writer:
            for summary in _tensorboard().summary.hparams(shown, self._prefixed(metrics)):
                writer._get_file_writer().add_summary(summary, step)  # `add_hparams` would begin another run

    @rank_zero_only
    def log_graph(self, model: nn.Module, input_array: Tensor | tuple[Any, ...] | None = None) -> None:
        """Write the graph of `forward`, where `log_graph=True` was asked for; a warning says why it cannot be.

        Args:
            model: the model.
            input_array: a tensor, or a tuple of what `forward` takes; None: the model's `example_input_array`.
        """
        if not self._log_graph:
            return
        inputs = getattr(model, "example_input_array", None) if input_array is None else input_array
        if not isinstance(inputs, (Tensor, tuple)):
            rank_zero_warn(
                "TensorBoardLogger did not write the graph: it is traced with a tensor, or a tuple of what `forward` "
                f"takes, and `{type(model).__name__}.example_input_array` is "
                f"{'not set' if inputs is None else f'a {type(inputs).__name__}'}."
            )
            return
        quietly = model._as_exported() if isinstance(model, Module) else nullcontext()
        device = next((tensor.device for tensor in model.parameters()), torch.device("cpu"))
        try:
            # The writer prints an error, which is said below, and torch warns of what a graph to look at may well lack.
            with isolate_rng(), quietly, torch.no_grad(), redirect_stdout(StringIO()), warnings.catch_warnings():
                warnings.simplefilter("ignore")
                self.experiment.add_graph(model, move_data_to_device(inputs, device))
        except Exception as error:
            rank_zero_warn(
                f"TensorBoardLogger did not write the graph: tracing `{type(model).__name__}.forward` failed with "
                f"{type(error).__name__}: {error}"
            )

    @rank_zero_only
    def save(self) -> None:
        """Write `hparams.yaml`, if there are hyperparameters that it lacks, and flush the events, unless to a URL."""
        if self._hparams_unsaved:
            _ = self.experiment  # makes the folder
            save_hparams(os.path.join(self.folder, self.NAME_HPARAMS_FILE), self.hparams)
            self._hparams_unsaved = False
        if self._experiment is not None:
            with self._writing():
                pass

    @rank_zero_only
    def finalize(self, status: str) -> None:
        self.save()
        if self._experiment is not None:
            self._experiment.close()  # the next row opens another file in the same folder

    @contextmanager
    def _writing(self) -> Iterator[Any]:
        """The writer, flushed at the end of the block. One that failed never writes again, so it is left behind."""
        writer = self.experiment
        with _quiet_writers():
            try:
                yield writer
                if not self.remote:  # there each flush may send the whole file again
                    writer.flush()
            except Exception:
                self._experiment = None
                with suppress(Exception):
                    writer.close()  # waits for its thread to end
                raise

    def __getstate__(self) -> dict[str, Any]:
        return {**super().__getstate__(), "_experiment": None}  # it has a thread and open files


def _check_room(folder: str) -> None:
    """Raise an OSError where nothing can be written: a writer would leave an empty file there at each try."""
    os.makedirs(folder, exist_ok=True)
    with TemporaryFile(dir=folder) as file:
        file.write(bytes(4096))


@contextmanager
def _quiet_writers() -> Iterator[None]:
    """Keeps the threads of writers from printing the error that they raise in the caller, too."""
    before = threading.excepthook

    def hook(arguments: threading.ExceptHookArgs) -> None:
        if not type(arguments.thread).__module__.startswith("tensorboard"):
            before(arguments)

    threading.excepthook = hook
    try:
        yield
    finally:
        threading.excepthook = before


def _tensorboard() -> Any:
    """The package that writes: torch's, or tensorboardX where only that is installed."""
    if find_spec("tensorboard") is not None:
        import torch.utils.tensorboard as tensorboard

        return tensorboard
    import tensorboardX

    return tensorboardX


def _number_or_numbers(name: str, value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _number(f"{name}/{key}", item) for key, item in value.items()}
    return _number(name, value)


def _number(name: str, value: Any) -> float:
    """A float from a number, or a tensor or an array of one element."""
    if getattr(value, "size", None) == 1 or (isinstance(value, Tensor) and value.numel() == 1):
        value = value.item()
    if not isinstance(value, Real):
        raise ValueError(
            f"TensorBoardLogger takes numbers, tensors of one element and dicts of them; {name!r} is {value!r}. Use "
            "`logger.experiment` for text, images and histograms."
        )
    return float(value)


def _shown(value: Any) -> Any:
    """A hyperparameter as the HPARAMS tab takes it."""
    return value if value is None or isinstance(value, (bool, int, float, str)) else str(value)

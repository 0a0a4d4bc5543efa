"""WandbLogger: Weights & Biases."""

from __future__ import annotations

import os
from argparse import Namespace
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Literal

from torch import nn

from gpulayer.fabric.utilities.exceptions import MisconfigurationException
from gpulayer.fabric.utilities.rank_zero import rank_zero_only, rank_zero_warn
from gpulayer.fabric.utilities.types import Path
from gpulayer.pytorch.loggers.logger import Logger, rank_zero_experiment
from gpulayer.pytorch.loggers.values import (
    CheckpointsToLog,
    LogModel,
    SavedCheckpoint,
    hyperparameters,
    named_numbers,
    optional_package,
)

if TYPE_CHECKING:
    from gpulayer.pytorch.core.callback import Checkpoint

STEP = "trainer/global_step"  # the x axis of every metric


class WandbLogger(Logger):
    """Logs to Weights & Biases, to its server or into files that `wandb sync` sends later.

    Metrics have `trainer/global_step` as their x axis. The run stays open after training, so that `trainer.test` goes
    on in it; wandb ends it with the process, or `wandb.finish()` does.

    Args:
        name: the run's display name. Default: wandb makes one up.
        save_dir: the folder in which wandb makes its own, `wandb/`.
        version: the run's id. That of an earlier run goes on with it.
        offline: write files, send nothing.
        dir: another name of `save_dir`.
        id: another name of `version`.
        anonymous: log without an account.
        project: the project. Default: `WANDB_PROJECT` from the environment, or "lightning_logs".
        log_model: log checkpoints as artifacts, with the aliases "latest" and "best". "all": each when it is saved;
            True: those that are left at the end of training, or each where the callback keeps all; False: none.
        experiment: a run of `wandb.init`, to log to instead of beginning one.
        prefix: put before each metric's name, with a "-".
        checkpoint_name: the artifact's name. Default: "model-<id of the run>".
        add_file_policy: "mutable": wandb copies a checkpoint before it uploads it; "immutable": it does not, and the
            file must not change or go away meanwhile.
        **kwargs: for `wandb.init`: `entity`, `group`, `tags` and so on.

    Raises:
        ModuleNotFoundError: wandb is not installed.
        MisconfigurationException: `log_model` together with `offline`.
    """

    LOGGER_JOIN_CHAR = "-"

    def __init__(
        self,
        name: str | None = None,
        save_dir: Path = ".",
        version: str | None = None,
        offline: bool = False,
        dir: Path | None = None,
        id: str | None = None,
        anonymous: bool | None = None,
        project: str | None = None,
        log_model: LogModel = False,
        experiment: Any = None,
        prefix: str = "",
        checkpoint_name: str | None = None,
        add_file_policy: Literal["mutable", "immutable"] = "mutable",
        **kwargs: Any,
    ) -> None:
        _wandb()
        if offline and log_model:
            raise MisconfigurationException(
                f"`WandbLogger(offline=True, log_model={log_model!r})`: an offline run uploads no checkpoints. Use "
                "`log_model=False`, or `offline=False`."
            )
        super().__init__()
        folder = dir if dir is not None and save_dir in (".", None) else save_dir
        settings: dict[str, Any] = {
            "name": name,
            "project": project or os.environ.get("WANDB_PROJECT", "lightning_logs"),
            "dir": None if folder is None else os.fspath(folder),
            "id": version or id,
            "resume": "allow",
        }
        if anonymous:
            settings["anonymous"] = "allow"
        if offline:
            settings["mode"] = "offline"
        self._settings = {**settings, **kwargs}
        folder = self._settings["dir"]
        # wandb's service would take it as below the folder that the program was in at its first run.
        self._folder = None if folder is None else os.path.abspath(os.path.expanduser(folder))
        self._experiment = experiment
        self._attach_id: str | None = None
        self._prefix = prefix
        self._checkpoints = CheckpointsToLog(log_model, "WandbLogger")
        self._checkpoint_name = checkpoint_name
        self._add_file_policy = add_file_policy

    @property
    @rank_zero_experiment
    def experiment(self) -> Any:
        """The run of wandb; begun when first asked for."""
        if self._experiment is None:
            self._experiment = self._begin()
        return self._experiment

    def _begin(self) -> Any:
        wandb = _wandb()
        if wandb.run is not None:
            rank_zero_warn(
                f"WandbLogger goes on with the run {wandb.run.id!r}, which this program has already begun. Call "
                "`wandb.finish()` before to begin another."
            )
            return wandb.run
        if self._attach_id is not None:  # this logger was unpickled in a process that the run's own one started
            return wandb.attach(self._attach_id)
        if self._folder is not None:
            os.makedirs(self._folder, exist_ok=True)  # without it wandb writes to a temporary folder
        run = wandb.init(**{**self._settings, "dir": self._folder})
        if self._settings.get("sync_tensorboard"):
            run.define_metric("*", step_metric="global_step")
        else:
            run.define_metric(STEP)
            run.define_metric("*", step_metric=STEP, step_sync=True)
        return run

    # -- numbers -----------------------------------------------------------------------------------------------------

    @rank_zero_only
    def log_metrics(self, metrics: Mapping[str, Any], step: int | None = None) -> None:
        row = named_numbers(metrics, self._prefix, self.LOGGER_JOIN_CHAR)
        if step is not None and not self._settings.get("sync_tensorboard"):
            row[STEP] = step
        self.experiment.log(row)

    @rank_zero_only
    def log_hyperparams(self, params: dict[str, Any] | Namespace, *args: Any, **kwargs: Any) -> None:
        self.experiment.config.update(hyperparameters(params), allow_val_change=True)

    @rank_zero_only
    def watch(
        self, model: nn.Module, log: str | None = "gradients", log_freq: int = 100, log_graph: bool = True
    ) -> None:
        """Log histograms of the model.

        Args:
            model: the model.
            log: "gradients", "parameters", "all", or None for neither.
            log_freq: after so many backward passes.
            log_graph: log its layers, too.
        """
        self.experiment.watch(model, log=log, log_freq=log_freq, log_graph=log_graph)

    @rank_zero_only
    def unwatch(self, model: nn.Module | None = None) -> None:
        """Log no more histograms of the model; None: of no model."""
        self.experiment.unwatch(model)

    # -- media -------------------------------------------------------------------------------------------------------

    @rank_zero_only
    def log_table(
        self,
        key: str,
        columns: list[str] | None = None,
        data: list[list[Any]] | None = None,
        dataframe: Any = None,
        step: int | None = None,
    ) -> None:
        """Log a table, whose cells may hold text, numbers and wandb's media.

        Args:
            key: its name.
            columns: the columns' names.
            data: the rows.
            dataframe: a pandas DataFrame, instead of both.
            step: the step, as in `log_metrics`.
        """
        self.log_metrics({key: _wandb().Table(columns=columns, data=data, dataframe=dataframe)}, step)

    @rank_zero_only
    def log_text(
        self,
        key: str,
        columns: list[str] | None = None,
        data: list[list[str]] | None = None,
        dataframe: Any = None,
        step: int | None = None,
    ) -> None:
        """Log text as a table; arguments as in `log_table`."""
        self.log_table(key, columns, data, dataframe, step)

    @rank_zero_only
    def log_image(self, key: str, images: list[Any], step: int | None = None, **kwargs: Any) -> None:
        """Log images.

        Args:
            key: their name.
            images: tensors, arrays, PIL images, or paths.
            step: the step, as in `log_metrics`.
            **kwargs: lists with a value for each, for `wandb.Image`: `caption`, `masks`, `boxes`.

        Raises:
            TypeError: `images` is no list.
            ValueError: a list in `kwargs` has another length.
        """
        self._log_media("Image", "images", key, images, step, kwargs)

    @rank_zero_only
    def log_audio(self, key: str, audios: list[Any], step: int | None = None, **kwargs: Any) -> None:
        """Log sounds.

        Args:
            key: their name.
            audios: arrays, or paths.
            step: the step, as in `log_metrics`.
            **kwargs: lists with a value for each, for `wandb.Audio`: `caption`, `sample_rate`.

        Raises:
            TypeError: `audios` is no list.
            ValueError: a list in `kwargs` has another length.
        """
        self._log_media("Audio", "audios", key, audios, step, kwargs)

    @rank_zero_only
    def log_video(self, key: str, videos: list[Any], step: int | None = None, **kwargs: Any) -> None:
        """Log videos.

        Args:
            key: their name.
            videos: arrays, or paths.
            step: the step, as in `log_metrics`.
            **kwargs: lists with a value for each, for `wandb.Video`: `caption`, `fps`, `format`.

        Raises:
            TypeError: `videos` is no list.
            ValueError: a list in `kwargs` has another length.
        """
        self._log_media("Video", "videos", key, videos, step, kwargs)

    def _log_media(
        self, kind: str, argument: str, key: str, items: list[Any], step: int | None, options: dict[str, list[Any]]
    ) -> None:
        if not isinstance(items, list):
            raise TypeError(
                f"`WandbLogger.log_{kind.lower()}({argument}=...)` takes a list, but got a {type(items).__name__}."
            )
        for name, values in options.items():
            if len(values) != len(items):
                raise ValueError(
                    f"`WandbLogger.log_{kind.lower()}({name}=...)` needs a value for each of the {len(items)} "
                    f"{argument}, but got {len(values)}."
                )
        make = getattr(_wandb(), kind)
        each = [{name: values[index] for name, values in options.items()} for index in range(len(items))]
        self.log_metrics({key: [make(item, **options) for item, options in zip(items, each, strict=True)]}, step)

    # -- artifacts ---------------------------------------------------------------------------------------------------

    @rank_zero_only
    def after_save_checkpoint(self, checkpoint_callback: Checkpoint) -> None:
        for checkpoint in self._checkpoints.after_save(checkpoint_callback):
            self._log_checkpoint(checkpoint)

    @rank_zero_only
    def finalize(self, status: str) -> None:
        """Log the checkpoints that are left, if training succeeded. The run stays open."""
        if status == "success" and self._experiment is not None:
            for checkpoint in self._checkpoints.at_end():
                self._log_checkpoint(checkpoint)

    def _log_checkpoint(self, checkpoint: SavedCheckpoint) -> None:
        artifact = _wandb().Artifact(
            name=self._checkpoint_name or f"model-{self.experiment.id}",
            type="model",
            metadata=checkpoint.metadata(settings_under=checkpoint.callback),
        )
        artifact.add_file(checkpoint.path, name="model.ckpt", policy=self._add_file_policy)
        self.experiment.log_artifact(artifact, aliases=checkpoint.aliases)

    def use_artifact(self, artifact: str, artifact_type: str | None = None) -> Any:
        """Note that the run uses an artifact.

        Args:
            artifact: its path, "entity/project/name:version".
            artifact_type: its type.

        Returns:
            The artifact of wandb.
        """
        return self.experiment.use_artifact(artifact, type=artifact_type)

    @staticmethod
    @rank_zero_only
    def download_artifact(
        artifact: str,
        save_dir: Path | None = None,
        artifact_type: str | None = None,
        use_artifact: bool | None = True,
    ) -> str:
        """Download an artifact.

        Args:
            artifact: its path, "entity/project/name:version".
            save_dir: the folder for it. Default: wandb's.
            artifact_type: its type.
            use_artifact: note that the run which is in progress uses it.

        Returns:
            The folder that holds it.
        """
        wandb = _wandb()
        if wandb.run is not None and use_artifact:
            found = wandb.run.use_artifact(artifact, type=artifact_type)
        else:
            found = wandb.Api().artifact(artifact, type=artifact_type)
        return str(found.download(root=None if save_dir is None else os.fspath(save_dir)))

    # -- which run ---------------------------------------------------------------------------------------------------

    @property
    def name(self) -> str | None:
        """The project. The run's own name is `logger.experiment.name`."""
        project: str | None = self._settings["project"]
        return project

    @property
    def version(self) -> str | None:
        """The run's id; None before it has begun, unless it was given."""
        identifier: str | None = self._settings["id"] if self._experiment is None else self._experiment.id
        return identifier

    @property
    def save_dir(self) -> str | None:
        """The folder that holds wandb's own, and checkpoints."""
        folder: str | None = self._settings["dir"]
        return folder

    def __getstate__(self) -> dict[str, Any]:
        state = {**self.__dict__, "_experiment": None}  # it has threads and sockets
        if self._experiment is not None:
            state["_attach_id"] = getattr(self._experiment, "_attach_id", None)
            state["_settings"] = {**self._settings, "id": self._experiment.id}
        return state


def _wandb() -> Any:
    return optional_package("wandb", "WandbLogger", "gpulayer[wandb]")

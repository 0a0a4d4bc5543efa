"""MLFlowLogger: MLflow, into a database on this machine or to a tracking server."""

from __future__ import annotations

import os
import re
import shutil
import tempfile
from argparse import Namespace
from collections.abc import Callable, Mapping
from concurrent import futures
from pathlib import Path as LocalPath
from threading import Thread
from time import time
from typing import TYPE_CHECKING, Any

import yaml

from gpulayer.fabric.utilities.exceptions import MisconfigurationException
from gpulayer.fabric.utilities.rank_zero import log, rank_zero_only
from gpulayer.pytorch.loggers.logger import Logger, rank_zero_experiment
from gpulayer.pytorch.loggers.outbox import Channel, Outbox
from gpulayer.pytorch.loggers.values import (
    CheckpointsToLog,
    LogModel,
    SavedCheckpoint,
    flatten,
    named_numbers,
    optional_package,
)

if TYPE_CHECKING:
    from gpulayer.pytorch.core.callback import Checkpoint

CONNECT_SECONDS = 60.0  # until a server must have answered at the start
UPLOAD_SECONDS = 1800.0  # that one checkpoint may take at the end of a run
METRICS_AT_ONCE = 1000  # the most that MLflow takes in one call
LONGEST_NAME, LONGEST_VALUE = 250, 6000  # characters of a name, and of a hyperparameter, that MLflow takes
REFUSED_CHARACTERS = re.compile(r"[^\w/.\- :]")
REFUSALS = (  # errors that a later try does not help
    "BAD_REQUEST",
    "INVALID_PARAMETER_VALUE",
    "PERMISSION_DENIED",
    "RESOURCE_ALREADY_EXISTS",
    "RESOURCE_DOES_NOT_EXIST",
)
METADATA, ALIASES = "metadata.yaml", "aliases.txt"  # beside a checkpoint
STATUS = {"success": "FINISHED", "finished": "FINISHED", "failed": "FAILED", "aborted": "KILLED"}


class MLFlowLogger(Logger):
    """Logs to MLflow: into an SQLite database, or to a tracking server.

    Rows, hyperparameters and checkpoints are sent from a thread, in batches. While a server is away training goes on;
    what has not been sent is kept, up to 10,000 rows, and sent when it is back. The end of a run waits until all is
    sent, or 20 seconds if the server stays away, and the log says what it has not got.

    MLflow itself tries each request again for minutes; since the thread does so better, the logger sets
    `MLFLOW_HTTP_REQUEST_MAX_RETRIES=1` for the program, unless it is set.

    Args:
        experiment_name: the experiment; made if there is none of the name.
        run_name: the run's name. Default: MLflow makes one up.
        tracking_uri: "sqlite:///<file>", a server as "http://<host>:<port>", or whatever MLflow takes. Default:
            `MLFLOW_TRACKING_URI` from the environment, or the database `mlflow.db` in `save_dir`.
        tags: the run's tags.
        save_dir: the folder of the database and the artifacts, if `tracking_uri` says nothing else.
        log_model: log checkpoints as artifacts. "all": each when it is saved; True: those that are left at the end of
            training, or each where the callback keeps all; False: none.
        prefix: put before each metric's name, with a "-".
        artifact_location: where a new experiment keeps artifacts. Default: `artifacts` in `save_dir`, or what the
            server decides.
        run_id: go on with this run.
        synchronous: True: send each row before `log_metrics` returns, without the thread.
        checkpoint_path_prefix: the folder for checkpoints among the artifacts.

    Raises:
        ModuleNotFoundError: mlflow is not installed.
    """

    LOGGER_JOIN_CHAR = "-"

    def __init__(
        self,
        experiment_name: str = "lightning_logs",
        run_name: str | None = None,
        tracking_uri: str | None = None,
        tags: dict[str, Any] | None = None,
        save_dir: str | None = "./mlruns",
        log_model: LogModel = False,
        prefix: str = "",
        artifact_location: str | None = None,
        run_id: str | None = None,
        synchronous: bool | None = None,
        checkpoint_path_prefix: str = "",
    ) -> None:
        optional_package("mlflow", "MLFlowLogger", "gpulayer[mlflow]")
        super().__init__()
        self._experiment_name = experiment_name
        self._run_name = run_name
        self._own_store = not (tracking_uri or os.environ.get("MLFLOW_TRACKING_URI"))
        self._save_dir = os.fspath(save_dir or "./mlruns")
        self._folder = os.path.abspath(os.path.expanduser(self._save_dir))  # the program may change its working folder
        self._tracking_uri = (
            tracking_uri or os.environ.get("MLFLOW_TRACKING_URI") or f"sqlite:///{self._folder}/mlflow.db"
        )
        if artifact_location is None and self._own_store:
            artifact_location = LocalPath(self._folder, "artifacts").as_uri()
        self.tags = dict(tags or {})
        self._checkpoints = CheckpointsToLog(log_model, "MLFlowLogger")
        self._checkpoint_path_prefix = checkpoint_path_prefix
        self._prefix = prefix
        self._artifact_location = artifact_location
        self._experiment_id: str | None = None
        self._run_id = run_id
        self._synchronous = bool(synchronous)
        self._metric_names, self._param_names = AllowedNames(), AllowedNames()
        self._params: dict[str, str] = {}  # what the run has
        self._cut_told = False
        self._client: Any = None
        self._outbox: Outbox | None = None

    # -- the run -----------------------------------------------------------------------------------------------------

    @property
    @rank_zero_experiment
    def experiment(self) -> Any:
        """The `MlflowClient`. When it is first asked for, the run begins.

        Raises:
            MisconfigurationException: no run could be begun there.
        """
        if self._client is None:
            self._client = self._begin()
        return self._client

    def _begin(self) -> Any:
        import mlflow
        from mlflow.exceptions import MlflowException

        uri = self._tracking_uri
        if uri.startswith("sqlite:///"):
            os.makedirs(os.path.dirname(uri.removeprefix("sqlite:///")) or ".", exist_ok=True)
        mlflow.set_tracking_uri(uri)  # for what the user's code says to mlflow itself
        shown = re.sub("//[^/@]*@", "//", uri)  # without a password
        try:
            if not uri.startswith(("http://", "https://")):
                client = self._begin_run()
            else:
                os.environ.setdefault("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "1")
                client = within(CONNECT_SECONDS, self._begin_run)
        except (MlflowException, TimeoutError) as error:
            raise MisconfigurationException(
                f"MLFlowLogger could not begin a run at `tracking_uri={shown!r}`. Check that the server runs there; "
                f"for a database on this machine give 'sqlite:///mlflow.db'. MLflow says: {error}"
            ) from error
        self._outbox = Outbox(
            "MLFlowLogger",
            [
                Channel("hyperparameter", self._send_params, at_once=20, most_waiting=10_000),
                Channel("row", self._send_rows, at_once=500, most_waiting=10_000),
                Channel("checkpoint", self._send_checkpoint, 1, 3, patience=UPLOAD_SECONDS, done_with=_remove),
                Channel("status", self._send_status, at_once=1, most_waiting=1),
            ],
            refused=lambda error: getattr(error, "error_code", None) in REFUSALS,
        )
        return client

    def _begin_run(self) -> Any:
        """The client, when there is a run at the server or in the database."""
        from mlflow.tracking import MlflowClient
        from mlflow.tracking.context.registry import resolve_tags

        client = MlflowClient(self._tracking_uri)
        if self._run_id is not None:
            run = client.get_run(self._run_id)
            self._params = dict(run.data.params)
            client.update_run(self._run_id, status="RUNNING")
        else:
            experiment = self._experiment_of(client)
            run = client.create_run(experiment, tags=resolve_tags(self.tags), run_name=self._run_name)
        self._run_id, self._experiment_id = run.info.run_id, run.info.experiment_id
        return client

    def _experiment_of(self, client: Any) -> str:
        from mlflow.exceptions import MlflowException

        found = client.get_experiment_by_name(self._experiment_name)
        if found is None:
            try:
                return str(client.create_experiment(self._experiment_name, artifact_location=self._artifact_location))
            except MlflowException:  # another process may have made it meanwhile
                found = client.get_experiment_by_name(self._experiment_name)
                if found is None:
                    raise
        return str(found.experiment_id)

    # -- what is logged ----------------------------------------------------------------------------------------------

    @rank_zero_only
    def log_metrics(self, metrics: Mapping[str, Any], step: int | None = None) -> None:
        row = named_numbers(metrics, self._prefix, self.LOGGER_JOIN_CHAR)
        self._put("row", (int(time() * 1000), step or 0, {self._metric_names(name): float(row[name]) for name in row}))

    @rank_zero_only
    def log_hyperparams(self, params: dict[str, Any] | Namespace, *args: Any, **kwargs: Any) -> None:
        """Log hyperparameters, nested ones as `outer/inner`. Those that the run has stay: MLflow never changes them.

        Args:
            params: values by name; what is longer than MLflow's 6,000 characters is cut.
            *args: not used.
            **kwargs: not used.
        """
        _ = self.experiment  # it knows what a run that goes on has already
        values = {self._param_names(name): self._cut(name, value) for name, value in flatten(params).items()}
        kept = sorted(name for name, value in values.items() if self._params.get(name, value) != value)
        if kept:
            log.warning("MLFlowLogger: the run keeps its first values of %s; MLflow does not change them.", kept)
        new = {name: value for name, value in values.items() if name not in self._params}
        self._params.update(new)
        self._put("hyperparameter", *new.items())

    def _cut(self, name: str, value: Any) -> str:
        text = str(getattr(value, "__name__", value))  # the text of a function has its address, which is never the same
        if len(text) > LONGEST_VALUE and not self._cut_told:
            self._cut_told = True
            log.warning(
                "MLFlowLogger: hyperparameters are cut after %s characters, which is all that MLflow takes; the first "
                "one is %r, of %s.",
                f"{LONGEST_VALUE:,}", name, f"{len(text):,}",
            )  # fmt: skip
        return text[:LONGEST_VALUE]

    @rank_zero_only
    def after_save_checkpoint(self, checkpoint_callback: Checkpoint) -> None:
        for checkpoint in self._checkpoints.after_save(checkpoint_callback):
            self._put("checkpoint", pinned(checkpoint))

    @rank_zero_only
    def finalize(self, status: str = "success") -> None:
        """Send what is held in memory, and tell MLflow how the run ended. The logger can go on with the run."""
        if self._client is None or self._outbox is None:
            return
        for checkpoint in self._checkpoints.at_end():
            self._put("checkpoint", pinned(checkpoint))
        if self._outbox.flush():
            self._put("status", STATUS.get(status, status))
            self._outbox.flush()

    def _put(self, kind: str, *things: Any) -> None:
        _ = self.experiment
        assert self._outbox is not None
        if self._synchronous:
            self._outbox.send_now(kind, *things)
        else:
            self._outbox.put(kind, *things)

    # -- how it is sent ----------------------------------------------------------------------------------------------

    def _send_rows(self, rows: list[tuple[int, int, dict[str, float]]]) -> None:
        from mlflow.entities import Metric

        metrics = [Metric(name, value, when, step) for when, step, row in rows for name, value in row.items()]
        for start in range(0, len(metrics), METRICS_AT_ONCE):
            self._client.log_batch(self._run_id, metrics=metrics[start : start + METRICS_AT_ONCE], synchronous=True)

    def _send_params(self, params: list[tuple[str, str]]) -> None:
        from mlflow.entities import Param

        self._client.log_batch(self._run_id, params=[Param(name, value) for name, value in params], synchronous=True)

    def _send_checkpoint(self, folders: list[LocalPath]) -> None:
        for folder in folders:
            stem = next(file.stem for file in folder.iterdir() if file.name not in (METADATA, ALIASES))
            place = f"{self._checkpoint_path_prefix.rstrip('/')}/{stem}" if self._checkpoint_path_prefix else stem
            self._client.log_artifacts(self._run_id, str(folder), place)

    def _send_status(self, statuses: list[str]) -> None:
        self._client.set_terminated(self._run_id, statuses[-1])

    # -- which run ---------------------------------------------------------------------------------------------------

    @property
    def run_id(self) -> str | None:
        """The run's id; the run begins if it has not."""
        _ = self.experiment
        return self._run_id

    @property
    def experiment_id(self) -> str | None:
        """The experiment's id; the run begins if it has not."""
        _ = self.experiment
        return self._experiment_id

    @property
    def name(self) -> str | None:
        """The experiment's id."""
        return self.experiment_id

    @property
    def version(self) -> str | None:
        """The run's id."""
        return self.run_id

    @property
    def save_dir(self) -> str | None:
        """The folder of the database, and of checkpoints; None if `tracking_uri` says where to log."""
        if self._own_store:
            return self._save_dir
        return self._tracking_uri.removeprefix("file:") if self._tracking_uri.startswith("file:") else None

    def __getstate__(self) -> dict[str, Any]:
        return {
            **self.__dict__,
            "_client": None,
            "_outbox": None,
        }  # a thread and connections; the run goes on by its id


class AllowedNames:
    """Names as MLflow takes them: what it refuses is left out, and no two of them become one."""

    def __init__(self) -> None:
        self._allowed: dict[str, str] = {}

    def __call__(self, name: str) -> str:
        if name not in self._allowed:
            self._allowed[name] = allowed = self._make(name)
            if allowed != name:
                log.warning("MLFlowLogger: MLflow does not take the name %r; it is logged as %r.", name, allowed)
        return self._allowed[name]

    def _make(self, name: str) -> str:
        # MLflow refuses what would be another path if it were one.
        parts = [part for part in REFUSED_CHARACTERS.sub("", name).split("/") if part.strip(".")]
        plain = allowed = "/".join(parts)[:LONGEST_NAME].rstrip("/") or "unnamed"
        number = 2
        while allowed in self._allowed.values():
            allowed = f"{plain[: LONGEST_NAME - 4]}_{number}"
            number += 1
        return allowed


def pinned(checkpoint: SavedCheckpoint) -> LocalPath:
    """A folder with a checkpoint, under a second name that stays when the callback deletes the first, and its facts."""
    source = LocalPath(checkpoint.path)
    folder = LocalPath(tempfile.mkdtemp(prefix=".mlflow-", dir=source.parent))
    try:
        os.link(source, folder / source.name)
    except OSError:  # not every file system has links
        shutil.copy2(source, folder / source.name)
    (folder / METADATA).write_text(yaml.safe_dump(checkpoint.metadata(settings_under="Checkpoint")), encoding="utf-8")
    (folder / ALIASES).write_text(str(checkpoint.aliases), encoding="utf-8")
    return folder


def _remove(folder: LocalPath) -> None:
    shutil.rmtree(folder, ignore_errors=True)  # the user may have removed all


def within(seconds: float, function: Callable[[], Any]) -> Any:
    """What a function returns, if it does so in time; a call that hangs is left to a thread.

    Raises:
        TimeoutError: it did not.
    """
    future: futures.Future[Any] = futures.Future()

    def call() -> None:
        try:
            future.set_result(function())
        except BaseException as error:
            future.set_exception(error)

    Thread(target=call, daemon=True).start()
    try:
        return future.result(seconds)
    except futures.TimeoutError:
        raise TimeoutError(f"no answer within {seconds:.0f} s") from None

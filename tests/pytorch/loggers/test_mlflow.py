"""MLFlowLogger: an SQLite database and a real tracking server, which is killed and comes back."""

from __future__ import annotations

import logging
import os
import pickle
import shutil
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

import gpulayer.pytorch as L
from gpulayer.fabric.utilities.exceptions import MisconfigurationException
from gpulayer.fabric.utilities.rank_zero import rank_zero_only
from gpulayer.pytorch.callbacks import ModelCheckpoint
from gpulayer.pytorch.loggers import MLFlowLogger, outbox
from gpulayer.pytorch.loggers.logger import DummyExperiment
from tests.pytorch.loggers.runs import Told, agrees, fit

pytest.importorskip("mlflow")

from mlflow.tracking import MlflowClient

pytestmark = pytest.mark.filterwarnings("ignore:The ``noload`` loader strategy is deprecated")  # MLflow's own use of it


@pytest.fixture(autouse=True, scope="module")
def environment() -> Iterator[None]:
    """MLflow's address and number of retries are global, and the logger sets both."""
    names = ("MLFLOW_TRACKING_URI", "MLFLOW_HTTP_REQUEST_MAX_RETRIES")
    with pytest.MonkeyPatch.context() as patch:
        for name in names:
            patch.setenv(name, "")
            os.environ.pop(name)
        yield


@pytest.fixture(scope="module")
def empty_database(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """MLflow takes seconds to make one: it is made once, and each test gets a copy."""
    file = tmp_path_factory.mktemp("mlflow") / "mlflow.db"
    MlflowClient(f"sqlite:///{file}").search_experiments()
    return file


@pytest.fixture
def database(empty_database: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> MlflowClient:
    """The database that a logger with `save_dir="out"` uses."""
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    Path("out").mkdir()
    shutil.copy(empty_database, "out/mlflow.db")
    return MlflowClient(f"sqlite:///{tmp_path}/out/mlflow.db")


def series(client: MlflowClient, run_id: str, name: str) -> list[tuple[int, float]]:
    """A metric's values with their steps, as MLflow has them."""
    return sorted((entry.step, entry.value) for entry in client.get_metric_history(run_id, name))


# -- a database ------------------------------------------------------------------------------------------------------


def test_a_fit_into_a_database(database: MlflowClient) -> None:
    logger = MLFlowLogger(
        "digits",
        "first",
        save_dir="out",
        tags={"team": "a"},
        prefix="x",
        log_model="all",
        checkpoint_path_prefix="nets",
    )
    trainer = fit(logger)
    run = database.get_run(logger.version)
    for name in ("train_loss", "val_loss"):
        assert agrees(series(database, logger.version, f"x-{name}"), name)
    assert run.data.params == {
        "lr": "0.05", "layers": "(1, 2)", "activation": "ReLU", "nested/width/first": "3", "text": "a",
    }  # fmt: skip
    assert run.data.tags["team"] == "a"
    assert (run.info.run_name, run.info.status, run.info.experiment_id) == ("first", "FINISHED", logger.name)
    assert database.get_experiment(logger.name).name == "digits"
    assert (logger.save_dir, logger.log_dir) == ("out", None)
    paths = trainer.checkpoint_callback.best_k_models
    assert {Path(path).parent for path in paths} == {Path("out", logger.name, logger.version, "checkpoints").resolve()}
    for path in map(Path, paths):
        copy = Path("out/artifacts", logger.version, "artifacts/nets", path.stem)
        assert (copy / path.name).read_bytes() == path.read_bytes()
        assert sorted(file.name for file in copy.iterdir()) == ["aliases.txt", path.name, "metadata.yaml"]
        assert f"score: {float(paths[str(path)])}" in (copy / "metadata.yaml").read_text()
    assert not list(Path("out").rglob(".mlflow-*"))


def test_checkpoints_that_were_deleted_meanwhile_arrive(database: MlflowClient) -> None:
    """Each save deletes the file before it, which the thread may not have sent yet."""
    logger = MLFlowLogger(save_dir="out", log_model="all")
    fit(logger, callbacks=[ModelCheckpoint(every_n_train_steps=4)])
    sent = {artifact.path for artifact in database.list_artifacts(logger.version)}
    assert sent == {"epoch=0-step=4", "epoch=1-step=8"}
    assert len(list(Path("out").rglob("checkpoints/*"))) == 1


def test_fit_and_test_are_one_run_and_a_failed_one_keeps_its_rows(database: MlflowClient) -> None:
    class Breaks(Told):
        def training_step(self, batch: Any, batch_idx: int) -> Any:
            if self.global_step == 5:
                raise ValueError("the user's own")
            return super().training_step(batch, batch_idx)

    logger = MLFlowLogger(save_dir="out")
    with pytest.raises(ValueError, match="the user's own"):
        fit(logger, Breaks())
    assert database.get_run(logger.version).info.status == "FAILED"
    L.Trainer(logger=logger, accelerator="cpu").test(Told(), [(torch.ones(1, 4), torch.ones(1, 1))])
    assert database.get_run(logger.version).info.status == "FINISHED"
    assert [step for step, _ in series(database, logger.version, "train_loss")] == [0, 1, 2, 3, 4]
    assert [step for step, _ in series(database, logger.version, "test_loss")] == [0]


def test_a_run_goes_on(database: MlflowClient, caplog: pytest.LogCaptureFixture) -> None:
    """Its hyperparameters stay as they were first, for MLflow does not change them."""
    first = MLFlowLogger(save_dir="out")
    first.log_hyperparams({"lr": 0.1, "size": 3})
    first.finalize("success")
    second = MLFlowLogger(save_dir="out", run_id=first.run_id)
    assert second.experiment.get_run(second.run_id).info.status == "RUNNING"
    second.log_hyperparams({"lr": 0.2, "size": 3, "new": 1})
    second.log_metrics({"a": 1.0}, step=4)
    second.finalize("success")
    assert database.get_run(first.run_id).data.params == {"lr": "0.1", "size": "3", "new": "1"}
    assert series(database, first.run_id, "a") == [(4, 1.0)]
    assert "the run keeps its first values of ['lr']" in caplog.text


def test_names_that_mlflow_refuses(database: MlflowClient, caplog: pytest.LogCaptureFixture) -> None:
    """They lose what it refuses, each with one warning; different names stay different."""
    logger = MLFlowLogger(save_dir="out")
    wanted = {
        "größe": "größe", "a:b": "a:b", "val/x.y z-1": "val/x.y z-1", "loss[0]": "loss0", "acc@1": "acc1",
        "acc[1]": "acc1_2", "/a//b/": "a/b", "../up": "up", "?": "unnamed", "n" * 300: "n" * 250,
    }  # fmt: skip
    for step in range(2):
        logger.log_metrics({name: float(number) for number, name in enumerate(wanted)}, step=step)
    logger.log_hyperparams({"a?b": 1})
    logger.finalize("success")
    for number, name in enumerate(wanted.values()):
        assert series(database, logger.version, name) == [(0, number), (1, number)]
    assert database.get_run(logger.version).data.params == {"ab": "1"}
    told = [record.getMessage() for record in caplog.records if "does not take the name" in record.getMessage()]
    assert len(told) == sum(name != allowed for name, allowed in wanted.items()) + 1


def test_long_hyperparameters_are_cut(database: MlflowClient, caplog: pytest.LogCaptureFixture) -> None:
    logger = MLFlowLogger(save_dir="out")
    logger.log_hyperparams({"long": "x" * 7000, "longer": "y" * 9000, "short": "", "none": None})
    logger.finalize("success")
    params = database.get_run(logger.version).data.params
    assert params == {"long": "x" * 6000, "longer": "y" * 6000, "short": "", "none": "None"}
    assert caplog.text.count("cut after 6,000 characters") == 1


def test_many_hyperparameters_and_a_wide_row(database: MlflowClient) -> None:
    """More than MLflow takes in one call."""
    logger = MLFlowLogger(save_dir="out")
    logger.log_hyperparams({f"p{number}": number for number in range(250)})
    logger.log_metrics({f"m{number}": torch.tensor(float(number)) for number in range(2300)}, step=1)
    logger.finalize("success")
    run = database.get_run(logger.version)
    assert len(run.data.params) == 250
    assert run.data.metrics == {f"m{number}": float(number) for number in range(2300)}


def test_synchronous(database: MlflowClient) -> None:
    """A row is there when `log_metrics` returns, and what MLflow refuses is raised."""
    logger = MLFlowLogger(save_dir="out", synchronous=True)
    logger.log_metrics({"a": 1.0}, step=3)
    assert series(database, logger.version, "a") == [(3, 1.0)]
    logger.experiment.delete_run(logger.version)
    with pytest.raises(Exception, match="must be in the 'active' state"):
        logger.log_metrics({"a": 2.0}, step=4)


def test_rows_that_mlflow_refuses_are_counted(database: MlflowClient, caplog: pytest.LogCaptureFixture) -> None:
    logger = MLFlowLogger(save_dir="out")
    logger.experiment.delete_run(logger.version)
    logger.log_metrics({"a": 1.0}, step=0)
    logger.log_metrics({"a": 1.0}, step=1)
    logger.finalize("success")
    assert "the server refused 2 rows" in caplog.text
    assert "MLFlowLogger lacks 2 rows of this run" in caplog.text


def test_logging_does_not_wait(database: MlflowClient) -> None:
    """One call to MLflow takes some 20 ms; here it is the queue that takes the row."""
    logger = MLFlowLogger(save_dir="out")
    _ = logger.experiment
    began = time.perf_counter()
    for step in range(1000):
        logger.log_metrics({"a": 1.0}, step=step)
    assert time.perf_counter() - began < 2
    logger.finalize("success")
    assert series(database, logger.version, "a") == [(step, 1.0) for step in range(1000)]


def test_a_logger_is_pickled(database: MlflowClient) -> None:
    """Before its run begins; and after, when the copy goes on with the run."""
    logger = pickle.loads(pickle.dumps(MLFlowLogger(save_dir="out")))
    logger.log_metrics({"a": 1.0}, step=0)
    logger.finalize("success")
    copy = pickle.loads(pickle.dumps(logger))
    copy.log_metrics({"a": 2.0}, step=1)
    copy.finalize("success")
    assert copy.version == logger.version
    assert series(database, logger.version, "a") == [(0, 1.0), (1, 2.0)]


def test_other_ranks_write_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rank_zero_only, "rank", 1)
    logger = MLFlowLogger(save_dir="out")
    assert isinstance(logger.experiment, DummyExperiment)
    logger.log_metrics({"a": 1.0}, step=0)
    logger.log_hyperparams({"a": 1})
    logger.finalize("success")
    assert logger.version is None
    assert not Path("out").exists()


def test_where_it_logs(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    assert MLFlowLogger().save_dir == "./mlruns"
    assert MLFlowLogger(tracking_uri="sqlite:///a.db").save_dir is None
    assert MLFlowLogger(tracking_uri="file:./there").save_dir == "./there"
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://127.0.0.1:9")
    assert MLFlowLogger().save_dir is None


def test_the_file_store_is_closed() -> None:
    with pytest.raises(
        MisconfigurationException, match=r"file:\./mlruns.*give 'sqlite:///mlflow\.db'.*maintenance mode"
    ):
        fit(MLFlowLogger(tracking_uri="file:./mlruns"))


def test_no_server_at_the_start() -> None:
    """The run does not begin, and the message has no password."""
    began = time.monotonic()
    with pytest.raises(MisconfigurationException, match=r"'http://127\.0\.0\.1:9'`\. Check that the server runs"):
        fit(MLFlowLogger(tracking_uri="http://me:secret@127.0.0.1:9"))
    assert time.monotonic() - began < 20


def test_without_the_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "mlflow", None)
    with pytest.raises(ModuleNotFoundError, match=r"needs the package mlflow: pip install 'gpulayer\[mlflow\]'"):
        MLFlowLogger()


# -- a server --------------------------------------------------------------------------------------------------------


class Server:
    """`mlflow server` on this machine, which can be killed, stopped and started again."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]
        self.uri = f"http://127.0.0.1:{self.port}"
        self.process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        arguments = f"server --host 127.0.0.1 --port {self.port} --workers 1 --artifacts-destination ./artifacts"
        store = ["--backend-store-uri", f"sqlite:///{self.folder}/mlflow.db"]
        with (self.folder / "server.log").open("ab") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "mlflow", *arguments.split(), *store],
                cwd=self.folder, stdout=log, stderr=log, start_new_session=True,
                env={**os.environ, "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false"},
            )  # fmt: skip
        deadline = time.monotonic() + 90
        while not self.healthy():
            assert self.process.poll() is None, (self.folder / "server.log").read_text()
            assert time.monotonic() < deadline
            time.sleep(0.1)

    def healthy(self) -> bool:
        try:
            return bool(urllib.request.urlopen(f"{self.uri}/health", timeout=2).status == 200)
        except OSError:
            return False

    def signal(self, number: int) -> None:
        """To the server and the workers that it started."""
        assert self.process is not None
        os.killpg(self.process.pid, number)

    def kill(self) -> None:
        self.signal(signal.SIGKILL)
        assert self.process is not None
        self.process.wait()
        self.process = None


@pytest.fixture(scope="module")
def module_server(empty_database: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    folder = tmp_path_factory.mktemp("server")
    shutil.copy(empty_database, folder / "mlflow.db")
    server = Server(folder)
    server.start()
    yield server
    if server.process is not None:
        server.kill()


@pytest.fixture
def server(module_server: Server) -> Server:
    if module_server.process is None:
        module_server.start()
    return module_server


@pytest.fixture
def hasty(monkeypatch: pytest.MonkeyPatch) -> None:
    """Waits for seconds where a user would wait for half a minute."""
    for name, seconds in {"GATHER": 0.1, "FIRST_PAUSE": 0.2, "LONGEST_PAUSE": 0.5, "PATIENCE": 2.0}.items():
        monkeypatch.setattr(outbox, name, seconds)


def test_a_server_that_hangs(server: Server, hasty: None, caplog: pytest.LogCaptureFixture) -> None:
    """It takes connections and never answers: neither a row nor the end of the run waits for it."""
    logger = MLFlowLogger("hangs", tracking_uri=server.uri)
    logger.log_metrics({"a": 1.0}, step=0)
    logger.finalize("success")
    server.signal(signal.SIGSTOP)
    try:
        began = time.monotonic()
        logger.log_metrics({"a": 1.0}, step=1)
        assert time.monotonic() - began < 0.5
        logger.finalize("success")
        assert time.monotonic() - began < 10
    finally:
        server.signal(signal.SIGCONT)
    assert "MLFlowLogger lacks 1 row of this run" in caplog.text


class KillsServer(L.Callback):
    """In the middle of training the server dies; it is started again some steps later, or never."""

    def __init__(self, server: Server, again: bool) -> None:
        self.server, self.again, self.longest = server, again, 0.0
        self.client = MlflowClient(server.uri)

    def on_train_batch_start(self, trainer: L.Trainer, *args: Any) -> None:
        self.began = time.monotonic()

    def on_train_batch_end(self, trainer: L.Trainer, *args: Any) -> None:
        self.longest = max(self.longest, time.monotonic() - self.began)
        if trainer.global_step == 3:
            assert trainer.logger
            while not self.client.get_metric_history(str(trainer.logger.version), "train_loss"):
                time.sleep(0.1)  # the first row arrives
            self.server.kill()
        if trainer.global_step > 3:
            time.sleep(0.2)  # the thread finds that it is away
        if trainer.global_step == 7 and self.again:
            self.server.start()


def test_a_server_that_dies_and_comes_back(server: Server, hasty: None, caplog: pytest.LogCaptureFixture) -> None:
    """Training goes on meanwhile, and nothing is missing in the end: rows, hyperparameters, checkpoints, status."""
    caplog.set_level(logging.INFO)
    logger = MLFlowLogger("dies", tracking_uri=server.uri, log_model="all")
    callback = KillsServer(server, again=True)
    trainer = fit(logger, callbacks=[callback, ModelCheckpoint(every_n_train_steps=4, save_top_k=-1)])
    assert callback.longest < 1
    client = MlflowClient(server.uri)
    for name in ("train_loss", "val_loss"):
        assert agrees(series(client, logger.version, name), name)
    assert client.get_run(logger.version).info.status == "FINISHED"
    sent = client.list_artifacts(logger.version)
    assert [artifact.path for artifact in sent] == ["epoch=0-step=4", "epoch=1-step=8"]
    assert "MLFlowLogger cannot send rows" in caplog.text
    assert "the server takes rows again" in caplog.text
    assert "lacks" not in caplog.text
    assert trainer.global_step == 8


def test_a_server_that_dies_for_good(server: Server, hasty: None, caplog: pytest.LogCaptureFixture) -> None:
    """The run ends as if nothing had been; the log says once that it is away, and what it has not got."""
    logger = MLFlowLogger("dead", tracking_uri=server.uri, log_model="all")
    trainer = fit(logger, callbacks=[KillsServer(server, again=False), ModelCheckpoint(monitor="val_loss")])
    assert trainer.global_step == 8
    messages = [record.getMessage() for record in caplog.records if "MLFlowLogger" in record.getMessage()]
    assert sum("cannot send rows" in message for message in messages) == 1
    lacks = [message for message in messages if "lacks" in message]
    assert len(lacks) == 2
    assert any("rows of this run. The last error: API request to" in message for message in lacks)
    assert not list(Path.cwd().rglob(".mlflow-*"))
    database = MlflowClient(f"sqlite:///{server.folder}/mlflow.db")
    steps = [step for step, _ in series(database, logger.version, "train_loss")]
    assert steps == list(range(len(steps)))
    assert 1 <= len(steps) < 8

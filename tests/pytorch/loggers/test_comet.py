"""CometLogger: offline experiments, read back from their archives."""

from __future__ import annotations

import json
import os
import pickle
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

import gpulayer.pytorch as L
from gpulayer.fabric.utilities.exceptions import MisconfigurationException
from gpulayer.fabric.utilities.rank_zero import rank_zero_only
from gpulayer.pytorch.loggers import CometLogger
from gpulayer.pytorch.loggers.logger import DummyExperiment
from tests.pytorch.loggers.runs import Told, agrees, fit

# What the logger sets before comet is imported, which otherwise patches torch for the whole session.
os.environ.setdefault("COMET_DISABLE_AUTO_LOGGING", "1")
pytest.importorskip("comet_ml")


@pytest.fixture(autouse=True)
def no_account(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in ("COMET_API_KEY", "COMET_OFFLINE_DIRECTORY", "COMET_MODE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("COMET_CONFIG", str(tmp_path / "none.config"))


def offline(**arguments: Any) -> CometLogger:
    """A logger that writes an archive into out/, and of the machine and the code nothing."""
    silent = {"log_env_details": False, "log_code": False, "log_git_metadata": False, "display_summary_level": 0}
    return CometLogger(
        **{"online": False, "offline_directory": "out", "auto_output_logging": False, **silent, **arguments}
    )


class Archive:
    """What is in the only archive in a folder: metrics as (name, step, epoch, value), and hyperparameters."""

    def __init__(self, folder: str | Path = "out") -> None:
        (file,) = Path(folder).glob("*.zip")
        with zipfile.ZipFile(file) as archive:
            self.experiment = json.loads(archive.read("experiment.json"))
            messages = [json.loads(line) for line in archive.read("messages.json").splitlines()]
        self.messages = [(message["type"], message["payload"]) for message in messages]
        found = [payload["metric"] for kind, payload in self.messages if kind == "metric_msg"]
        self.metrics = [(one["metricName"], one["step"], one["epoch"], one["metricValue"]) for one in found]
        given = [payload for kind, payload in self.messages if kind == "parameter_msg"]
        params = [payload.get("param") or payload["params"] for payload in given]  # "params": a list is its value
        self.params = {one["paramName"]: one["paramValue"] for one in params if one["source"] == "manual"}

    def series(self, name: str) -> list[tuple[int, float]]:
        """A metric's values with their steps."""
        return [(step, value) for metric, step, _, value in self.metrics if metric == name]


@pytest.fixture(scope="module")
def done(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Archive, L.Trainer, Path]]:
    """A fit into an archive, the trainer, and the folder it ran in."""
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(tmp_path_factory.mktemp("fit"))
        logger = offline(project="digits", prefix="x", name="first", tags=["a"])
        trainer = fit(logger)
        tested = Told(nested={"width": {"first": 3}})
        L.Trainer(logger=logger, accelerator="cpu").test(tested, [(torch.ones(1, 4), torch.ones(1, 1))])
        logger.experiment.end()
        yield Archive(), trainer, Path.cwd()


def test_metrics_have_the_trainers_steps(done: tuple[Archive, L.Trainer, Path]) -> None:
    """The epoch is Comet's own axis, not a metric."""
    archive, _, folder = done
    for name in ("train_loss", "val_loss"):
        assert agrees(archive.series(f"x_{name}"), name, folder)
    epochs = [epoch for name, _, epoch, _ in archive.metrics if name == "x_train_loss"]
    assert epochs == [0, 0, 0, 0, 1, 1, 1, 1]
    assert not archive.series("x_epoch")
    assert len(archive.series("x_test_loss")) == 1


def test_hyperparameters(done: tuple[Archive, L.Trainer, Path]) -> None:
    """Nested ones as Comet writes them."""
    assert done[0].params == {
        "lr": 0.05, "layers": [1, 2], "activation": "ReLU", "nested|width|first": 3, "text": "a",
    }  # fmt: skip


def test_the_models_layers(done: tuple[Archive, L.Trainer, Path]) -> None:
    (graph,) = [payload["graph"] for kind, payload in done[0].messages if kind == "graph"]
    assert "Linear(in_features=4, out_features=1" in graph


def test_names_and_folders(done: tuple[Archive, L.Trainer, Path]) -> None:
    archive, trainer, folder = done
    logger = trainer.logger
    assert logger is not None
    assert (logger.name, logger.save_dir, logger.log_dir) == ("digits", "out", None)
    assert logger.version == archive.experiment["offline_id"]
    assert archive.experiment["project_name"] == "digits"
    assert archive.experiment["tags"] == ["a"]
    assert ("name", "first") in [(one.get("key", "").lower(), one.get("value")) for _, one in archive.messages]
    checkpoints = folder / "out" / "digits" / logger.version / "checkpoints"
    assert len(list(checkpoints.glob("*.ckpt"))) == 2


def test_a_logger_is_pickled_before_its_experiment() -> None:
    logger = pickle.loads(pickle.dumps(offline(project="digits")))
    assert not Path("out").exists()
    logger.log_metrics({"a": torch.tensor(1.0)}, step=3)
    logger.experiment.end()
    assert Archive().series("a") == [(3, 1.0)]


def test_former_names_of_arguments() -> None:
    """As scripts written for older versions say it. `offline=True` means not online."""
    with pytest.warns(UserWarning, match="is now called") as told:
        logger = CometLogger(experiment_name="a", project_name="b", offline=True, save_dir="out")
    assert [str(one.message).split("=")[0] for one in told] == [
        "`CometLogger(experiment_name", "`CometLogger(project_name", "`CometLogger(offline", "`CometLogger(save_dir",
    ]  # fmt: skip
    assert (logger.name, logger.save_dir) == ("b", "out")
    assert logger._start["online"] is False
    assert logger._config.name == "a"


def test_wrong_arguments() -> None:
    with pytest.raises(MisconfigurationException, match=r"mode='new'\)`: choose 'get_or_create', 'get' or 'create'"):
        CometLogger(mode="new")  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="colour"):
        CometLogger(colour="red")


def test_other_ranks_write_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rank_zero_only, "rank", 1)
    logger = offline()
    assert isinstance(logger.experiment, DummyExperiment)
    logger.log_metrics({"a": 1.0}, step=0)
    logger.log_hyperparams({"a": 1})
    logger.log_graph(torch.nn.Linear(1, 1))
    logger.finalize("success")
    assert logger.version is None
    assert not Path("out").exists()


def test_without_the_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "comet_ml", None)
    with pytest.raises(ModuleNotFoundError, match=r"needs the package comet_ml: pip install 'gpulayer\[comet\]'"):
        CometLogger()

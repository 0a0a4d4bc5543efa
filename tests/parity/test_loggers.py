"""The loggers of services: the same names, steps, values and artifacts in wandb's files and in MLflow's database.

Comet is not compared: Lightning 2.6.6 disables its offline experiments, which then write nothing.
"""

from __future__ import annotations

import inspect
import json
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from torch import nn

from tests.parity.oracle import GPULAYER, LIGHTNING, close, outcome_of, parting
from tests.parity.recorder import Lab, Outcome, loader, loss_of
from tests.pytorch.loggers.wandb_file import WandbRun

pytestmark = pytest.mark.filterwarnings("ignore:The ``noload`` loader strategy is deprecated")  # MLflow's own use of it


@pytest.fixture(autouse=True)
def environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """wandb is quiet; and what MLflow sets for the whole program is set back."""
    for name in ("WANDB_SILENT", "WANDB_X_DISABLE_STATS"):
        monkeypatch.setenv(name, "true")
    monkeypatch.setenv("WANDB_CONSOLE", "off")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "")
    monkeypatch.delenv("MLFLOW_TRACKING_URI")


def logged_run(L: ModuleType, folder: Path, logger: Any) -> Any:
    """A fit of two epochs with hyperparameters, step and epoch metrics and checkpoints, then a test; the trainer."""
    lab = Lab(L, folder)

    class Net(L.LightningModule):  # type: ignore[name-defined, misc]
        def __init__(self, lr: float = 0.05, layers: Any = (1, 2), nested: Any = None, text: str = "a") -> None:
            super().__init__()
            self.save_hyperparameters()
            self.net = nn.Linear(4, 1)

        def training_step(self, batch: torch.Tensor, batch_idx: int) -> Any:
            loss = loss_of(self.net, batch)
            self.log("loss", loss, on_step=True, on_epoch=True)
            self.log("group/one.two", float(batch_idx))
            return loss

        def validation_step(self, batch: torch.Tensor, batch_idx: int) -> None:
            self.log("val loss", loss_of(self.net, batch))

        def test_step(self, batch: torch.Tensor, batch_idx: int) -> None:
            self.log("test_loss", loss_of(self.net, batch))

        def configure_optimizers(self) -> Any:
            return torch.optim.SGD(self.parameters(), lr=0.01)

    checkpoint = lab.callbacks.ModelCheckpoint(monitor="val loss", save_top_k=2)
    trainer = lab.trainer(logger=logger, callbacks=[checkpoint], enable_checkpointing=True, log_every_n_steps=2)
    module = Net(nested={"a": {"b": 3}})
    trainer.fit(module, loader(6), loader(2))
    trainer.test(module, loader(2), verbose=False)
    return trainer


def in_wandb(L: ModuleType, folder: Path) -> Outcome:
    wandb = pytest.importorskip("wandb")
    loggers = Lab(L, folder).loggers
    logger = loggers.WandbLogger(
        name="run", save_dir=folder, project="digits", prefix="x", log_model="all", mode="offline"
    )
    trainer = logged_run(L, folder, logger)
    identifier = logger.version
    places = [Path(path).relative_to(folder).parent for path in trainer.checkpoint_callback.best_k_models]
    wandb.finish()
    run = WandbRun(folder)
    rows = sorted(({**row} for row in run.rows), key=lambda row: (row["trainer/global_step"], sorted(row)))
    metadata = [json.loads(artifact.metadata) for artifact in run.artifacts]
    return Outcome(
        notes={
            "rows": rows,
            "config": run.config,
            "axes": run.axes,
            "run": [run.run.display_name, run.run.project, str(logger.save_dir) == str(folder), logger.name],
            "places": [str(place).replace(identifier, "ID") for place in places],
            "artifacts": [
                [artifact.type, artifact.name.replace(identifier, "ID"), sorted(artifact.aliases)]
                for artifact in run.artifacts
            ],
            "metadata": metadata,
        }
    )


def in_mlflow(L: ModuleType, folder: Path) -> Outcome:
    pytest.importorskip("mlflow")
    from mlflow.tracking import MlflowClient

    loggers = Lab(L, folder).loggers
    uri = f"sqlite:///{folder.parent}/mlflow.db"  # both libraries log to one, which takes MLflow seconds to make
    store = folder.parent / "artifacts"
    logger = loggers.MLFlowLogger(
        experiment_name="digits", run_name="run", tracking_uri=uri, tags={"team": "a"}, log_model="all", prefix="x",
        artifact_location=store.as_uri(),
    )  # fmt: skip
    trainer = logged_run(L, folder, logger)
    client = MlflowClient(uri)
    run = client.get_run(logger.version)
    history = {  # MLflow keeps one of two equal entries of the same millisecond, such as `epoch` of two rows
        name: [list(e) for e in sorted({(e.step, e.value) for e in client.get_metric_history(logger.version, name)})]
        for name in run.data.metrics
    }
    artifacts = store / logger.version / "artifacts"
    files = sorted(str(file.relative_to(artifacts)) for file in artifacts.rglob("*") if file.is_file())
    places = {Path(path).parent.relative_to(folder) for path in trainer.checkpoint_callback.best_k_models}
    return Outcome(
        notes={
            "history": history,
            "params": run.data.params,
            "tags": {name: value for name, value in run.data.tags.items() if name in ("team", "mlflow.runName")},
            "run": [run.info.status, run.info.run_name, logger.name == run.info.experiment_id, logger.save_dir],
            "files": files,
            "aliases": [file.read_text() for file in sorted(artifacts.rglob("aliases.txt"))],
            "places": [str(place).replace(logger.version, "ID") for place in places],
        }
    )


@pytest.mark.parametrize("scenario", [in_wandb, in_mlflow])
def test_what_reaches_the_service(scenario: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    lightning, gpulayer = (outcome_of(name, scenario, tmp_path / name).notes for name in (LIGHTNING, GPULAYER))
    assert all(lightning.values())
    assert parting(lightning, gpulayer) == {}
    assert close(lightning, gpulayer)


@pytest.mark.parametrize("name", ["WandbLogger", "MLFlowLogger", "CometLogger"])
def test_arguments(name: str, tmp_path: Path) -> None:
    """Names, order, kinds and defaults; what is new comes last."""

    def arguments(L: ModuleType, folder: Path) -> Outcome:
        signature = inspect.signature(getattr(Lab(L, folder).loggers, name).__init__)
        return Outcome(
            notes={"arguments": [(one.name, one.kind, one.default) for one in signature.parameters.values()]}
        )

    lightning, gpulayer = (outcome_of(one, arguments, tmp_path).notes["arguments"] for one in (LIGHTNING, GPULAYER))
    assert gpulayer[: len(lightning)] == lightning
    assert [one[0] for one in gpulayer[len(lightning) :]] == (
        ["checkpoint_path_prefix"] if name == "MLFlowLogger" else []
    )

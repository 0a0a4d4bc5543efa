"""TensorBoardLogger: the same tags, steps, values, hyperparameters and folders as Lightning's, of the same run."""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tensorboard.plugins.hparams.plugin_data_pb2 import HParamsPluginData

from tests.parity.oracle import GPULAYER, LIGHTNING, outcome_of, parting
from tests.parity.recorder import FEATURES, Lab, Outcome, loader, loss_of

Scenario = Callable[[Lab, Any], Any]
HPARAMS: dict[str, Any] = {"lr": 0.1, "depth": 3, "name": "x", "net": {"act": "relu", "sizes": [1, 2]}, "flag": True}


def contents(folder: Path) -> dict[str, Any]:
    """What TensorBoard reads in a folder: scalars, hyperparameters, kinds of data."""
    found = EventAccumulator(str(folder), size_guidance={"scalars": 0})
    found.Reload()
    tags = found.Tags()
    shown: dict[str, Any] = {}
    for metadata in found.summary_metadata.values():
        content = HParamsPluginData.FromString(metadata.plugin_data.content)
        for name, value in content.session_start_info.hparams.items():
            shown[name] = getattr(value, value.WhichOneof("kind"))
        for metric in content.experiment.metric_infos:
            shown[f"metric {metric.name.tag}"] = True
    return {
        "scalars": {tag: [(event.step, event.value) for event in found.Scalars(tag)] for tag in tags["scalars"]},
        "hyperparameters": shown,
        "graph": sorted(node.name for node in found.Graph().node) if tags["graph"] else [],
    }


def written(scenario: Scenario, **arguments: Any) -> Callable[[ModuleType, Path], Outcome]:
    """Run a scenario with a logger; what lies in its folder afterwards, by sub-folder."""

    def run(L: ModuleType, folder: Path) -> Outcome:
        lab = Lab(L, folder)
        logger = lab.loggers.TensorBoardLogger(**{"save_dir": folder / "logs", "name": "a", **arguments})
        scenario(lab, logger)
        logger.finalize("success")
        places = {path.parent for path in (folder / "logs").rglob("*tfevents*")}
        notes = {str(place.relative_to(folder)): contents(place) for place in sorted(places)}
        notes["properties"] = {
            name: str(getattr(logger, name)).replace(str(folder), "FOLDER")
            for name in ("name", "version", "root_dir", "log_dir", "save_dir", "group_separator")
        }
        return Outcome(notes=notes)

    return run


def fit(lab: Lab, logger: Any, **arguments: Any) -> None:
    class Net(lab.L.LightningModule):
        def __init__(self, lr: float, depth: int, name: str, net: dict[str, Any], flag: bool) -> None:
            super().__init__()
            self.save_hyperparameters()
            self.net = torch.nn.Linear(FEATURES, 1)
            self.example_input_array = torch.ones(1, FEATURES)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.net(x)

        def training_step(self, batch: torch.Tensor, batch_idx: int) -> Any:
            loss = loss_of(self.net, batch)
            self.log("loss", loss, on_step=True, on_epoch=True)
            self.log("train/half", loss / 2)
            return loss

        def validation_step(self, batch: torch.Tensor, batch_idx: int) -> None:
            self.log("val_loss", loss_of(self.net, batch))

        def configure_optimizers(self) -> Any:
            return torch.optim.SGD(self.parameters(), lr=0.1)

    trainer = lab.trainer(logger=logger, **{"max_epochs": 2, "log_every_n_steps": 2, **arguments})
    module = Net(**HPARAMS)
    trainer.fit(module, loader(4), loader(2, seed=1))
    trainer.validate(module, loader(2, seed=1))


def by_hand(lab: Lab, logger: Any) -> None:
    logger.log_metrics({"a": 1.5, "t": torch.tensor(0.25), "group/b": 3}, 7)
    logger.log_metrics({"a": 2.5})
    logger.log_metrics({"chart": {"x": 1.0, "y": torch.tensor(2.0)}}, 9)
    logger.save()


def hyperparameters(lab: Lab, logger: Any) -> None:
    logger.log_hyperparams(HPARAMS, {"score": 0.5}, 3)


def one_score(lab: Lab, logger: Any) -> None:
    logger.log_hyperparams(HPARAMS, 0.5)


SCENARIOS: dict[str, Callable[[ModuleType, Path], Outcome]] = {
    "fit": written(fit),
    "fit_prefix": written(fit, prefix="run", default_hp_metric=False),
    "fit_sub_dir": written(fit, sub_dir="sub", version="first"),
    "fit_graph": written(fit, log_graph=True),
    "by_hand": written(by_hand),
    "by_hand_prefix": written(by_hand, prefix="run"),
    "hyperparameters": written(hyperparameters),
    "one_score": written(one_score),
    "no_name": written(by_hand, name=None),
}


@pytest.mark.parametrize("name", SCENARIOS)
def test_tensorboard_reads_the_same(name: str, tmp_path: Path) -> None:
    lightning, gpulayer = (
        outcome_of(library, SCENARIOS[name], tmp_path / library).notes for library in (LIGHTNING, GPULAYER)
    )
    assert list(gpulayer) == list(lightning)
    assert parting(lightning, gpulayer) == {}
    assert any(place.get("scalars") for place in gpulayer.values())


@pytest.mark.parametrize("library", [LIGHTNING, GPULAYER])
def test_arguments(library: str) -> None:
    """In this order, with these defaults."""
    kind = importlib.import_module(f"{library}.loggers").TensorBoardLogger
    parameters = inspect.signature(kind).parameters.values()
    assert [(parameter.name, parameter.default) for parameter in parameters] == [
        ("save_dir", inspect.Parameter.empty), ("name", "lightning_logs"), ("version", None), ("log_graph", False),
        ("default_hp_metric", True), ("prefix", ""), ("sub_dir", None), ("kwargs", inspect.Parameter.empty),
    ]  # fmt: skip

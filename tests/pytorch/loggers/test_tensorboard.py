"""TensorBoardLogger: what TensorBoard's own reader finds in its files."""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
from argparse import Namespace
from pathlib import Path
from textwrap import dedent
from typing import Any

import fsspec
import numpy
import pytest
import torch
import yaml
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tensorboard.plugins.hparams.plugin_data_pb2 import HParamsPluginData

import gpulayer.pytorch as L
from gpulayer.fabric.utilities.rank_zero import rank_zero_only
from gpulayer.pytorch.callbacks import ModelCheckpoint
from gpulayer.pytorch.loggers import CSVLogger, TensorBoardLogger
from tests.pytorch.models import FEATURES, Line, Validated, loader, same, weights

HERE = os.path.join("logs", "a", "version_0")


def reader(folder: str | Path = HERE) -> EventAccumulator:
    """TensorBoard's view of a folder."""
    accumulator = EventAccumulator(str(folder), size_guidance={"scalars": 0})
    accumulator.Reload()
    return accumulator


def scalars(folder: str | Path = HERE) -> dict[str, list[tuple[int, float]]]:
    """(step, value) by tag."""
    found = reader(folder)
    return {tag: [(event.step, event.value) for event in found.Scalars(tag)] for tag in found.Tags()["scalars"]}


def hyperparameters(folder: str | Path = HERE) -> dict[str, Any]:
    """What the tab HPARAMS shows: values by name."""
    for metadata in reader(folder).summary_metadata.values():
        content = HParamsPluginData.FromString(metadata.plugin_data.content)
        if content.HasField("session_start_info"):
            values = content.session_start_info.hparams.items()
            return {name: getattr(value, value.WhichOneof("kind")) for name, value in values}
    return {}


@pytest.fixture
def logger() -> Any:
    """Writes to logs/a/version_0."""
    logger = TensorBoardLogger("logs", "a", max_queue=10_000, flush_secs=10_000)
    yield logger
    logger.finalize("success")


# -- rows -------------------------------------------------------------------------------------------------------------


def test_a_row_is_there_as_soon_as_it_is_logged(logger: TensorBoardLogger) -> None:
    """Whatever the writer's own queue: a killed run keeps its rows."""
    for step in range(3):
        logger.log_metrics({"loss": 0.5 / (step + 1), "epoch": 0}, step=10 * step)
        assert scalars()["loss"][-1] == (10 * step, pytest.approx(0.5 / (step + 1)))
    assert scalars()["epoch"] == [(0, 0), (10, 0), (20, 0)]


@pytest.mark.parametrize(
    "value", [0.25, torch.tensor(0.25), torch.tensor([0.25]), numpy.float64(0.25), numpy.array([0.25])], ids=repr
)
def test_what_counts_as_a_number(value: Any, logger: TensorBoardLogger) -> None:
    logger.log_metrics({"x": value}, step=1)
    assert scalars() == {"x": [(1, 0.25)]}


def test_numbers_that_are_none(logger: TensorBoardLogger) -> None:
    logger.log_metrics({"nan": float("nan"), "inf": float("inf"), "yes": True, "n": 3}, step=0)
    found = {tag: values[0][1] for tag, values in scalars().items()}
    assert found["nan"] != found["nan"]
    assert (found["inf"], found["yes"], found["n"]) == (float("inf"), 1, 3)


@pytest.mark.parametrize("value", ["text", [1, 2], None, torch.ones(2), numpy.ones(2), 1j], ids=repr)
def test_what_is_no_number_is_refused_and_nothing_of_the_row_written(value: Any, logger: TensorBoardLogger) -> None:
    with pytest.raises(ValueError, match=r"'b' is .* Use `logger.experiment` for text"):
        logger.log_metrics({"a": 1.0, "b": value}, step=0)
    with pytest.raises(ValueError, match="'b/c' is"):
        logger.log_metrics({"a": 1.0, "b": {"c": value}}, step=0)
    logger.log_metrics({"a": 2.0}, step=1)
    assert scalars() == {"a": [(1, 2.0)]}


def test_a_dict_becomes_a_chart_with_several_lines(logger: TensorBoardLogger) -> None:
    """TensorBoard draws those of one tag in several folders together."""
    logger.log_metrics({"loss": {"train": 0.5, "val": torch.tensor(0.75)}}, step=3)
    assert scalars(f"{HERE}/loss_train") == {"loss": [(3, 0.5)]}
    assert scalars(f"{HERE}/loss_val") == {"loss": [(3, 0.75)]}


def test_a_prefix() -> None:
    logger = TensorBoardLogger("logs", "a", prefix="run")
    logger.log_metrics({"loss": 0.5, "chart": {"x": 1.0}}, step=0)
    logger.log_hyperparams({"lr": 0.1}, {"score": 2.0})
    logger.finalize("success")
    assert set(scalars()) == {"run-loss", "run-score"}
    assert scalars(f"{HERE}/run-chart_x") == {"run-chart": [(0, 1.0)]}


def test_everything_else_by_the_writer(logger: TensorBoardLogger) -> None:
    logger.experiment.add_text("note", "hello", 1)
    logger.experiment.add_histogram("weights", torch.arange(10.0), 2)
    logger.save()
    tags = reader().Tags()
    assert (tags["tensors"], tags["histograms"]) == (["note/text_summary"], ["weights"])


# -- folders ----------------------------------------------------------------------------------------------------------


def test_folders() -> None:
    one = TensorBoardLogger("logs", "a", version=3, sub_dir=Path("train"))
    assert (one.name, one.version, one.save_dir) == ("a", 3, "logs")
    assert one.root_dir == os.path.join("logs", "a")
    assert one.log_dir == os.path.join("logs", "a", "version_3", "train")
    assert TensorBoardLogger(Path("logs"), version="first").log_dir == os.path.join("logs", "lightning_logs", "first")
    for name in ("", None):
        plain = TensorBoardLogger("logs", name, version=0)
        assert (plain.name, plain.log_dir) == ("", os.path.join("logs", "version_0"))
    assert not Path("logs").exists()


def test_the_home_folder_and_variables(fresh_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(fresh_folder / "home"))
    monkeypatch.setenv("WHERE", "there")
    logger = TensorBoardLogger("~/$WHERE", "a")
    logger.log_metrics({"loss": 0.5}, step=0)
    logger.finalize("success")
    assert scalars(fresh_folder / "home" / "there" / "a" / "version_0") == {"loss": [(0, 0.5)]}


def test_the_next_version_is_claimed_among_all_kinds_of_loggers() -> None:
    loggers = [TensorBoardLogger("logs", "a"), CSVLogger("logs", "a"), TensorBoardLogger("logs", "a")]
    assert [logger.version for logger in loggers] == [0, 1, 2]
    assert [logger.version for logger in loggers] == [0, 1, 2]


CLAIM = """
import sys
from gpulayer.pytorch.loggers import TensorBoardLogger
print("ready", flush=True)
sys.stdin.readline()
print(*[TensorBoardLogger("logs", "a").version for _ in range(100)])
"""


def test_two_processes_at_once_get_versions_of_their_own() -> None:
    processes = [
        subprocess.Popen([sys.executable, "-c", CLAIM], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        for _ in range(2)
    ]
    for process in processes:
        assert process.stdout
        assert process.stdout.readline() == "ready\n"
    for process in processes:
        assert process.stdin
        process.stdin.write("go\n")
        process.stdin.flush()
    claimed = [list(map(int, process.communicate(timeout=60)[0].split())) for process in processes]
    assert sorted(claimed[0] + claimed[1]) == list(range(200))


def test_a_given_version_goes_on_in_the_same_folder() -> None:
    for loss in (0.5, 0.25):
        logger = TensorBoardLogger("logs", "a", version=0)
        logger.log_metrics({"loss": loss}, step=0 if loss == 0.5 else 1)
        logger.finalize("success")
    assert scalars() == {"loss": [(0, 0.5), (1, 0.25)]}


def test_a_url() -> None:
    """By fsspec, whose memory stands for an object store."""
    logger = TensorBoardLogger("memory://logs", "a", sub_dir="s")
    logger.log_metrics({"loss": 0.5}, step=7)
    logger.log_hyperparams({"lr": 0.1})
    logger.save()
    logger.finalize("success")
    assert TensorBoardLogger("memory://logs", "a").version == 1
    assert logger.log_dir == "memory://logs/a/version_0/s"
    assert not Path("memory:").exists()
    assert scalars(logger.log_dir)["loss"] == [(7, 0.5)]
    with fsspec.open(f"{logger.log_dir}/hparams.yaml") as file:
        assert yaml.safe_load(file) == {"lr": 0.1}


def test_checkpoints_lie_beside_the_events_of_a_url() -> None:
    logger = TensorBoardLogger("memory://runs", "a")
    L.Trainer(accelerator="cpu", logger=logger).fit(Line(), loader())
    assert fsspec.filesystem("memory").exists("/runs/a/version_0/checkpoints/epoch=0-step=4.ckpt")
    assert list(Path().iterdir()) == []


# -- hyperparameters --------------------------------------------------------------------------------------------------


def test_hyperparameters_are_shown_and_written(logger: TensorBoardLogger) -> None:
    given = {"lr": 0.1, "net": {"depth": 3, "act": torch.nn.ReLU()}, "layers": [1, 2], "name": "x", "seed": None}
    logger.log_hyperparams(Namespace(**given))
    logger.save()
    assert hyperparameters() == {"lr": 0.1, "net/depth": 3, "net/act": "ReLU()", "layers": "[1, 2]", "name": "x"}
    assert scalars() == {"hp_metric": [(0, -1)]}
    assert set(yaml.safe_load(Path(HERE, "hparams.yaml").read_text())) == set(given)


@pytest.mark.parametrize(
    ("metrics", "expected"),
    [({"acc": 0.5, "loss": 1.0}, {"acc": [(4, 0.5)], "loss": [(4, 1.0)]}), (0.75, {"hp_metric": [(4, 0.75)]})],
)
def test_metrics_of_hyperparameters(metrics: Any, expected: Any, logger: TensorBoardLogger) -> None:
    logger.log_hyperparams({"lr": 0.1}, metrics, 4)
    assert scalars() == expected
    assert hyperparameters() == {"lr": 0.1}


def test_without_a_metric_of_their_own_only_the_file() -> None:
    logger = TensorBoardLogger("logs", "a", default_hp_metric=False)
    logger.log_hyperparams({"lr": 0.1})
    logger.finalize("success")
    assert (scalars(), hyperparameters()) == ({}, {})
    assert yaml.safe_load(Path(HERE, "hparams.yaml").read_text()) == {"lr": 0.1}


@pytest.mark.parametrize("kind", [TensorBoardLogger, CSVLogger])
def test_hyperparameters_that_come_later(kind: Any) -> None:
    """The file holds them all."""
    logger = kind("logs", "a")
    logger.log_hyperparams({"lr": 0.1})
    logger.save()
    logger.log_hyperparams({"depth": 3})
    logger.save()
    logger.finalize("success")
    assert yaml.safe_load(Path(HERE, "hparams.yaml").read_text()) == {"lr": 0.1, "depth": 3}


# -- the graph --------------------------------------------------------------------------------------------------------


class Drawn(Line):
    """Has a dropout, whose random numbers must not be missed later."""

    def __init__(self, example: Any) -> None:
        super().__init__()
        self.drop = torch.nn.Dropout(0.5)
        self.example_input_array = example

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(self.drop(x) + 0 * torch.rand(1))


def graph_of(folder: str = HERE) -> str:
    """Names of the graph's nodes; empty without a graph."""
    found = reader(folder)
    return " ".join(node.name for node in found.Graph().node) if found.Tags()["graph"] else ""


@pytest.mark.parametrize("example", [torch.ones(1, FEATURES), (torch.ones(1, FEATURES),)], ids=["tensor", "tuple"])
def test_the_graph_of_a_run(example: Any) -> None:
    """And the run is the same as without."""
    torch.manual_seed(1)
    drawn, plain = Drawn(example), Drawn(example)
    plain.load_state_dict(drawn.state_dict())
    for model in (drawn, plain):
        torch.manual_seed(2)
        logger = TensorBoardLogger("logs", "a", log_graph=model is drawn)
        L.Trainer(accelerator="cpu", logger=logger, enable_checkpointing=False).fit(model, loader())
    assert "Drawn/Linear[net]" in graph_of()
    assert graph_of("logs/a/version_1") == ""
    assert same(weights(drawn), weights(plain))


def test_the_graph_of_any_module_from_an_input() -> None:
    logger = TensorBoardLogger("logs", "a", log_graph=True)
    model = torch.nn.Sequential(torch.nn.Linear(2, 3))
    logger.log_graph(model, torch.ones(1, 2))
    logger.finalize("success")
    assert "Sequential/Linear[0]" in graph_of()
    assert model.training


@pytest.mark.parametrize(
    ("example", "reason"),
    [
        (None, "`Drawn.example_input_array` is not set"),
        ({"x": torch.ones(1, FEATURES)}, "`Drawn.example_input_array` is a dict"),
        (torch.ones(1, FEATURES + 1), r"tracing `Drawn\.forward` failed with RuntimeError: mat1 and mat2"),
    ],
)
def test_a_graph_that_cannot_be(example: Any, reason: str, capsys: pytest.CaptureFixture[str]) -> None:
    """A warning says why, and training goes on."""
    logger = TensorBoardLogger("logs", "a", log_graph=True)
    used = L.Trainer(accelerator="cpu", logger=logger, enable_checkpointing=False, log_every_n_steps=1)
    model = Drawn(example)
    with pytest.warns(UserWarning, match=f"TensorBoardLogger did not write the graph: .*{reason}"):
        used.fit(model, loader())
    assert graph_of() == ""
    assert len(scalars()["train_loss"]) == 4
    assert model.training
    assert capsys.readouterr().out == ""


# -- runs -------------------------------------------------------------------------------------------------------------


class Kept(Validated):
    def __init__(self, size: int = 3) -> None:
        super().__init__()
        self.save_hyperparameters()


def test_a_run() -> None:
    logger = TensorBoardLogger("logs", "a")
    used = L.Trainer(accelerator="cpu", max_epochs=2, logger=logger, log_every_n_steps=2)
    used.fit(Kept(), loader(), loader())
    found = scalars()
    assert {tag: [step for step, _ in values] for tag, values in found.items()} == {
        "hp_metric": [0], "train_loss": [1, 3, 5, 7], "val_loss": [3, 7], "epoch": [1, 3, 3, 5, 7, 7],
    }  # fmt: skip
    assert found["val_loss"][-1][1] == pytest.approx(float(used.callback_metrics["val_loss"]))
    assert hyperparameters() == {"size": 3}
    assert used.log_dir == HERE
    assert sorted(path.name for path in Path(HERE).iterdir() if "tfevents" not in path.name) == [
        "checkpoints", "hparams.yaml",
    ]  # fmt: skip


def test_a_resumed_run_goes_on_in_its_folder() -> None:
    for epochs, ckpt_path in ((1, None), (2, "saved/last.ckpt")):
        logger = TensorBoardLogger("logs", "a", version=0)
        saver = ModelCheckpoint("saved", save_last=True)
        used = L.Trainer(accelerator="cpu", max_epochs=epochs, logger=logger, log_every_n_steps=1, callbacks=[saver])
        used.fit(Kept(), loader(), loader(), ckpt_path=ckpt_path)
    assert [step for step, _ in scalars()["train_loss"]] == list(range(8))


def test_fit_and_test_by_one_trainer() -> None:
    """The second call goes on in the same folder."""
    used = L.Trainer(accelerator="cpu", logger=TensorBoardLogger("logs", "a"), enable_checkpointing=False)
    model = Line()
    used.fit(model, loader())
    used.test(model, loader())
    assert scalars()["test_loss"][0][0] == 4
    assert os.listdir("logs/a") == ["version_0"]


def test_a_logger_can_be_pickled(logger: TensorBoardLogger) -> None:
    logger.log_metrics({"loss": 0.5}, step=0)
    copy = pickle.loads(pickle.dumps(logger))
    copy.log_metrics({"loss": 0.25}, step=1)
    copy.finalize("success")
    assert scalars() == {"loss": [(0, 0.5), (1, 0.25)]}


def test_other_ranks_write_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rank_zero_only, "rank", 1)
    logger = TensorBoardLogger("logs", "a", version=0, log_graph=True)
    logger.log_hyperparams({"lr": 0.1})
    logger.log_metrics({"loss": 0.5}, step=0)
    logger.log_graph(torch.nn.Linear(1, 1), torch.ones(1, 1))
    logger.experiment.add_text("note", "hello")
    logger.save()
    logger.finalize("success")
    assert not Path("logs").exists()


# -- packages ---------------------------------------------------------------------------------------------------------

HIDE = """
import sys, importlib.abc
hidden = sys.argv[1].split(",")

class Hide(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in hidden:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Hide())
import importlib.util
real = importlib.util.find_spec
importlib.util.find_spec = lambda name, package=None: None if name in hidden else real(name, package)
import gpulayer.pytorch as L
from gpulayer.pytorch.loggers import TensorBoardLogger
"""


def run_without(packages: str, script: str) -> str:
    """The output of a script in an interpreter that lacks some packages."""
    command = [sys.executable, "-c", HIDE + dedent(script), packages]
    done = subprocess.run(command, capture_output=True, text=True, timeout=100)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_nothing_is_installed() -> None:
    """The constructor says what to install; everything else works."""
    script = """
        try:
            TensorBoardLogger("logs")
        except ModuleNotFoundError as error:
            print(error)
        """
    assert "pip install 'gpulayer[tensorboard]'" in run_without("tensorboard,tensorboardX", script)


def test_tensorboardx_where_only_that_is_installed() -> None:
    pytest.importorskip("tensorboardX")
    script = """
        logger = TensorBoardLogger("logs", "a")
        logger.log_metrics({"loss": 0.5, "chart": {"x": 1.0}}, step=3)
        logger.log_hyperparams({"lr": 0.1})
        logger.save()
        logger.finalize("success")
        print(type(logger.experiment).__module__)
        """
    assert "tensorboardX" in run_without("tensorboard", script)
    assert scalars()["loss"] == [(3, 0.5)]
    assert hyperparameters() == {"lr": 0.1}


# -- a full disk ------------------------------------------------------------------------------------------------------

FULL = """
import resource, signal, sys
from gpulayer.pytorch.loggers import TensorBoardLogger, delivery

delivery.FIRST_PAUSE = delivery.LONGEST_PAUSE = 0.0
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
logger = TensorBoardLogger("logs", "a", version=0)

class Trainer:
    loggers = [logger]

sent = delivery.Delivery(Trainer())
for step in range(60):
    if step == 20:
        resource.setrlimit(resource.RLIMIT_FSIZE, (1000, resource.RLIM_INFINITY))
    if step == 40:
        resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    sent.row({"loss": float(step)}, step)
sent.finalize("success")
"""


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs limits on the size of files, as Linux has them")
def test_a_disk_that_is_full_for_a_while() -> None:
    """All rows are there in the end: the writer that failed is left behind, another one goes on when there is room.

    Its thread prints nothing, and the tries in between leave no files.
    """
    done = subprocess.run([sys.executable, "-c", FULL], capture_output=True, text=True, timeout=100)
    assert done.returncode == 0, done.stderr
    assert "TensorBoardLogger failed (OSError: [Errno 27] File too large" in done.stderr
    assert "TensorBoardLogger has taken all rows of this run after all." in done.stderr
    assert len(done.stderr.splitlines()) == 2
    files = sorted(Path(HERE).iterdir())
    assert len(files) == 2
    found = [step for file in files for step, _ in scalars(file).get("loss", [])]
    assert sorted(set(found)) == list(range(60))

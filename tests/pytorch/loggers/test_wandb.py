"""WandbLogger: offline runs, read back from wandb's own files."""

from __future__ import annotations

import json
import os
import pickle
import subprocess
import sys
import wave
from collections.abc import Callable, Iterator
from pathlib import Path
from textwrap import dedent
from typing import Any

import pytest
import torch

import gpulayer.pytorch as L
from gpulayer.fabric.utilities.exceptions import MisconfigurationException
from gpulayer.fabric.utilities.rank_zero import rank_zero_only
from gpulayer.pytorch.callbacks import ModelCheckpoint
from gpulayer.pytorch.loggers import WandbLogger
from gpulayer.pytorch.loggers.logger import DummyExperiment
from tests.pytorch.loggers.runs import Told, agrees, fit
from tests.pytorch.loggers.wandb_file import WandbRun

wandb = pytest.importorskip("wandb")


@pytest.fixture(autouse=True, scope="module")
def quiet_wandb() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as environment:
        for name in ("WANDB_SILENT", "WANDB_X_DISABLE_STATS", "WANDB_X_DISABLE_META"):
            environment.setenv(name, "true")
        environment.setenv("WANDB_CONSOLE", "off")
        environment.delenv("WANDB_PROJECT", raising=False)
        yield
        wandb.teardown()


@pytest.fixture(autouse=True)
def no_run_left() -> Iterator[None]:
    yield
    wandb.finish()


def offline(**arguments: Any) -> WandbLogger:
    """A logger whose run is written to out/wandb/; `mode` in place of `offline`, so that `log_model` is taken."""
    return WandbLogger(**{"save_dir": "out", "mode": "offline", **arguments})


@pytest.fixture(scope="module")
def done(tmp_path_factory: pytest.TempPathFactory) -> tuple[WandbRun, Any, Path]:
    """A fit into an offline run: what the file holds, the trainer, and the folder it ran in."""
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(tmp_path_factory.mktemp("fit"))
        trainer = fit(offline(name="first", project="digits", prefix="x", log_model="all"))
        wandb.finish()
        return WandbRun("out"), trainer, Path.cwd()


def test_metrics_have_the_trainers_steps(done: tuple[WandbRun, Any, Path]) -> None:
    run, _, folder = done
    for name in ("train_loss", "val_loss", "epoch"):
        assert agrees(run.series(f"x-{name}"), name, folder)
    assert len(run.series("x-train_loss")) == 8


def test_global_step_is_the_x_axis(done: tuple[WandbRun, Any, Path]) -> None:
    assert done[0].axes == {"trainer/global_step": "", "*": "trainer/global_step"}


def test_hyperparameters_are_the_config(done: tuple[WandbRun, Any, Path]) -> None:
    """Nested as they were; a class by its name."""
    assert done[0].config == {
        "lr": 0.05, "layers": [1, 2], "activation": "ReLU", "nested": {"width": {"first": 3}}, "text": "a",
    }  # fmt: skip


def test_names_and_folders(done: tuple[WandbRun, Any, Path]) -> None:
    run, trainer, folder = done
    logger = trainer.logger
    assert (run.run.display_name, run.run.project, run.run.run_id) == ("first", "digits", logger.version)
    assert (logger.name, logger.save_dir, logger.log_dir, logger.group_separator) == ("digits", "out", None, "/")
    checkpoints = folder / "out" / "digits" / logger.version / "checkpoints"
    assert {Path(path).parent for path in trainer.checkpoint_callback.best_k_models} == {checkpoints}


def test_checkpoints_are_artifacts(done: tuple[WandbRun, Any, Path]) -> None:
    """Each when it is saved, with its score; "best" for the one that is best at that moment."""
    run, trainer, _ = done
    assert [artifact.name for artifact in run.artifacts] == [f"model-{trainer.logger.version}"] * 2
    assert [artifact.type for artifact in run.artifacts] == ["model"] * 2
    assert [[entry.path for entry in artifact.manifest.contents] for artifact in run.artifacts] == [["model.ckpt"]] * 2
    callback = trainer.checkpoint_callback
    metadata = [json.loads(artifact.metadata) for artifact in run.artifacts]
    scores = {Path(path).name: float(score) for path, score in callback.best_k_models.items()}
    assert {entry["original_filename"]: entry["score"] for entry in metadata} == scores
    assert metadata[0]["ModelCheckpoint"]["monitor"] == "val_loss"
    assert set(run.artifacts[0].aliases) == {"latest", "best"}
    second_is_best = callback.best_model_path.endswith(metadata[1]["original_filename"])
    assert set(run.artifacts[1].aliases) == ({"latest", "best"} if second_is_best else {"latest"})


def test_checkpoints_at_the_end() -> None:
    """`log_model=True`: what is left of them, once; a failed run logs none."""
    logger = offline(log_model=True, checkpoint_name="net")
    callback = ModelCheckpoint(monitor="val_loss", save_top_k=1, save_last=True)
    trainer = fit(logger, callbacks=[callback])
    logger.finalize("success")
    logger.finalize("failed")
    wandb.finish()
    artifacts = WandbRun("out").artifacts
    assert [artifact.name for artifact in artifacts] == ["net"] * len(artifacts)
    left = {trainer.checkpoint_callback.best_model_path, callback.last_model_path}
    assert len(artifacts) == len(left) == 2


def test_fit_and_test_are_one_run_and_a_failed_one_keeps_its_rows() -> None:
    class Breaks(Told):
        def training_step(self, batch: Any, batch_idx: int) -> Any:
            if self.global_step == 5:
                raise ValueError("the user's own")
            return super().training_step(batch, batch_idx)

    logger = offline()
    with pytest.raises(ValueError, match="the user's own"):
        fit(logger, Breaks())
    L.Trainer(logger=logger, accelerator="cpu").test(Told(), [(torch.ones(1, 4), torch.ones(1, 1))])
    wandb.finish()
    run = WandbRun("out")
    assert [step for step, _ in run.series("train_loss")] == [0, 1, 2, 3, 4]
    assert [step for step, _ in run.series("test_loss")] == [0]


def test_media() -> None:
    logger = offline()
    logger.log_table("table", columns=["a", "b"], data=[[1, "x"], [2, "y"]], step=1)
    logger.log_text("text", columns=["a"], data=[["word"]], step=2)
    images = [torch.full((3, 4, 4), shade, dtype=torch.uint8) for shade in (100, 200)]
    logger.log_image("image", images, step=3, caption=["one", "two"])
    Path("film.gif").write_bytes(b"GIF89a")
    logger.log_video("video", ["film.gif"], step=5, caption=["dance"])
    wandb.finish()
    run = WandbRun("out")
    logged = {next(key for key in row if key != "trainer/global_step"): row for row in run.rows}
    assert {key: row["trainer/global_step"] for key, row in logged.items()} == {
        "table": 1, "text": 2, "image": 3, "video": 5,
    }  # fmt: skip
    files = run.file.parent / "files"
    assert logged["table"]["table"]["nrows"] == 2
    assert '["word"]' in (files / logged["text"]["text"]["path"]).read_text()
    assert logged["image"]["image"]["captions"] == ["one", "two"]
    assert len(list(files.glob("media/images/*.png"))) == 2
    assert next(files.glob("media/videos/*.gif")).read_bytes() == b"GIF89a"


def test_sound() -> None:
    pytest.importorskip("soundfile")
    logger = offline()
    with wave.open("sound.wav", "wb") as sound:
        sound.setparams((1, 2, 8000, 0, "NONE", ""))
        sound.writeframes(bytes(1600))
    logger.log_audio("audio", ["sound.wav"], step=4, caption=["beep"])
    wandb.finish()
    run = WandbRun("out")
    assert run.rows[0]["audio"]["captions"] == ["beep"]
    (copy,) = (run.file.parent / "files").glob("media/audio/*.wav")
    assert copy.read_bytes() == Path("sound.wav").read_bytes()


@pytest.mark.parametrize("method", ["log_image", "log_audio", "log_video"])
def test_wrong_media(method: str) -> None:
    log = getattr(offline(), method)
    with pytest.raises(TypeError, match=f"{method}.*takes a list, but got a str"):
        log("key", "one.png")
    with pytest.raises(ValueError, match=r"caption=\.\.\.\)` needs a value for each of the 2 .*, but got 1"):
        log("key", ["one.png", "two.png"], caption=["one"])


def test_watching_a_model() -> None:
    logger, model = offline(), torch.nn.Linear(2, 1)
    logger.watch(model, log_freq=1, log_graph=False)
    for _ in range(2):
        model(torch.ones(1, 2)).sum().backward()
        logger.log_metrics({"a": 1.0}, step=0)
    logger.unwatch(model)
    model(torch.ones(1, 2)).sum().backward()
    logger.log_metrics({"a": 1.0}, step=1)
    wandb.finish()
    assert ["gradients/weight" in row for row in WandbRun("out").rows] == [True, True, False]


def test_a_logger_is_pickled_before_its_run() -> None:
    logger = pickle.loads(pickle.dumps(offline(name="first")))
    assert not Path("out").exists()
    assert logger.experiment.name == "first"


ATTACH = dedent("""
    import pickle, sys
    logger = pickle.load(sys.stdin.buffer)
    logger.log_metrics({"child": 1.0}, step=7)
    """)


def test_a_logger_is_pickled_during_its_run() -> None:
    """A process that this one starts writes to the same run."""
    logger = offline()
    logger.log_metrics({"parent": 1.0}, step=6)
    subprocess.run([sys.executable, "-c", ATTACH], input=pickle.dumps(logger), check=True, timeout=60)
    wandb.finish()
    run = WandbRun("out")
    assert run.series("parent") == [(6, 1.0)]
    assert run.series("child") == [(7, 1.0)]


def test_a_run_in_progress_is_used() -> None:
    mine = wandb.init(mode="offline", dir=".", project="own")
    logger = offline()
    with pytest.warns(UserWarning, match=f"goes on with the run '{mine.id}'"):
        assert logger.experiment is mine
    given = WandbLogger(experiment=mine)
    assert given.experiment is mine
    assert given.version == mine.id


def test_other_names_of_arguments(monkeypatch: pytest.MonkeyPatch) -> None:
    assert WandbLogger(dir="there").save_dir == "there"
    assert WandbLogger(save_dir=Path("here"), dir="there").save_dir == "here"
    assert WandbLogger(id="abc").version == "abc"
    assert WandbLogger(version="v", id="abc").version == "v"
    assert WandbLogger().name == "lightning_logs"
    monkeypatch.setenv("WANDB_PROJECT", "from the environment")
    assert WandbLogger().name == "from the environment"
    assert WandbLogger(project="given").name == "given"


@pytest.mark.parametrize("log_model", [True, "all"])
def test_offline_runs_take_no_checkpoints(log_model: Any) -> None:
    with pytest.raises(MisconfigurationException, match=r"an offline run uploads no checkpoints\. Use `log_model"):
        WandbLogger(offline=True, log_model=log_model)


def test_a_wrong_log_model() -> None:
    with pytest.raises(MisconfigurationException, match=r"log_model='best'.*choose 'all'"):
        WandbLogger(log_model="best")  # type: ignore[arg-type]


def test_offline_leaves_the_environment_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    before = dict(os.environ)
    assert WandbLogger(save_dir="out", offline=True).experiment.settings._offline
    added = {name for name in os.environ if name not in before}
    assert "WANDB_MODE" not in added


def test_other_ranks_write_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rank_zero_only, "rank", 1)
    logger = offline()
    assert isinstance(logger.experiment, DummyExperiment)
    calls: list[Callable[[], Any]] = [
        lambda: logger.log_metrics({"a": 1.0}, step=0),
        lambda: logger.log_hyperparams({"a": 1}),
        lambda: logger.log_image("a", ["b"]),
        lambda: logger.watch(torch.nn.Linear(1, 1)),
        lambda: logger.finalize("success"),
    ]
    for call in calls:
        call()
    assert not Path("out").exists()


def test_without_the_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "wandb", None)
    with pytest.raises(ModuleNotFoundError, match=r"needs the package wandb: pip install 'gpulayer\[wandb\]'"):
        WandbLogger()

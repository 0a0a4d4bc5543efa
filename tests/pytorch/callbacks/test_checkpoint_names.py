"""How ModelCheckpoint names its files, and where it puts them."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
import torch

from gpulayer.fabric.utilities.exceptions import MisconfigurationException
from gpulayer.pytorch.callbacks import ModelCheckpoint
from tests.pytorch.callbacks.saved import epochs, files, read, run
from tests.pytorch.models import Scored, Validated, loader, trainer


def test_a_template_that_names_no_metric_is_said() -> None:
    """A typo would otherwise go unnoticed: the name counts as 0, as in Lightning."""
    saver = ModelCheckpoint("saved", filename="{missing:.1f}")
    with pytest.warns(UserWarning, match="names 'missing', which was not logged"):
        trainer(callbacks=[saver]).fit(Scored([1.2346]), loader(), loader())
    assert Path(saver.best_model_path).name == "missing=0.0.ckpt"


@pytest.mark.parametrize(
    ("template", "insert", "name"),
    [
        (None, True, "epoch=0-step=4"),
        ("model", True, "model"),
        ("{epoch}", True, "epoch=0"),
        ("model-{epoch:02d}-{score:.2f}", True, "model-epoch=00-score=1.23"),
        ("model-{epoch:02d}-{score:.2f}", False, "model-00-1.23"),
        ("{step:08d}_{score:.3e}", False, "00000004_1.235e+00"),
        ("{score:+.1f}", False, "+1.2"),
        ("val={val/acc:.1f}", False, "val=0.5"),
        ("{{literal}}-{epoch}", True, "{literal}-epoch=0"),
    ],
)
def test_templates(template: str | None, insert: bool, name: str) -> None:
    class Named(Scored):
        def validation_step(self, batch: Any, batch_idx: int) -> None:
            super().validation_step(batch, batch_idx)
            self.log("val/acc", 0.5)

    saver = ModelCheckpoint("saved", filename=template, auto_insert_metric_name=insert)
    trainer(callbacks=[saver]).fit(Named([1.2346]), loader(), loader())
    assert files() == [f"{name}.ckpt"]


@pytest.mark.parametrize("template", ["{}", "a-{:.2f}", "{epoch", "epoch}", "{epoch:q}", "{epoch:.2f", 3])
def test_templates_that_are_none(template: Any) -> None:
    with pytest.raises(MisconfigurationException, match="is no template"):
        ModelCheckpoint(filename=template)


def test_an_epoch_and_a_step_of_the_users_own() -> None:
    """As those who train in rounds log them: whole numbers, as Lightning writes them."""

    class Logs(Scored):
        def on_validation_epoch_end(self) -> None:
            self.log_dict({"epoch": 7.0, "step": 90.0})

    trainer(callbacks=[ModelCheckpoint("saved")]).fit(Logs([1]), loader(), loader())
    assert files() == ["epoch=7-step=90.ckpt"]


def test_format_checkpoint_name() -> None:
    saver = ModelCheckpoint("/saved", "{epoch:03d}-{val/acc:.1f}", auto_insert_metric_name=False)
    metrics = {"epoch": torch.tensor(2), "val/acc": torch.tensor(0.25), "step": 9}
    assert saver.format_checkpoint_name(metrics) == os.path.realpath("/saved") + "/002-0.2.ckpt"
    assert Path(saver.format_checkpoint_name(metrics, "{step}", 3, prefix="best")).name == "best-9-v3.ckpt"
    assert ModelCheckpoint().format_checkpoint_name(metrics) == "epoch=2-step=9.ckpt"


def test_what_is_pushed_out_of_a_folder_that_a_metrics_name_makes() -> None:
    class Named(Scored):
        def validation_step(self, batch: Any, batch_idx: int) -> None:
            self.log("val/score", self.scores[self.current_epoch])

    saver = ModelCheckpoint("saved", "{val/score:.1f}", "val/score")
    trainer(max_epochs=3, callbacks=[saver]).fit(Named([3, 2, 1]), loader(), loader())
    assert files("saved/val") == ["score=1.0.ckpt"]


def test_a_slash_in_a_metrics_name_makes_a_folder() -> None:
    """As with Lightning; auto_insert_metric_name=False is the way out."""
    saver = ModelCheckpoint("saved", filename="{val/acc:.1f}")
    assert Path(saver.format_checkpoint_name({"val/acc": torch.tensor(0.5)})).parts[-2:] == ("val", "acc=0.5.ckpt")


@pytest.mark.parametrize("monitor", ["val/score", "val score", "val.score", "score@1", "größe"])
def test_a_monitor_with_an_unusual_name(monitor: str) -> None:
    class Named(Validated):
        def validation_step(self, batch: Any, batch_idx: int) -> None:
            self.log(monitor, [3.0, 1.0, 2.0][self.current_epoch])

    template = f"{{epoch}}-{{{monitor}:.1f}}"
    saver = ModelCheckpoint("saved", filename=template, monitor=monitor, auto_insert_metric_name=False)
    trainer(max_epochs=3, callbacks=[saver]).fit(Named(), loader(), loader())
    assert files() == ["1-1.0.ckpt"]


def test_a_name_that_is_taken_gets_a_number() -> None:
    """A second run into the folder of a first leaves the first one's files."""
    for _ in range(3):
        run([1], ModelCheckpoint("saved", filename="model"))
    assert files() == ["model-v1.ckpt", "model-v2.ckpt", "model.ckpt"]


@pytest.mark.parametrize(("scores", "kept"), [([3, 2, 1], [1, 2]), ([1, 2], [0, 1]), ([1, 3, 2], [0, 2])])
def test_one_name_for_several_of_a_run(scores: list[float], kept: list[int]) -> None:
    """A template that does not tell the epochs apart: none that is to be kept is written over."""
    saver = ModelCheckpoint("saved", filename="model", monitor="score", save_top_k=2)
    run(scores, saver)
    assert epochs() == kept
    assert files() == ["model-v1.ckpt", "model.ckpt"]
    assert read(saver.best_model_path)["epoch"] == scores.index(min(scores))


def test_one_name_for_all_of_a_run() -> None:
    """So it is where all are kept."""
    run([1, 2, 3], ModelCheckpoint("saved", filename="model", monitor="score", save_top_k=-1))
    assert epochs() == [0, 1, 2]


def test_without_the_counter_a_file_is_written_over() -> None:
    for _ in range(2):
        run([2, 1], ModelCheckpoint("saved", filename="model", enable_version_counter=False))
    assert files() == ["model.ckpt"]


def test_the_folder_is_the_runs_own_by_default() -> None:
    saver = ModelCheckpoint()
    run([1], saver, logger=None)
    assert Path(saver.dirpath or "") == Path("runs/Scored/version_0/checkpoints").absolute()
    assert files(saver.dirpath) == ["epoch=0-step=4.ckpt"]


def test_without_a_logger_the_folder_is_under_the_root() -> None:
    run([1], ModelCheckpoint(), default_root_dir="elsewhere")
    assert files("elsewhere/checkpoints") == ["epoch=0-step=4.ckpt"]


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_a_value_that_is_no_integer_does_not_end_the_run(value: float) -> None:
    saver = ModelCheckpoint("saved", filename="{score:03d}")
    trainer(callbacks=[saver]).fit(Scored([value]), loader(), loader())
    assert Path(saver.best_model_path).name == f"score={value}.ckpt"

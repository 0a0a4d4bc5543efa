"""Resuming deletes neither the checkpoint that the run was resumed from nor a file of another folder."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import gpulayer.pytorch as L
from gpulayer.pytorch.callbacks import ModelCheckpoint
from tests.pytorch.models import Line, Scored, loader, trainer


def files(folder: str | Path) -> set[str]:
    """The names in a folder."""
    return {path.name for path in Path(folder).iterdir()}


def train(epochs: int, saver: ModelCheckpoint, ckpt_path: Any = None) -> L.Trainer:
    used = trainer(max_epochs=epochs, callbacks=[saver])
    used.fit(Line(), loader(), ckpt_path=ckpt_path)
    return used


def test_default_folders() -> None:
    """Each run has a folder of its own; that of the first one is left as it was."""
    L.Trainer(accelerator="cpu", max_epochs=1).fit(Line(), loader())
    path = Path("runs/Line/version_0/checkpoints/epoch=0-step=4.ckpt")
    before = path.read_bytes()
    with pytest.warns(UserWarning, match="ModelCheckpoint wrote to"):
        L.Trainer(accelerator="cpu", max_epochs=3).fit(Line(), loader(), ckpt_path=path)
    assert path.read_bytes() == before
    assert files("runs/Line/version_1/checkpoints") == {"epoch=2-step=12.ckpt"}


def absolute(path: str) -> str:
    return os.path.abspath(path)


def roundabout(path: str) -> str:
    return os.path.join(os.path.dirname(path), "..", path)


def through_a_link(path: str) -> str:
    Path("link").symlink_to("saved", target_is_directory=True)
    return path.replace("saved", "link")


FORMS: list[Callable[[str], Any]] = [str, Path, absolute, roundabout, through_a_link]


@pytest.mark.parametrize("form", FORMS, ids=lambda form: form.__name__)
def test_a_folder_that_both_runs_share(form: Callable[[str], Any]) -> None:
    """However the path is written; what the second run wrote itself goes when something newer is there."""
    train(1, ModelCheckpoint("saved"))
    train(3, ModelCheckpoint("saved"), ckpt_path=form("saved/epoch=0-step=4.ckpt"))
    assert files("saved") == {"epoch=0-step=4.ckpt", "epoch=2-step=12.ckpt"}


def test_one_of_the_best() -> None:
    """It is pushed out of the best, and stays all the same."""

    def run(epochs: int, ckpt_path: str | None = None) -> None:
        saver = ModelCheckpoint("saved", "{epoch}", monitor="score")
        used = trainer(max_epochs=epochs, callbacks=[saver])
        used.fit(Scored([3.0, 2.0, 1.0]), loader(), loader(), ckpt_path=ckpt_path)

    run(1)
    run(3, "saved/epoch=0.ckpt")
    assert files("saved") == {"epoch=0.ckpt", "epoch=2.ckpt"}


def test_the_last_one_under_names_that_change() -> None:
    class Numbered(ModelCheckpoint):
        CHECKPOINT_NAME_LAST = "last-{epoch}"

    train(1, Numbered("saved", save_top_k=0, save_last=True))
    train(3, Numbered("saved", save_top_k=0, save_last=True), ckpt_path="saved/last-epoch=0.ckpt")
    assert files("saved") == {"last-epoch=0.ckpt", "last-epoch=2.ckpt"}


def test_a_file_outside_the_own_folder() -> None:
    """The best of a run that wrote elsewhere is taken over by name, to be loaded; it is not this run's to delete."""
    train(2, ModelCheckpoint("first"))
    with pytest.warns(UserWarning, match="ModelCheckpoint wrote to"):
        train(3, ModelCheckpoint("second"), ckpt_path="first/epoch=1-step=8.ckpt")
    train(2, ModelCheckpoint("first/deeper"))
    with pytest.warns(UserWarning, match="ModelCheckpoint wrote to"):
        train(4, ModelCheckpoint("first"), ckpt_path="first/deeper/epoch=1-step=8.ckpt")
    assert files("first") == {"epoch=1-step=8.ckpt", "epoch=3-step=16.ckpt", "deeper"}
    assert files("first/deeper") == {"epoch=1-step=8.ckpt"}


@pytest.mark.parametrize("again", ["the same Trainer", "another Trainer"])
def test_fitting_twice_from_one_checkpoint(again: str) -> None:
    """As someone does who tries two learning rates from one start."""
    train(1, ModelCheckpoint("saved"))
    path = "saved/epoch=0-step=4.ckpt"
    used = train(3, ModelCheckpoint("saved"), ckpt_path=path)
    if again == "another Trainer":
        used = train(3, ModelCheckpoint("saved"), ckpt_path=path)
    else:
        used.fit(Line(), loader(), ckpt_path=path)
    assert (used.current_epoch, used.global_step) == (3, 12)
    assert torch.load(path, weights_only=True)["global_step"] == 4
    assert os.path.exists(used.checkpoint_callback.best_model_path)

"""The folder of a run: when it is claimed, and that it stays where it is."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
import torch

import gpulayer.pytorch as L
from gpulayer.pytorch.callbacks import ModelCheckpoint
from gpulayer.pytorch.loggers import CSVLogger
from tests.pytorch.models import Line, loader


def made(**arguments: Any) -> L.Trainer:
    """A Trainer that writes, as it does by default."""
    return L.Trainer(**{"accelerator": "cpu", "log_every_n_steps": 1, **arguments})


def versions(folder: str = "runs/Line") -> list[str]:
    return sorted(path.name for path in Path(folder).iterdir())


def whole(folder: str | Path) -> bool:
    """Whether a run's folder has all that a run writes, of one epoch."""
    folder = Path(folder)
    rows = (folder / "metrics.csv").read_text().splitlines()
    return len(rows) == 1 + 4 and (folder / "checkpoints" / "epoch=0-step=4.ckpt").is_file()


# -- when it is claimed -----------------------------------------------------------------------------------------------


def test_reading_log_dir_before_each_of_two_runs() -> None:
    for number in range(2):
        used = made()
        before = sorted(Path().rglob("*"))
        for _ in range(3):
            assert used.log_dir is not None
        assert sorted(Path().rglob("*")) == before
        used.fit(Line(), loader())
        assert used.log_dir == os.path.join("runs", "Line", f"version_{number}")
        assert whole(used.log_dir)
    assert versions() == ["version_0", "version_1"]


@pytest.mark.parametrize("look_first", [False, True])
def test_going_on_with_the_last_where_nothing_was_saved(look_first: bool) -> None:
    """One folder a run, and it is a new one: not the empty folder that looking for a checkpoint would have made."""
    for number in range(2):
        used = made()
        if look_first:
            _ = used.log_dir
        used.fit(Line(), loader(), ckpt_path="last")
        assert versions() == [f"version_{n}" for n in range(number + 1)]
        assert whole(f"runs/Line/version_{number}")


def test_a_logger_of_ones_own_names_one_folder_before_and_after() -> None:
    used = made(logger=CSVLogger("logs", "mine"))
    before = used.log_dir
    used.fit(Line(), loader(), ckpt_path="last")
    assert before == used.log_dir == os.path.join("logs", "mine", "version_0")
    assert versions("logs/mine") == ["version_0"]
    assert whole("logs/mine/version_0")


# -- where it is ------------------------------------------------------------------------------------------------------


class Data(L.DataModule):
    def train_dataloader(self) -> Any:
        return loader()


def changes_folder(owner: type, hook: str) -> Any:
    """An object of a subclass whose `hook` changes the working folder."""

    def method(self: Any, *arguments: Any, **named: Any) -> Any:
        os.chdir("elsewhere")
        return getattr(super(type(self), self), hook)(*arguments, **named)

    return type("Line" if owner is Line else "Moves", (owner,), {hook: method})()


MOVES = [
    (Line, "prepare_data"), (Data, "prepare_data"), (Data, "setup"), (Line, "setup"), (Line, "configure_optimizers"),
    (Line, "on_fit_start"), (Line, "on_train_start"), (Line, "on_train_epoch_end"), (L.Callback, "setup"),
]  # fmt: skip


@pytest.mark.parametrize(("owner", "hook"), MOVES, ids=lambda value: getattr(value, "__name__", value))
@pytest.mark.parametrize("root", [None, "here"])
def test_changing_the_working_folder_in_a_hook(fresh_folder: Path, owner: type, hook: str, root: str | None) -> None:
    """All files of the run lie together, where it was begun."""
    Path("elsewhere").mkdir()
    model: Line = changes_folder(owner, hook) if owner is Line else Line()
    data = changes_folder(owner, hook) if owner is Data else Data()
    callbacks = [changes_folder(owner, hook)] if owner is L.Callback else []
    made(callbacks=callbacks, default_root_dir=root).fit(model, datamodule=data)
    assert Path.cwd() == fresh_folder / "elsewhere"
    assert whole(fresh_folder / (root or "runs") / "Line" / "version_0")
    assert list(Path().iterdir()) == []


def test_changing_the_working_folder_with_paths_of_ones_own(fresh_folder: Path) -> None:
    class Moves(Line):
        def prepare_data(self) -> None:
            os.chdir("elsewhere")

    Path("elsewhere").mkdir()
    made(logger=CSVLogger("logs", "mine"), callbacks=[ModelCheckpoint("saved")]).fit(Moves(), loader())
    assert (fresh_folder / "logs" / "mine" / "version_0" / "metrics.csv").is_file()
    assert (fresh_folder / "saved" / "epoch=0-step=4.ckpt").is_file()
    assert list(Path().iterdir()) == []


@pytest.fixture
def home(fresh_folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A home folder of its own; the test runs in another one."""
    monkeypatch.setenv("HOME", str(fresh_folder / "home"))
    (fresh_folder / "work").mkdir()
    monkeypatch.chdir(fresh_folder / "work")
    return fresh_folder / "home"


@pytest.mark.parametrize("kind", [str, Path])
def test_a_root_below_the_home_folder(home: Path, kind: type) -> None:
    used = made(default_root_dir=kind("~/x"))
    used.fit(Line(), loader())
    assert whole(home / "x" / "Line" / "version_0")
    assert used.default_root_dir == str(home / "x")
    assert list(Path().iterdir()) == []


def test_checkpoints_alone_below_the_home_folder(home: Path) -> None:
    made(default_root_dir="~/x", logger=False).fit(Line(), loader())
    assert (home / "x" / "checkpoints" / "epoch=0-step=4.ckpt").is_file()
    assert list(Path().iterdir()) == []


def test_a_logger_and_checkpoints_below_the_home_folder(home: Path) -> None:
    made(logger=CSVLogger("~/logs", "mine"), callbacks=[ModelCheckpoint("~/saved")]).fit(Line(), loader())
    assert (home / "logs" / "mine" / "version_0" / "metrics.csv").is_file()
    assert (home / "saved" / "epoch=0-step=4.ckpt").is_file()
    assert list(Path().iterdir()) == []
    assert torch.load(home / "saved" / "epoch=0-step=4.ckpt", weights_only=True)["global_step"] == 4

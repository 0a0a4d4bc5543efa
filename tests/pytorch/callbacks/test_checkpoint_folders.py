"""ModelCheckpoint's state in a run that goes on: where its files are now, and what a killed run left behind."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import fsspec
import pytest
import torch

import gpulayer.pytorch as L
from gpulayer.fabric.checkpoint import TorchCheckpointIO
from gpulayer.fabric.utilities.exceptions import SaveError
from gpulayer.pytorch.callbacks import ModelCheckpoint
from tests.pytorch.models import Scored, Validated, loader, trainer

SCORES = [5.0, 4.0, 6.0, 3.0, 2.0, 1.0]


def fit(epochs: int, *savers: ModelCheckpoint, ckpt_path: Any = None, others: Sequence[L.Callback] = ()) -> L.Trainer:
    used = trainer(max_epochs=epochs, callbacks=[*others, *savers])
    used.fit(Scored(SCORES), loader(), loader(), ckpt_path=ckpt_path)
    return used


def saver(folder: str, **arguments: Any) -> ModelCheckpoint:
    given: dict[str, Any] = {"filename": "{epoch}", "monitor": "score", "save_top_k": 2, "save_last": True, **arguments}
    return ModelCheckpoint(folder, **given)


def names(folder: str | Path) -> set[str]:
    return {path.name for path in Path(folder).iterdir()}


def paths(used: ModelCheckpoint) -> set[str]:
    """All that its state names."""
    named = {used.best_model_path, used.last_model_path, used.kth_best_model_path, *used.best_k_models}
    return {path for path in named if path}


def rename(before: str, after: str) -> None:
    Path(after).parent.mkdir(parents=True, exist_ok=True)
    Path(before).rename(after)


def copy(before: str, after: str) -> None:
    shutil.copytree(before, after)


MOVES: list[Callable[[str, str], None]] = [rename, copy]


# -- a folder that moved ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("move", MOVES)
@pytest.mark.parametrize("word", [True, False], ids=["last", "a path"])
def test_a_folder_that_was_moved(move: Callable[[str, str], None], word: bool) -> None:
    """Renamed, or copied to another machine: what is best is known, and what is pushed out is deleted, there."""
    fit(3, saver("old"))
    move("old", "elsewhere/new")
    before = names("old") if move is copy else set()
    again = saver("elsewhere/new")
    fit(6, again, ckpt_path="last" if word else "elsewhere/new/last.ckpt")
    assert names("elsewhere/new") >= {"epoch=4.ckpt", "epoch=5.ckpt"}
    assert names("elsewhere/new") <= {"epoch=4.ckpt", "epoch=5.ckpt", "last.ckpt"}
    assert {Path(path).parent for path in paths(again)} == {Path("elsewhere/new").absolute()}
    assert all(os.path.exists(path) for path in paths(again))
    assert Path("old").exists() == (move is copy)
    if move is copy:
        assert names("old") == before, "the original is somebody else's now"


def test_the_state_of_a_moved_folder_before_anything_is_saved() -> None:
    fit(3, saver("old"))
    rename("old", "new")
    again = saver("new")
    fit(3, again, ckpt_path="new/last.ckpt")  # nothing is left to train
    assert {Path(path).name: float(score) for path, score in again.best_k_models.items()} == {
        "epoch=0.ckpt": 5.0,
        "epoch=1.ckpt": 4.0,
    }
    assert Path(again.best_model_path) == Path("new/epoch=1.ckpt").absolute()
    assert Path(again.kth_best_model_path) == Path("new/epoch=0.ckpt").absolute()
    assert float(again.kth_value) == 5.0
    assert float(again.best_model_score or 0) == 4.0
    assert Path(again.last_model_path) == Path("new/last.ckpt").absolute()


def test_several_savers_of_a_run_that_was_moved() -> None:
    """The checkpoint lies in the folder of one of them; the files of the others are found, too."""
    fit(3, saver("run/best", save_last=None), ModelCheckpoint("run/all", "{epoch}", save_top_k=-1, save_last=True))
    rename("run", "moved")
    best = saver("moved/best", save_last=None)
    fit(6, best, ModelCheckpoint("moved/all", "{epoch}", save_top_k=-1, save_last=True), ckpt_path="last")
    assert names("moved/best") == {"epoch=4.ckpt", "epoch=5.ckpt"}
    assert paths(best) == {str(Path("moved/best", name).absolute()) for name in names("moved/best")}


def test_files_that_are_gone(caplog: pytest.LogCaptureFixture) -> None:
    """One line says which, and the next best fill the room."""
    fit(3, saver("old"))
    rename("old", "new")
    Path("new/epoch=1.ckpt").unlink()
    again = saver("new")
    fit(3, again, ckpt_path="new/last.ckpt")
    assert [Path(path).name for path in again.best_k_models] == ["epoch=0.ckpt"]
    assert Path(again.best_model_path).name == "epoch=0.ckpt"
    lines = [record.getMessage() for record in caplog.records if "no such files" in record.getMessage()]
    assert len(lines) == 1
    assert "epoch=1.ckpt" in lines[0]


def test_a_file_of_another_run_is_not_taken_for_one_of_this() -> None:
    """It has the name of one of the first run's, which is still where it was."""
    fit(3, saver("first"))
    fit(2, saver("second"))
    theirs = Path("second/epoch=1.ckpt").read_bytes()
    again = saver("second", save_last=None)
    with pytest.warns(UserWarning, match="ModelCheckpoint wrote to"):
        fit(6, again, ckpt_path="first/last.ckpt")
    assert Path("second/epoch=1.ckpt").read_bytes() == theirs
    assert names("second") == {"epoch=0.ckpt", "epoch=1.ckpt", "last.ckpt", "epoch=4.ckpt", "epoch=5.ckpt"}
    assert names("first") == {"epoch=0.ckpt", "epoch=1.ckpt", "last.ckpt"}


def test_a_relative_folder_and_a_changed_working_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is that of where the program was when the callback was made."""
    again = saver("run/saved")
    Path("elsewhere").mkdir()
    fit(2, again)
    monkeypatch.chdir("elsewhere")
    fit(4, again, ckpt_path="last")
    fit(6, saver("../run/saved"), ckpt_path="../run/saved/last.ckpt")
    assert names("../run/saved") >= {"epoch=4.ckpt", "epoch=5.ckpt"}
    assert list(Path().iterdir()) == []


def test_fewer_are_to_be_kept_than_before() -> None:
    """Those that are too many stay on the disk, for resuming deletes nothing; the best go on counting."""
    fit(3, saver("saved", save_top_k=3))
    again = saver("saved", save_top_k=1)
    fit(4, again, ckpt_path="last")
    assert [Path(path).name for path in again.best_k_models] == ["epoch=3.ckpt"]
    assert names("saved") == {"epoch=0.ckpt", "epoch=2.ckpt", "epoch=3.ckpt", "last.ckpt"}


def test_more_are_to_be_kept_than_before() -> None:
    fit(2, saver("saved", save_top_k=1))
    again = saver("saved", save_top_k=3)
    fit(3, again, ckpt_path="last")
    assert sorted(Path(path).name for path in again.best_k_models) == ["epoch=1.ckpt", "epoch=2.ckpt"]


@pytest.mark.parametrize("which", ["best", "a path"])
def test_testing_a_checkpoint_forgets_nothing(which: str) -> None:
    """The state in the file is that of an older moment."""

    class Tested(Scored):
        def test_step(self, batch: Any, batch_idx: int) -> None: ...

    keeper = saver("saved", save_top_k=3)
    used, model = trainer(max_epochs=4, callbacks=[keeper]), Tested([1.0, 2.0, 3.0, 4.0])
    used.fit(model, loader(), loader())
    before = keeper.state_dict()
    used.test(model, loader(), ckpt_path="best" if which == "best" else "saved/epoch=1.ckpt")
    assert keeper.state_dict() == before


# -- in a store -------------------------------------------------------------------------------------------------------


@pytest.fixture
def store(request: pytest.FixtureRequest) -> str:
    """The URL of an empty folder in fsspec's store in memory."""
    return f"memory://{request.node.name.replace('[', '-').rstrip(']')}"


def stored(url: str) -> set[str]:
    files: Any = fsspec.filesystem("memory").find(url.removeprefix("memory:/"))
    return {path.removeprefix(url.removeprefix("memory:/") + "/") for path in files}


@pytest.mark.parametrize("save_last", [True, "link"])
def test_a_url(store: str, save_last: Any) -> None:
    """A store has no links: the last one is a copy."""
    keeper = saver(f"{store}/run", save_last=save_last)
    fit(4, keeper)
    assert stored(store) == {"run/epoch=1.ckpt", "run/epoch=3.ckpt", "run/last.ckpt"}
    assert keeper.best_model_path == f"{store}/run/epoch=3.ckpt"
    assert keeper.last_model_path == f"{store}/run/last.ckpt"
    assert keeper.last_checkpoints(trainer(callbacks=[keeper])) == {f"{store}/run/last.ckpt"}
    again = saver(f"{store}/run/", save_last=save_last)
    fit(6, again, ckpt_path=f"{store}/run/last.ckpt")
    assert stored(store) == {"run/epoch=4.ckpt", "run/epoch=5.ckpt", "run/last.ckpt"}
    with fsspec.open(f"{store}/run/last.ckpt") as file:
        assert torch.load(file, weights_only=True)["epoch"] == 5
    again.to_yaml()
    with fsspec.open(f"{store}/run/best_k_models.yaml", "r") as file:
        assert f"{store}/run/epoch=5.ckpt: 1.0" in file.read()


def test_a_name_that_is_taken_in_a_store(store: str) -> None:
    for _ in range(2):
        fit(1, ModelCheckpoint(store, "model"))
    assert stored(store) == {"model.ckpt", "model-v1.ckpt"}


def test_a_folder_that_was_moved_into_a_store(store: str) -> None:
    fit(3, saver("saved"))
    memory: Any = fsspec.filesystem("memory")
    memory.put("saved", store.removeprefix("memory:/"), recursive=True)
    shutil.rmtree("saved")
    again = saver(store)
    fit(6, again, ckpt_path=f"{store}/last.ckpt")
    assert stored(store) == {"epoch=4.ckpt", "epoch=5.ckpt", "last.ckpt"}
    assert not Path("saved").exists()


# -- a run that was killed --------------------------------------------------------------------------------------------


class Killed(Exception):
    """Stands for the end of the process: nothing after it is done."""


class DiesBefore(ModelCheckpoint):
    """The process ends just before this one writes a file of a name."""

    fatal = ""

    def _save_checkpoint(self, trainer: L.Trainer, filepath: str) -> None:
        if self.fatal and Path(filepath).name == self.fatal:
            raise Killed
        super()._save_checkpoint(trainer, filepath)


DiesBefore.__qualname__ = "ModelCheckpoint"  # so that the state is that of one


class DiesInCopying(TorchCheckpointIO):
    """The process ends just before it makes the last file, a copy of the best."""

    def copy_checkpoint(self, source: str, target: str) -> None:
        if Path(source).name == "epoch=3.ckpt":
            raise Killed
        super().copy_checkpoint(source, target)


@pytest.mark.parametrize("top", [1, 2, -1])
def test_killed_between_the_best_and_the_last(top: int) -> None:
    """The best of the step that is trained once more gets the name that it has, and no copy is left beside it."""
    fit(6, saver("whole", save_top_k=top))
    used = trainer(max_epochs=6, callbacks=[saver("cut", save_top_k=top)], plugins=[DiesInCopying()])
    with pytest.raises(SaveError, match="Killed"):
        used.fit(Scored(SCORES), loader(), loader())
    assert "epoch=3.ckpt" in names("cut")
    assert torch.load("cut/last.ckpt", weights_only=True)["epoch"] == 2
    fit(6, saver("cut", save_top_k=top), ckpt_path="last")
    assert names("cut") == names("whole")


def test_a_last_that_is_a_link_to_nothing() -> None:
    """Someone deleted the file: the run goes on from the newest that is there."""
    fit(3, saver("saved", save_last="link", save_top_k=3))
    Path("saved/epoch=2.ckpt").unlink()
    with pytest.warns(UserWarning, match=r"last\.ckpt.*a link to a file that is gone.*epoch=1\.ckpt"):
        used = fit(4, saver("saved", save_last="link", save_top_k=3), ckpt_path="last")
    assert used.global_step == 16


def test_another_branch_writes_over_nothing() -> None:
    """One who goes on from an older file, not from the last, keeps what came after it."""
    fit(4, saver("saved", save_top_k=-1))
    kept = {name: Path("saved", name).read_bytes() for name in names("saved")}
    fit(4, saver("saved", save_top_k=-1, save_last=None), ckpt_path="saved/epoch=1.ckpt")
    assert all(Path("saved", name).read_bytes() == content for name, content in kept.items())
    assert {"epoch=2-v1.ckpt", "epoch=3-v1.ckpt"} <= names("saved")


def state(path: str) -> dict[str, Any]:
    """That of the second of two savers, in a checkpoint."""
    states: list[dict[str, Any]] = list(torch.load(path, weights_only=True)["callbacks"].values())
    return states[1]


@pytest.mark.parametrize(
    ("interval", "monitor", "file"),
    [
        ({"every_n_epochs": 1}, "val_loss", "epoch=1-step=8.ckpt"),
        ({"every_n_epochs": 1, "save_on_train_epoch_end": False}, "val_loss", "epoch=1-step=8.ckpt"),
        ({"every_n_train_steps": 2}, None, "epoch=1-step=6.ckpt"),
        ({"every_n_train_steps": 2}, "val_loss", "epoch=1-step=6.ckpt"),
    ],
    ids=["epoch", "validation", "batch", "batch, after its validation"],
)
def test_killed_before_the_turn_of_another_saver(interval: dict[str, Any], monitor: str | None, file: str) -> None:
    """Two save in one hook; the run is cut off between them, and goes on from the first one's file."""

    def savers(folder: str, fatal: str = "") -> list[ModelCheckpoint]:
        periodic = ModelCheckpoint(f"{folder}/last", save_top_k=0, save_last=True, **interval, mode="max")
        best = DiesBefore(f"{folder}/best", monitor=monitor, save_top_k=-1, **interval)
        best.fatal = fatal
        return [periodic, best]

    def run(folder: str, fatal: str = "", ckpt_path: str | None = None) -> None:
        torch.manual_seed(0)
        within = 2 if interval == {"every_n_train_steps": 2} else 1.0
        used = trainer(max_epochs=3, callbacks=savers(folder, fatal), val_check_interval=within)
        used.fit(Validated(), loader(), loader(), ckpt_path=ckpt_path)

    run("whole")
    with pytest.raises(Killed):
        run("cut", file)
    run("cut", ckpt_path="last")
    assert names("cut/best") == names("whole/best")
    scores = [state(f"{folder}/last/last.ckpt")["best_k_models"] for folder in ("whole", "cut")]
    assert [float(score) for score in scores[0].values()] == [float(score) for score in scores[1].values()]
    for name in names("whole/best"):
        one, other = (torch.load(Path(folder, "best", name), weights_only=True) for folder in ("whole", "cut"))
        assert all(torch.equal(one["state_dict"][key], other["state_dict"][key]) for key in one["state_dict"])

"""Checkpoints that cannot be stored: what was there is kept, and `on_save_error` says whether the run goes on."""

from __future__ import annotations

import errno
import logging
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

import pytest
import torch

import gpulayer.pytorch as L
from gpulayer.fabric.checkpoint import AsyncCheckpointIO, TorchCheckpointIO
from gpulayer.fabric.utilities.exceptions import MisconfigurationException, SaveError
from gpulayer.pytorch.callbacks import ModelCheckpoint
from tests.pytorch.models import Scored, loader, trainer

FALLING = [9.0, 8.0, 7.0, 6.0, 5.0, 4.0]
BOTH = pytest.mark.parametrize("background", [False, True], ids=["at once", "in the background"])


class Away(TorchCheckpointIO):
    """A store that takes nothing in some epochs, and anything else in others.

    Args:
        epochs: those in which it is away.
        only: it refuses only files with this in their name.
        error: what it raises.
    """

    def __init__(self, epochs: Sequence[int], only: str = "", error: Exception | None = None) -> None:
        self.epochs, self.only, self.epoch = epochs, only, 0
        self.error = error or OSError(errno.ENOSPC, "No space left on device")

    def save_checkpoint(self, checkpoint: dict[str, Any], path: str, storage_options: Any = None) -> None:
        self.epoch = checkpoint["epoch"]
        self.refuse(path)
        super().save_checkpoint(checkpoint, path, storage_options)

    def copy_checkpoint(self, source: str, target: str) -> None:
        self.refuse(target)
        super().copy_checkpoint(source, target)

    def refuse(self, path: str) -> None:
        if self.epoch in self.epochs and self.only in Path(path).name:
            raise self.error


def run(savers: list[ModelCheckpoint], store: Away, background: bool) -> L.Trainer:
    """Six epochs, each with a better score than the one before."""
    plugins = [AsyncCheckpointIO(store) if background else store]
    used = trainer(max_epochs=len(FALLING), callbacks=list(savers), plugins=plugins)
    used.fit(Scored(FALLING), loader(), loader())
    return used


def on_disk(folder: str = "saved") -> dict[str, int]:
    """The epoch that each file holds. To read it proves that it is whole."""
    return {file.name: torch.load(file, weights_only=True)["epoch"] for file in sorted(Path(folder).iterdir())}


def known(saver: ModelCheckpoint) -> set[str]:
    """The files that a saver believes in."""
    return {Path(path).name for path in (saver.best_model_path, saver.last_model_path, *saver.best_k_models) if path}


def warnings_in(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]


@BOTH
@pytest.mark.parametrize("save_last", [None, True, "link"])
def test_the_run_goes_on_and_the_next_save_is_tried(
    background: bool, save_last: Literal["link"] | bool | None, caplog: pytest.LogCaptureFixture
) -> None:
    """Away in epochs 2 and 3: those are not among the best, and what was there before stays until a save succeeds."""
    saver = ModelCheckpoint("saved", "{epoch}", "score", save_last=save_last, save_top_k=2, on_save_error="warn")
    run([saver], Away([2, 3]), background)
    assert {name: epoch for name, epoch in on_disk().items() if name != "last.ckpt"} == {
        "epoch=4.ckpt": 4,
        "epoch=5.ckpt": 5,
    }
    assert known(saver) == set(on_disk())
    assert float(saver.best_model_score or 0) == 4.0
    if save_last:
        assert on_disk()["last.ckpt"] == 5
    said = warnings_in(caplog)
    assert all("No space left on device" in line and "Training goes on" in line for line in said)
    assert {name for name in ("epoch=2.ckpt", "epoch=3.ckpt") if any(name in line for line in said)} == {
        "epoch=2.ckpt",
        "epoch=3.ckpt",
    }


@BOTH
def test_a_failure_at_the_very_end(background: bool, caplog: pytest.LogCaptureFixture) -> None:
    """The files and the state are those of the epoch before; the Trainer's own wait has nothing left to raise."""
    saver = ModelCheckpoint("saved", "{epoch}", "score", save_last=True, save_top_k=2, on_save_error="warn")
    used = run([saver], Away([5, 6]), background)  # 6: the end of training
    assert on_disk() == {"epoch=3.ckpt": 3, "epoch=4.ckpt": 4, "last.ckpt": 4}
    assert known(saver) == set(on_disk())
    assert float(saver.best_model_score or 0) == 5.0
    assert used.state.finished
    assert warnings_in(caplog)


@BOTH
def test_by_default_the_error_ends_the_run(background: bool) -> None:
    saver = ModelCheckpoint("saved", "{epoch}", "score", save_last=True, save_top_k=2)
    with pytest.raises(SaveError, match="No space left on device") as raised:
        run([saver], Away([2]), background)
    assert raised.value.errno == errno.ENOSPC
    assert on_disk() == {"epoch=0.ckpt": 0, "epoch=1.ckpt": 1, "last.ckpt": 1}
    assert known(saver) == set(on_disk())
    assert float(saver.best_model_score or 0) == 8.0


@BOTH
def test_only_the_last_file_fails(background: bool) -> None:
    """The best is there, and known; the last one is that of the epoch before."""
    saver = ModelCheckpoint("saved", "{epoch}", "score", save_last=True, on_save_error="warn")
    saver.CHECKPOINT_NAME_LAST = "last-{epoch}"
    run([saver], Away([5, 6], only="last"), background)
    assert on_disk() == {"epoch=5.ckpt": 5, "last-epoch=4.ckpt": 4}
    assert known(saver) == set(on_disk())


def test_a_link_never_points_to_a_file_that_was_deleted() -> None:
    """The last one cannot be renewed, so the one that it is a link to stays."""
    saver = ModelCheckpoint("saved", "{epoch}", "score", save_last="link", on_save_error="warn")

    class NoLinks(Away):
        def link_checkpoint(self, source: str, target: str) -> None:
            self.refuse(target)
            super().link_checkpoint(source, target)

    run([saver], NoLinks([5, 6], only="last"), background=False)
    assert on_disk() == {"epoch=4.ckpt": 4, "epoch=5.ckpt": 5, "last.ckpt": 4}


@BOTH
def test_a_file_that_is_written_over(background: bool) -> None:
    """One name for all: a save that fails leaves the old file, and the old score."""
    saver = ModelCheckpoint("saved", "model", "score", enable_version_counter=False, on_save_error="warn")
    run([saver], Away([4, 5]), background)
    assert on_disk() == {"model.ckpt": 3}
    assert float(saver.best_model_score or 0) == FALLING[3]


@BOTH
def test_without_a_monitor(background: bool) -> None:
    saver = ModelCheckpoint("saved", "{epoch}", on_save_error="warn")
    run([saver], Away([1, 5]), background)
    assert on_disk() == {"epoch=4.ckpt": 4}
    assert known(saver) == {"epoch=4.ckpt"}


def test_an_error_that_is_no_oserror(caplog: pytest.LogCaptureFixture) -> None:
    """As those of the libraries of object stores."""

    class ClientError(Exception):
        """Of somebody's library."""

    saver = ModelCheckpoint("saved", "{epoch}", on_save_error="warn")
    run([saver], Away([5], error=ClientError("the server is busy")), background=False)
    assert on_disk() == {"epoch=4.ckpt": 4}
    assert "ClientError: the server is busy" in warnings_in(caplog)[0]


@pytest.mark.parametrize("forgiving", [0, 1])
def test_two_savers_of_which_one_forgives(forgiving: int) -> None:
    """In the background the error of one comes out at a save of the other; whose file it was decides."""
    settings: list[Literal["raise", "warn"]] = ["raise", "raise"]
    settings[forgiving] = "warn"
    savers = [
        ModelCheckpoint(f"saver{i}", f"saver{i}-{{epoch}}", every_n_epochs=i + 1, on_save_error=setting)
        for i, setting in enumerate(settings)
    ]
    run(savers, Away([3], only=f"saver{forgiving}"), background=True)
    assert on_disk("saver0") == {"saver0-epoch=5.ckpt": 5}
    assert on_disk("saver1") == {"saver1-epoch=5.ckpt": 5}
    with pytest.raises(SaveError, match="No space left"):
        run(savers, Away([3], only=f"saver{1 - forgiving}"), background=True)


class Hooked(Scored):
    """Its own code goes wrong, or it saves what cannot be pickled."""

    def __init__(self, what: str) -> None:
        super().__init__(FALLING)
        self.what = what

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        if self.what == "a hook that raises":
            raise OSError("of the user's own")
        checkpoint["function"] = lambda: None


@pytest.mark.parametrize(
    ("what", "error", "message"),
    [
        ("a hook that raises", OSError, "of the user's own"),
        ("a lambda", Exception, "pickle|local object"),
    ],
    ids=["a hook", "a lambda"],
)
@pytest.mark.filterwarnings("ignore:The checkpoint holds more than plain data")
def test_the_users_own_mistakes_always_raise(what: str, error: Any, message: str) -> None:
    saver = ModelCheckpoint("saved", on_save_error="warn")
    with pytest.raises(error, match=message) as raised:
        trainer(max_epochs=2, callbacks=[saver]).fit(Hooked(what), loader(), loader())
    assert not isinstance(raised.value, SaveError)
    assert saver.best_model_path == ""


def test_a_value_that_is_none() -> None:
    with pytest.raises(MisconfigurationException, match=r"on_save_error='ignore'.*'raise'.*'warn'"):
        ModelCheckpoint(on_save_error="ignore")  # type: ignore[arg-type]


def test_a_file_in_place_of_the_folder() -> None:
    """It is said before training starts, whatever `on_save_error` is."""
    Path("saved").touch()
    saver = ModelCheckpoint("saved", on_save_error="warn")
    with pytest.raises(MisconfigurationException, match=r"dirpath='.*saved'.*is a file"):
        trainer(max_epochs=2, callbacks=[saver]).fit(Scored(FALLING), loader(), loader())


class Vanishes(L.Callback):
    """In the second epoch a file stands where the folder was."""

    def on_train_epoch_start(self, trainer: L.Trainer, pl_module: L.Module) -> None:
        if trainer.current_epoch == 1:
            Path("saved").rename("away")
            Path("saved").touch()
        elif trainer.current_epoch == 2:
            Path("saved").unlink()
            Path("away").rename("saved")


def test_a_folder_that_is_away_for_a_while(caplog: pytest.LogCaptureFixture) -> None:
    """As the system says it."""
    saver = ModelCheckpoint("saved", "{epoch}", "score", save_top_k=3, save_last=True, on_save_error="warn")
    trainer(max_epochs=3, callbacks=[Vanishes(), saver]).fit(Scored(FALLING), loader(), loader())
    assert on_disk() == {"epoch=0.ckpt": 0, "epoch=2.ckpt": 2, "last.ckpt": 2}
    assert known(saver) == set(on_disk())
    first, second = warnings_in(caplog)
    assert "saved/epoch=1.ckpt" in first
    assert "saved/last.ckpt" in second


FULL_DISK = """
import resource
import gpulayer.pytorch as L
from gpulayer.fabric.utilities.exceptions import SaveError
from gpulayer.pytorch.callbacks import ModelCheckpoint
from tests.pytorch.models import Scored, loader, trainer

class Fills(L.Callback):
    def on_train_epoch_start(self, trainer, pl_module):
        most = 1000 if trainer.current_epoch == 2 else resource.RLIM_INFINITY  # bytes that a file may have
        resource.setrlimit(resource.RLIMIT_FSIZE, (most, resource.RLIM_INFINITY))

for setting in ("warn", "raise"):
    saver = ModelCheckpoint(setting, "{epoch}", "score", save_last=True, on_save_error=setting)
    used = trainer(max_epochs=4, callbacks=[Fills(), saver])
    try:
        used.fit(Scored([4.0, 3.0, 2.0, 5.0]), loader(), loader())
    except SaveError:
        print("raised")
    print(used.current_epoch, "epochs, best:", float(saver.best_model_score))
"""


@pytest.mark.skipif(sys.platform == "win32", reason="the limit is one of Unix")
def test_files_that_may_not_grow() -> None:
    """What a full disk or a quota does: a write that stops in the middle of a file."""
    root = str(Path(__file__).parents[3])
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([root, os.environ.get("PYTHONPATH", "")])}
    ended = subprocess.run(
        [sys.executable, "-c", FULL_DISK], capture_output=True, text=True, env=environment, check=True
    )
    assert ended.stdout.splitlines() == ["4 epochs, best: 3.0", "raised", "2 epochs, best: 3.0"]
    assert "could not save" in ended.stderr
    assert on_disk("warn") == {"epoch=1.ckpt": 1, "last.ckpt": 3}
    assert on_disk("raise") == {"epoch=1.ckpt": 1, "last.ckpt": 1}

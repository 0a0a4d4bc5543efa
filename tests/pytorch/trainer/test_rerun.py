"""`ckpt_path="last"` with a run folder of the Trainer's choice: a rerun after a crash goes on in that folder."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

import gpulayer.pytorch as L
from gpulayer.fabric.utilities.exceptions import MisconfigurationException
from gpulayer.pytorch.callbacks import EarlyStopping, ModelCheckpoint, OnExceptionCheckpoint, Timer
from gpulayer.pytorch.loggers import CSVLogger, TensorBoardLogger
from tests.pytorch.models import Line, loader, same, trainer, weights

BATCHES = 4  # of `loader()`, in each of two epochs


class Stops(Line):
    """Logs its loss, and may break off at the end of a batch."""

    def __init__(self, at: int | None = None) -> None:
        super().__init__()
        self.at = at
        self.done: list[int] = []

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        loss = super().training_step(batch, batch_idx)
        self.log("loss", loss)
        self.done.append(self.global_step)
        return loss

    def on_train_batch_end(self, *_: Any) -> None:
        if self.global_step == self.at:
            raise ValueError("the user's own")


def run(model: Stops, logger: Any = None, ckpt_path: str | None = "last") -> L.Trainer:
    """The script: two epochs, a save every second step into the run's folder."""
    saver = ModelCheckpoint(every_n_train_steps=2, save_last=True)
    used = trainer(max_epochs=2, log_every_n_steps=1, callbacks=[saver], logger=logger or CSVLogger("runs", "mine"))
    used.fit(model, loader(), ckpt_path=ckpt_path)
    return used


def versions(root: str = "runs/mine") -> list[str]:
    return sorted(path.name for path in Path(root).iterdir())


def unfinished() -> list[str]:
    return [path.parent.name for path in Path("runs").rglob(".unfinished-*")]


@pytest.mark.parametrize("first_path", ["last", None])
def test_a_rerun_goes_on_in_the_folder_of_the_run_that_was_cut_off(first_path: str | None) -> None:
    whole, first, second = Stops(), Stops(at=7), Stops()
    first.load_state_dict(whole.state_dict())
    trainer(max_epochs=2).fit(whole, loader())
    with pytest.raises(ValueError, match="the user's own"):
        run(first, ckpt_path=first_path)
    assert unfinished() == ["version_0"]
    run(second)
    assert second.done == [6, 7]
    assert same(weights(second), weights(whole))
    assert versions() == ["version_0"]
    assert unfinished() == []
    lines = Path("runs/mine/version_0/metrics.csv").read_text().splitlines()
    assert [line.split(",")[1] for line in lines[1:]] == [str(step) for step in range(8)]


def test_a_run_that_is_over_is_not_gone_on_with() -> None:
    run(Stops())
    again = Stops()
    run(again)
    assert len(again.done) == 2 * BATCHES
    assert versions() == ["version_0", "version_1"]
    assert unfinished() == []


def test_a_run_without_last_has_a_folder_of_its_own() -> None:
    with pytest.raises(ValueError, match="the user's own"):
        run(Stops(at=7))
    run(Stops(), ckpt_path=None)
    assert versions() == ["version_0", "version_1"]
    assert unfinished() == ["version_0"]


def test_cut_off_before_its_first_checkpoint() -> None:
    """It begins anew in the same folder; its few rows are put aside."""
    with pytest.raises(ValueError, match="the user's own"):
        run(Stops(at=2))
    second = Stops()
    run(second)
    assert len(second.done) == 2 * BATCHES
    assert versions() == ["version_0"]
    assert sorted(path.name for path in Path("runs/mine/version_0").iterdir()) == [
        "checkpoints", "metrics.csv", "metrics_before.csv",
    ]  # fmt: skip
    assert len(Path("runs/mine/version_0/metrics.csv").read_text().splitlines()) == 1 + 2 * BATCHES


def test_a_version_that_was_given_is_kept() -> None:
    with pytest.raises(ValueError, match="the user's own"):
        run(Stops(at=7))
    other = Stops()
    run(other, CSVLogger("runs", "mine", version="other"))
    assert len(other.done) == 2 * BATCHES


@pytest.mark.parametrize("name", ["board", "mine"])
def test_two_loggers_go_on_each_in_its_folder(name: str) -> None:
    """Their folders may lie side by side."""
    for model in (Stops(at=7), Stops()):
        loggers = [TensorBoardLogger("runs", name), CSVLogger("runs", "mine")]
        if model.at is not None:
            with pytest.raises(ValueError, match="the user's own"):
                run(model, loggers)
        else:
            run(model, loggers)
            assert model.done == [6, 7]
    folders = [Path("runs/board/version_0"), Path("runs/mine/version_0")]
    if name == "mine":
        folders = [Path("runs/mine/version_0"), Path("runs/mine/version_1")]
    assert [
        len(list(folder.glob(f"{kind}*"))) for folder, kind in zip(folders, ("events", "metrics"), strict=True)
    ] == [2, 1]
    assert len([path for path in Path("runs").glob("*/*") if path.is_dir()]) == 2


def test_trials_and_evaluations_leave_no_mark() -> None:
    used = trainer(fast_dev_run=True, logger=CSVLogger("runs", "mine"))
    used.fit(Stops(), loader())
    with pytest.raises(ValueError, match="the user's own"):
        trainer(fast_dev_run=True, logger=CSVLogger("runs", "mine")).fit(Stops(at=1), loader())
    assert unfinished() == []


def test_a_test_within_fit_leaves_the_mark() -> None:
    class Validates(Stops):
        marks: list[str]

        def test_step(self, batch: Any, batch_idx: int) -> None:
            pass

        def on_train_epoch_end(self) -> None:
            trainer(logger=self.trainer.logger).test(Validates(), loader(), verbose=False)
            self.marks = unfinished()

    model = Validates()
    run(model)
    assert model.marks == ["version_0"]
    assert unfinished() == []


SCRIPT = f"""
import os, signal, sys
sys.path.insert(0, {str(Path(__file__).parents[3])!r})
from tests.pytorch.trainer.test_rerun import *

class Waits(Stops):
    def on_train_batch_end(self, *_):
        if sys.argv[1] == "killed" and self.global_step == 5:
            os.kill(os.getpid(), signal.SIGKILL)
        if sys.argv[1] == "waits" and self.global_step == 5:
            print("here", flush=True)
            sys.stdin.readline()

model = Waits()
run(model)
print(model.done[0], flush=True)
"""


def script(kind: str, code: str = SCRIPT) -> subprocess.Popen[str]:
    command = [sys.executable, "-W", "ignore", "-c", code, kind]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def test_killed_processes_and_living_ones() -> None:
    """One that was killed is gone on with; one that is at work is left alone, though it has checkpoints as well."""
    living, killed = script("waits"), script("killed")
    try:
        assert living.stdout is not None
        assert living.stdout.readline() == "here\n"
        assert killed.wait() == -signal.SIGKILL
        assert len(unfinished()) == 2
        rerun, other = (script("ordinary") for _ in range(2))
        firsts = [process.communicate()[0] for process in (rerun, other)]
        assert sorted(firsts) == ["0\n", "4\n"], "one goes on, and the other has nothing to go on from"
        assert len(versions()) == 3
        out, _ = living.communicate("\n")
        assert out == "0\n"
        assert unfinished() == []
    finally:
        for process in (living, killed):
            process.kill()
            process.communicate()


def test_a_folder_that_cannot_be_written_is_no_obstacle() -> None:
    used = run(Stops())
    os.chmod("runs/mine/version_0", 0o500)
    try:
        used.loggers[0].begin(0)  # type: ignore[attr-defined]
        used.loggers[0].end(well=True)  # type: ignore[attr-defined]
    finally:
        os.chmod("runs/mine/version_0", 0o700)


def test_without_a_last_file_the_newest_checkpoint_is_gone_on_from(caplog: pytest.LogCaptureFixture) -> None:
    """The Trainer's own ModelCheckpoint writes no `last.ckpt`."""

    def default(model: Stops) -> None:
        trainer(max_epochs=2, enable_checkpointing=True, logger=CSVLogger("runs", "mine")).fit(
            model, loader(), ckpt_path="last"
        )

    with pytest.raises(ValueError, match="the user's own"):
        default(Stops(at=7))
    second = Stops()
    default(second)
    assert second.done == [4, 5, 6, 7]
    assert "training goes on from the newest checkpoint" in caplog.text
    names = [path.name for path in Path("runs/mine/version_0/checkpoints").iterdir()]
    assert names == ["epoch=1-step=8.ckpt"]


def test_a_last_file_that_a_signal_wrote_does_not_hide_newer_checkpoints() -> None:
    """It is written once, whatever the saver's settings, which may not keep it up to date."""

    def fixed(model: Stops, save_last: bool) -> None:
        saver = ModelCheckpoint("saved", every_n_train_steps=2, save_last=save_last)
        trainer(max_epochs=2, callbacks=[saver]).fit(model, loader(), ckpt_path="last")

    for model, save_last, first in ((Stops(at=3), True, 0), (Stops(at=7), False, 2), (Stops(), False, 6)):
        if model.at is not None:
            with pytest.raises(ValueError, match="the user's own"):
                fixed(model, save_last)
        else:
            fixed(model, save_last)
        assert model.done[0] == first


@pytest.mark.parametrize("ckpt_path", ["last", "saved/last.ckpt"])
def test_a_run_that_was_stopped_is_over(ckpt_path: str) -> None:
    """It was killed after its last save; who goes on from the file by its path wants to train on."""

    class Enough(Stops):
        def on_train_epoch_end(self) -> None:
            self.trainer.should_stop = True

        def on_train_end(self) -> None:
            if self.at is None:
                raise ValueError("the user's own")

    with pytest.raises(ValueError, match="the user's own"):
        trainer(max_epochs=5, callbacks=[ModelCheckpoint("saved", save_last=True)]).fit(
            Enough(), loader(), ckpt_path="last"
        )
    again = Enough(at=99)
    used = trainer(max_epochs=5, callbacks=[ModelCheckpoint("saved", save_last=True)])
    used.fit(again, loader(), ckpt_path=ckpt_path)
    assert again.done == ([] if ckpt_path == "last" else [4, 5, 6, 7])
    assert used.current_epoch == (1 if ckpt_path == "last" else 2)


def test_rows_that_were_put_aside_are_kept() -> None:
    for at in (3, 2, None):
        model = Stops(at)
        saver = ModelCheckpoint(every_n_train_steps=4, save_last=True)
        used = trainer(max_epochs=1, log_every_n_steps=1, callbacks=[saver], logger=CSVLogger("runs", "mine"))
        if at is None:
            used.fit(model, loader(), ckpt_path="last")
        else:
            with pytest.raises(ValueError, match="the user's own"):
                used.fit(model, loader(), ckpt_path="last")
    lines = {path.name: len(path.read_text().splitlines()) - 1 for path in Path("runs/mine/version_0").glob("*.csv")}
    assert lines == {"metrics_before.csv": 2, "metrics_before-1.csv": 1, "metrics.csv": 4}


def test_rows_of_this_process_and_of_a_run_that_is_over_stay() -> None:
    logger = CSVLogger("runs", "mine", version="one")
    logger.log_metrics({"loss": 1.0}, 0)
    run(Stops(), logger)
    saver = ModelCheckpoint("elsewhere", save_last=True)
    used = trainer(
        max_epochs=2, log_every_n_steps=1, callbacks=[saver], logger=CSVLogger("runs", "mine", version="one")
    )
    used.fit(Stops(), loader(), ckpt_path="last")
    assert len(Path("runs/mine/one/metrics.csv").read_text().splitlines()) == 1 + 1 + 4 * BATCHES
    assert not list(Path("runs/mine/one").glob("metrics_before*"))


def test_on_exception_checkpoint_alone_is_found() -> None:
    def alone(model: Stops) -> None:
        trainer(max_epochs=2, callbacks=[OnExceptionCheckpoint("saved")]).fit(model, loader(), ckpt_path="last")

    with pytest.raises(ValueError, match="the user's own"):
        alone(Stops(at=3))
    second = Stops()
    alone(second)
    assert second.done[0] == 3
    assert list(Path("saved").iterdir()) == []


def test_two_processes_in_one_folder_are_warned_of() -> None:
    fixed = SCRIPT.replace("run(model)", "run(model, CSVLogger('runs', 'mine', version='one'))")
    living = script("waits", fixed)
    try:
        assert living.stdout is not None
        assert living.stdout.readline() == "here\n"
        with pytest.warns(UserWarning, match="Another process trains in .*one', too"):
            run(Stops(), CSVLogger("runs", "mine", version="one"), ckpt_path=None)
        assert unfinished() == ["one"]
    finally:
        living.communicate("\n")
    assert unfinished() == []


@pytest.mark.parametrize("max_epochs", [1, 2, 3])
def test_fewer_epochs_than_are_done(max_epochs: int) -> None:
    for epochs in (2, max_epochs):
        used = trainer(max_epochs=epochs, callbacks=[ModelCheckpoint("saved", save_last=True)])
        if epochs == 1:
            with pytest.raises(MisconfigurationException, match="written after 2 epochs"):
                used.fit(Stops(), loader(), ckpt_path="last")
        else:
            used.fit(Stops(), loader(), ckpt_path="last")
            assert used.current_epoch == epochs


def test_a_run_whose_time_was_over_goes_on_when_it_is_given_more() -> None:
    """Timer judges for itself, by the time that all its runs have taken."""

    class Slow(Stops):
        def training_step(self, batch: Any, batch_idx: int) -> Any:
            time.sleep(0.05)
            return super().training_step(batch, batch_idx)

    done = []
    for seconds in (0.12, 0.12, 60.0):
        model = Slow()
        callbacks = [Timer(timedelta(seconds=seconds)), ModelCheckpoint("saved", save_last=True)]
        trainer(max_epochs=2, callbacks=callbacks).fit(model, loader(), ckpt_path="last")
        done.append(len(model.done))
    assert 0 < done[0] < BATCHES
    assert done[1:] == [0, BATCHES]  # a stop ends its epoch


def test_a_run_that_stopped_early_goes_on_when_it_is_given_more_patience() -> None:
    for patience, more in ((1, 2 * BATCHES), (1, 0), (3, 2 * BATCHES)):
        saver, model = ModelCheckpoint("saved", save_last=True), Stops()
        stopper = EarlyStopping("loss", min_delta=1e9, patience=patience)
        used = trainer(max_epochs=5, callbacks=[stopper, saver])
        used.fit(model, loader(), ckpt_path="last")
        assert len(model.done) == more

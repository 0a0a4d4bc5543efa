"""AsyncCheckpointIO: what it stores, in which order, what becomes of errors, and of what is on its way at the end."""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
import threading
from pathlib import Path
from textwrap import dedent
from typing import Any

import pytest
import torch

from gpulayer.fabric.checkpoint import AsyncCheckpointIO, CheckpointIO, TorchCheckpointIO
from gpulayer.fabric.utilities.files import load_file
from gpulayer.pytorch import Trainer
from gpulayer.pytorch.callbacks import ModelCheckpoint
from gpulayer.pytorch.demos.boring_classes import BoringModel


class Gate(CheckpointIO):
    """Somebody else's CheckpointIO: pickles, and stores nothing until it may."""

    def __init__(self) -> None:
        self.open = threading.Event()
        self.calls: list[str] = []
        self.torn_down = False

    def save_checkpoint(self, checkpoint: dict[str, Any], path: str, storage_options: Any = None) -> None:
        self.calls.append(f"save {os.path.basename(path)}")
        assert self.open.wait(60)
        Path(path).write_bytes(pickle.dumps((checkpoint, storage_options)))

    def load_checkpoint(self, path: str, map_location: Any = None, weights_only: bool | None = None) -> Any:
        return pickle.loads(Path(path).read_bytes())[0]

    def remove_checkpoint(self, path: str) -> None:
        self.calls.append(f"remove {os.path.basename(path)}")
        os.unlink(path)

    def teardown(self) -> None:
        self.torn_down = True


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_a_save_returns_before_the_file_is_there_and_holds_what_was_given(folder: Path) -> None:
    gate = Gate()
    background = AsyncCheckpointIO(gate)
    weight = torch.ones(3)
    background.save_checkpoint({"w": weight, "n": [1]}, "a.ckpt", storage_options={"kind": "fast"})
    weight.zero_()
    assert not (folder / "a.ckpt").exists()
    gate.open.set()
    background.wait()
    found, options = pickle.loads((folder / "a.ckpt").read_bytes())
    assert torch.equal(found["w"], torch.ones(3))
    assert found["n"] == [1]
    assert options == {"kind": "fast"}
    background.teardown()
    assert gate.torn_down


def test_all_takes_effect_in_the_order_of_the_calls(folder: Path) -> None:
    gate = Gate()
    background = AsyncCheckpointIO(gate)
    background.save_checkpoint({"n": 1}, "a.ckpt")
    background.copy_checkpoint("a.ckpt", "b.ckpt")
    background.remove_checkpoint("a.ckpt")
    assert os.listdir(folder) == []
    gate.open.set()
    assert background.load_checkpoint("b.ckpt") == {"n": 1}  # waits for it
    assert os.listdir(folder) == ["b.ckpt"]
    assert gate.calls == ["save a.ckpt", "save b.ckpt", "remove a.ckpt"]
    background.teardown()


def test_one_checkpoint_is_on_its_way_at_a_time(folder: Path) -> None:
    gate = Gate()
    background = AsyncCheckpointIO(gate)
    background.save_checkpoint({"n": 1}, "a.ckpt")
    second = threading.Thread(target=background.save_checkpoint, args=({"n": 2}, "b.ckpt"))
    second.start()
    second.join(0.2)
    assert second.is_alive()
    assert gate.calls == ["save a.ckpt"]
    gate.open.set()
    second.join(60)
    background.wait()
    assert [gate.load_checkpoint(name)["n"] for name in ("a.ckpt", "b.ckpt")] == [1, 2]
    background.teardown()


def test_relative_paths_mean_the_folder_of_the_call(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    gate = Gate()
    background = AsyncCheckpointIO(gate)
    background.save_checkpoint({}, "a.ckpt")
    (folder / "elsewhere").mkdir()
    monkeypatch.chdir(folder / "elsewhere")
    gate.open.set()
    background.teardown()
    assert (folder / "a.ckpt").exists()


def test_links_and_urls(folder: Path) -> None:
    background = AsyncCheckpointIO()
    background.save_checkpoint({"n": 1}, "a.ckpt")
    background.link_checkpoint("a.ckpt", "last.ckpt")
    background.save_checkpoint({"n": 2}, "memory://background/b.ckpt")
    background.teardown()
    assert os.readlink("last.ckpt") == "a.ckpt"
    assert load_file("memory://background/b.ckpt") == {"n": 2}


# -- errors ------------------------------------------------------------------------------------------------------------

NEXT = {
    "save": lambda io: io.save_checkpoint({}, "c.ckpt"),
    "copy": lambda io: io.copy_checkpoint("a.ckpt", "c.ckpt"),
    "link": lambda io: io.link_checkpoint("a.ckpt", "c.ckpt"),
    "remove": lambda io: io.remove_checkpoint("a.ckpt"),
    "load": lambda io: io.load_checkpoint("a.ckpt"),
    "wait": lambda io: io.wait(),
    "teardown": lambda io: io.teardown(),
}


@pytest.mark.parametrize("call", NEXT)
def test_an_error_is_raised_once_by_whatever_is_called_next(folder: Path, call: str) -> None:
    """What follows a save that failed is not done: the checkpoint before is still there."""
    (folder / "folder.ckpt").mkdir()
    TorchCheckpointIO().save_checkpoint({"n": 1}, "a.ckpt")
    background = AsyncCheckpointIO()
    background.save_checkpoint({"n": 2}, "folder.ckpt")
    for future in background._queue._pending:
        future.result()
    with pytest.raises(IsADirectoryError, match=r"folder\.ckpt"):
        NEXT[call](background)
    assert sorted(os.listdir(folder)) == ["a.ckpt", "folder.ckpt"]
    background.wait()
    background.remove_checkpoint("a.ckpt")
    background.teardown()
    assert os.listdir(folder) == ["folder.ckpt"]


def test_what_was_queued_behind_a_failed_save_is_left_undone(folder: Path) -> None:
    class Fails(Gate):
        def save_checkpoint(self, checkpoint: dict[str, Any], path: str, storage_options: Any = None) -> None:
            super().save_checkpoint(checkpoint, path)
            raise OSError("the store is away")

    gate = Fails()
    background = AsyncCheckpointIO(gate)
    Path("before.ckpt").touch()
    background.save_checkpoint({}, "a.ckpt")
    background.remove_checkpoint("before.ckpt")
    background.copy_checkpoint("a.ckpt", "b.ckpt")
    gate.open.set()
    with pytest.raises(OSError, match="the store is away"):
        background.wait()
    assert gate.calls == ["save a.ckpt"]
    assert Path("before.ckpt").exists()
    background.teardown()


def test_what_cannot_be_pickled_raises_in_the_call_itself(folder: Path) -> None:
    background = AsyncCheckpointIO()
    with pytest.raises(TypeError, match="cannot pickle"):
        background.save_checkpoint({"lock": threading.Lock()}, "a.ckpt")
    background.save_checkpoint({"n": 1}, "a.ckpt")
    background.teardown()
    assert load_file("a.ckpt") == {"n": 1}


# -- the end of the program --------------------------------------------------------------------------------------------

PROGRAM = dedent("""
    import os, sys, time
    from gpulayer.fabric.checkpoint import AsyncCheckpointIO, TorchCheckpointIO

    class Slow(TorchCheckpointIO):
        def save_checkpoint(self, checkpoint, path, storage_options=None):
            time.sleep(1)
            super().save_checkpoint(checkpoint, path, storage_options)

    background = AsyncCheckpointIO(Slow())
    background.save_checkpoint({"n": 1}, "a.ckpt")
    background.copy_checkpoint("a.ckpt", "b.ckpt")
    """)
ENDS = {"os.chdir('/'); raise ValueError('mine')": 1, "sys.exit(3)": 3}


def test_a_program_that_ends_stores_first_what_is_on_its_way(folder: Path) -> None:
    programs = {}
    for number, end in enumerate(ENDS):
        (folder / str(number)).mkdir()
        programs[number] = subprocess.Popen([sys.executable, "-c", PROGRAM + end], cwd=folder / str(number), stderr=-1)
    (folder / "broken" / "a.ckpt").mkdir(parents=True)
    broken = subprocess.run([sys.executable, "-c", PROGRAM], cwd=folder / "broken", capture_output=True, check=False)
    for (number, program), code in zip(programs.items(), ENDS.values(), strict=True):
        _, said = program.communicate(timeout=100)
        assert program.returncode == code, said.decode()
        assert sorted(os.listdir(str(number))) == ["a.ckpt", "b.ckpt"]
        assert load_file(f"{number}/a.ckpt") == load_file(f"{number}/b.ckpt") == {"n": 1}
    # An error that nobody was there to be told is printed.
    assert b"A checkpoint could not be stored in the background" in broken.stderr
    assert b"IsADirectoryError" in broken.stderr
    assert os.listdir("broken") == ["a.ckpt"]


# -- in a Trainer ------------------------------------------------------------------------------------------------------


def train(plugins: list[Any], dirpath: str) -> None:
    torch.manual_seed(1)
    saver = ModelCheckpoint(dirpath, every_n_train_steps=2, save_top_k=1, save_last=True)
    trainer = Trainer(max_steps=7, accelerator="cpu", logger=False, callbacks=[saver], plugins=plugins)
    trainer.fit(BoringModel())


def test_a_run_leaves_the_same_files(folder: Path) -> None:
    train([], "plain")
    train([AsyncCheckpointIO()], "background")
    names = sorted(os.listdir("plain"))
    assert names == sorted(os.listdir("background"))
    assert "last.ckpt" in names
    for name in names:
        plain, background = load_file(f"plain/{name}"), load_file(f"background/{name}")
        assert plain["global_step"] == background["global_step"]
        for key, weight in plain["state_dict"].items():
            assert torch.equal(weight, background["state_dict"][key])
    assert sum((folder / "background" / name).stat().st_size for name in names) == pytest.approx(
        sum((folder / "plain" / name).stat().st_size for name in names), rel=0.01
    )


def test_a_run_goes_on_from_what_was_stored_in_the_background(folder: Path) -> None:
    background = AsyncCheckpointIO()
    train([background], "ck")
    saver = ModelCheckpoint("ck", every_n_train_steps=2, save_top_k=1, save_last=True)
    trainer = Trainer(max_steps=9, accelerator="cpu", logger=False, callbacks=[saver], plugins=[background])
    trainer.fit(BoringModel(), ckpt_path="ck/last.ckpt")
    assert trainer.global_step == 9

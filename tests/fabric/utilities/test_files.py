"""Files of tensors: whole or not at all, also when the process is killed while it writes."""

from __future__ import annotations

import os
import signal
import stat
import subprocess
import sys
import time
from pathlib import Path
from textwrap import dedent
from typing import Any

import pytest
import torch

from gpulayer.fabric.utilities.files import load_file, save_file


def test_what_is_saved_is_loaded(tmp_path: Path) -> None:
    content = {"w": torch.arange(3.0), "n": 3, "nested": {"t": (1, "two", None)}}
    save_file(content, tmp_path / "a.ckpt")
    loaded = load_file(tmp_path / "a.ckpt")
    assert torch.equal(loaded.pop("w"), content.pop("w"))  # type: ignore[call-overload]
    assert loaded == content


def test_folders_are_made(tmp_path: Path) -> None:
    save_file({}, tmp_path / "a" / "b" / "c.ckpt")
    assert load_file(tmp_path / "a" / "b" / "c.ckpt") == {}


def test_a_path_without_a_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    save_file({"n": 1}, "a.ckpt")
    assert load_file("a.ckpt") == {"n": 1}


def test_nothing_else_is_left_in_the_folder(tmp_path: Path) -> None:
    for _ in range(3):
        save_file({"w": torch.ones(10)}, tmp_path / "a.ckpt")
    assert os.listdir(tmp_path) == ["a.ckpt"]


@pytest.mark.skipif(sys.platform == "win32", reason="permissions of POSIX")
def test_a_checkpoint_is_as_readable_as_any_new_file(tmp_path: Path) -> None:
    save_file({}, tmp_path / "a.ckpt")
    (tmp_path / "b").touch()
    assert stat.S_IMODE((tmp_path / "a.ckpt").stat().st_mode) == stat.S_IMODE((tmp_path / "b").stat().st_mode)


class Unsavable:
    def __reduce__(self) -> Any:
        raise ValueError("cannot be pickled")


def test_a_save_that_fails_leaves_the_file_before_and_raises(tmp_path: Path) -> None:
    save_file({"n": 1}, tmp_path / "a.ckpt")
    with pytest.raises(ValueError, match="cannot be pickled"):
        save_file({"w": torch.ones(1000), "x": Unsavable()}, tmp_path / "a.ckpt")
    assert load_file(tmp_path / "a.ckpt") == {"n": 1}
    assert os.listdir(tmp_path) == ["a.ckpt"]


SAVES = dedent("""
    import itertools, sys, torch
    from gpulayer.fabric.utilities.files import save_file

    for n in itertools.count():
        save_file({"n": torch.full((4_000_000,), float(n))}, sys.argv[1])
    """)


def test_a_process_killed_while_it_saves_leaves_the_file_before(tmp_path: Path) -> None:
    """It is stopped when a part of the new file is there and the whole of the old one, and then killed."""
    path = tmp_path / "a.ckpt"
    process = subprocess.Popen([sys.executable, "-c", SAVES, str(path)])
    try:
        deadline = time.monotonic() + 60
        while True:
            assert process.poll() is None, "the process ended by itself"
            assert time.monotonic() < deadline, "no save was seen under way"
            if path.exists() and any(part.stat().st_size for part in parts(tmp_path)):
                process.send_signal(signal.SIGSTOP)
                os.waitid(os.P_PID, process.pid, os.WSTOPPED)
                if parts(tmp_path):
                    break
                process.send_signal(signal.SIGCONT)
    finally:
        process.kill()
        process.wait()
    assert parts(tmp_path), "the save was over"
    numbers = load_file(path)["n"]
    assert numbers.shape == (4_000_000,)
    assert bool((numbers == numbers[0]).all())


def parts(folder: Path) -> list[Path]:
    """Files that are being written; one that is renamed while we look is none."""
    return [folder / name for name in os.listdir(folder) if name.endswith(".part") and (folder / name).exists()]


def test_urls_of_other_file_systems() -> None:
    save_file({"n": 2}, "memory://folder/a.ckpt")
    assert load_file("memory://folder/a.ckpt") == {"n": 2}
    with pytest.raises(FileNotFoundError, match=r"no checkpoint at 'memory://folder/b\.ckpt'"):
        load_file("memory://folder/b.ckpt")


def test_an_open_file(tmp_path: Path) -> None:
    save_file({"n": 3}, tmp_path / "a.ckpt")
    with (tmp_path / "a.ckpt").open("rb") as file:
        assert load_file(file) == {"n": 3}

"""Saves that cannot succeed: each says why, leaves no temporary file, and the checkpoint before as it was."""

from __future__ import annotations

import contextlib
import errno
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from textwrap import dedent

import pytest
import torch

from gpulayer.fabric.utilities.files import copy_file, load_file, save_file
from gpulayer.fabric.utilities.replace import replaced_whole

BIG = {"w": torch.ones(500_000)}  # 2 MB


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A real file system of one megabyte."""
    folder = tmp_path / "disk"
    folder.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(folder)]
    with contextlib.suppress(FileNotFoundError):
        if subprocess.run(command, capture_output=True, check=False).returncode == 0:
            yield folder
            subprocess.run(["umount", str(folder)], check=True)
            return
    pytest.skip("nothing can be mounted here")


def test_a_full_disk(small_disk: Path) -> None:
    path = small_disk / "a.ckpt"
    save_file({"n": 1}, path)
    with pytest.raises(OSError, match="What was there before is untouched") as error:
        save_file(BIG, path)
    assert re.search(r"No space left on device: the file needs 2,00\d,\d+ bytes, the disk has 1,0", str(error.value))
    assert error.value.errno == errno.ENOSPC
    assert error.value.filename == str(path)
    assert load_file(path) == {"n": 1}
    assert os.listdir(small_disk) == ["a.ckpt"]


def test_a_disk_that_is_full_to_the_last_byte(small_disk: Path) -> None:
    """Not even the first bytes, or the end of the archive, can be written."""
    save_file({"n": 1}, small_disk / "a.ckpt")
    with contextlib.suppress(OSError), (small_disk / "fill").open("wb", buffering=0) as file:
        while file.write(bytes(4096)):
            pass
    with pytest.raises(OSError, match="No space left"):
        save_file({"n": 2}, small_disk / "a.ckpt")
    assert load_file(small_disk / "a.ckpt") == {"n": 1}
    assert sorted(os.listdir(small_disk)) == ["a.ckpt", "fill"]


def test_a_copy_onto_a_full_disk(small_disk: Path, tmp_path: Path) -> None:
    save_file(BIG, tmp_path / "big.ckpt")
    with pytest.raises(OSError, match="No space left"):
        copy_file(tmp_path / "big.ckpt", small_disk / "a.ckpt")
    assert os.listdir(small_disk) == []


def in_a_process(script: str, *arguments: object) -> str:
    command = [sys.executable, "-c", dedent(script), *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=100, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_a_limit_on_the_size_of_files(tmp_path: Path) -> None:
    """At every place where writing can stop: in the head of the archive, in a tensor, between two, in the end."""
    pytest.importorskip("resource")
    save_file({"n": 1}, tmp_path / "a.ckpt")
    said = in_a_process(
        """
        import resource, signal, sys, torch
        from gpulayer.fabric.utilities.files import save_file

        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        content = {"w": torch.ones(50_000), "v": torch.ones(1000)}
        save_file(content, sys.argv[2])
        with open(sys.argv[2], "rb") as file:
            size = len(file.read())
        for limit in [0, 1, 100, 1000, 100_000, 200_000, 201_000, 204_000, size - 500, size - 1]:
            resource.setrlimit(resource.RLIMIT_FSIZE, (limit, resource.RLIM_INFINITY))
            try:
                save_file(content, sys.argv[1])
            except OSError as error:
                assert f"needs {size:,} bytes" in str(error), error
                assert sys.argv[1] in str(error)
                print(limit)
        """,
        tmp_path / "a.ckpt",
        tmp_path / "b.ckpt",
    )
    assert len(said.splitlines()) == 10
    assert load_file(tmp_path / "a.ckpt") == {"n": 1}
    assert sorted(os.listdir(tmp_path)) == ["a.ckpt", "b.ckpt"]


def test_a_folder_that_may_not_be_written_to(tmp_path: Path) -> None:
    save_file({"n": 1}, tmp_path / "a.ckpt")
    tmp_path.chmod(0o555)
    for parent in [tmp_path.parent, *tmp_path.parent.parents[:2]]:
        parent.chmod(parent.stat().st_mode | 0o555)
    said = in_a_process(
        """
        import os, sys
        from gpulayer.fabric.utilities.files import save_file

        if os.geteuid() == 0:
            os.setuid(65534)  # who may do everything is not stopped by permissions
        try:
            save_file({"n": 2}, sys.argv[1])
        except PermissionError as error:
            print(error)
        """,
        tmp_path / "a.ckpt",
    )
    tmp_path.chmod(0o755)
    assert said == f"[Errno 13] Permission denied: '{tmp_path / 'a.ckpt'}'\n"
    assert load_file(tmp_path / "a.ckpt") == {"n": 1}
    assert os.listdir(tmp_path) == ["a.ckpt"]


def test_a_folder_of_that_name(tmp_path: Path) -> None:
    (tmp_path / "a.ckpt").mkdir()
    with pytest.raises(IsADirectoryError, match=r"a\.ckpt"):
        save_file({}, tmp_path / "a.ckpt")
    assert os.listdir(tmp_path) == ["a.ckpt"]
    assert os.listdir(tmp_path / "a.ckpt") == []


def test_a_file_in_the_folder_s_place(tmp_path: Path) -> None:
    (tmp_path / "folder").touch()
    with pytest.raises(OSError, match="folder"):
        save_file({}, tmp_path / "folder" / "a.ckpt")


def test_a_name_that_is_too_long_is_refused_before_anything_is_written(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="File name too long"):
        save_file({}, tmp_path / ("a" * 300))
    assert os.listdir(tmp_path) == []
    save_file({}, tmp_path / ("a" * 255))  # the longest there is


def test_a_folder_that_is_removed_meanwhile(tmp_path: Path) -> None:
    folder = tmp_path / "folder"
    folder.mkdir()
    with pytest.raises(FileNotFoundError, match=r"a\.ckpt"), replaced_whole(str(folder / "a.ckpt")):
        shutil.rmtree(folder)
    save_file({"n": 1}, folder / "a.ckpt")  # the next one makes it again
    assert load_file(folder / "a.ckpt") == {"n": 1}


def test_an_error_of_the_writer_s_own_is_not_changed(tmp_path: Path) -> None:
    with pytest.raises(OSError, match=r"^mine$"), replaced_whole(str(tmp_path / "a")):
        raise OSError("mine")
    with pytest.raises(KeyboardInterrupt), replaced_whole(str(tmp_path / "a")):
        raise KeyboardInterrupt
    assert os.listdir(tmp_path) == []

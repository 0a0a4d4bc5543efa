"""What killed processes leave of files that they were writing, and who deletes it."""

from __future__ import annotations

import os
import platform
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from textwrap import dedent

import pytest

from gpulayer.fabric.utilities.files import clean_up, link_file, list_folder, load_file, save_file
from gpulayer.fabric.utilities.replace import LINK, PREFIX, QUIET, SUFFIX, temporary_name

fcntl = pytest.importorskip("fcntl")

WRITES = dedent("""
    import sys, time
    from gpulayer.fabric.utilities.replace import replaced_whole

    with replaced_whole(sys.argv[1]) as file:
        file.write(b"half")
        print("written", flush=True)
        sys.stdin.read()
    """)


@pytest.fixture
def writer(tmp_path: Path) -> Iterator[subprocess.Popen[str]]:
    """Another process, in the middle of writing a.ckpt."""
    command = [sys.executable, "-c", WRITES, str(tmp_path / "a.ckpt")]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "written\n"
    yield process
    process.kill()
    process.communicate()


def names(folder: Path) -> list[str]:
    return sorted(os.listdir(folder))


def test_a_killed_process_s_file_is_deleted_by_the_next_save(tmp_path: Path, writer: subprocess.Popen[str]) -> None:
    (part,) = names(tmp_path)
    assert part.startswith(PREFIX)
    assert part.endswith(SUFFIX)
    save_file({"n": 1}, tmp_path / "b.ckpt")
    assert names(tmp_path) == [part, "b.ckpt"]  # it is still writing
    writer.send_signal(signal.SIGKILL)
    writer.wait()
    save_file({"n": 2}, tmp_path / "b.ckpt")
    assert names(tmp_path) == ["b.ckpt"]


def test_a_process_that_others_clean_up_beside_stores_its_file(tmp_path: Path, writer: subprocess.Popen[str]) -> None:
    clean_up(tmp_path)
    os.utime(tmp_path / names(tmp_path)[0], (0, 0))  # a very slow one
    clean_up(tmp_path)
    writer.communicate(timeout=60)
    assert writer.returncode == 0
    assert names(tmp_path) == ["a.ckpt"]
    assert (tmp_path / "a.ckpt").read_bytes() == b"half"


def test_a_stopped_process_is_a_living_one(tmp_path: Path, writer: subprocess.Popen[str]) -> None:
    writer.send_signal(signal.SIGSTOP)
    clean_up(tmp_path)
    assert len(names(tmp_path)) == 1
    writer.send_signal(signal.SIGCONT)


def test_files_of_another_host_are_left_until_they_are_old(tmp_path: Path) -> None:
    """Its locks may not be seen here."""
    part = tmp_path / f"{PREFIX}another-host-0123456789abcdef{SUFFIX}"
    part.touch()
    clean_up(tmp_path)
    assert part.exists()
    os.utime(part, (time.time() - QUIET - 60,) * 2)
    clean_up(tmp_path)
    assert not part.exists()


def test_where_there_are_no_locks_age_decides(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gpulayer.fabric.utilities.replace.fcntl", None)
    part = tmp_path / temporary_name()
    part.touch()
    save_file({}, tmp_path / "a.ckpt")
    assert names(tmp_path) == [part.name, "a.ckpt"]
    os.utime(part, (time.time() - QUIET - 60,) * 2)
    save_file({}, tmp_path / "a.ckpt")
    assert names(tmp_path) == ["a.ckpt"]


def test_files_of_others_are_never_touched(tmp_path: Path) -> None:
    theirs = [".part", "film.mkv.part", ".x.part", "metrics.csv.7.part", f"{PREFIX}notes.txt", "a.ckpt"]
    for name in theirs:
        (tmp_path / name).touch()
        os.utime(tmp_path / name, (0, 0))
    clean_up(tmp_path)
    assert names(tmp_path) == sorted(theirs)


def test_no_folder_or_a_file_in_its_place(tmp_path: Path) -> None:
    clean_up(tmp_path / "missing")
    (tmp_path / "file").touch()
    clean_up(tmp_path / "file")
    assert names(tmp_path) == ["file"]


def test_a_listing_shows_no_temporary_files(tmp_path: Path, writer: subprocess.Popen[str]) -> None:
    save_file({}, tmp_path / "b.ckpt")
    assert list_folder(tmp_path) == [str(tmp_path / "b.ckpt")]


# -- links -------------------------------------------------------------------------------------------------------------


def test_a_link_is_relative_and_replaces_what_was_there(tmp_path: Path) -> None:
    for name in ("a", "b"):
        save_file({"name": name}, tmp_path / f"{name}.ckpt")
    save_file({}, tmp_path / "last.ckpt")
    for name in ("a", "b"):
        link_file(tmp_path / f"{name}.ckpt", tmp_path / "last.ckpt")
        assert os.readlink(tmp_path / "last.ckpt") == f"{name}.ckpt"
        assert load_file(tmp_path / "last.ckpt") == {"name": name}
    assert names(tmp_path) == ["a.ckpt", "b.ckpt", "last.ckpt"]
    moved = tmp_path.rename(tmp_path.with_name(tmp_path.name + "-moved"))
    assert load_file(moved / "last.ckpt") == {"name": "b"}
    moved.rename(tmp_path)


def test_a_link_from_a_folder_that_is_itself_a_link(tmp_path: Path) -> None:
    (tmp_path / "deep" / "er").mkdir(parents=True)
    (tmp_path / "short").symlink_to(tmp_path / "deep" / "er")
    save_file({"n": 1}, tmp_path / "a.ckpt")
    link_file(tmp_path / "a.ckpt", tmp_path / "short" / "last.ckpt")
    assert load_file(tmp_path / "short" / "last.ckpt") == {"n": 1}


def test_a_save_under_the_name_of_a_link_leaves_the_file_it_named(tmp_path: Path) -> None:
    save_file({"n": 1}, tmp_path / "a.ckpt")
    link_file(tmp_path / "a.ckpt", tmp_path / "last.ckpt")
    save_file({"n": 2}, tmp_path / "last.ckpt")
    assert load_file(tmp_path / "a.ckpt") == {"n": 1}
    assert not (tmp_path / "last.ckpt").is_symlink()


def test_what_a_process_killed_while_it_links_leaves(tmp_path: Path) -> None:
    part = tmp_path / temporary_name()
    part.touch()
    (tmp_path / (part.name + LINK)).symlink_to("a.ckpt")
    clean_up(tmp_path)
    assert names(tmp_path) == []
    (tmp_path / (part.name + LINK)).symlink_to("a.ckpt")  # killed while it cleaned up
    clean_up(tmp_path)
    assert names(tmp_path) == []


def test_a_link_that_is_being_made_is_left(tmp_path: Path) -> None:
    part = tmp_path / temporary_name()
    (tmp_path / (part.name + LINK)).symlink_to("a.ckpt")
    with part.open("wb") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        clean_up(tmp_path)
        assert len(names(tmp_path)) == 2


def test_a_folder_in_the_link_s_place(tmp_path: Path) -> None:
    save_file({}, tmp_path / "a.ckpt")
    (tmp_path / "last.ckpt").mkdir()
    with pytest.raises(IsADirectoryError):
        link_file(tmp_path / "a.ckpt", tmp_path / "last.ckpt")
    assert names(tmp_path) == ["a.ckpt", "last.ckpt"]


def test_there_are_no_links_in_a_store() -> None:
    with pytest.raises(OSError, match="no links"):
        link_file("memory://links/a.ckpt", "memory://links/last.ckpt")


def test_the_host_s_name_is_in_the_file_s(tmp_path: Path, writer: subprocess.Popen[str]) -> None:
    """Whoever finds it knows where to look."""
    assert platform.node() in names(tmp_path)[0]

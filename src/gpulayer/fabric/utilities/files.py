"""Files of tensors, and what lies in a folder: on this machine or wherever fsspec reads and writes.

What is written is whole or not there: a reader never sees half of a file.
"""

import errno
import os
import pickle
import shutil
import tempfile
import warnings
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

import fsspec
import torch
from fsspec.implementations.local import LocalFileSystem

from gpulayer.fabric.utilities import remote
from gpulayer.fabric.utilities.exceptions import MisconfigurationException
from gpulayer.fabric.utilities.plain import load_plain
from gpulayer.fabric.utilities.replace import FULL, clean_up_locally, is_temporary, link_locally, replaced_whole
from gpulayer.fabric.utilities.types import Path

__all__ = [
    "clean_up",
    "copy_file",
    "damage",
    "exists",
    "is_folder",
    "join",
    "link_file",
    "list_folder",
    "load_file",
    "modified",
    "remove",
    "replaced_whole",
    "save_file",
]


def save_file(content: dict[str, Any], path: Path) -> None:
    """`torch.save` to a path or URL; what is there is replaced whole or not at all.

    Raises:
        OSError: it could not be stored; what was there before is as it was.
    """
    filesystem, target = _find(path)
    if filesystem is not None:
        with tempfile.TemporaryDirectory() as folder:
            local = os.path.join(folder, "file")
            _save_locally(content, local)
            remote.upload(local, filesystem, target)
        return
    os.makedirs(os.path.dirname(target) or ".", exist_ok=True)
    _save_locally(content, target)


def _save_locally(content: dict[str, Any], target: str) -> None:
    try:
        with replaced_whole(target) as file:
            torch.save(content, file)
    except OSError as error:
        if error.errno not in FULL:
            raise
        needed: Any = _Counted()
        torch.save(content, needed)
        free = shutil.disk_usage(os.path.dirname(target) or ".").free
        reason = (
            f"{error.strerror}: the file needs {needed.size:,} bytes, the disk has {free:,} free (a quota or limit may "
            "allow less). What was there before is untouched"
        )
        raise OSError(error.errno, reason, target) from error


class _Counted:
    """A file that only counts what is written to it."""

    size = 0  # bytes

    def write(self, data: Any) -> int:
        self.size += len(data)
        return len(data)

    def flush(self) -> None:
        pass


def exists(path: Path) -> bool:
    """Whether there is a file or folder at a path or URL.

    Raises:
        OSError: it cannot be known: no permission, or a server that does not answer.
    """
    filesystem, target = _find(path)
    if filesystem is not None:
        return remote.exists(filesystem, target)
    try:
        os.stat(target)
    except (FileNotFoundError, NotADirectoryError):
        return False
    return True


def is_folder(path: Path) -> bool:
    """Whether there is a folder at a path or URL."""
    filesystem, target = _find(path)
    try:
        return os.path.isdir(target) if filesystem is None else remote.is_folder(filesystem, target)
    except FileNotFoundError:
        return False


def list_folder(folder: Path) -> list[str]:
    """The paths of all that lies in a folder, given as a path or URL; "" is this one; sorted; none if it is not there.

    Temporary files, which this module renames when they are whole, are left out.
    """
    filesystem, target = _find(folder)
    if filesystem is not None:
        names = remote.names(filesystem, target)
    else:
        try:
            names = os.listdir(target or ".")
        except FileNotFoundError:
            return []
    return [join(folder, name) for name in sorted(names) if not is_temporary(name)]


def modified(path: Path) -> float:
    """When a file was written, in seconds since 1970.

    Raises:
        FileNotFoundError: there is no such file.
    """
    filesystem, target = _find(path)
    if filesystem is None:
        return os.stat(target).st_mtime
    return remote.modified(filesystem, target)


def join(folder: Path, *names: str) -> str:
    """The path or URL of something in a folder."""
    text = os.fspath(folder)
    if "://" not in text:
        return os.path.join(text, *names)
    return "/".join([text.rstrip("/"), *names])


def remove(path: Path) -> None:
    """Delete a file, link or folder at a path or URL; nothing happens if there is none."""
    filesystem, target = _find(path)
    with suppress(FileNotFoundError):
        if filesystem is not None:
            remote.remove(filesystem, target)
        elif os.path.isdir(target) and not os.path.islink(target):
            shutil.rmtree(target)
        else:
            os.unlink(target)


def _find(path: Path) -> tuple[Any, str]:
    """The file system of a path or URL, None for local ones, and the path in it."""
    text = os.fspath(path)
    if "://" not in text:
        return None, os.path.expanduser(text)
    again = text.startswith("ftp://")  # servers close connections that are idle between two saves
    filesystem, target = fsspec.core.url_to_fs(text, skip_instance_cache=again)
    return (None if isinstance(filesystem, LocalFileSystem) else filesystem), target


def copy_file(source: Path, target: Path) -> None:
    """Copy a file from a path or URL to another; the target is replaced whole or not at all."""
    filesystem, path = _find(target)
    other, original = _find(source)
    if filesystem is None:
        os.makedirs(os.path.dirname(path) or ".", exist_ok=True)
        with _fetched(source) as local, replaced_whole(path) as file:
            shutil.copyfile(local, file.name)
    elif other is filesystem and remote.is_object_store(filesystem):
        filesystem.cp_file(original, path)  # on the server
    else:
        with _fetched(source) as local:
            remote.upload(local, filesystem, path)


def link_file(source: Path, target: Path) -> None:
    """Make `target` a relative link to `source`; it is replaced whole or not at all.

    Raises:
        OSError: there are no links in that place.
    """
    filesystem, path = _find(target)
    if filesystem is not None:
        raise OSError(errno.ENOTSUP, "There are no links", os.fspath(target))
    os.makedirs(os.path.dirname(path) or ".", exist_ok=True)
    link_locally(_find(source)[1], path)


def clean_up(folder: Path) -> None:
    """Delete the temporary files that killed processes left in a folder, given as a path or URL.

    Those of living processes stay, also of ones on other machines.
    """
    filesystem, target = _find(folder)
    if filesystem is None:
        clean_up_locally(target)
    else:
        remote.clean_up(filesystem, target)


@contextmanager
def _fetched(path: Path) -> Iterator[str]:
    """A local path of a file: its own, or that of a copy."""
    filesystem, target = _find(path)
    if filesystem is None:
        yield target
        return
    with tempfile.TemporaryDirectory() as folder:
        local = os.path.join(folder, "file")
        filesystem.get_file(target, local)
        yield local


def load_file(path: Any, map_location: Any = None, weights_only: bool | None = None) -> dict[str, Any]:
    """Read a checkpoint.

    Args:
        path: a path, an fsspec URL, or an open binary file.
        map_location: as in `torch.load`.
        weights_only: None and True load plain data only, so that a file from elsewhere cannot run code.

    Returns:
        What was saved.

    Raises:
        FileNotFoundError: there is no such file.
        MisconfigurationException: the file is no checkpoint, is damaged, or holds objects that were not allowed.
    """
    name = str(path)
    safe = True if weights_only is None else weights_only
    if hasattr(path, "read"):
        return _read(path, name, map_location, safe)
    if not exists(path):
        raise FileNotFoundError(f"There is no checkpoint at {name!r}.")
    if is_folder(path):
        raise MisconfigurationException(f"{name!r} is a folder; give the path of a checkpoint file in it.")
    with _fetched(path) as local, open(local, "rb") as file:
        return _read(file, name, map_location, safe)


def _read(file: Any, name: str, map_location: Any, safe: bool) -> dict[str, Any]:
    try:
        with warnings.catch_warnings():
            if (wrong := damage(file)) is not None:
                raise _no_checkpoint(name, wrong)
            warnings.filterwarnings("ignore", "Detected pickle protocol")  # of what is no checkpoint; said below
            if safe:
                checkpoint = load_plain(file, map_location, name)
            else:
                checkpoint = torch.load(file, map_location=map_location, weights_only=False)
    except ModuleNotFoundError as error:
        raise MisconfigurationException(
            f"{name!r} names classes of the package {error.name!r}, which is not installed. Install it; or leave "
            "`weights_only=False` out, for plain data, and what Lightning itself adds to it, is loaded without."
        ) from error
    except pickle.UnpicklingError as error:
        raise _no_checkpoint(name, error) from error
    except (EOFError, OSError, zipfile.BadZipFile, RuntimeError, UnicodeDecodeError, ValueError, KeyError) as error:
        raise _no_checkpoint(name, error) from error
    if not isinstance(checkpoint, dict):
        raise MisconfigurationException(
            f"{name!r} holds a {type(checkpoint).__name__}, not the dict of a checkpoint. "
            "Give a file that `trainer.save_checkpoint` or ModelCheckpoint wrote."
        )
    return checkpoint


def damage(file: Any, archive: bool = False) -> str | None:
    """What is wrong with a file of `torch.save`'s, by the checksums that it holds.

    Args:
        file: a path or URL, or an open binary file, which is rewound.
        archive: whether it must be a zip archive, as `torch.save` has written since torch 1.6.

    Returns:
        None if nothing is, or if it is of another kind; loading tells then.
    """
    if not hasattr(file, "read"):
        with _fetched(file) as local, open(local, "rb") as own:
            return damage(own, archive)
    if not file.seekable():
        return None
    try:
        if not zipfile.is_zipfile(file):
            return "it is cut short, or no checkpoint" if archive else None
        with zipfile.ZipFile(file) as opened:
            altered = opened.testzip()
    except (zipfile.BadZipFile, EOFError, NotImplementedError, OSError) as error:
        return str(error)
    finally:
        file.seek(0)
    return None if altered is None else f"{altered!r} in it was altered after it was saved"


def _no_checkpoint(name: str, error: Exception | str) -> MisconfigurationException:
    reason = str(error).splitlines()[0] if str(error) else type(error).__name__
    return MisconfigurationException(
        f"{name!r} is no checkpoint, or a damaged one ({reason}). "
        "Give a file that `trainer.save_checkpoint` or ModelCheckpoint wrote."
    )

"""Files of tensors: written beside their target, flushed to disk and renamed; a reader never sees half of one."""

import os
import pickle
import shutil
import tempfile
import warnings
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import IO, Any

import fsspec
import torch
from fsspec.implementations.local import LocalFileSystem

from gpulayer.fabric.utilities.exceptions import MisconfigurationException


def save_file(content: dict[str, Any], path: Any) -> None:
    """`torch.save` to a local path or any URL that fsspec writes; the target is replaced whole or not at all."""
    filesystem, target = fsspec.core.url_to_fs(os.fspath(path))
    if isinstance(filesystem, LocalFileSystem):
        _save_locally(content, target)
    else:
        filesystem.makedirs(filesystem._parent(target), exist_ok=True)
        with filesystem.transaction, filesystem.open(target, "wb") as file:
            torch.save(content, file)


def _save_locally(content: dict[str, Any], target: str) -> None:
    os.makedirs(os.path.dirname(target) or ".", exist_ok=True)
    with replaced_whole(target) as file:
        torch.save(content, file)


@contextmanager
def replaced_whole(target: str) -> Iterator[IO[bytes]]:
    """A new file beside `target`, flushed to the disk and renamed onto it when the block ends without error."""
    folder = os.path.dirname(target) or "."
    handle, temporary = tempfile.mkstemp(dir=folder, prefix=".", suffix=".part")
    try:
        with os.fdopen(handle, "wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        os.chmod(temporary, 0o666 & ~_umask())  # mkstemp made it private; a checkpoint is as readable as any new file
        os.replace(temporary, target)
    except BaseException:
        if os.path.exists(temporary):
            os.unlink(temporary)
        raise
    _flush_folder(folder)


def copy_file(source: str, target: str) -> None:
    """Copy a local file; the target is replaced whole or not at all."""
    with open(source, "rb") as original, replaced_whole(target) as file:
        shutil.copyfileobj(original, file)


def _umask() -> int:
    """The process's umask; it can only be read by setting it."""
    mask = os.umask(0o022)
    os.umask(mask)
    return mask


def _flush_folder(folder: str) -> None:
    """Make the rename itself survive a power cut, where the system can open a folder."""
    try:
        handle = os.open(folder, os.O_RDONLY)
    except OSError:
        return
    try:
        os.fsync(handle)
    except OSError:
        pass
    finally:
        os.close(handle)


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
        opened: Any = nullcontext(path)
    else:
        filesystem, target = fsspec.core.url_to_fs(os.fspath(path))
        if not filesystem.exists(target):
            raise FileNotFoundError(f"There is no checkpoint at {name!r}.")
        if filesystem.isdir(target):
            raise MisconfigurationException(f"{name!r} is a folder; give the path of a checkpoint file in it.")
        opened = filesystem.open(target, "rb")
    try:
        with opened as file, warnings.catch_warnings():
            if (wrong := damage(file)) is not None:
                raise _no_checkpoint(name, wrong)
            warnings.filterwarnings("ignore", "Detected pickle protocol")  # of what is no checkpoint; said below
            checkpoint = torch.load(file, map_location=map_location, weights_only=safe)
    except pickle.UnpicklingError as error:
        if "Unsupported global" in str(error) or "add_safe_globals" in str(error):
            raise MisconfigurationException(
                f"{name!r} holds more than plain data, and loading that could run code: {_refused(str(error))} "
                "If you trust where the file is from, pass `weights_only=False`, or allow the class with "
                "`torch.serialization.add_safe_globals([...])`."
            ) from error
        raise _no_checkpoint(name, error) from error
    except FileNotFoundError:
        raise
    except (EOFError, OSError, zipfile.BadZipFile, RuntimeError, UnicodeDecodeError, ValueError, KeyError) as error:
        raise _no_checkpoint(name, error) from error
    if not isinstance(checkpoint, dict):
        raise MisconfigurationException(
            f"{name!r} holds a {type(checkpoint).__name__}, not the dict of a checkpoint. "
            "Give a file that `trainer.save_checkpoint` or ModelCheckpoint wrote."
        )
    return checkpoint


def damage(file: Any) -> str | None:
    """What is wrong with a file of `torch.save`'s, by the checksums that it holds.

    Args:
        file: a path, or an open binary file, which is rewound.

    Returns:
        None if nothing is, or if it is of another kind; loading tells then.
    """
    if hasattr(file, "read") and not file.seekable():
        return None
    try:
        if not zipfile.is_zipfile(file):
            return None
        with zipfile.ZipFile(file) as archive:
            altered = archive.testzip()
    except (zipfile.BadZipFile, EOFError, NotImplementedError, OSError) as error:
        return str(error)
    finally:
        if hasattr(file, "seek"):
            file.seek(0)
    return None if altered is None else f"{altered!r} in it was altered after it was saved"


def _refused(message: str) -> str:
    """The part of torch's long message that names the class."""
    for line in message.splitlines():
        if "GLOBAL" in line:
            return line.strip().rstrip(".") + "."
    return message.splitlines()[0].rstrip(".") + "."


def _no_checkpoint(name: str, error: Exception | str) -> MisconfigurationException:
    reason = str(error).splitlines()[0] if str(error) else type(error).__name__
    return MisconfigurationException(
        f"{name!r} is no checkpoint, or a damaged one ({reason}). "
        "Give a file that `trainer.save_checkpoint` or ModelCheckpoint wrote."
    )

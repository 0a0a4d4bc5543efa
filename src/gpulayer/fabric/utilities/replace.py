"""Local files that are written beside their target and renamed, and what a killed process leaves of that."""

import errno
import io
import os
import platform
import secrets
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]

# .gpulayer-<host>-<random>.part: nobody else's temporary files look like that, in whatever folder they lie.
PREFIX, SUFFIX = ".gpulayer-", ".part"
LINK = ".link"  # appended for a link that is to be renamed
QUIET = 3600.0  # seconds without a write after which a file is stale, where no lock can tell
FULL = {errno.ENOSPC, errno.EFBIG, getattr(errno, "EDQUOT", errno.ENOSPC)}  # a disk, a file's limit, a user's quota


@contextmanager
def replaced_whole(target: str, flush: bool = True) -> Iterator["PartFile"]:
    """A new file beside `target`, flushed to the disk and renamed onto it when the block ends without error.

    Args:
        target: a local path. Its folder must exist.
        flush: False leaves it to the system when it comes to the disk, for what need not outlive a power cut.

    Yields:
        The file, unbuffered; `name` is its path.

    Raises:
        OSError: it could not be written; it names `target`, which is as it was.
    """
    try:
        _check(target)
        folder = os.path.dirname(target) or "."
        with _temporary(folder) as file:
            try:
                yield file
            except Exception:
                if file.error is not None:  # torch.save raises another one, without the reason
                    raise file.error from None
                raise
            if flush:
                os.fsync(file.fileno())
            if fcntl is None:
                file.close()  # Windows renames no open file
            os.replace(file.name, target)
        if flush:
            flush_folder(folder)
    except OSError as error:
        if error.errno is None:
            raise
        raise OSError(error.errno, os.strerror(error.errno), target) from error


def link_locally(source: str, target: str) -> None:
    """Make `target` a relative link to `source`; it is replaced whole or not at all.

    Args:
        source: a local path.
        target: a local path. Its folder must exist.
    """
    _check(target)
    folder = os.path.dirname(target) or "."
    pointed_at = os.path.join(os.path.realpath(os.path.dirname(source)), os.path.basename(source))
    with _temporary(folder) as file:  # as long as it is locked, the link beside it is nobody's leftover
        os.symlink(os.path.relpath(pointed_at, os.path.realpath(folder)), file.name + LINK)
        os.replace(file.name + LINK, target)
    flush_folder(folder)


def clean_up_locally(folder: str) -> None:
    """Delete the temporary files that killed processes left in a folder; those of living ones stay."""
    with suppress(FileNotFoundError, NotADirectoryError):
        for name in os.listdir(folder):
            if is_temporary(name) and _stale(os.path.join(folder, name)):
                _discard(os.path.join(folder, name))


def temporary_name() -> str:
    """A name for a file that is to be renamed, which no other file has."""
    return f"{PREFIX}{platform.node()}-{secrets.token_hex(8)}{SUFFIX}"


def is_temporary(name: str) -> bool:
    """Whether a file of that name is to be renamed."""
    return name.startswith(PREFIX) and name.endswith((SUFFIX, SUFFIX + LINK))


class PartFile(io.FileIO):
    """A new file. What is written goes to the disk at once, so that a flush at the end has little left to do.

    It has no buffer, which a process that forks meanwhile would write a second time.
    """

    CHUNK = 16 << 20  # bytes; a system call writes less than 2 GiB

    def __init__(self, path: str) -> None:
        super().__init__(path, "x+")
        self.error: OSError | None = None

    def write(self, data: Any) -> int:
        """Write all of it, or raise."""
        view = memoryview(data).cast("B")
        done, start = 0, self.tell()
        while done < len(view):
            try:
                done += super().write(view[done : done + self.CHUNK]) or 0
            except OSError as error:
                self.error = error
                raise
            if hasattr(os, "posix_fadvise"):
                with suppress(OSError):  # the wish to forget these bytes begins to write them
                    os.posix_fadvise(self.fileno(), start, done, os.POSIX_FADV_DONTNEED)
        return done


def _check(target: str) -> None:
    """Raise for a target that cannot be had now, not when all is written."""
    with suppress(FileNotFoundError):
        os.lstat(target)
    if os.path.isdir(target):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), target)


@contextmanager
def _temporary(folder: str) -> Iterator[PartFile]:
    """A locked file in `folder`, deleted at the end unless it was renamed."""
    clean_up_locally(folder)
    file = _open_locked(folder)
    try:
        with file:
            yield file
    finally:
        _discard(file.name)


def _open_locked(folder: str) -> PartFile:
    while True:
        file = PartFile(os.path.join(folder, temporary_name()))
        if fcntl is not None:
            with suppress(OSError):  # some network file systems have no locks
                fcntl.flock(file, fcntl.LOCK_EX)
        if os.fstat(file.fileno()).st_nlink:
            return file
        file.close()  # another process cleaned up before the lock was there


def _stale(path: str) -> bool:
    """Whether nobody is writing this file.

    The lock tells. Where there are none, or perhaps ones that other hosts don't see, time does.
    """
    path = path.removesuffix(LINK)
    host = os.path.basename(path).removeprefix(PREFIX).rpartition("-")[0]
    with suppress(FileNotFoundError):
        unlocked = _unlocked(path)
        if unlocked is not None and (host == platform.node() or not unlocked):
            return unlocked
        return time.time() - os.stat(path).st_mtime > QUIET
    return True


def _unlocked(path: str) -> bool | None:
    """Whether a file is not locked; None if that cannot be known."""
    if fcntl is None:
        return None
    try:
        with open(path, "rb+") as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return True
    except FileNotFoundError:
        raise
    except OSError as error:
        return False if error.errno == errno.EWOULDBLOCK else None


def _discard(path: str) -> None:
    for name in (path + LINK, path):
        with suppress(OSError):  # it was renamed, or is somebody else's
            os.unlink(name)


def flush_folder(folder: str) -> None:
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

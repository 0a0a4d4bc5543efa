"""Files on the file systems of fsspec that are not this machine's: FTP, SFTP, HDFS, object stores ..."""

import errno
import os
import time
from contextlib import suppress
from datetime import datetime, timezone
from typing import Any

from gpulayer.fabric.utilities.replace import QUIET, is_temporary, temporary_name

# There an upload appears when it is complete, in place of what was there before. Elsewhere it is renamed.
OBJECT_STORES = {"s3", "s3a", "gs", "gcs", "az", "abfs", "abfss", "oss", "oci"}


def is_object_store(filesystem: Any) -> bool:
    """Whether a file system's files are objects that are replaced whole or not at all."""
    protocol = filesystem.protocol
    return not OBJECT_STORES.isdisjoint([protocol] if isinstance(protocol, str) else protocol)


def exists(filesystem: Any, path: str) -> bool:
    """Whether there is a file or folder; fsspec's own answer is no, too, if the server does not answer."""
    filesystem.invalidate_cache()  # other processes write there, too
    try:
        filesystem.info(path)
    except FileNotFoundError:
        return False
    return True


def names(filesystem: Any, folder: str) -> list[str]:
    """The names of all that lies in a folder; none if there is no such folder."""
    filesystem.invalidate_cache()
    try:
        found = [path.strip("/") for path in filesystem.ls(folder, detail=False)]
    except FileNotFoundError:
        return []
    return [path.rpartition("/")[2] for path in found if path != folder.strip("/")]


def is_folder(filesystem: Any, path: str) -> bool:
    """Whether there is a folder.

    Raises:
        FileNotFoundError: there is nothing.
    """
    filesystem.invalidate_cache()
    return bool(filesystem.info(path)["type"] == "directory")


def remove(filesystem: Any, path: str) -> None:
    """Delete a file, or a folder with all that is in it.

    Raises:
        FileNotFoundError: there is none.
    """
    if is_folder(filesystem, path):
        filesystem.rm(path, recursive=True)
    else:
        filesystem.rm_file(path)


def modified(filesystem: Any, path: str) -> float:
    """When a file was written, in seconds since 1970."""
    filesystem.invalidate_cache()
    try:
        when = filesystem.modified(path)
    except NotImplementedError:  # FTP tells it in the words of RFC 3659
        when = datetime.strptime(filesystem.info(path)["modify"][:14], "%Y%m%d%H%M%S").replace(tzinfo=timezone.utc)
    return float(when.timestamp())


def upload(local: str, filesystem: Any, target: str) -> None:
    """Store a local file; the target is replaced whole or not at all.

    Raises:
        OSError: less arrived than was sent, or what else the file system raises.
    """
    if is_object_store(filesystem):
        filesystem.put_file(local, target)
        return
    folder = filesystem._parent(target)
    filesystem.makedirs(folder, exist_ok=True)
    clean_up(filesystem, folder)
    temporary = f"{folder.rstrip('/')}/{temporary_name()}"
    try:
        filesystem.put_file(local, temporary)
        filesystem.invalidate_cache()
        if (arrived := filesystem.info(temporary)["size"]) != (sent := os.path.getsize(local)):
            raise OSError(errno.EIO, f"{arrived:,} bytes of {sent:,} arrived", target)
        _rename(filesystem, temporary, target)
    except BaseException:
        with suppress(Exception):
            filesystem.rm_file(temporary)
        raise


def _rename(filesystem: Any, source: str, target: str) -> None:
    """Put a whole file in place of another."""
    with suppress(Exception):
        filesystem.mv(source, target)
    if not exists(filesystem, source):
        return
    if not exists(filesystem, target):
        filesystem.mv(source, target)  # raises why it failed
        return
    aside = f"{filesystem._parent(target).rstrip('/')}/{temporary_name()}"  # HDFS, for one, replaces nothing
    filesystem.mv(target, aside)
    try:
        filesystem.mv(source, target)
    except BaseException:
        filesystem.mv(aside, target)
        raise
    filesystem.rm_file(aside)


def clean_up(filesystem: Any, folder: str) -> None:
    """Delete the temporary files that nobody has written to for a long time."""
    for name in names(filesystem, folder):
        if is_temporary(name):
            path = f"{folder.rstrip('/')}/{name}"
            with suppress(FileNotFoundError):
                if time.time() - modified(filesystem, path) > QUIET:
                    filesystem.rm_file(path)

"""Where checkpoints are: the folder of a run, what belongs to it, and where a file is after the folder was moved."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from gpulayer.fabric.utilities.files import exists, join, list_folder, modified
from gpulayer.fabric.utilities.types import Path

if TYPE_CHECKING:
    from gpulayer.pytorch.trainer.trainer import Trainer


def absolute(folder: Path) -> str:
    """A folder whatever the program changes to, without links on the way; a URL stays as it is."""
    scheme, mark, rest = os.fspath(folder).partition("://")
    return f"{scheme}{mark}{rest.rstrip('/')}" if mark else os.path.realpath(os.path.expanduser(scheme))


def default_folder(trainer: Trainer) -> str:
    """`checkpoints` in the folder of the run."""
    if trainer.loggers:
        first = trainer.loggers[0]
        folder = getattr(first, "log_dir", None)
        if folder is None:
            version = first.version if isinstance(first.version, str) else f"version_{first.version}"
            folder = join(first.save_dir or trainer.default_root_dir, str(first.name), version)
    else:
        folder = trainer.default_root_dir
    folder = join(folder, "checkpoints")
    return folder if "://" in folder else os.path.join(trainer.started_in, folder)


def same_file(one: Path, other: Path) -> bool:
    """Whether two paths mean one file, links followed."""
    return absolute(one) == absolute(other)


def lies_in(path: Path, folder: Path) -> bool:
    """Whether a path lies in a folder, at any depth, links followed."""
    inner, outer = (absolute(one).replace(os.sep, "/") for one in (path, folder))
    return inner.startswith(outer.rstrip("/") + "/") and "/../" not in inner


def folder_of(path: Path) -> str:
    """The folder of a path or URL."""
    text = os.fspath(path)
    return text.rpartition("/")[0] if "://" in text else os.path.dirname(os.path.abspath(text))


def find_again(path: str, before: str, now: str, moved: bool) -> str:
    """Where a file is whose folder was `before` when the path was written, and is `now`.

    Args:
        path: as it was written.
        before: the folder of then.
        now: the folder of now.
        moved: whether the folder is known to have been moved or copied. If not, it counts as moved for this file where
            it is in the new folder, and gone from the old one: otherwise one of the name may be another run's.

    Returns:
        A path; "" if there is no such file.
    """
    if before == now:
        return path if exists(path) else ""
    path_then, folder_then = (text.replace("\\", "/") for text in (path, before.rstrip("/\\")))  # of any system
    if not path_then.startswith(folder_then + "/"):
        return ""
    here = join(now, *path_then[len(folder_then) + 1 :].split("/"))
    return here if exists(here) and (moved or not exists(path)) else ""


def newer_than(path: str, folder: str) -> set[str]:
    """What in a folder was written after a file."""
    written = modified(path)
    return {other for other in list_folder(folder) if modified(other) > written}

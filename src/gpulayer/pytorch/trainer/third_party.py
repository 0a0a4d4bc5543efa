"""Callbacks of installed packages: their entry points in a group of ours give every Trainer a callback or several."""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import cache
from importlib.metadata import EntryPoint, entry_points
from typing import Any

from gpulayer.fabric.utilities.exceptions import MisconfigurationException
from gpulayer.fabric.utilities.rank_zero import rank_zero_info
from gpulayer.pytorch.core.callback import Callback

GROUP = "gpulayer.pytorch.callbacks_factory"


def third_party_callbacks(read: Callable[[Any, str], list[Callback]]) -> list[Callback]:
    """What the factories of all installed packages make.

    Args:
        read: checks what a factory made, and says what is wrong with it, given words for what holds it.

    Raises:
        MisconfigurationException: an entry point cannot be imported, its factory fails, or makes something else.
    """
    callbacks: list[Callback] = []
    for point in installed(tuple(sys.path)):
        made = made_by(point, read)
        callbacks += made
        if made:
            kinds = ", ".join(type(callback).__name__ for callback in made)
            rank_zero_info("The installed package %s adds callbacks to the Trainer: %s.", package_of(point), kinds)
    return callbacks


@cache
def installed(path: tuple[str, ...]) -> tuple[EntryPoint, ...]:
    """The entry points of our group; looked for once, as it reads a file of every installed package.

    Args:
        path: `sys.path`, where packages are looked for.
    """
    return tuple(entry_points(group=GROUP))


def made_by(point: EntryPoint, read: Callable[[Any, str], list[Callback]]) -> list[Callback]:
    """What the factory of an entry point makes."""
    where = f"The entry point `{point.name} = {point.value}` of the installed package {package_of(point)}"
    try:
        made = point.load()()
    except Exception as error:  # whatever the package's own code raises
        raise MisconfigurationException(
            f"{where} failed with {type(error).__name__}: {error}. As a member of the group {GROUP!r} it must name a "
            "function that takes no arguments and returns a callback or a list of them. Update or uninstall the "
            "package."
        ) from error
    return read(made, f"{where}: what it made")


def package_of(point: EntryPoint) -> str:
    """The name and version of the package that an entry point belongs to."""
    return f"{point.dist.name} {point.dist.version}" if point.dist is not None else "of unknown name"

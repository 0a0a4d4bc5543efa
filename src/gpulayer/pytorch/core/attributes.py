"""Attributes that the tuner sets: on the module, the datamodule, or in the hyperparameters of either."""

from __future__ import annotations

from collections.abc import Mapping, MutableMapping
from dataclasses import dataclass
from typing import Any

from gpulayer.fabric.utilities.exceptions import MisconfigurationException


@dataclass
class Attribute:
    """One place that has a value.

    Args:
        owner: the object or dict that has it.
        name: its name there.
        where: how a user would write it.
    """

    owner: Any
    name: str
    where: str

    @property
    def value(self) -> Any:
        """What is there."""
        return self.owner[self.name] if isinstance(self.owner, Mapping) else getattr(self.owner, self.name)

    @value.setter
    def value(self, value: Any) -> None:
        if isinstance(self.owner, MutableMapping):
            self.owner[self.name] = value
        else:
            setattr(self.owner, self.name, value)


def attributes_named(name: str, module: Any, datamodule: Any = None) -> list[Attribute]:
    """Every place that has a value of this name.

    Args:
        name: the name; with dots for a part of a part, as in "optimizer.lr".
        module: looked into first, and then its hyperparameters,
        datamodule: then this one and its hyperparameters.
    """
    places = []
    for called, owner in (("model", module), ("datamodule", datamodule)):
        if owner is not None:
            places += [(called, owner), (f"{called}.hparams", owner.hparams)]
    found = [_find(owner, called, name.split(".")) for called, owner in places]
    return [attribute for attribute in found if attribute is not None]


def attribute_to_set(name: str, module: Any, datamodule: Any = None, argument: str = "attr_name") -> list[Attribute]:
    """The same, where there must be one.

    Raises:
        MisconfigurationException: there is none.
    """
    found = attributes_named(name, module, datamodule)
    if not found:
        raise MisconfigurationException(
            f"Neither the module nor the datamodule, nor the hyperparameters of one, have a {name!r}: set "
            f"`self.{name}` in `__init__` and use it, or name the attribute that you use with `{argument}=`."
        )
    return found


def _find(owner: Any, called: str, names: list[str]) -> Attribute | None:
    for name in names[:-1]:
        if not _has(owner, name):
            return None
        owner = owner[name] if isinstance(owner, Mapping) else getattr(owner, name)
        called = f"{called}.{name}"
    return Attribute(owner, names[-1], f"{called}.{names[-1]}") if _has(owner, names[-1]) else None


def _has(owner: Any, name: str) -> bool:
    return name in owner if isinstance(owner, Mapping) else hasattr(owner, name)

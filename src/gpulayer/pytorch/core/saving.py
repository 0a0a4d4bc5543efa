"""Objects from checkpoints: `load_from_checkpoint` of modules and datamodules, and hyperparameter files."""

import csv
import os
from argparse import Namespace
from collections.abc import Mapping
from typing import Any, TypeVar

import fsspec
import yaml

from gpulayer.fabric.utilities.exceptions import MisconfigurationException
from gpulayer.fabric.utilities.files import load_file
from gpulayer.pytorch.core.hparams import INIT_ARGUMENTS, HyperparametersMixin, accepted_arguments

T = TypeVar("T", bound=HyperparametersMixin)


class on_the_class(classmethod):  # type: ignore[type-arg]
    """A class method that says so when it is called on an object, where its result would be easily overlooked."""

    def __get__(self, instance: Any, owner: Any = None) -> Any:
        bound = super().__get__(instance, owner)
        if instance is None:
            return bound

        def refuse(*args: Any, **kwargs: Any) -> Any:
            raise TypeError(
                f"`{bound.__name__}` makes a new object: call it on the class and take what it returns, "
                f"`model = {type(instance).__name__}.{bound.__name__}(...)`."
            )

        return refuse


def make_from_checkpoint(
    cls: type[T],
    path: Any,
    map_location: Any,
    hparams_file: Any,
    weights_only: bool | None,
    overrides: dict[str, Any],
) -> tuple[T, dict[str, Any]]:
    """An object of `cls` made with the checkpoint's hyperparameters, and the checkpoint.

    Args:
        cls: the class.
        path: the checkpoint, as in `load_file`.
        map_location: as in `torch.load`.
        hparams_file: a .yaml or .csv file whose values stand for those in the checkpoint.
        weights_only: as in `load_file`.
        overrides: arguments that win over the saved ones.

    Raises:
        MisconfigurationException: `__init__` needs an argument that was neither saved nor given.
    """
    checkpoint = load_file(path, map_location, weights_only)
    saved = dict(checkpoint.get(cls.CHECKPOINT_HYPER_PARAMS_KEY, {}))
    if hparams_file is not None:
        saved = load_hparams(hparams_file)
    name = checkpoint.get(cls.CHECKPOINT_HYPER_PARAMS_NAME, INIT_ARGUMENTS)
    parameters = accepted_arguments(cls, {name: None})
    if name not in (None, INIT_ARGUMENTS) and name in parameters and name not in overrides:
        arguments = {name: _RebuiltHparams(saved), **overrides}
    else:
        arguments = accepted_arguments(cls, {**saved, **overrides})
    try:
        return cls(**arguments), checkpoint
    except TypeError as error:
        raised_inside = error.__traceback__ is not None and error.__traceback__.tb_next is not None
        if raised_inside:
            raise
        raise MisconfigurationException(
            f"{cls.__name__} could not be made from {str(path)!r}: {error}. The checkpoint holds the hyperparameters "
            f"{sorted(saved)}; give the missing ones as keywords: "
            f"{cls.__name__}.load_from_checkpoint(path, name=value), or call `self.save_hyperparameters()` in "
            "`__init__`."
        ) from error


class _RebuiltHparams(dict[str, Any]):
    """One object of hyperparameters as `__init__` got it: answers items like a dict and attributes like a Namespace."""

    def __getattr__(self, name: str) -> Any:
        try:
            return self[name]
        except KeyError:
            raise AttributeError(name) from None


def load_hparams(path: Any) -> dict[str, Any]:
    """Hyperparameters from a .yaml or .csv file (columns key, value)."""
    path = os.fspath(path)
    with fsspec.open(path, "r", newline="") as file:
        if path.lower().endswith((".yaml", ".yml")):
            return dict(yaml.full_load(file) or {})
        if path.lower().endswith(".csv"):
            return {row["key"]: yaml.safe_load(row["value"]) for row in csv.DictReader(file)}
    raise MisconfigurationException(f"`hparams_file={path!r}`: give a .yaml or a .csv file.")


def save_hparams(path: str, hparams: Mapping[str, Any] | Namespace) -> None:
    """Hyperparameters into a .yaml file; what YAML cannot hold is written as text."""
    values = vars(hparams) if isinstance(hparams, Namespace) else dict(hparams)
    plain = {}
    for key, value in values.items():
        try:
            yaml.safe_dump(value)
        except yaml.YAMLError:
            value = str(value)
        plain[key] = value
    with fsspec.open(path, "w") as file:
        yaml.safe_dump(plain, file)

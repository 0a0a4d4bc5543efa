"""Objects from checkpoints: `load_from_checkpoint` of modules and datamodules, and hyperparameter files."""

import csv
import os
from argparse import Namespace
from collections.abc import Iterable, Mapping
from typing import Any, TypeVar

import fsspec
import yaml
from torch import Tensor, nn

from gpulayer.fabric.utilities.exceptions import MisconfigurationException
from gpulayer.fabric.utilities.files import load_file
from gpulayer.fabric.utilities.rank_zero import rank_zero_warn
from gpulayer.pytorch.core.hparams import INIT_ARGUMENTS, HyperparametersMixin, accepted_arguments

MOST_NAMED = 5

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
    move_hparams(checkpoint)
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


def weights_in(checkpoint: dict[str, Any], name: str) -> dict[str, Any]:
    """The weights that a checkpoint holds.

    Raises:
        MisconfigurationException: it holds none; says what it is.
    """
    if "state_dict" in checkpoint:
        weights: dict[str, Any] = checkpoint["state_dict"]
        return weights
    if checkpoint and all(isinstance(value, Tensor) for value in checkpoint.values()):
        what = (
            "the bare weights of a module, as `torch.save(model.state_dict(), path)` writes them. Make the module and "
            "load them into it: `model.load_state_dict(torch.load(path))`. A checkpoint has them under 'state_dict'"
        )
    else:
        what = f"no 'state_dict', only {few(checkpoint)}"
    raise MisconfigurationException(
        f"{name!r} holds {what}. Give a file that `trainer.save_checkpoint` or ModelCheckpoint wrote."
    )


def load_weights(module: nn.Module, weights: dict[str, Any], strict: bool, name: str) -> None:
    """Load the weights of a checkpoint into a module.

    Args:
        module: the module.
        weights: its state, by name.
        strict: whether the names must be the same.
        name: of the file, for the error.

    Raises:
        RuntimeError: they do not fit; it names a few that are missing, too many, or of another size.
    """
    own = module.state_dict()
    if not strict and own and weights and not own.keys() & weights.keys():
        rank_zero_warn(
            f"None of the weights in {name!r} fit `{type(module).__name__}`, which keeps those that it was made with; "
            f"{differences(own, weights)}."
        )
    try:
        module.load_state_dict(weights, strict=strict)
    except RuntimeError as error:
        if not str(error).startswith("Error(s) in loading state_dict"):
            raise
        raise RuntimeError(
            f"The weights in {name!r} do not fit `{type(module).__name__}`; {differences(own, weights) or error}. "
            "Is it another module's checkpoint, or one made with other arguments? With `strict=False`, or "
            "`self.strict_loading = False` in the module, the names may differ; sizes must not."
        ) from error


def differences(own: dict[str, Any], weights: dict[str, Any]) -> str:
    """In which names and sizes a module's weights and those of a file differ; a few of them."""
    sizes = [
        f"{key} {tuple(weights[key].shape)} in the file, {tuple(value.shape)} in the module"
        for key, value in own.items()
        if isinstance(value, Tensor) and isinstance(weights.get(key), Tensor) and weights[key].shape != value.shape
    ]
    found = {
        "missing in the file": [key for key in own if key not in weights],
        "only in the file": [key for key in weights if key not in own],
        "size mismatch": sizes,
    }
    return "; ".join(f"{what}: {few(keys)}" for what, keys in found.items() if keys)


def few(names: Iterable[Any]) -> str:
    """The first of some names, and how many there are beside them."""
    listed = [str(name) for name in names]
    shown = ", ".join(listed[:MOST_NAMED])
    return shown if len(listed) <= MOST_NAMED else f"{shown} and {len(listed) - MOST_NAMED} more"


def move_hparams(checkpoint: dict[str, Any]) -> None:
    """Put the hyperparameters of a checkpoint from before Lightning 0.8 where they are now."""
    for old in ("hparams", "module_arguments"):
        if old in checkpoint and HyperparametersMixin.CHECKPOINT_HYPER_PARAMS_KEY not in checkpoint:
            checkpoint[HyperparametersMixin.CHECKPOINT_HYPER_PARAMS_KEY] = checkpoint.pop(old)
            checkpoint.pop(HyperparametersMixin.CHECKPOINT_HYPER_PARAMS_TYPE, None)
            if old == "hparams":  # the one argument of that name
                checkpoint[HyperparametersMixin.CHECKPOINT_HYPER_PARAMS_NAME] = old


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

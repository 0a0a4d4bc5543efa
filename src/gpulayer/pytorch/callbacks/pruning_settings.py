"""What ModelPruning can be given."""

from __future__ import annotations

import inspect
from numbers import Integral, Real
from typing import Any

from torch import nn
from torch.nn.utils import prune

from gpulayer.fabric.utilities.exceptions import MisconfigurationException

METHODS: dict[str, type[prune.BasePruningMethod]] = {
    "l1_unstructured": prune.L1Unstructured,
    "random_unstructured": prune.RandomUnstructured,
    "ln_structured": prune.LnStructured,
    "random_structured": prune.RandomStructured,
}


def method_of(pruning_fn: Any, use_global: bool) -> Any:
    """The class that makes masks.

    Raises:
        MisconfigurationException: there is none of this name, or it cannot choose among several parameters.
    """
    method = METHODS.get(pruning_fn) if isinstance(pruning_fn, str) else pruning_fn
    if not inspect.isclass(method) or not issubclass(method, prune.BasePruningMethod):
        raise MisconfigurationException(
            f"`ModelPruning(pruning_fn={pruning_fn!r})`: choose one of {sorted(METHODS)}, or give a subclass of "
            "`torch.nn.utils.prune.BasePruningMethod`: the class, no instance."
        )
    kind = getattr(method, "PRUNING_TYPE", None)
    if use_global and kind != "unstructured":
        raise MisconfigurationException(
            f"`ModelPruning({pruning_fn!r})` prunes whole channels or the like (PRUNING_TYPE is {kind!r}), which "
            "cannot be chosen among several parameters together: give `use_global_unstructured=False`, or another."
        )
    return method


def check_amount(amount: Any) -> None:
    """Raise unless it is a fraction in [0, 1] or a number of entries.

    Raises:
        MisconfigurationException: it is not.
    """
    number = isinstance(amount, Real) and not isinstance(amount, bool)
    if not number or not amount >= 0 or (not isinstance(amount, Integral) and amount > 1):
        raise MisconfigurationException(
            f"`ModelPruning(amount={amount!r})`: give a fraction from 0.0 to 1.0, a whole number of entries, or a "
            "function of the epoch that returns one of these."
        )


def check_settings(dim: Any, norm: Any, flags: dict[str, Any], choices: dict[str, Any]) -> None:
    """Raise unless these can be used.

    Args:
        dim: `pruning_dim`.
        norm: `pruning_norm`.
        flags: by name, what is True or False.
        choices: by name, what may be a function of the epoch, too.

    Raises:
        MisconfigurationException: one of them cannot.
    """
    if dim is not None and (isinstance(dim, bool) or not isinstance(dim, Integral)):
        raise MisconfigurationException(
            f"`ModelPruning(pruning_dim={dim!r})`: give the number of a dimension, or None."
        )
    if norm not in (None, "fro", "nuc") and (isinstance(norm, bool) or not isinstance(norm, Real)):
        raise MisconfigurationException(f"`ModelPruning(pruning_norm={norm!r})`: give a number, or None.")
    for name, value in (flags | choices).items():
        if not isinstance(value, bool) and not (name in choices and callable(value)):
            allowed = ", or give a function of the epoch that says which" if name in choices else ""
            raise MisconfigurationException(f"`ModelPruning({name}={value!r})`: choose True or False{allowed}.")


def check_pairs(parameters: Any) -> None:
    """Raise unless these are pairs of a module and a parameter's name.

    Raises:
        MisconfigurationException: they are not.
    """
    if not isinstance(parameters, (list, tuple)) or not all(map(_is_pair, parameters)):
        raise MisconfigurationException(
            f"`ModelPruning(parameters_to_prune={parameters!r})`: give pairs of a module and a parameter's name, such "
            'as `[(model.layer, "weight")]`.'
        )


def _is_pair(entry: Any) -> bool:
    return (
        isinstance(entry, (tuple, list))
        and len(entry) == 2
        and isinstance(entry[0], nn.Module)
        and isinstance(entry[1], str)
    )

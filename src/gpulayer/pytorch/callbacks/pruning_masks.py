"""Pruned parameters as `torch.nn.utils.prune` keeps them: `weight_orig` and `weight_mask`, whose product is `weight`.

All of them are called by their full name within a module, without `_orig`: "net.0.weight".
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from copy import deepcopy
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils import prune


def original(module: nn.Module, name: str) -> Any:
    """The parameter itself, which lies below the mask if it is pruned; None if there is none."""
    return module._parameters.get(f"{name}_orig", module._parameters.get(name))


def full_names(parameters: Iterable[tuple[nn.Module, str]], root: nn.Module) -> list[str]:
    """The names of parameters as in `root.named_parameters()`."""
    prefixes = {part: prefix for prefix, part in root.named_modules()}
    return [f"{prefixes[module]}.{name}".lstrip(".") for module, name in parameters]


def pruned(root: nn.Module, all_names: bool = False) -> list[tuple[str, nn.Module, str]]:
    """The pruned parameters of a module and of those within it.

    Args:
        root: the module.
        all_names: where a module is shared, give it by each of its names rather than once.

    Returns:
        For each its full name, the module that it belongs to, and its name there.
    """
    return [
        (f"{prefix}.{hook._tensor_name}".lstrip("."), part, hook._tensor_name)
        for prefix, part in root.named_modules(remove_duplicate=not all_names)
        for hook in part._forward_pre_hooks.values()
        if isinstance(hook, prune.BasePruningMethod)
    ]


@contextmanager
def in_order(modules: Iterable[nn.Module]) -> Iterator[None]:
    """Keep the parameters' order, by which an optimizer's state is resumed; torch puts those that it renames last."""
    before = {module: list(module._parameters) for module in modules}
    yield
    for module, names in before.items():
        own = module._parameters
        for name in names:
            now = next(key for key in (name, f"{name}_orig", name.removesuffix("_orig")) if key in own)
            own[now] = own.pop(now)


def make_permanent(root: nn.Module) -> None:
    """Make the pruned parameters of a module ordinary ones, with their zeros."""
    found = pruned(root)
    with in_order(part for _, part, _ in found):
        for _, part, name in found:
            prune.remove(part, name)


def drawn_anew(module: nn.Module) -> nn.Module:
    """A copy that is not pruned, with new first values."""
    products = [getattr(part, name) for _, part, name in pruned(module)]  # of autograd, which cannot be copied
    fresh = deepcopy(module, {id(product): product.detach() for product in products})
    for _, part, name in pruned(fresh):
        prune.remove(part, name)
    fresh.reset_parameters()  # type: ignore[operator]
    return fresh


def masks_of(root: nn.Module) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """What a resumed run needs of the pruned parameters beside their products.

    Returns:
        By full name the masks, True where a value is kept; and the values below their zeros.
    """
    masks, hidden = {}, {}
    for full_name, part, name in pruned(root):
        masks[full_name] = mask = getattr(part, f"{name}_mask").bool()
        hidden[full_name] = original(part, name).detach()[~mask]
    return masks, hidden


def put_masks_back(root: nn.Module, masks: dict[str, Tensor], hidden: dict[str, Tensor]) -> None:
    """Prune the parameters of a module by masks, and put the values below their zeros back; see `masks_of`."""
    parts = dict(root.named_modules(remove_duplicate=False))
    with in_order(parts.values()):
        for full_name, kept in masks.items():
            prefix, _, name = full_name.rpartition(".")
            module, parameter = parts[prefix], original(parts[prefix], name)
            mask = kept.to(parameter.device)
            if name in module._parameters:
                prune.custom_from_mask(module, name, mask)
            getattr(module, f"{name}_mask").copy_(mask)
            parameter.data[~mask] = hidden[full_name].to(parameter)


def as_ordinary(root: nn.Module, weights: dict[str, Any]) -> dict[str, Any]:
    """The `state_dict()` of a module as it would be if its pruning were permanent."""
    names = {name for name, _, _ in pruned(root, all_names=True)}
    ordinary: dict[str, Any] = {}
    for key, value in weights.items():
        name = key.removesuffix("_orig")
        if name != key and name in names:
            ordinary[name] = value * weights[f"{name}_mask"].to(value.dtype)
        elif not (key.endswith("_mask") and key.removesuffix("_mask") in names):
            ordinary[key] = value
    return ordinary


def fit_weights(root: nn.Module, weights: dict[str, Any]) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """Change the weights of a checkpoint so that they fit a module as it is, which may be pruned or not.

    Returns:
        The masks that were taken out of the weights, and the values below their zeros; see `masks_of`.
    """
    names = {name for name, _, _ in pruned(root, all_names=True)}
    masks, hidden = {}, {}
    for name in [key.removesuffix("_mask") for key in weights if key.endswith("_mask")]:
        if f"{name}_orig" in weights and name not in names:
            below, mask = weights.pop(f"{name}_orig"), weights.pop(f"{name}_mask")
            weights[name] = below * mask.to(below.dtype)
            masks[name], hidden[name] = mask.bool(), below[mask == 0]
    for name in names:
        if name in weights:
            weights[f"{name}_orig"] = weights.pop(name)
            weights[f"{name}_mask"] = torch.ones_like(weights[f"{name}_orig"])
    return masks, hidden

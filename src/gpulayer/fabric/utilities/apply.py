"""Walking through batches: nested lists, tuples, dicts, named tuples and dataclasses."""

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from copy import copy
from dataclasses import fields, is_dataclass
from typing import Any

import torch
from torch import Tensor


def apply_to_collection(data: Any, dtype: type | tuple[type, ...], function: Callable[..., Any], *args: Any) -> Any:
    """`function(leaf, *args)` in place of every leaf of type `dtype`; the containers are rebuilt, other leaves kept."""
    if isinstance(data, dtype):
        return function(data, *args)
    if isinstance(data, tuple) and hasattr(data, "_fields"):
        return type(data)(*(apply_to_collection(item, dtype, function, *args) for item in data))
    if isinstance(data, Sequence) and not isinstance(data, (str, bytes)):
        return type(data)([apply_to_collection(item, dtype, function, *args) for item in data])  # type: ignore[call-arg]
    if isinstance(data, Mapping):
        items = {key: apply_to_collection(item, dtype, function, *args) for key, item in data.items()}
        if isinstance(data, defaultdict):
            return defaultdict(data.default_factory, items)
        return items if type(data) is dict else type(data)(items)  # type: ignore[call-arg]
    if is_dataclass(data) and not isinstance(data, type):
        result = copy(data)
        for field in fields(data):
            value = apply_to_collection(getattr(data, field.name), dtype, function, *args)
            object.__setattr__(result, field.name, value)  # a frozen dataclass too
        return result
    return data


class _Movable(type):
    def __instancecheck__(cls, instance: Any) -> bool:
        return callable(getattr(instance, "to", None))


class Movable(metaclass=_Movable):
    """Anything with a `to(device)` method: tensors, and batches of libraries that know how to move themselves."""


def move_data_to_device(batch: Any, device: torch.device | str) -> Any:
    """The batch with everything that has a `to` method on `device`.

    Args:
        batch: any nesting of containers.
        device: where to.

    Returns:
        The moved batch. Objects whose `to` works in place and returns nothing are kept.
    """
    target = torch.device(device)

    def move(leaf: Any) -> Any:
        if isinstance(leaf, Tensor):
            # From pinned memory the copy can overlap with computation. On MPS the flag has given wrong numbers.
            return leaf.to(target, non_blocking=target.type == "cuda")
        moved = leaf.to(target)
        return leaf if moved is None else moved

    return apply_to_collection(batch, Movable, move)


def all_plain_tensors(batch: Any) -> bool:
    """Whether the batch is a tensor, or a flat list, tuple or dict of tensors: the usual case, told cheaply."""
    if type(batch) is Tensor:
        return True
    if type(batch) is dict:
        batch = batch.values()
    elif type(batch) is not list and type(batch) is not tuple:
        return False
    for item in batch:  # noqa: SIM110 - at every step; a generator in all() would double the cost
        if type(item) is not Tensor:
            return False
    return True

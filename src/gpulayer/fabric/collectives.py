"""What processes do together: a few functions on torch.distributed, each of which all processes must call."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.nn.functional import all_gather as all_gather_with_gradients

from gpulayer.fabric.utilities.exceptions import MisconfigurationException

_OPERATIONS = {
    "sum": dist.ReduceOp.SUM,
    "min": dist.ReduceOp.MIN,
    "max": dist.ReduceOp.MAX,
    "product": dist.ReduceOp.PRODUCT,
}


def reduce(tensor: Tensor, operation: str | dist.ReduceOp | None = "mean", group: Any = None) -> Tensor:
    """The tensors of all ranks reduced to one, on each rank; the given one stays as it is.

    Args:
        tensor: of the same shape on each rank.
        operation: "mean" (or "avg"), "sum", "min", "max", "product", or one of torch's; None for "sum".
        group: the processes that take part; None for all.

    Raises:
        MisconfigurationException: an unknown operation.
    """
    name = operation.lower() if isinstance(operation, str) else operation
    mean = name in ("mean", "avg")
    if isinstance(name, str) and not mean and name not in _OPERATIONS:
        raise MisconfigurationException(
            f"`reduce_op={operation!r}`: choose one of 'mean', {', '.join(map(repr, _OPERATIONS))}."
        )
    op = dist.ReduceOp.SUM if mean or name is None else _OPERATIONS.get(name, name)  # type: ignore[arg-type]
    reduced = tensor.detach().clone()
    if mean and not reduced.is_floating_point() and not reduced.is_complex():
        reduced = reduced.float()
    dist.all_reduce(reduced, op=op, group=group)
    return reduced / dist.get_world_size(group) if mean else reduced


def all_gather(tensor: Tensor, with_gradients: bool = False, group: Any = None) -> Tensor:
    """The tensors of all ranks, stacked along a new first dimension.

    Args:
        tensor: of the same shape on each rank.
        with_gradients: whether gradients flow back to the ranks that the parts come from.
        group: the processes that take part; None for all.
    """
    tensor = tensor.contiguous()
    if with_gradients:
        return torch.stack(all_gather_with_gradients(tensor, group or dist.group.WORLD))
    gathered = [torch.empty_like(tensor) for _ in range(dist.get_world_size(group))]
    dist.all_gather(gathered, tensor.detach(), group=group)
    return torch.stack(gathered)


def broadcast(value: Any, source: int = 0, group: Any = None) -> Any:
    """The object that rank `source` has; it is pickled on its way."""
    box = [value]
    dist.broadcast_object_list(box, src=source, group=group)
    return box[0]


def gather_objects(value: Any, group: Any = None) -> list[Any]:
    """The object of each rank."""
    gathered: list[Any] = [None] * dist.get_world_size(group)
    dist.all_gather_object(gathered, value, group=group)
    return gathered


def gather_numbers(numbers: list[float], group: Any = None) -> list[list[float]]:
    """The numbers of each rank, as many on each; in float64, in one operation on the host."""
    vector = torch.tensor(numbers, dtype=torch.float64)
    gathered = [torch.empty_like(vector) for _ in range(dist.get_world_size(group))]
    dist.all_gather(gathered, vector, group=group)
    return [part.tolist() for part in gathered]

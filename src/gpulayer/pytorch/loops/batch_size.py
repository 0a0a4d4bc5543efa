"""The size of a batch, which is the weight of its values in a mean."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import fields, is_dataclass
from typing import Any

from torch import Tensor

from gpulayer.fabric.utilities.exceptions import MisconfigurationException


def size_of(batch: Any) -> tuple[int, bool]:
    """The number of samples in a batch, by the first size of its first tensor.

    Args:
        batch: a tensor, or tensors in lists, dicts, dataclasses and other iterables, however nested.

    Returns:
        The size, and whether it is ambiguous: the batch holds tensors of several first sizes.

    Raises:
        MisconfigurationException: there is no tensor in it.
    """
    if type(batch) is Tensor:
        return (batch.size(0) if batch.dim() else 1), False
    sizes = batch_sizes(batch)
    size = next(sizes, None)
    if size is None:
        raise MisconfigurationException(
            f"`self.log` found no tensor in the batch, a {type(batch).__name__}, to read its size from: "
            "give it as `self.log(..., batch_size=...)`."
        )
    return size, any(other != size for other in sizes)


def batch_sizes(batch: Any) -> Iterator[int]:
    """The first size of every tensor in a batch, however nested; 1 for a tensor without dimensions."""
    if isinstance(batch, Tensor):
        yield batch.size(0) if batch.dim() else 1
    elif isinstance(batch, Mapping):
        for item in batch.values():
            yield from batch_sizes(item)
    elif isinstance(batch, (str, bytes)):
        return
    elif is_dataclass(batch) and not isinstance(batch, type):
        for entry in fields(batch):
            yield from batch_sizes(getattr(batch, entry.name))
    elif isinstance(batch, Iterable):
        for item in batch:
            yield from batch_sizes(item)

"""Step values on their way from the device to the host, which does not wait for them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor


@dataclass
class Pending:
    """A vector that is being copied, and which names its numbers have."""

    names: list[str]
    numbers: dict[str, float]
    vector: Tensor | None
    copied: torch.cuda.Event | None
    step: int
    epoch: int

    def metrics(self) -> dict[str, float]:
        """The numbers; the copy, begun a step ago, is over by now."""
        if self.copied is not None:
            self.copied.synchronize()
        if self.vector is not None:
            self.numbers.update(zip(self.names, self.vector.tolist(), strict=True))
        return self.numbers


def start_copy(values: Mapping[str, Any], device: torch.device, step: int = 0, epoch: int = 0) -> Pending:
    """Stack the tensors into one vector and begin its copy to the host, without waiting on a GPU.

    Args:
        values: scalar tensors and numbers.
        device: where the tensors are.
        step: the step that they are from.
        epoch: its epoch.
    """
    numbers = {name: value for name, value in values.items() if not isinstance(value, Tensor)}
    tensors = {name: value for name, value in values.items() if isinstance(value, Tensor)}
    vector: Tensor | None = None
    copied: torch.cuda.Event | None = None
    if tensors:
        vector = stacked(list(tensors.values()), device)
        if device.type == "cuda":
            pinned = torch.empty(vector.shape, dtype=vector.dtype, pin_memory=True)
            vector = pinned.copy_(vector, non_blocking=True)
            copied = torch.cuda.Event()
            copied.record()
    return Pending(list(tensors), dict.fromkeys(values, 0.0) | numbers, vector, copied, step, epoch)


def stacked(values: list[Tensor], device: torch.device) -> Tensor:
    """One vector of scalar tensors, on the device and in its widest format."""
    first = values[0].dtype
    if all(value.dtype is first and value.device == device for value in values):
        return torch.stack(values).to(wide(device))
    return torch.stack([value.to(device, wide(device)) for value in values])


def wide(device: torch.device) -> torch.dtype:
    """float64, but on MPS, which has none."""
    return torch.float32 if device.type == "mps" else torch.float64

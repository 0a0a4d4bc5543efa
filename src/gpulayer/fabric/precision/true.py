"""Everything in one format: 16-true, bf16-true, 64-true."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Any

import torch
from torch import Tensor, nn

from gpulayer.fabric.precision.precision import Precision, default_dtype
from gpulayer.fabric.utilities.apply import apply_to_collection


class TruePrecision(Precision):
    """Weights, inputs and arithmetic in one format.

    Args:
        name: the precision's name, such as "bf16-true".
        dtype: the format.
    """

    def __init__(self, name: str, dtype: torch.dtype) -> None:
        self.name = name
        self.dtype = dtype

    def forward_context(self) -> AbstractContextManager[Any]:
        return default_dtype(self.dtype)

    def init_context(self) -> AbstractContextManager[Any]:
        return default_dtype(self.dtype)

    def convert_module(self, module: nn.Module) -> nn.Module:
        # Not `module.to(dtype)`, which takes the imaginary part of complex numbers away: they stay as they are, as in a
        # batch.
        convert = {torch.float16: module.half, torch.bfloat16: module.bfloat16, torch.float64: module.double}
        return convert[self.dtype]()

    def convert_input(self, data: Any) -> Any:
        def convert(tensor: Tensor) -> Tensor:
            return tensor.to(self.dtype) if tensor.is_floating_point() else tensor

        return apply_to_collection(data, Tensor, convert)


class HalfPrecision(TruePrecision):
    """16 bits: "16-true" or "bf16-true"."""

    def __init__(self, precision: str = "16-true") -> None:
        super().__init__(precision, torch.bfloat16 if precision == "bf16-true" else torch.float16)


class DoublePrecision(TruePrecision):
    """64 bits."""

    def __init__(self) -> None:
        super().__init__("64-true", torch.float64)

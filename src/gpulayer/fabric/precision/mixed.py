"""Mixed precision: weights in 32 bits, most of the arithmetic in 16."""

from contextlib import AbstractContextManager
from typing import Any

import torch

from gpulayer.fabric.precision.precision import Precision


class MixedPrecision(Precision):
    """torch's autocast in bfloat16, whose range needs no loss scaling.

    Source: https://pytorch.org/docs/stable/amp.html
    """

    name = "bf16-mixed"

    def __init__(self, device_type: str) -> None:
        self.device_type = device_type

    def forward_context(self) -> AbstractContextManager[Any]:
        return torch.autocast(self.device_type, dtype=torch.bfloat16)

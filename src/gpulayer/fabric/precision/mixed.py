"""Mixed precision: weights in 32 bits, most of the arithmetic in 16."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Any

import torch
from torch import Tensor
from torch.amp import GradScaler
from torch.optim import LBFGS, Optimizer

from gpulayer.fabric.precision.precision import Precision
from gpulayer.fabric.utilities.exceptions import MisconfigurationException


class MixedPrecision(Precision):
    """torch's autocast. bfloat16 has the range of 32 bits; float16 has not, so its losses are scaled.

    Source: https://pytorch.org/docs/stable/amp.html

    Args:
        precision: "bf16-mixed" or "16-mixed".
        device: the kind of device, such as "cuda".
        scaler: scales the losses of "16-mixed"; made if it is not given.
    """

    def __init__(self, precision: str, device: str, scaler: GradScaler | None = None) -> None:
        self.name = precision
        self.device_type = device
        self.dtype = torch.bfloat16 if precision == "bf16-mixed" else torch.float16
        self.scaler = GradScaler(device) if scaler is None and precision == "16-mixed" else scaler
        self.skipped = False
        self._unscaled: set[int] = set()  # optimizers whose gradients are at their true size
        self._watched: set[int] = set()  # optimizers that tell when they step

    def forward_context(self) -> AbstractContextManager[Any]:
        return torch.autocast(self.device_type, dtype=self.dtype)

    def does(self, method: str) -> bool:
        # bfloat16 needs no scaler, and then a step is that of 32 bits.
        return super().does(method) and (self.scaler is not None or method == "forward_context")

    def scale(self, loss: Tensor) -> Tensor:
        return loss if self.scaler is None else self.scaler.scale(loss)

    def unscale(self, optimizer: Optimizer) -> None:
        # The scaler refuses to do it twice; in manual optimization a module clips before it steps, and both ask.
        if self.scaler is not None and id(optimizer) not in self._unscaled and self._has_gradients(optimizer):
            self.scaler.unscale_(optimizer)
            self._unscaled.add(id(optimizer))

    def optimizer_step(self, optimizer: Optimizer, closure: Any = None) -> Any:
        if self.scaler is None:
            return super().optimizer_step(optimizer, closure)
        if isinstance(optimizer, LBFGS):
            raise MisconfigurationException(
                "`precision='16-mixed'` cannot be used with LBFGS, which computes several losses in one step: use "
                "'bf16-mixed' or 32 bits."
            )
        loss = closure() if closure is not None else None
        self.skipped = True
        if id(optimizer) not in self._watched:
            optimizer.register_step_post_hook(self._stepped)
            self._watched.add(id(optimizer))
        if self._has_gradients(optimizer):
            self.scaler.step(optimizer)  # reads on the host whether all gradients are finite: inherent to float16
            self.scaler.update()
        self._unscaled.discard(id(optimizer))
        return loss

    def _stepped(self, *_: Any) -> None:
        self.skipped = False

    @staticmethod
    def _has_gradients(optimizer: Optimizer) -> bool:
        return any(parameter.grad is not None for group in optimizer.param_groups for parameter in group["params"])

    def state_dict(self) -> dict[str, Any]:
        return {} if self.scaler is None else self.scaler.state_dict()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        if self.scaler is not None:
            self.scaler.load_state_dict(state_dict)

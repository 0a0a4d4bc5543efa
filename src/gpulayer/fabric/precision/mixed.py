"""Mixed precision: weights in 32 bits, most of the arithmetic in 16."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Any
from weakref import WeakSet, finalize

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
        self._unscaled: WeakSet[Optimizer] = WeakSet()  # those whose gradients are at their true size
        self._stepped: WeakSet[Optimizer] = WeakSet()  # those that stepped since the scale was last adapted
        self._known: WeakSet[Optimizer] = WeakSet()

    def forward_context(self) -> AbstractContextManager[Any]:
        # Without the cache of cast weights: what follows an optimizer step within a step would use the old ones.
        return torch.autocast(self.device_type, dtype=self.dtype, cache_enabled=False)

    def does(self, method: str) -> bool:
        # bfloat16 needs no scaler, and then a step is that of 32 bits.
        return super().does(method) and (self.scaler is not None or method == "forward_context")

    def scale(self, loss: Tensor) -> Tensor:
        # The scale is adapted here, before new gradients are made with it, and not at each step: of several optimizers
        # whose gradients are there together, the first one's step must not change what the others were made with.
        self._adapt()
        return loss if self.scaler is None else self.scaler.scale(loss)

    def _adapt(self) -> None:
        if self.scaler is not None and self._stepped:
            self.scaler.update()
            self._stepped.clear()
            self._unscaled.clear()

    def unscale(self, optimizer: Optimizer) -> None:
        # The scaler refuses to do it twice; in manual optimization a module clips before it steps, and both ask.
        if self.scaler is not None and optimizer not in self._unscaled and self._has_gradients(optimizer):
            self._meet(optimizer)
            self.scaler.unscale_(optimizer)
            self._unscaled.add(optimizer)

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
        self._meet(optimizer)
        if optimizer in self._stepped:  # a second step from the same gradients
            self._adapt()
        if self._has_gradients(optimizer):
            self.scaler.step(optimizer)  # reads on the host whether all gradients are finite: inherent to float16
            self._stepped.add(optimizer)
        return loss

    def _meet(self, optimizer: Optimizer) -> None:
        """See an optimizer for the first time: it is to tell when it steps."""
        if self.scaler is not None and optimizer not in self._known:
            self._known.add(optimizer)
            optimizer.register_step_post_hook(self._has_stepped)
            # torch's scaler knows optimizers by `id`, and Python may give that to another one when this one is gone.
            finalize(optimizer, self.scaler._per_optimizer_states.pop, id(optimizer), None)

    def _has_stepped(self, *_: Any) -> None:
        self.skipped = False

    @staticmethod
    def _has_gradients(optimizer: Optimizer) -> bool:
        return any(parameter.grad is not None for group in optimizer.param_groups for parameter in group["params"])

    def state_dict(self) -> dict[str, Any]:
        self._adapt()
        return {} if self.scaler is None else self.scaler.state_dict()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        if self.scaler is not None:
            self.scaler.load_state_dict(state_dict)

"""Mixed precision: weights in 32 bits, most of the arithmetic in 16."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager
from typing import Any

import torch
from torch import Tensor
from torch.amp.grad_scaler import GradScaler, OptState
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
        if scaler is None and precision == "16-mixed":
            scaler = GradScaler(device)
        self.scaler = scaler if scaler is not None and scaler.is_enabled() else None
        self._unscaled: set[Optimizer] = set()  # those whose gradients are at their true size
        self._not_finite: list[Any] = []  # what kept the last step from being taken; a fused optimizer's are tensors

    def forward_context(self) -> AbstractContextManager[Any]:
        # Without the cache of cast weights: what follows an optimizer step within a step would use the old ones.
        return torch.autocast(self.device_type, dtype=self.dtype, cache_enabled=False)

    def does(self, method: str) -> bool:
        # bfloat16 needs no scaler, and then a step is that of 32 bits.
        return super().does(method) and (self.scaler is not None or method == "forward_context")

    def scale(self, loss: Tensor) -> Tensor:
        if self.scaler is None:
            return loss
        # The scale is adapted here, before new gradients are made with it, and not at each step: of several optimizers
        # whose gradients are there together, the first one's step must not change what the others were made with.
        self._adapt()
        scaled = self.scaler.scale(loss)
        # The new gradients may be added to some that are at their true size: clipped for a step that is still to come,
        # or that an error broke off.
        for optimizer in self._unscaled:
            self._scale_gradients(optimizer)
        self._forget()
        return scaled

    def _adapt(self) -> None:
        """Raise or lower the scale, after steps."""
        if self.scaler is not None and any(
            state["stage"] is OptState.STEPPED for state in self.scaler._per_optimizer_states.values()
        ):
            self.scaler.update()

    def _scale_gradients(self, optimizer: Optimizer) -> None:
        """Undo `unscale`, on each device by its own copy of the scale."""
        by_device: dict[torch.device, list[Tensor]] = {}
        for gradient in gradients(optimizer):
            by_device.setdefault(gradient.device, []).append(gradient)
        with torch.no_grad():
            for device, those in by_device.items():
                torch._foreach_mul_(those, self.scaler.scale(torch.ones((), device=device)))  # type: ignore[union-attr]

    def _forget(self) -> None:
        """From here on all gradients are scaled ones. torch's scaler must know, which goes by `id`, too."""
        self._unscaled.clear()
        if self.scaler is not None:
            self.scaler._per_optimizer_states.clear()

    def unscale(self, optimizer: Optimizer) -> None:
        # The scaler refuses to do it twice; in manual optimization a module clips before it steps, and both ask.
        if self.scaler is not None and optimizer not in self._unscaled and has_gradients(optimizer):
            self._unscaled.add(optimizer)
            self.scaler.unscale_(optimizer)

    def optimizer_step(self, optimizer: Optimizer, closure: Any = None, **kwargs: Any) -> Any:
        if self.scaler is None:
            return super().optimizer_step(optimizer, closure, **kwargs)
        if isinstance(optimizer, LBFGS):
            raise MisconfigurationException(
                "`precision='16-mixed'` cannot be used with LBFGS, which computes several losses in one step: use "
                "'bf16-mixed' or 32 bits."
            )
        loss = closure() if closure is not None else None
        if not has_gradients(optimizer):  # of which torch's scaler would complain
            self._not_finite = []
            super().optimizer_step(optimizer, **kwargs)
            return loss
        self._not_finite = [True]
        self.unscale(optimizer)
        state = self.scaler._per_optimizer_states[id(optimizer)]
        if state["stage"] is not OptState.UNSCALED:  # a second step from the same gradients
            self.scaler._check_inf_per_device(optimizer)
            state["stage"] = OptState.UNSCALED
        with optimizer.register_step_post_hook(self._has_stepped):
            self.scaler.step(optimizer, **kwargs)  # reads whether all gradients are finite: inherent to float16
        return loss

    def _has_stepped(self, optimizer: Optimizer, *_: Any) -> None:
        # A fused optimizer is called in any case. It finds out on the device, and the host asks only for `skipped`.
        fused = getattr(optimizer, "_step_supports_amp_scaling", False)
        states = self.scaler._per_optimizer_states  # type: ignore[union-attr]
        self._not_finite = list(states[id(optimizer)]["found_inf_per_device"].values()) if fused else []

    @property
    def skipped(self) -> bool:
        return any(self._not_finite)

    def state_dict(self) -> dict[str, Any]:
        self._adapt()
        return {} if self.scaler is None else self.scaler.state_dict()

    def __getstate__(self) -> dict[str, Any]:
        self._adapt()  # torch's scaler cannot be pickled with a step that it was not yet adapted to
        return self.__dict__

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        if self.scaler is not None:
            self._forget()  # the steps of an earlier run are none of this one's
            self.scaler.load_state_dict(state_dict)


def gradients(optimizer: Optimizer) -> Iterator[Tensor]:
    """The gradients that its parameters have."""
    parameters = (parameter for group in optimizer.param_groups for parameter in group["params"])
    return (parameter.grad for parameter in parameters if parameter.grad is not None)


def has_gradients(optimizer: Optimizer) -> bool:
    """Whether any of its parameters has one."""
    return next(gradients(optimizer), None) is not None

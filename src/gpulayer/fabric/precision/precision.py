"""In which number formats a model computes; this class: in the ones it came with (32-bit, as a rule)."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer


class Precision:
    """Full 32-bit precision, and the interface of all others.

    A precision sees modules, inputs, losses and optimizers; never a hook, a callback or a trainer.
    """

    name = "32-true"

    def forward_context(self) -> AbstractContextManager[Any] | None:
        """What a step runs in, entered anew each time; None for nothing, which then costs nothing."""
        return None

    def init_context(self) -> AbstractContextManager[Any]:
        """What a module is made in, so that its weights have the right format at once."""
        return nullcontext()

    def convert_module(self, module: nn.Module) -> nn.Module:
        """The module in this precision's formats."""
        return module

    def convert_input(self, data: Any) -> Any:
        """A batch in the formats that the module takes."""
        return data

    def scale(self, loss: Tensor) -> Tensor:
        """The loss that the backward pass starts from."""
        return loss

    def unscale(self, optimizer: Optimizer) -> None:
        """Bring the gradients to their true size, before anyone looks at them or clips them; once a step."""

    def optimizer_step(self, optimizer: Optimizer, closure: Any = None, **kwargs: Any) -> Any:
        """The optimizer's step. `kwargs` are what its own `step` takes beside a closure."""
        return optimizer.step(closure, **kwargs) if closure is not None else optimizer.step(**kwargs)

    @property
    def skipped(self) -> bool:
        """Whether the last step was left out, for gradients were not finite."""
        return False

    def does(self, method: str) -> bool:
        """Whether this class does anything in `method`: asked once, so that a step needn't."""
        return getattr(type(self), method) is not getattr(Precision, method)

    def state_dict(self) -> dict[str, Any]:
        """What a checkpoint must keep of it."""
        return {}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Put back what `state_dict` returned."""


@contextmanager
def default_dtype(dtype: torch.dtype) -> Iterator[None]:
    """New floating-point tensors are of `dtype`."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        torch.set_default_dtype(before)

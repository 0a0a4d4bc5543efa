"""In which number formats a model computes; this class: in the ones it came with (32-bit, as a rule)."""

from contextlib import AbstractContextManager
from typing import Any

from torch import nn


class Precision:
    """Full 32-bit precision, and the interface of all others.

    A precision sees modules, inputs and outputs; never a hook, a callback or a trainer.
    """

    name = "32-true"

    def forward_context(self) -> AbstractContextManager[Any] | None:
        """What a step runs in, entered anew each time; None for nothing, which then costs nothing."""
        return None

    def convert_module(self, module: nn.Module) -> nn.Module:
        """The module in this precision's formats."""
        return module

    def convert_input(self, data: Any) -> Any:
        """A batch in the formats that the module takes."""
        return data

    @property
    def converts_inputs(self) -> bool:
        """Whether `convert_input` does anything: decided once, so that a step needn't ask."""
        return type(self).convert_input is not Precision.convert_input

    def state_dict(self) -> dict[str, Any]:
        """What a checkpoint must keep of it."""
        return {}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Put back what `state_dict` returned."""

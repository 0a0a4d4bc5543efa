"""Making modules without spending time on weights that a checkpoint will replace."""

from typing import Any

from torch import Tensor
from torch.overrides import TorchFunctionMode

_DRAWS = {Tensor.uniform_, Tensor.normal_}  # not every function of torch.nn.init can be intercepted itself


class EmptyInit(TorchFunctionMode):
    """While it is active, filling a tensor with random numbers, or by `torch.nn.init`, leaves it as it is.

    Source: https://pytorch.org/docs/stable/torch.overrides.html
    """

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func in _DRAWS or getattr(func, "__module__", None) == "torch.nn.init":
            return kwargs["tensor"] if "tensor" in kwargs else args[0]
        return func(*args, **kwargs)

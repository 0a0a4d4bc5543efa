"""Making modules without spending time on weights that a checkpoint will replace."""

from typing import Any

from torch.overrides import TorchFunctionMode


class EmptyInit(TorchFunctionMode):
    """While it is active, the functions of `torch.nn.init` leave the tensor as it is.

    Source: https://pytorch.org/docs/stable/torch.overrides.html
    """

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if getattr(func, "__module__", None) == "torch.nn.init":
            return kwargs["tensor"] if "tensor" in kwargs else args[0]
        return func(*args, **kwargs)

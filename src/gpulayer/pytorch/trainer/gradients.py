"""The gradients that a checkpoint holds: those that a step is yet to use, or a hook to see."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from gpulayer.pytorch.loops.hooks import nothing
from gpulayer.pytorch.loops.run import Run, first_gradient, zero_grad


def gathered(run: Run) -> dict[str, Tensor]:
    """The gradients that matter, by the parameter's name.

    In automatic optimization they wait for the other batches of their optimizer step, or for `on_before_zero_grad` or a
    module's own `optimizer_zero_grad`. In manual optimization nobody knows what the module will do with them: all count
    but those that have served.
    """
    if run.manual:
        used = {id(weight) for optimizer in run.optimizers if is_used(run, optimizer) for weight in weights(optimizer)}
    elif run.ends_window() and run.hooks.on_before_zero_grad is nothing and run.zero_grad is zero_grad:
        return {}
    else:
        used = set()
    named = run.module.named_parameters()
    return {name: weight.grad for name, weight in named if weight.grad is not None and id(weight) not in used}


def is_used(run: Run, optimizer: Any) -> bool:
    """Whether an optimizer's gradients have served: nothing has touched them since its last step, and the module does
    not go on adding to them, for at the step before it had others."""
    used, gradient = run.used_gradients.get(optimizer), first_gradient(optimizer)
    if used is None or gradient is None:
        return False
    return used.renewed and used.first() is gradient and used.version == gradient._version


def weights(optimizer: Any) -> list[Tensor]:
    """All parameters of an optimizer."""
    return [weight for group in optimizer.param_groups for weight in group["params"]]


def put_back(run: Run, gradients: dict[str, Tensor]) -> None:
    """Give the parameters what `gathered` returned."""
    parameters = dict(run.module.named_parameters())
    for name, gradient in gradients.items():
        if name in parameters:
            parameters[name].grad = gradient.to(parameters[name].device)

"""Objects of torchmetrics that a module holds. The package is never imported here: a user who has them has done so."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any

from torch import Tensor, nn


def is_metric(value: Any) -> bool:
    """Whether it is a `torchmetrics.Metric`."""
    torchmetrics = sys.modules.get("torchmetrics")
    return torchmetrics is not None and isinstance(value, torchmetrics.Metric)


def is_collection(value: Any) -> bool:
    """Whether it is a `torchmetrics.MetricCollection`."""
    torchmetrics = sys.modules.get("torchmetrics")
    return torchmetrics is not None and isinstance(value, torchmetrics.MetricCollection)


def metrics_in(module: nn.Module) -> Iterator[tuple[str, Any]]:
    """The path and the object of every metric in a module; those of a collection share what they gathered."""
    for child in module.modules():
        if is_collection(child):
            child.values(copy_state=False)  # type: ignore[operator]  # hands what one of a group has gathered to the others
    for path, child in module.named_modules():
        if is_metric(child):
            yield path, child


def metric_states(module: nn.Module, without: list[Any]) -> dict[str, dict[str, Any]]:
    """What the metrics have gathered so far; `state_dict` leaves that out unless they are persistent.

    Args:
        module: the module that holds them.
        without: those whose values are about to be reset.
    """
    return {
        path: {"counts": counts(metric), "state": dict(metric.metric_state)}
        for path, metric in metrics_in(module)
        if any(counts(metric).values()) and all(metric is not other for other in without)
    }


def load_metric_states(module: nn.Module, states: dict[str, dict[str, Any]]) -> None:
    """Put back what `metric_states` returned; metrics that are gone are passed over."""
    for path, metric in metrics_in(module):
        if path in states:
            for name, value in states[path]["state"].items():
                copied = [own(item, metric) for item in value] if isinstance(value, list) else own(value, metric)
                setattr(metric, name, copied)
            vars(metric).update(states[path]["counts"])
            metric._computed = None


def counts(metric: Any) -> dict[str, int]:
    """What a metric counts beside its state: its updates, and, as `Running` does, values seen."""
    return {name: value for name, value in vars(metric).items() if type(value) is int and name.startswith("_")}


def own(value: Any, metric: Any) -> Any:
    """A copy on the metric's device: the metrics of a group share a tensor in a checkpoint, and add to it in place."""
    return value.to(metric.device, copy=True) if isinstance(value, Tensor) else value

"""What PyTorchProfiler is given for `torch.profiler`, checked when it is made: torch itself would fail in the run."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import torch
from torch.autograd.profiler_util import EventList
from torch.profiler import ProfilerAction

from gpulayer.fabric.utilities.exceptions import MisconfigurationException

SORT_KEYS = frozenset(
    f"{prefix}{key}"
    for key in ("cpu_time", "cuda_time", "cpu_time_total", "cuda_time_total", "cpu_memory_usage", "cuda_memory_usage")
    for prefix in (("", "self_") if not key.endswith("_time") else ("",))
) | {"count"}


def check_table(row_limit: Any, sort_by_key: Any, table_kwargs: Any) -> None:
    """Raise for what a table cannot be made with.

    Raises:
        MisconfigurationException: it cannot.
    """
    if isinstance(row_limit, bool) or not isinstance(row_limit, int) or row_limit < -1:
        raise MisconfigurationException(
            f"`PyTorchProfiler(row_limit={row_limit!r})`: give a number of rows, or -1 for all."
        )
    if sort_by_key is not None and (not isinstance(sort_by_key, str) or sort_by_key not in SORT_KEYS):
        raise MisconfigurationException(
            f"`PyTorchProfiler(sort_by_key={sort_by_key!r})`: choose one of {', '.join(sorted(SORT_KEYS))}."
        )
    known = parameters(EventList.table)
    if table_kwargs is not None and not (isinstance(table_kwargs, dict) and table_kwargs.keys() <= set(known)):
        raise MisconfigurationException(
            f"`PyTorchProfiler(table_kwargs={table_kwargs!r})`: give a dict of arguments of torch's table, which are "
            f"{', '.join(known)}."
        )
    if table_kwargs:
        check_table(table_kwargs.get("row_limit", -1), table_kwargs.get("sort_by"), None)


def check_profile(given: dict[str, Any]) -> None:
    """Raise for what `torch.profiler.profile` cannot be made with.

    Raises:
        MisconfigurationException: it cannot.
    """
    known = parameters(torch.profiler.profile.__init__)
    for name in given:
        if name not in known:
            raise MisconfigurationException(
                f"`PyTorchProfiler({name}=...)`: neither it nor `torch.profiler.profile` has such an argument; the "
                f"latter takes {', '.join(known)}."
            )
    check_schedule(given.get("schedule"))
    ready = given.get("on_trace_ready")
    if ready is not None and not callable(ready):
        raise MisconfigurationException(
            f"`PyTorchProfiler(on_trace_ready={ready!r})`: give a function that takes the `torch.profiler.profile`."
        )
    try:
        torch.profiler.profile(**given)
        here = torch.profiler.supported_activities()
        if given.get("activities") is not None and here.isdisjoint(given["activities"]):
            raise ValueError(f"of its activities there are only {sorted(one.name for one in here)} here")
    except Exception as error:
        arguments = ", ".join(f"{name}={value!r}" for name, value in given.items())
        raise MisconfigurationException(
            f"`PyTorchProfiler({arguments})`: `torch.profiler.profile` cannot work with that ({error})."
        ) from error


def check_schedule(schedule: Any) -> None:
    """Raise for what is no schedule.

    Raises:
        MisconfigurationException: it is none.
    """
    if schedule is None:
        return
    if not callable(schedule):
        raise MisconfigurationException(
            f"`PyTorchProfiler(schedule={schedule!r})`: give a function of the batch's number, such as "
            "`torch.profiler.schedule(wait=1, warmup=1, active=3)`."
        )
    if not isinstance(action := schedule(0), ProfilerAction):
        raise MisconfigurationException(
            f"`PyTorchProfiler(schedule=...)`: it returned {action!r} for batch 0; it has to return a "
            "`torch.profiler.ProfilerAction`, as `torch.profiler.schedule(...)` does."
        )


def parameters(function: Callable[..., Any]) -> list[str]:
    """The names of a method's parameters."""
    return [name for name in inspect.signature(function).parameters if name != "self"]

"""The averages of a module's weights, as tensors beside it: what the averaging callbacks share."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from copy import copy
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn

from gpulayer.fabric.utilities.exceptions import MisconfigurationException

Device: TypeAlias = torch.device | str | int | None
AverageFunction: TypeAlias = Callable[[Tensor, Tensor, Tensor], Tensor]
AveragesFunction: TypeAlias = Callable[[list[Tensor], list[Tensor], Tensor], Any]


class Averages:
    """Averages of a module's floating-point parameters and buffers; each once, also where several layers share it.

    Other buffers are counters, indices and masks, of which there is no average. What has 16 bits or fewer is averaged
    in 32: a thousandth of a change would be rounded away. Made as a copy of what the module holds.

    Args:
        module: the module.
        use_buffers: average the buffers, too.
        device: where the averages lie; None: each beside its weight.
    """

    def __init__(self, module: nn.Module, use_buffers: bool, device: Device = None) -> None:
        parameters = _places(module, "_parameters")
        self._places = parameters + (_places(module, "_buffers") if use_buffers else [])
        self._parameters = len(parameters)
        self.values = [now.detach().to(_format(now), copy=True) for now in self.current()]
        self.to(device)

    def current(self) -> list[Tensor]:
        """What the module holds now: modules may put other tensors in the place of their buffers."""
        found = [_under_any_name(getattr(layer, kind), name) for layer, kind, name in self._places]
        if lost := [name for (*_, name), now in zip(self._places, found, strict=True) if now is None]:
            raise MisconfigurationException(
                f"A layer of the module lost its {lost[0]!r} after averaging had begun: change the module before that, "
                "for example in `on_fit_start`, or let averaging start later."
            )
        return found

    def to(self, device: Device) -> None:
        """Move the averages; None: beside what they are the averages of."""
        pairs = zip(self.values, self.current(), strict=True)
        self.values = [value.to(now.device if device is None else device) for value, now in pairs]

    def approach(self, weight: float) -> None:
        """Move the averages towards what the module holds, by a share of the difference."""
        with self._equal_buffers_kept() as now:
            if now:
                torch._foreach_lerp_(self.values, now, weight)

    def combine(self, count: int, one: AverageFunction | None, several: AveragesFunction | None) -> None:
        """Let a function of the user's average, as `torch.optim.swa_utils.AveragedModel` calls it.

        Args:
            count: how many weights the averages are of so far.
            one: gives the new average of one tensor.
            several: changes a list of averages, which are of one device and format.
        """
        groups: dict[Any, tuple[list[Tensor], list[Tensor]]] = {}
        with self._equal_buffers_kept() as now:
            for value, new in zip(self.values, now, strict=True):
                values, weights = groups.setdefault((value.device, value.dtype), ([], []))
                values.append(value)
                weights.append(new)
            for (device, _), (values, weights) in groups.items():
                number = torch.full((), count, dtype=torch.long, device=device)  # unlike a copy, it waits for nothing
                if several is not None:
                    several(values, weights, number)
                elif one is not None:
                    torch._foreach_copy_(values, [one(*pair, number) for pair in zip(values, weights, strict=True)])

    @contextmanager
    def _equal_buffers_kept(self) -> Iterator[list[Tensor]]:
        """Give what the module holds, in the averages' formats; keep averages of buffers that are equal to that.

        The difference of two infinities, as masks have them, is no number.
        """
        with torch.no_grad():
            now = [new.to(value) for new, value in zip(self.current(), self.values, strict=True)]
            buffers, news = self.values[self._parameters :], now[self._parameters :]
            before = [buffer.clone() for buffer in buffers]
            yield now
            for buffer, new, old in zip(buffers, news, before, strict=True):
                torch.where(old == new, old, buffer, out=buffer)
            self._prune()

    def _prune(self) -> None:
        """The average of what is pruned is zero, and not what it was before."""
        for value, (layer, _, name) in zip(self.values, self._places[: self._parameters], strict=False):
            plain = name.removesuffix("_orig")
            if f"{plain}_orig" in layer._parameters:
                value.mul_(layer._buffers[f"{plain}_mask"].to(value))  # type: ignore[union-attr]

    def swap_in(self) -> list[Tensor]:
        """Put the averages into the module.

        Returns:
            What the module held, beside the averages.
        """
        self._prune()
        pairs = zip(self.values, self.current(), strict=True)
        held = [now.detach().to(value.device, copy=True) for value, now in pairs]
        self.put(self.values)
        return held

    def put(self, tensors: list[Tensor]) -> None:
        """Put these into the module. Through `data`, for graphs that someone keeps are right again afterwards."""
        torch._foreach_copy_([now.data for now in self.current()], tensors)

    def in_state(self, state: dict[str, Any], tensors: list[Tensor]) -> dict[str, Any]:
        """A module's `state_dict()` with these in place of what the module holds.

        They are told by where they lie in memory, for hooks may have renamed them.
        """
        found = {_memory(now): tensor for now, tensor in zip(self.current(), tensors, strict=True)}
        changed = copy(state)  # with the versions of layers, which torch keeps as an attribute
        for key, value in state.items():
            if isinstance(value, Tensor):
                changed[key] = found.get(_memory(value), value)
        return changed

    def take(self, own: Mapping[str, Any], saved: Mapping[str, Any]) -> None:
        """Take averages from a file.

        Args:
            own: the module's `state_dict()`, with the names.
            saved: the averages by name; where there is none that fits, the average stays.
        """
        places = {_memory(now): index for index, now in enumerate(self.current())}
        for key, value in own.items():
            index, new = places.get(_memory(value)) if isinstance(value, Tensor) else None, _under_any_name(saved, key)
            if index is not None and isinstance(new, Tensor) and new.shape == value.shape:
                self.values[index] = new.detach().to(self.values[index], copy=True)


def check_device(name: str, device: Any) -> torch.device | None:
    """The device that an argument of the callback `name` means; None stays.

    Raises:
        MisconfigurationException: there is no such device.
    """
    if device is None or isinstance(device, torch.device):
        return device
    try:
        if isinstance(device, bool):
            raise TypeError("a bool")
        return torch.device(device)
    except (TypeError, RuntimeError) as error:
        raise MisconfigurationException(
            f"`{name}(device={device!r})`: give a torch.device, its name such as 'cpu' or 'cuda:0', or None for that "
            "of the model."
        ) from error


def require_device(name: str, device: torch.device | None) -> None:
    """Called before training, and not when the callback is made: asking for a GPU in a process that forks is too early.

    Raises:
        MisconfigurationException: this machine lacks the device that was given to the callback `name`.
    """
    try:
        torch.empty(0, device=device)
    except (AssertionError, RuntimeError) as error:
        raise MisconfigurationException(
            f"`{name}(device={str(device)!r})`: this machine has no such device ({str(error).splitlines()[0]}). Give "
            "another, or None for that of the model."
        ) from error


def _places(module: nn.Module, kind: str) -> list[tuple[nn.Module, str, str]]:
    """Layers and names of the tensors of a kind, "_parameters" or "_buffers"; masks of pruning are none to average."""
    seen: set[int] = set()
    found = []
    for layer in module.modules():
        masks = {f"{name.removesuffix('_orig')}_mask" for name in layer._parameters if name.endswith("_orig")}
        for name, value in getattr(layer, kind).items():
            averaged = value is not None and (value.is_floating_point() or value.is_complex()) and name not in masks
            if averaged and id(value) not in seen:
                seen.add(id(value))
                found.append((layer, kind, name))
    return found


def _under_any_name(tensors: Mapping[str, Any], name: str) -> Any:
    """What has the name, or the one that it gets when pruning begins or ends; None if there is none."""
    names = (name, f"{name}_orig", name.removesuffix("_orig"))
    return next((tensors[one] for one in names if tensors.get(one) is not None), None)


def _format(tensor: Tensor) -> torch.dtype:
    return torch.float32 if tensor.is_floating_point() and tensor.itemsize < 4 else tensor.dtype


def _memory(tensor: Tensor) -> Any:
    return tensor.data_ptr(), tensor.shape, tensor.dtype, tensor.device

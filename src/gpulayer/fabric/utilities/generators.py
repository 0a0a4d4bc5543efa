"""Random generators that objects hold: finding them, keeping their states, and putting them back."""

from __future__ import annotations

import random
import sys
from types import FunctionType, MethodType, ModuleType
from typing import Any

import torch
from torch import Tensor, nn

# What is no holder of generators, or not the data's: a module's are no affair of the loader that happens to know it.
_NOT_LOOKED_INTO = (nn.Module, Tensor, type, ModuleType, FunctionType, MethodType, torch.Generator, random.Random)
_PASSING = ("_iterator",)  # a pass that is under way, which is begun anew in another process


def held_by(owner: Any, depth: int = 4) -> list[Any]:
    """The generators of torch, NumPy and Python that an object holds, and those of the objects that it is made of.

    A loader has samplers and a dataset, which may be a part of another, which has a transform: four objects deep.

    Args:
        owner: the object.
        depth: through how many objects, counting this one, to look for them.
    """
    found: dict[int, Any] = {}
    _look_into(owner, depth, found, set())
    return list(found.values())


def _look_into(owner: Any, depth: int, found: dict[int, Any], seen: set[int]) -> None:
    seen.add(id(owner))
    for name, value in list(getattr(owner, "__dict__", {}).items()):
        if is_generator(value):
            found[id(value)] = value
        elif depth > 1 and name not in _PASSING and id(value) not in seen and not isinstance(value, _NOT_LOOKED_INTO):
            _look_into(value, depth - 1, found, seen)


def is_generator(value: Any) -> bool:
    """Whether it is a random generator."""
    return isinstance(value, (torch.Generator, random.Random)) or _is_of_numpy(value)


def _is_of_numpy(value: Any) -> bool:
    numpy = sys.modules.get("numpy")
    return numpy is not None and isinstance(value, (numpy.random.Generator, numpy.random.RandomState))


def state_of(generator: Any) -> Any:
    """A generator's state, in types that a checkpoint may hold."""
    if isinstance(generator, torch.Generator):
        return generator.get_state()
    if isinstance(generator, random.Random):
        return generator.getstate()
    return _plain(generator.bit_generator.state if hasattr(generator, "bit_generator") else generator.get_state(False))


def set_state(generator: Any, state: Any) -> None:
    """Put back what `state_of` returned for a generator of the same kind; for another kind nothing happens."""
    if isinstance(generator, torch.Generator):
        if isinstance(state, Tensor):
            generator.set_state(state.cpu())
    elif isinstance(generator, random.Random):
        if isinstance(state, (tuple, list)):
            version, internal, gauss = state
            generator.setstate((version, tuple(internal), gauss))
    elif isinstance(state, dict):
        _set_numpy_state(generator, _from_plain(state))


def _set_numpy_state(generator: Any, state: dict[str, Any]) -> None:
    bits = getattr(generator, "bit_generator", None)
    if ("has_gauss" in state) != (bits is None):
        return
    if bits is None:
        generator.set_state(state)
    elif bits.state["bit_generator"] == state["bit_generator"]:
        bits.state = state


def _plain(value: Any) -> Any:
    """With tensors of bytes in place of NumPy's arrays."""
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    if hasattr(value, "dtype"):
        raw = torch.frombuffer(bytearray(value.tobytes()), dtype=torch.uint8)
        return [value.dtype.str, list(value.shape), raw]
    return value


def _from_plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _from_plain(item) for key, item in value.items()}
    if isinstance(value, list):
        kind, shape, raw = value
        return raw.cpu().numpy().view(kind).reshape(shape)
    return value


def states_of(generators: list[Any]) -> list[Any]:
    """The state of each."""
    return [state_of(generator) for generator in generators]


def set_states(generators: list[Any], states: list[Any]) -> None:
    """Put back what `states_of` returned for as many."""
    if len(generators) == len(states):
        for generator, state in zip(generators, states, strict=True):
            set_state(generator, state)

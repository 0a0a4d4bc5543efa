"""The random states of a process: setting, keeping and putting them back."""

import ctypes
import os
import random
import struct
import sys
from _random import Random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch

from gpulayer.fabric.utilities.rank_zero import rank_zero_info

# The names that Lightning's users already set and read.
SEED_VARIABLE = "PL_GLOBAL_SEED"
WORKERS_VARIABLE = "PL_SEED_WORKERS"

MAX_SEED = 2**32 - 1


def seed_everything(seed: int | None = None, workers: bool = False, verbose: bool = True) -> int:
    """Seed Python's, NumPy's (where installed) and torch's generators.

    Args:
        seed: 0 to 2**32 - 1. Left out, it is read from the environment variable `PL_GLOBAL_SEED`, else 0.
        workers: also seed the worker processes of dataloaders (recorded in `PL_SEED_WORKERS`).
        verbose: log one line that names the seed.

    Returns:
        The seed.

    Raises:
        ValueError: the seed is out of range or no whole number.
    """
    given = os.environ.get(SEED_VARIABLE, "0") if seed is None else seed
    try:
        seed = int(given)
    except ValueError:
        raise ValueError(f"A seed is a whole number; got {given!r}.") from None
    if not 0 <= seed <= MAX_SEED:
        raise ValueError(f"A seed lies between 0 and {MAX_SEED}; got {seed}.")
    if verbose:
        rank_zero_info("Seed set to %d", seed)
    os.environ[SEED_VARIABLE] = str(seed)
    os.environ[WORKERS_VARIABLE] = str(int(workers))
    random.seed(seed)
    torch.manual_seed(seed)
    try:
        import numpy
    except ImportError:
        pass
    else:
        numpy.random.seed(seed)
    return seed


def collect_rng_states(include_cuda: bool = True) -> dict[str, Any]:
    """The states of all generators, in types that a checkpoint may hold (tensors, numbers, tuples, strings)."""
    states: dict[str, Any] = {"torch": torch.get_rng_state(), "python": random.getstate()}
    numpy = sys.modules.get("numpy")
    if numpy is not None:
        states["numpy"] = _numpy_state(numpy)
    if include_cuda and torch.cuda.is_available() and torch.cuda.is_initialized():
        states["torch.cuda"] = torch.cuda.get_rng_state_all()
    if include_cuda and torch.backends.mps.is_available():
        states["torch.mps"] = torch.mps.get_rng_state()
    return states


def _numpy_state(numpy: Any) -> tuple[Any, ...]:
    name, keys, position, has_gauss, gauss = numpy.random.get_state()
    return name, torch.from_numpy(keys.astype("int64")), position, has_gauss, gauss


class HostStates:
    """Takes the states of the host's generators again and again: in 2 us, where `collect_rng_states` needs 60.

    Python and NumPy take 8 and 35 us to say their state, 624 words and a position. So the memory where these lie is
    compared, and they are asked if it has changed, or if they keep the second of two normal numbers, which lies
    elsewhere. Whether it is the right memory is tried once; where it isn't, they are always asked.
    """

    def __init__(self) -> None:
        self._twisters = {"python": _Twister(_python_memory, random.getstate)}
        numpy = sys.modules.get("numpy")
        if numpy is not None:
            self._twisters["numpy"] = _Twister(partial(_numpy_memory, numpy), partial(_numpy_state, numpy))

    def take(self) -> dict[str, Any]:
        """The same as `collect_rng_states`, without devices."""
        states: dict[str, Any] = {"torch": torch.get_rng_state()}
        for name, twister in self._twisters.items():
            states[name] = twister.take()
        return states


class _Twister:
    """A Mersenne Twister, asked for its state only if that has changed.

    Args:
        memory: the address of its 2,500 bytes and how they are laid out, in the letters of `struct`; None if unknown.
        ask: for its state.
    """

    def __init__(self, memory: Callable[[], tuple[int, str] | None], ask: Callable[[], Any]) -> None:
        self._ask = ask
        self._state = ask()
        self._memory = memory()
        self._bytes = b""
        if self._memory is not None:
            address, layout = self._memory
            self._bytes = ctypes.string_at(address, 2500)
            if sorted(struct.unpack(layout, self._bytes)) != sorted(_words(self._state)):
                self._memory = None

    def take(self) -> Any:
        """Its state."""
        if self._memory is None:
            return self._ask()
        now = ctypes.string_at(self._memory[0], 2500)
        if now != self._bytes or self._state[-1]:
            self._bytes, self._state = now, self._ask()
        return self._state


def _words(state: tuple[Any, ...]) -> list[int]:
    return list(state[1]) if len(state) == 3 else [*state[1].tolist(), state[2]]


def _python_memory() -> tuple[int, str] | None:
    generator = random.getstate.__self__  # type: ignore[attr-defined]
    fits = sys.implementation.name == "cpython" and Random.__basicsize__ >= object.__basicsize__ + 2500
    return (id(generator) + object.__basicsize__, "=i624I") if fits else None


def _numpy_memory(numpy: Any) -> tuple[int, str] | None:
    get = getattr(numpy.random, "get_bit_generator", None)  # from NumPy 1.24 on
    bits = None if get is None else get()
    return (bits.ctypes.state_address, "=624Ii") if bits is not None and type(bits) is numpy.random.MT19937 else None


def set_rng_states(states: dict[str, Any]) -> None:
    """Put back what `collect_rng_states` returned. CUDA states are skipped where the number of GPUs differs."""
    torch.set_rng_state(states["torch"].cpu())
    version, internal, gauss = states["python"]
    random.setstate((version, tuple(internal), gauss))
    numpy = sys.modules.get("numpy")
    if numpy is not None and "numpy" in states:
        name, keys, position, has_gauss, cached = states["numpy"]
        numpy.random.set_state((name, keys.numpy().astype("uint32"), position, has_gauss, cached))
    cuda = states.get("torch.cuda")
    if cuda is not None and torch.cuda.is_available() and len(cuda) == torch.cuda.device_count():
        torch.cuda.set_rng_state_all([state.cpu() for state in cuda])
    if "torch.mps" in states and torch.backends.mps.is_available():
        torch.mps.set_rng_state(states["torch.mps"].cpu())


@contextmanager
def isolate_rng(include_cuda: bool = True) -> Iterator[dict[str, Any]]:
    """Whatever random numbers the block draws, the generators are afterwards where they were before.

    Yields:
        Their states before, as `collect_rng_states` gives them.
    """
    states = collect_rng_states(include_cuda)
    try:
        yield states
    finally:
        set_rng_states(states)

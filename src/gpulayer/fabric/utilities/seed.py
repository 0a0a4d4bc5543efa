"""The random states of a process: setting, keeping and putting them back."""

import ctypes
import os
import random
import sys
from collections.abc import Iterator
from contextlib import contextmanager
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
    """Takes the states of the host's generators again and again: in 9 us, where `collect_rng_states` needs 50.

    NumPy takes 35 us to say its state of 624 words and a position. So the memory in which these lie is compared, and
    NumPy is asked if that has changed, or if it keeps the second of two normal numbers, which lies elsewhere.
    """

    def __init__(self) -> None:
        numpy = sys.modules.get("numpy")
        get_bits = None if numpy is None else getattr(numpy.random, "get_bit_generator", None)  # from NumPy 1.24 on
        bits: Any = None if get_bits is None else get_bits()
        self._numpy = numpy
        self._address = bits.ctypes.state_address if type(bits).__name__ == "MT19937" else None
        self._memory = b""
        self._state: tuple[Any, ...] = ()

    def take(self) -> dict[str, Any]:
        """The same as `collect_rng_states`, without devices."""
        states: dict[str, Any] = {"torch": torch.get_rng_state(), "python": random.getstate()}
        if self._numpy is not None:
            memory = b"" if self._address is None else ctypes.string_at(self._address, 625 * 4)
            if not memory or memory != self._memory or self._state[3]:
                self._memory, self._state = memory, _numpy_state(self._numpy)
            states["numpy"] = self._state
        return states


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

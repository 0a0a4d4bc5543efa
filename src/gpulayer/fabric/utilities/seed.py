"""The random states of a process: setting, keeping and putting them back."""

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
        name, keys, position, has_gauss, gauss = numpy.random.get_state()
        states["numpy"] = (name, torch.from_numpy(keys.astype("int64")), position, has_gauss, gauss)
    if include_cuda and torch.cuda.is_available() and torch.cuda.is_initialized():
        states["torch.cuda"] = torch.cuda.get_rng_state_all()
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

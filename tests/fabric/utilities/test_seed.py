"""Random states: set, kept and put back."""

from __future__ import annotations

import random
from collections.abc import Iterator

import numpy as np
import pytest
import torch

from gpulayer.fabric.utilities.seed import collect_rng_states, isolate_rng, seed_everything, set_rng_states


@pytest.fixture(autouse=True)
def environment(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """What a seed does to the process ends with the test."""
    for name in ("PL_GLOBAL_SEED", "PL_SEED_WORKERS"):
        monkeypatch.setenv(name, "0")
        monkeypatch.delenv(name)
    with isolate_rng():
        yield


def draws() -> tuple[float, ...]:
    """One number of each generator."""
    return random.random(), float(np.random.rand()), float(torch.rand(()))


def test_a_seed_repeats_every_generator() -> None:
    assert seed_everything(5) == 5
    first = draws()
    seed_everything(6)
    assert not set(first) & set(draws())
    seed_everything(5)
    assert draws() == first


def test_the_environment_gives_a_seed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PL_GLOBAL_SEED", "17")
    assert seed_everything() == 17


def test_without_any_seed_it_is_zero() -> None:
    assert seed_everything() == 0


@pytest.mark.parametrize("seed", [-1, 2**32, "abc"])
def test_a_seed_out_of_range(seed: int) -> None:
    with pytest.raises(ValueError, match=f"{seed!r}|{seed}"):
        seed_everything(seed)


def test_a_block_that_draws_leaves_no_trace() -> None:
    seed_everything(5)
    expected = draws()
    seed_everything(5)
    with isolate_rng():
        draws()
        torch.randperm(10)
        random.gauss(0, 1)
        np.random.randn(3)
    assert draws() == expected


def test_a_block_that_fails_leaves_no_trace() -> None:
    seed_everything(5)
    expected = draws()
    seed_everything(5)

    def fails() -> None:
        with isolate_rng():
            draws()
            raise KeyError

    with pytest.raises(KeyError):
        fails()
    assert draws() == expected


def test_states_survive_a_checkpoint(tmp_path: object) -> None:
    """Saved, loaded as plain data, and put back; numbers that a generator holds ready for the next call too."""
    random.gauss(0, 1)
    np.random.randn()
    torch.save(collect_rng_states(), f"{tmp_path}/states")
    expected = random.gauss(0, 1), float(np.random.randn()), draws()
    set_rng_states(torch.load(f"{tmp_path}/states", weights_only=True))
    assert (random.gauss(0, 1), float(np.random.randn()), draws()) == expected

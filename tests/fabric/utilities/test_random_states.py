"""Random states that are taken often, and those of generators that objects hold."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, Subset, TensorDataset

from gpulayer.fabric.utilities.generators import held_by, set_state, set_states, state_of, states_of
from gpulayer.fabric.utilities.seed import HostStates, collect_rng_states


def equal(one: dict[str, Any], other: dict[str, Any]) -> bool:
    (name, words, *rest), (other_name, other_words, *other_rest) = one["numpy"], other["numpy"]
    return (
        torch.equal(one["torch"], other["torch"])
        and one["python"] == other["python"]
        and (name, rest) == (other_name, other_rest)
        and torch.equal(words, other_words)
    )


def test_states_taken_often_are_those_of_the_moment() -> None:
    own = random.Random(0)
    draws: list[Callable[[], Any]] = [
        lambda: None,
        lambda: torch.rand(3),
        random.random,
        lambda: random.gauss(0, 1),
        lambda: [random.random() for _ in range(624)],
        lambda: random.seed(own.random()),
        np.random.rand,
        np.random.randn,
        lambda: np.random.seed(own.randrange(2**32)),
    ]
    states = HostStates()
    for _ in range(2000):
        own.choice(draws)()
        assert equal(states.take(), collect_rng_states(include_cuda=False))


def test_the_memory_of_numpys_generator_is_found() -> None:
    """Here; elsewhere it is asked each time."""
    assert HostStates()._address is not None


GENERATORS: list[Callable[[], tuple[Any, Callable[[Any], Any]]]] = [
    lambda: (torch.Generator().manual_seed(1), lambda g: torch.rand(3, generator=g).tolist()),
    lambda: (random.Random(1), lambda g: (g.gauss(0, 1), g.random())),
    lambda: (np.random.default_rng(1), lambda g: g.normal(size=3).tolist()),
    lambda: (np.random.Generator(np.random.MT19937(1)), lambda g: g.normal(size=3).tolist()),
    lambda: (np.random.Generator(np.random.Philox(1)), lambda g: g.integers(9, size=3).tolist()),
    lambda: (np.random.Generator(np.random.SFC64(1)), lambda g: g.normal(size=3).tolist()),
    lambda: (np.random.RandomState(1), lambda g: g.randn(3).tolist()),
]


@pytest.mark.parametrize("make", GENERATORS)
def test_a_generator_goes_on_from_what_a_file_holds(make: Callable[[], Any], tmp_path: Any) -> None:
    (one, draw), (other, _) = make(), make()
    draw(one)
    torch.save(state_of(one), tmp_path / "state")
    set_state(other, torch.load(tmp_path / "state"))
    assert draw(other) == draw(one)


def test_a_state_of_another_kind_changes_nothing() -> None:
    generators = [make()[0] for make in GENERATORS]
    before = repr(states_of(generators))
    for generator in generators:
        for other in GENERATORS:
            if type(other()[0]) is not type(generator):
                set_state(generator, state_of(other()[0]))
    set_states(generators, [])
    assert repr(states_of(generators)) == before


class Jitter:
    def __init__(self) -> None:
        self.rng = np.random.default_rng(0)


class Images(TensorDataset):
    def __init__(self) -> None:
        super().__init__(torch.ones(4, 2))
        self.transform = Jitter()
        self.network = nn.Linear(1, 1)
        self.network.rng = random.Random(0)  # a module's is its own affair
        self.itself = self


def test_generators_of_a_loader_are_found_wherever_they_are() -> None:
    data, generator = Images(), torch.Generator()
    loader = DataLoader(Subset(data, range(2)), shuffle=True, generator=generator)
    assert set(map(id, held_by(loader))) == {id(generator), id(data.transform.rng)}
    assert held_by([torch.ones(2)]) == held_by(iter([])) == []

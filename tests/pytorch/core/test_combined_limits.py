"""CombinedLoader by itself: lengths, limits, structures, and what it shows of its loaders."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import pytest
import torch
from torch.utils.data import BatchSampler, DataLoader, RandomSampler, SequentialSampler

from gpulayer.pytorch.utilities import combined_loader
from gpulayer.pytorch.utilities.combined_loader import CombinedLoader
from tests.pytorch.models import dataset, loader, stream

SHORT, LONG = range(2), range(10, 14)


class Named(NamedTuple):
    a: Any
    b: Any


def batches(combined: CombinedLoader) -> list[Any]:
    return [batch for batch, _, _ in combined]


# What each mode gives of a loader of two and one of four, under a limit.
GIVES: list[tuple[str, Any, list[Any]]] = [
    ("min_size", None, [[0, 10], [1, 11]]),
    ("min_size", 1, [[0, 10]]),
    ("min_size", 3, [[0, 10], [1, 11]]),
    ("min_size", [None, 1], [[0, 10]]),
    ("max_size", None, [[0, 10], [1, 11], [None, 12], [None, 13]]),
    ("max_size", 3, [[0, 10], [1, 11], [None, 12]]),
    ("max_size", [1, 3], [[0, 10], [1, 11], [None, 12]]),
    ("max_size_cycle", None, [[0, 10], [1, 11], [0, 12], [1, 13]]),
    ("max_size_cycle", 3, [[0, 10], [1, 11], [0, 12]]),
    ("max_size_cycle", [2, 1], [[0, 10], [1, 11]]),
    ("sequential", None, [0, 1, 10, 11, 12, 13]),
    ("sequential", 1, [0, 10]),
    ("sequential", [1, 3], [0, 10, 11, 12]),
    ("sequential", [0, None], [10, 11, 12, 13]),
    ("sequential", float("inf"), [0, 1, 10, 11, 12, 13]),
]


@pytest.mark.parametrize(("mode", "limits", "given"), GIVES, ids=str)
def test_each_mode_under_a_limit(mode: Any, limits: Any, given: list[Any]) -> None:
    """As many as its length says; and once more the same."""
    combined = CombinedLoader([SHORT, LONG], mode)
    combined.limits = limits
    assert batches(combined) == given
    assert len(combined) == len(given)
    assert batches(combined) == given


def test_limits_can_be_lifted() -> None:
    combined = CombinedLoader([SHORT, LONG], "sequential")
    combined.limits = 1
    assert combined.limits == [1, 1]
    combined.limits = None
    assert combined.limits is None
    assert len(combined) == 6


STRUCTURES: list[Any] = [
    [SHORT, SHORT],
    (SHORT, SHORT),
    {"a": SHORT, "b": SHORT},
    Named(SHORT, SHORT),
    {"a": [SHORT, {"b": (SHORT, Named(SHORT, [SHORT]))}], "c": SHORT},
    [[SHORT], [[SHORT]]],
    SHORT,
]


def filled(structure: Any, value: Any) -> Any:
    """The structure with `value` in place of each loader."""
    if isinstance(structure, dict):
        return {key: filled(item, value) for key, item in structure.items()}
    if isinstance(structure, tuple) and hasattr(structure, "_fields"):
        return type(structure)(*(filled(item, value) for item in structure))
    if isinstance(structure, (list, tuple)):
        return type(structure)(filled(item, value) for item in structure)
    return value


@pytest.mark.parametrize("mode", ["min_size", "max_size", "max_size_cycle"])
@pytest.mark.parametrize("structure", STRUCTURES, ids=str)
def test_a_batch_has_the_structure_of_the_loaders(structure: Any, mode: Any) -> None:
    combined = CombinedLoader(structure, mode)
    assert list(combined) == [(filled(structure, i), i, 0) for i in range(2)]
    assert [type(batch) for batch in batches(combined)] == [type(filled(structure, 0))] * 2
    assert combined.iterables is structure
    assert all(part is SHORT for part in combined.flattened)


def test_a_list_of_tensors_is_one_loader() -> None:
    """Ready-made batches; and beside it another loader."""
    ready = [torch.zeros(2), torch.ones(2)]
    combined = CombinedLoader({"a": ready, "b": LONG}, "min_size")
    assert combined.flattened == [ready, LONG]
    assert [(float(batch["a"][0]), batch["b"]) for batch in batches(combined)] == [(0.0, 10), (1.0, 11)]


def test_samplers_are_shown_in_the_structure() -> None:
    shuffled, plain = loader(shuffle=True), loader()
    own = DataLoader(dataset(), batch_sampler=BatchSampler(SequentialSampler(dataset()), 3, drop_last=False))
    combined = CombinedLoader({"a": [shuffled, plain], "b": own, "c": SHORT})
    assert isinstance(combined.sampler["a"][0], RandomSampler)
    assert isinstance(combined.sampler["a"][1], SequentialSampler)
    assert combined.sampler["c"] is combined.batch_sampler["c"] is None
    assert combined.batch_sampler["a"] == [shuffled.batch_sampler, plain.batch_sampler]
    assert combined.batch_sampler["b"] is own.batch_sampler


class Counts:
    """Counts how often it is begun."""

    def __init__(self, length: int) -> None:
        self.length, self.begun = length, 0

    def __len__(self) -> int:
        return self.length

    def __iter__(self) -> Iterator[int]:
        self.begun += 1
        return iter(range(self.length))


def test_how_often_a_loader_is_begun() -> None:
    """Worker processes start each time; a loader that lasts is begun once, and none before it is needed."""
    for mode in ("min_size", "max_size", "sequential"):
        parts = [Counts(2), Counts(4)]
        combined = CombinedLoader(parts, mode)  # type: ignore[arg-type]
        assert [part.begun for part in parts] == [0, 0]
        assert len(batches(combined)) == len(combined)
        assert [part.begun for part in parts] == [1, 1]
    parts = [Counts(2), Counts(4)]
    one_by_one = iter(CombinedLoader(parts, "sequential"))
    assert [next(one_by_one) for _ in range(2)] == [(0, 0, 0), (1, 1, 0)]
    assert [part.begun for part in parts] == [1, 0]


@pytest.mark.parametrize("mode", ["min_size", "max_size", "max_size_cycle", "sequential"])
def test_without_lengths(mode: Any) -> None:
    """They are gone through all the same."""
    known, unknown = CombinedLoader([loader(2), loader(4)], mode), CombinedLoader([stream(2), loader(4)], mode)
    assert len(batches(unknown)) == len(batches(known)) == len(known)
    with pytest.raises(NotImplementedError, match=r"not every loader has a length"):
        len(unknown)


@pytest.mark.filterwarnings("ignore:Loader 0 of those that go together gave no batch")
@pytest.mark.parametrize("mode", ["min_size", "max_size", "max_size_cycle", "sequential"])
def test_no_loaders_and_empty_ones(mode: Any) -> None:
    for nothing in ([], {}, [[], []]):
        assert batches(CombinedLoader(nothing, mode)) == []
        assert len(CombinedLoader(nothing, mode)) == 0
    one_empty = CombinedLoader([range(0), SHORT], mode)
    expected = {"min_size": [], "sequential": [0, 1]}.get(mode, [[None, 0], [None, 1]])
    assert batches(one_empty) == expected
    assert len(one_empty) == len(expected)


def test_the_module_that_programs_import_it_from() -> None:
    assert combined_loader.__all__ == ["CombinedLoader"]

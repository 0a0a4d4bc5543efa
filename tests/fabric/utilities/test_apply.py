"""Batches of any shape go to the device, and come back in the same containers."""

from __future__ import annotations

from collections import OrderedDict, UserList, defaultdict, deque
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor

from gpulayer.fabric.utilities.apply import all_plain_tensors, apply_to_collection, move_data_to_device

# A device without memory: where a tensor is can be seen on any machine.
ELSEWHERE = torch.device("meta")


class Pair(NamedTuple):
    x: Tensor
    y: Any


@dataclass
class Sample:
    x: Tensor
    name: str
    more: list[Tensor] = field(default_factory=list)


@dataclass(frozen=True)
class Frozen:
    x: Tensor


class Graph:
    """As libraries of graphs have it: moves itself, and returns itself."""

    def __init__(self, x: Tensor) -> None:
        self.x = x

    def to(self, device: Any, *arguments: Any, **keywords: Any) -> Graph:
        return Graph(self.x.to(device))


class InPlace(Graph):
    """As text libraries had it: moves itself and returns nothing."""

    def to(self, device: Any, *arguments: Any, **keywords: Any) -> None:  # type: ignore[override]
        self.x = self.x.to(device)


def t() -> Tensor:
    return torch.ones(2)


def test_nested_containers() -> None:
    batch = {"a": [t(), (t(), {"b": t()})], "c": t()}
    moved = move_data_to_device(batch, ELSEWHERE)
    assert type(moved) is dict
    assert type(moved["a"]) is list
    assert type(moved["a"][1]) is tuple
    places = [moved["a"][0], moved["a"][1][0], moved["a"][1][1]["b"], moved["c"]]
    assert {place.device.type for place in places} == {"meta"}
    assert batch["c"].device.type == "cpu"  # type: ignore[union-attr]


@pytest.mark.parametrize("leaf", ["text", b"bytes", 3, 0.5, None, True])
def test_what_cannot_move_stays(leaf: Any) -> None:
    assert move_data_to_device([leaf, {"x": leaf}], ELSEWHERE) == [leaf, {"x": leaf}]


@pytest.mark.parametrize("kind", [deque, UserList])
def test_other_sequences(kind: Any) -> None:
    moved = move_data_to_device({"x": kind([t(), "label"])}, ELSEWHERE)
    assert type(moved["x"]) is kind
    assert moved["x"][0].is_meta
    assert moved["x"][1] == "label"


def test_named_tuples() -> None:
    moved = move_data_to_device(Pair(t(), [t(), "label"]), ELSEWHERE)
    assert type(moved) is Pair
    assert moved.x.is_meta
    assert moved.y[0].is_meta
    assert moved.y[1] == "label"


def test_mappings_keep_their_kind() -> None:
    ordered = move_data_to_device(OrderedDict(b=t(), a=t()), ELSEWHERE)
    assert type(ordered) is OrderedDict
    assert list(ordered) == ["b", "a"]
    default = move_data_to_device(defaultdict(list, a=t()), ELSEWHERE)
    assert type(default) is defaultdict
    assert default["missing"] == []
    assert default["a"].is_meta


def test_dataclasses_are_rebuilt_and_the_given_ones_left_alone() -> None:
    given = Sample(t(), "one", [t()])
    moved = move_data_to_device(given, ELSEWHERE)
    assert type(moved) is Sample
    assert moved.x.is_meta
    assert moved.more[0].is_meta
    assert moved.name == "one"
    assert not given.x.is_meta
    assert not given.more[0].is_meta


def test_frozen_dataclasses() -> None:
    given = Frozen(t())
    assert move_data_to_device(given, ELSEWHERE).x.is_meta
    assert not given.x.is_meta


def test_objects_that_move_themselves() -> None:
    moved = move_data_to_device([Graph(t()), InPlace(t())], ELSEWHERE)
    assert type(moved[0]) is Graph
    assert type(moved[1]) is InPlace
    assert moved[0].x.is_meta
    assert moved[1].x.is_meta


def test_packed_sequences() -> None:
    packed = torch.nn.utils.rnn.pack_sequence([torch.ones(3), torch.ones(2)])
    moved = move_data_to_device(packed, ELSEWHERE)
    assert type(moved) is type(packed)
    assert moved.data.is_meta
    assert not moved.batch_sizes.is_meta  # torch wants these on the host


def test_a_device_by_name() -> None:
    assert move_data_to_device(t(), "meta").is_meta


def test_a_function_for_every_leaf_of_a_type() -> None:
    assert apply_to_collection([1, (2, "a"), {"b": 3.0}], int, lambda x, y: x + y, 10) == [11, (12, "a"), {"b": 3.0}]
    assert apply_to_collection({"a": 1, "b": "c"}, (int, str), str) == {"a": "1", "b": "c"}


@pytest.mark.parametrize(
    ("batch", "plain"),
    [
        (t(), True),
        ([t(), t()], True),
        ((t(),), True),
        ({"a": t()}, True),
        ([t(), [t()]], False),
        ([t(), Graph(t())], False),
        (Pair(t(), t()), False),
        ("text", False),
    ],
    ids=lambda value: str(value).partition(" at 0x")[0],
)
def test_the_usual_batch_is_told_cheaply(batch: Any, plain: bool) -> None:
    assert all_plain_tensors(batch) is plain

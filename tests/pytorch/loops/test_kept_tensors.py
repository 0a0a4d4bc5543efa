"""Tensors that a module makes on first use and keeps: an evaluation may be the first use, training comes later."""

from __future__ import annotations

from collections import OrderedDict, defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor, nn

from tests.pytorch.models import FEATURES, Line, loader, same, trainer, weights


class Pair(NamedTuple):
    name: str
    table: Tensor


@dataclass(frozen=True)
class Cache:
    table: Tensor


# How a table is kept, and how it is found again.
WAYS: dict[str, tuple[Callable[[Tensor], Any], Callable[[Any], Tensor]]] = {
    "tensor": (lambda table: table, lambda kept: kept),
    "list": (lambda table: [table], lambda kept: kept[0]),
    "dict": (lambda table: {"a": table}, lambda kept: kept["a"]),
    "tuple": (lambda table: ("a", table), lambda kept: kept[1]),
    "list of tuples": (lambda table: [("a", table)], lambda kept: kept[0][1]),
    "dict of lists of dicts": (lambda table: {"a": [{"b": table}]}, lambda kept: kept["a"][0]["b"]),
    "ordered dict": (lambda table: OrderedDict(a=table), lambda kept: kept["a"]),
    "named tuple": (lambda table: Pair("a", table), lambda kept: kept.table),
    "dataclass": (lambda table: Cache(table), lambda kept: kept.table),
    "default dict": (lambda table: defaultdict(list, a=[table]), lambda kept: kept["a"][0]),
}


class Keeps(Line):
    """Multiplies by a table that it keeps, or a part of it does."""

    def __init__(self, way: str, in_a_part: bool = False) -> None:
        super().__init__()
        self.keep, self.find = WAYS[way]
        self.part = nn.Module()
        self.owner = [self.part if in_a_part else self]  # in a list, so that it is no submodule of itself
        self.breaks = False

    @property
    def table(self) -> Tensor | None:
        kept = getattr(self.owner[0], "kept", None)
        return None if kept is None else self.find(kept)

    def forward(self, x: Tensor) -> Tensor:
        if self.table is None:
            self.owner[0].kept = self.keep(torch.arange(1.0, 1.0 + FEATURES))
        assert self.table is not None
        return super().forward(x) * self.table[1]  # which is kept for the backward pass

    def validation_step(self, batch: Any, batch_idx: int) -> Any:
        self.loss(batch)
        if self.breaks:
            raise ValueError("the user's own")


@pytest.mark.filterwarnings("ignore:.*there is no validation loader")
@pytest.mark.parametrize("breaks", [False, True], ids=["whole", "interrupted"])
@pytest.mark.parametrize("in_a_part", [False, True], ids=["module", "part"])
@pytest.mark.parametrize("way", WAYS)
def test_a_table_made_in_a_validation_can_be_trained_with(way: str, in_a_part: bool, breaks: bool) -> None:
    """Training ends as if there had been no validation."""
    model, plain = Keeps(way, in_a_part), Keeps(way, in_a_part)
    plain.load_state_dict(model.state_dict())
    model.breaks = breaks
    if breaks:
        with pytest.raises(ValueError, match="the user's own"):
            trainer().validate(model, loader())
    else:
        trainer().validate(model, loader())
    assert model.table is not None
    assert not model.table.is_inference()
    for one in (model, plain):
        trainer().fit(one, loader())
    assert same(weights(model), weights(plain))


CALLS: dict[str, Callable[[Any], Any]] = {
    "test": lambda model: trainer().test(model, loader()),
    "predict": lambda model: trainer().predict(model, loader()),
    "sanity check": lambda model: trainer(num_sanity_val_steps=1).fit(model, loader(), loader()),
}


@pytest.mark.filterwarnings("ignore:.*there is no validation loader")
@pytest.mark.parametrize("call", CALLS)
def test_other_evaluations(call: str) -> None:
    model = Keeps("dict of lists of dicts")
    CALLS[call](model)
    before = weights(model)
    trainer().fit(model, loader())
    assert not same(before, weights(model))


def test_a_buffer_made_late() -> None:
    class Buffered(Line):
        def forward(self, x: Tensor) -> Tensor:
            if not hasattr(self, "table"):
                self.register_buffer("table", torch.arange(1.0, 1.0 + FEATURES), persistent=False)
            return super().forward(x) * self.table[1]  # which is kept for the backward pass

    model = Buffered()
    trainer().predict(model, loader())
    before = weights(model)
    trainer().fit(model, loader())
    assert not same(before, weights(model))


def test_a_list_that_holds_itself() -> None:
    class Circular(Line):
        def test_step(self, batch: Any, batch_idx: int) -> None:
            self.ring: list[Any] = [batch[0] * 1]
            self.ring.append(self.ring)

    model = Circular()
    trainer().test(model, loader())
    assert not model.ring[0].is_inference()
    assert model.ring[1] is model.ring


def test_what_is_one_object_stays_one() -> None:
    class Shares(Line):
        def predict_step(self, batch: Any, batch_idx: int) -> None:
            table = batch[0] * 1
            self.first, self.second, self.more = table, table, {"a": [table], "b": (table, table)}

    model = Shares()
    trainer().predict(model, loader())
    same_objects = [model.second, model.more["a"][0], *model.more["b"]]
    assert all(table is model.first for table in same_objects)
    assert not model.first.is_inference()


class Grows(Line):
    """Makes a layer on first use."""

    def forward(self, x: Tensor) -> Tensor:
        if not hasattr(self, "head"):
            self.head = nn.Linear(1, 1)
            self.head.bias.requires_grad_(False)
        prediction: Tensor = self.head(self.net(x))
        return prediction


class Lazy(Line):
    """Its layer learns its shape on first use."""

    def __init__(self) -> None:
        super().__init__()
        self.net = nn.LazyLinear(1)  # type: ignore[assignment]


@pytest.mark.parametrize("kind", [Grows, Lazy])
def test_parameters_made_in_an_evaluation_are_trained(kind: type[Line]) -> None:
    model = kind()
    trainer().test(model, loader())
    before = weights(model)
    assert all(isinstance(parameter, nn.Parameter) for parameter in model.parameters())
    trainer().fit(model, loader())
    moved = {name for name, value in weights(model).items() if not torch.equal(value, before[name])}
    assert moved == {name for name, parameter in model.named_parameters() if parameter.requires_grad}
    assert len(moved) == (3 if kind is Grows else 2)


def test_a_layer_that_has_no_shape_yet_is_left_alone() -> None:
    class Half(Line):
        def __init__(self) -> None:
            super().__init__()
            self.unused = nn.LazyLinear(1)

    model = Half()
    trainer().test(model, loader())
    assert isinstance(model.unused.weight, nn.parameter.UninitializedParameter)

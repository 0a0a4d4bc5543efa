"""A snapshot is what `torch.save` would have stored at that moment, and later steps do not change it."""

from __future__ import annotations

import io
import threading
from collections import OrderedDict
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from gpulayer.fabric.checkpoint.snapshot import Snapshot


def taken(checkpoint: Any) -> Any:
    snapshot = Snapshot()
    snapshot.take(checkpoint)
    return snapshot.give()


def stored(checkpoint: Any) -> Any:
    """What comes back from a file."""
    file = io.BytesIO()
    torch.save(checkpoint, file)
    file.seek(0)
    return torch.load(file, weights_only=False)


class Counter:
    """An object of the user's, with a lock, which is not saved."""

    def __init__(self) -> None:
        self.seen = [1]
        self.weights = torch.ones(3)
        self.lock = threading.Lock()

    def __getstate__(self) -> dict[str, Any]:
        return {"seen": self.seen, "weights": self.weights}


def test_what_is_changed_later_is_not_seen() -> None:
    weight, counter = torch.ones(4), Counter()
    checkpoint = {"weight": weight, "list": [1, [2]], "counter": counter, "more": OrderedDict(a=1)}
    found = taken(checkpoint)
    weight.zero_()
    counter.seen.append(2)
    counter.weights.zero_()
    checkpoint["list"][1].append(3)  # type: ignore[index]
    checkpoint["more"]["b"] = 2  # type: ignore[index]
    assert torch.equal(found["weight"], torch.ones(4))
    assert torch.equal(found["counter"].weights, torch.ones(3))
    assert found["counter"].seen == [1]
    assert found["list"] == [1, [2]]
    assert found["more"] == OrderedDict(a=1)
    assert type(found["more"]) is OrderedDict


TENSORS = {
    "one": lambda: torch.arange(6.0),
    "transposed": lambda: torch.arange(6.0).view(2, 3).T,
    "a part": lambda: torch.arange(100.0)[10:20:3],
    "a column": lambda: torch.arange(100.0).view(10, 10)[:, 3],
    "expanded": lambda: torch.arange(3.0)[:, None].expand(3, 4),
    "a number": lambda: torch.tensor(1.5, dtype=torch.float64),
    "empty": lambda: torch.empty(0, 3),
    "an empty part": lambda: torch.arange(10)[5:5],
    "bool": lambda: torch.tensor([True, False]),
    "bfloat16": lambda: torch.arange(9).to(torch.bfloat16)[3:],
    "complex": lambda: torch.randn(5, dtype=torch.complex64),
    "conjugate": lambda: torch.randn(5, dtype=torch.complex64).conj(),
    "negative": lambda: torch.randn(5, dtype=torch.complex64).conj().imag,
    "sparse": lambda: torch.eye(3).to_sparse(),
    "compressed sparse": lambda: torch.eye(3).to_sparse_csr(),
    "parameter": lambda: nn.Parameter(torch.ones(2)),
    "frozen parameter": lambda: nn.Parameter(torch.ones(2), requires_grad=False),
    "needs a gradient": lambda: torch.ones(2, requires_grad=True),
    "a result": lambda: torch.ones(2, requires_grad=True) * 2,
    "of 8 bits": lambda: torch.arange(3.0).to(torch.float8_e4m3fn),
}


@pytest.mark.filterwarnings("ignore:Sparse CSR")
@pytest.mark.parametrize("name", TENSORS)
def test_tensors_are_as_a_file_would_give_them_back(name: str) -> None:
    tensor = TENSORS[name]()
    found, expected = taken({"t": tensor})["t"], stored({"t": tensor})["t"]
    same_kind(found, expected)
    assert found.detach().to_dense().tolist() == expected.detach().to_dense().tolist()
    same_kind(stored({"t": found})["t"], expected)  # and the snapshot can be stored itself


def same_kind(found: Tensor, expected: Tensor) -> None:
    for attribute in ("dtype", "shape", "layout", "device", "requires_grad"):
        assert getattr(found, attribute) == getattr(expected, attribute), attribute
    assert type(found) is type(expected)
    if found.layout is torch.strided and found.numel() and not expected.is_neg():
        assert found.stride() == expected.stride()


def test_meta_tensors_and_attributes() -> None:
    weight = nn.Parameter(torch.ones(2))
    weight.kind = "embedding"  # type: ignore[attr-defined]
    found = taken({"meta": torch.empty(3, device="meta"), "weight": weight})
    assert found["meta"].is_meta
    assert found["weight"].kind == "embedding"


def test_shared_memory_stays_shared() -> None:
    whole = torch.arange(12.0)
    checkpoint = {"whole": whole, "part": whole[4:8], "again": whole, "square": whole.view(3, 4)}
    found = taken(checkpoint)
    assert found["again"] is found["whole"]
    found["whole"][5] = -1
    assert found["part"][1] == -1
    assert found["square"][1, 1] == -1


def test_of_a_storage_only_the_part_in_use_is_copied() -> None:
    big = torch.zeros(1_000_000)
    found = taken({"a": big[500_000:500_010], "b": big[500_020:500_030]})
    assert found["a"].untyped_storage().nbytes() < 1000
    assert found["a"].untyped_storage().data_ptr() == found["b"].untyped_storage().data_ptr()


def test_views_of_one_storage_with_elements_of_several_sizes() -> None:
    raw = torch.arange(64, dtype=torch.uint8)
    checkpoint = {"bytes": raw[3:9], "numbers": raw[16:32].view(torch.int64), "odd": raw[33:]}
    found = taken(checkpoint)
    for name, tensor in checkpoint.items():
        assert torch.equal(found[name], tensor)


def test_the_memory_is_used_again() -> None:
    snapshot = Snapshot()
    model = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 8))

    def addresses() -> set[int]:
        snapshot.take(model.state_dict())
        return {tensor.data_ptr() for tensor in snapshot.give().values()}

    first = addresses()
    assert len(first) == 4
    assert addresses() == first


def test_memory_that_is_no_longer_needed_is_given_back() -> None:
    snapshot = Snapshot()
    snapshot.take({"a": torch.ones(10), "b": torch.ones(20)})
    snapshot.take({"a": torch.ones(10)})
    assert list(snapshot._memory) == [(40, False)]
    snapshot.take({"a": torch.ones(10), "c": torch.full((10,), 2.0)})
    found = snapshot.give()
    assert torch.equal(found["a"], torch.ones(10))
    assert torch.equal(found["c"], torch.full((10,), 2.0))


def test_tensors_of_inference_mode_and_a_snapshot_taken_in_it() -> None:
    snapshot = Snapshot()
    with torch.inference_mode():
        inside = torch.ones(3)
        snapshot.take({"t": inside})
    snapshot.take({"t": inside})  # the memory is written to again outside
    assert torch.equal(snapshot.give()["t"], torch.ones(3))


def test_another_default_device_is_not_taken() -> None:
    with torch.device("meta"):
        found = taken({"t": torch.ones(3, device="cpu")})
    assert torch.equal(found["t"], torch.ones(3))


def test_functions_and_classes_are_the_same_objects() -> None:
    """A CheckpointIO that can store them, by another pickle for example, gets them."""
    doubled = lambda x: 2 * x  # noqa: E731
    local = type("Local", (), {})
    found = taken({"function": doubled, "class": local, "module": io, "namespace": SimpleNamespace(f=doubled)})
    assert found["function"] is doubled
    assert found["class"] is local
    assert found["module"] is io
    assert found["namespace"].f is doubled


def test_what_cannot_be_pickled_raises_at_once() -> None:
    with pytest.raises(TypeError, match="cannot pickle"):
        Snapshot().take({"lock": threading.Lock()})


def test_an_optimizer_s_state() -> None:
    model = nn.Linear(3, 3)
    optimizer = torch.optim.Adam(model.parameters())
    model(torch.ones(1, 3)).sum().backward()
    optimizer.step()
    before = stored(optimizer.state_dict())
    snapshot = Snapshot()
    snapshot.take({"optimizer": optimizer.state_dict(), "model": model.state_dict()})
    optimizer.step()
    found = snapshot.give()["optimizer"]
    assert found["param_groups"] == before["param_groups"]
    for number, state in before["state"].items():
        for name, value in state.items():
            assert torch.equal(found["state"][number][name], value)

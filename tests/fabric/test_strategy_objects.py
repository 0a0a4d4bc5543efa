"""A Strategy that the user made, and what else was given beside it."""

from __future__ import annotations

from typing import Any

import pytest

from gpulayer.fabric.accelerators import CPUAccelerator, MPSAccelerator
from gpulayer.fabric.checkpoint import TorchCheckpointIO
from gpulayer.fabric.precision import DoublePrecision, HalfPrecision, MixedPrecision, Precision
from gpulayer.fabric.resolve import resolve_strategy
from gpulayer.fabric.strategies import SingleDeviceStrategy, Strategy
from gpulayer.fabric.utilities.exceptions import MisconfigurationException


class Other(CPUAccelerator):
    """A kind of device of one's own."""

    @staticmethod
    def name() -> str:
        return "other"


def single(device: str = "cpu", accelerator: Any = CPUAccelerator, **arguments: Any) -> SingleDeviceStrategy:
    return SingleDeviceStrategy(device, accelerator(), **arguments)


def resolved(own: Strategy, **given: Any) -> Strategy:
    arguments: dict[str, Any] = {
        "accelerator": "auto", "devices": "auto", "num_nodes": 1, "precision": None, "plugins": None,
    }  # fmt: skip
    return resolve_strategy(strategy=own, **{**arguments, **given})


AGREE: list[tuple[SingleDeviceStrategy, dict[str, Any]]] = [
    (single(), {}),
    (single(), {"accelerator": "cpu", "devices": 1}),
    (single(), {"accelerator": CPUAccelerator(), "devices": "1"}),
    (single("cuda:1", MPSAccelerator), {"devices": [1]}),
    (single(accelerator=Other), {"accelerator": Other()}),
]


@pytest.mark.parametrize(("own", "given"), AGREE)
def test_what_agrees(own: SingleDeviceStrategy, given: dict[str, Any]) -> None:
    precision, files, device = own.precision, own.checkpoint_io, own.root_device
    assert resolved(own, **given) is own
    assert (own.precision, own.checkpoint_io, own.root_device) == (precision, files, device)


CONTRADICT: list[tuple[SingleDeviceStrategy, dict[str, Any], tuple[str, ...]]] = [
    (single(accelerator=Other), {"accelerator": "cpu"}, ("accelerator='cpu'", "'other'", "leave one out")),
    (single(), {"accelerator": Other()}, ("accelerator=", "'cpu'", "leave one out")),
    (single(), {"devices": 2}, ("devices=2", "leave one out")),
    (single(), {"devices": "3"}, ("devices='3'", "leave one out")),
    (single("cuda:0", MPSAccelerator), {"devices": [1]}, ("devices=[1]", "leave one out")),
    (single("cuda:0", MPSAccelerator), {"devices": [0, 1]}, ("devices=[0, 1]", "leave one out")),
    (single(), {"num_nodes": 2}, ("num_nodes=2",)),
    (single(), {"precision": "64-true", "plugins": HalfPrecision()}, ("precision='64-true'", "give one of them")),
]


@pytest.mark.parametrize(("own", "given", "pieces"), CONTRADICT)
def test_what_contradicts(own: SingleDeviceStrategy, given: dict[str, Any], pieces: tuple[str, ...]) -> None:
    with pytest.raises(MisconfigurationException) as caught:
        resolved(own, **given)
    for piece in pieces:
        assert piece in str(caught.value)


@pytest.mark.parametrize(
    ("precision", "kind", "name"),
    [(None, Precision, "32-true"), ("bf16-mixed", MixedPrecision, "bf16-mixed"), (16, MixedPrecision, "16-mixed"),
     ("16-true", HalfPrecision, "16-true"), (64, DoublePrecision, "64-true"), (32, Precision, "32-true")],
)  # fmt: skip
def test_a_precision_beside_it(precision: Any, kind: type, name: str) -> None:
    found = resolved(single(), precision=precision).precision
    assert (type(found), found.name) == (kind, name)


def test_a_precision_beside_it_wins_over_its_own() -> None:
    own = DoublePrecision()
    assert resolved(single(precision=own)).precision is own
    assert resolved(single(precision=own), precision="bf16-true").precision.name == "bf16-true"
    assert resolved(single(precision=own), precision=32).precision.name == "32-true"


def test_plugins_beside_it() -> None:
    precision, files = MixedPrecision("bf16-mixed", "cpu"), TorchCheckpointIO()
    found = resolved(single(precision=DoublePrecision()), plugins=[precision, files])
    assert (found.precision, found.checkpoint_io) == (precision, files)


def test_the_device_of_its_own_decides_on_autocast() -> None:
    found = resolved(single("cuda:1", MPSAccelerator), precision="bf16-mixed").precision
    assert isinstance(found, MixedPrecision)
    assert found.device_type == "cuda"

"""Names of accelerators and strategies."""

from __future__ import annotations

from typing import Any

import pytest

import gpulayer.fabric.accelerators as fabric_accelerators
from gpulayer.fabric.registry import AcceleratorRegistry, Registry
from gpulayer.fabric.utilities.exceptions import MisconfigurationException


class Thing:
    def __init__(self, size: int = 1) -> None:
        self.size = size


def test_a_class_with_its_arguments() -> None:
    registry = Registry("accelerator")
    assert registry.register("thing", Thing, description="a thing", size=3) is Thing
    first = registry.get("thing")
    assert isinstance(first, Thing)
    assert first.size == 3
    assert registry.get("thing") is not first
    assert registry["thing"] == {
        "description": "a thing", "init_params": {"size": 3}, "accelerator": Thing, "accelerator_name": "thing",
    }  # fmt: skip
    assert "thing" in registry


def test_as_a_decorator() -> None:
    registry = Registry("strategy")

    @registry.register("other", size=2)
    class Other(Thing):
        pass

    assert isinstance(registry.get("other"), Other)
    assert registry.get("other").size == 2


def test_the_class_by_its_keyword() -> None:
    """As Lightning's two registries call it."""
    for kind in ("strategy", "accelerator"):
        registry = Registry(kind)
        registry.register(name="thing", **{kind: Thing}, override=True, size=5)  # type: ignore[arg-type]
        assert registry.get("thing").size == 5


def test_names() -> None:
    registry = Registry("strategy")
    for name in ("b", "a"):
        registry.register(name, Thing)
    assert registry.available_names() == registry.available_strategies() == ["a", "b"]
    assert registry.available_accelerators() == {"a", "b"}
    assert str(registry) == "Registered strategy: b, a"
    registry.remove("a")
    assert registry.available_names() == ["b"]


def test_names_that_are_taken_or_unknown() -> None:
    registry = Registry("accelerator")
    registry.register("thing", Thing)
    with pytest.raises(MisconfigurationException, match=r"already an accelerator 'thing'.*override=True"):
        registry.register("thing", dict)
    with pytest.raises(ValueError, match="already"):  # as of Lightning's strategies
        registry.register("thing", dict)
    registry.register("thing", dict, override=True)
    assert registry.get("thing") == {}
    with pytest.raises(KeyError, match="no accelerator 'thin'; there are 'thing'"):
        registry.get("thin")
    assert registry.get("thin", 5) == 5
    with pytest.raises(KeyError):
        registry.remove("thin")
    wrong: Any = 5
    with pytest.raises(TypeError, match="name=5"):
        registry.register(wrong, Thing)


def test_what_is_there_by_itself() -> None:
    assert {"cpu", "cuda", "mps"} <= AcceleratorRegistry.available_accelerators()
    assert fabric_accelerators.ACCELERATOR_REGISTRY is AcceleratorRegistry
    assert isinstance(AcceleratorRegistry.get("cpu"), fabric_accelerators.CPUAccelerator)

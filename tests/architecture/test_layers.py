"""Imports point downward, form no cycle, and stand at the top of a file (section 3 of the plan)."""

from __future__ import annotations

import sys
from functools import cache
from graphlib import CycleError, TopologicalSorter

import pytest

from tests.architecture.source import Import, imports, modules, own

# What each part may import beside itself; what that in turn may import comes with it.
MAY_IMPORT = {
    "gpulayer._contract": [],
    "gpulayer.launch": ["gpulayer._contract"],
    "gpulayer.fabric.utilities": ["gpulayer._contract"],
    "gpulayer.fabric.accelerators": ["gpulayer.fabric.utilities", "gpulayer.fabric.registry"],
    "gpulayer.fabric.environments": ["gpulayer.fabric.utilities"],
    "gpulayer.fabric.precision": ["gpulayer.fabric.utilities"],
    "gpulayer.fabric.checkpoint": ["gpulayer.fabric.utilities"],
    "gpulayer.fabric.collectives": ["gpulayer.fabric.utilities"],
    "gpulayer.fabric.peers": ["gpulayer.fabric.utilities"],
    "gpulayer.fabric.samplers": ["gpulayer.fabric.utilities"],
    "gpulayer.fabric.registry": ["gpulayer.fabric.utilities"],
    "gpulayer.fabric.strategies": [
        "gpulayer.fabric.accelerators",
        "gpulayer.fabric.environments",
        "gpulayer.fabric.precision",
        "gpulayer.fabric.checkpoint",
        "gpulayer.fabric.collectives",
        "gpulayer.fabric.peers",
        "gpulayer.fabric.samplers",
        "gpulayer.fabric.registry",
    ],
    "gpulayer.fabric.resolve": ["gpulayer.fabric.strategies"],
    "gpulayer.fabric.fabric": ["gpulayer.fabric.resolve"],
    "gpulayer.fabric.plugins": ["gpulayer.fabric.resolve"],
    "gpulayer.fabric.loggers": ["gpulayer.fabric.resolve", "gpulayer.pytorch.loggers"],
    "gpulayer.fabric": ["gpulayer.fabric.fabric"],
    "gpulayer.pytorch.core": ["gpulayer.fabric.utilities"],
    "gpulayer.pytorch.loops.when": ["gpulayer.fabric.utilities"],
    "gpulayer.pytorch.loops": ["gpulayer.pytorch.core", "gpulayer.pytorch.loops.when"],
    "gpulayer.pytorch.utilities": ["gpulayer.pytorch.core"],
    "gpulayer.pytorch.callbacks": [
        "gpulayer.pytorch.core",
        "gpulayer.pytorch.loops.when",
        "gpulayer.pytorch.utilities",
    ],
    "gpulayer.pytorch.loggers": ["gpulayer.pytorch.core", "gpulayer.pytorch.utilities"],
    "gpulayer.pytorch.profilers": ["gpulayer.pytorch.core", "gpulayer.pytorch.utilities"],
    "gpulayer.pytorch.strategies": ["gpulayer.fabric.strategies"],
    "gpulayer.pytorch.accelerators": ["gpulayer.fabric.accelerators"],
    "gpulayer.pytorch.plugins": ["gpulayer.fabric.resolve"],
    "gpulayer.pytorch.trainer": [
        "gpulayer.fabric.resolve",
        "gpulayer.pytorch.loops",
        "gpulayer.pytorch.callbacks",
        "gpulayer.pytorch.loggers",
        "gpulayer.pytorch.profilers",
        "gpulayer.pytorch.utilities",
    ],
    "gpulayer.pytorch.tuner": ["gpulayer.pytorch.trainer"],
    "gpulayer.pytorch.cli": ["gpulayer.pytorch.trainer"],
    "gpulayer.pytorch.utilities.upgrade_checkpoint": ["gpulayer.pytorch.trainer"],  # a command, as is cli
    "gpulayer.pytorch.demos": ["gpulayer.pytorch.trainer"],
    "gpulayer.pytorch": ["gpulayer.pytorch.tuner", "gpulayer.pytorch.cli", "gpulayer.pytorch.demos", "gpulayer.fabric"],
    "gpulayer.compat": ["gpulayer.pytorch"],
    "gpulayer.report": [],
    "gpulayer.cli": ["gpulayer.launch", "gpulayer.report"],
    "gpulayer.__main__": ["gpulayer.cli"],
    "gpulayer": [],  # looks its names up when they are used, so that all may import it
}
# Needed to install the package; anything else that is neither ours nor Python's is optional, and may be imported late.
REQUIRED = {"torch", "fsspec", "yaml", "tqdm", "typing_extensions"}
NEEDS_TENSORBOARD = "torch.utils.tensorboard"  # the part of torch that needs an optional package
RUNTIME = [found for found in imports() if not found.typing_only]


def part_of(module: str) -> str:
    """The longest name in the table that a module belongs to."""
    parents = [module.rsplit(".", cut)[0] if cut else module for cut in range(module.count(".") + 1)]
    return next(name for name in parents if name in MAY_IMPORT)


@cache
def below(part: str) -> frozenset[str]:
    """Every part that a part may import."""
    direct = MAY_IMPORT[part]
    return frozenset({part, "gpulayer", *direct, *(name for other in direct for name in below(other))})


def graph() -> dict[str, set[str]]:
    edges: dict[str, set[str]] = {module: set() for module in modules()}
    for found in RUNTIME:
        if found.target in edges and found.target != found.importer:
            edges[found.importer].add(found.target)
    return edges


def late_imports() -> list[Import]:
    return [found for found in imports() if found.late]


def is_optional(target: str) -> bool:
    top = target.partition(".")[0]
    if target.startswith(NEEDS_TENSORBOARD):
        return True
    return top != "gpulayer" and top not in REQUIRED and top not in sys.stdlib_module_names


def test_imports_are_found() -> None:
    """The reader sees the source at all, and knows what stands under TYPE_CHECKING."""
    assert len(modules()) > 20
    assert any(found.typing_only for found in imports())
    assert any(found.target == "gpulayer.pytorch.core.module" for found in RUNTIME)


def test_imports_point_downward() -> None:
    wrong = [
        str(found)
        for found in RUNTIME
        if own(found.target) and part_of(found.target) not in below(part_of(found.importer))
    ]
    assert wrong == []


def test_no_import_cycle() -> None:
    try:
        order = list(TopologicalSorter(graph()).static_order())
    except CycleError as error:
        pytest.fail(" -> ".join(error.args[1]))
    assert set(order) == set(modules())


def test_only_optional_packages_are_imported_inside_functions() -> None:
    assert [str(found) for found in late_imports() if not is_optional(found.target)] == []


def test_optional_packages_are_not_imported_at_the_top() -> None:
    """So that `import gpulayer.pytorch` needs nothing but the required packages."""
    assert [str(found) for found in RUNTIME if not found.late and is_optional(found.target)] == []


def test_launch_needs_no_torch() -> None:
    wrong = [
        str(f)
        for f in RUNTIME
        if f.importer.startswith(("gpulayer.launch", "gpulayer._contract", "gpulayer.cli", "gpulayer.report"))
        and "torch" in f.target
    ]
    assert wrong == []

"""Writes public_surface.json: the public names under every mirrored path, as they are now.

Run it from the repository's root after a deliberate change, and look at the difference before you keep it:

    python -m tests.architecture.record_public_surface
"""

from __future__ import annotations

import ast
import importlib
import importlib.util
import json
from pathlib import Path

from tests.architecture.source import modules, tree
from tests.parity.oracle import quiet

FILE = Path(__file__).parent / "public_surface.json"

# Modules that happen to be called like one of Lightning's, and have nothing of it.
NOT_MIRRORED = ("gpulayer.pytorch.loops", "gpulayer.pytorch.loops.progress")


def is_mirrored(path: str) -> bool:
    """Whether Lightning has a module of this name, so that code written for it may import from there."""
    if path in NOT_MIRRORED:
        return False
    try:
        with quiet():
            return importlib.util.find_spec(path.replace("gpulayer", "lightning", 1)) is not None
    except ModuleNotFoundError:  # the package it would be in is not there
        return False


def mirrored_paths() -> list[str]:
    return [path for path in modules() if is_mirrored(path)]


def defined_names(path: str) -> list[str]:
    """The names that a module's own top-level statements bind, imports left out."""
    names: list[str] = []
    for node in tree(path).body:
        if isinstance(node, ast.ClassDef | ast.FunctionDef):
            names.append(node.name)
        elif isinstance(node, ast.Assign | ast.AnnAssign):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            names += [target.id for target in targets if isinstance(target, ast.Name)]
    return names


def public_names(path: str) -> list[str]:
    """`__all__`, or where there is none what the module defines without an underscore."""
    module = importlib.import_module(path)
    if hasattr(module, "__all__"):
        return sorted(module.__all__)
    return sorted({name for name in defined_names(path) if not name.startswith("_")})


def surface() -> dict[str, list[str]]:
    return {path: public_names(path) for path in mirrored_paths()}


if __name__ == "__main__":
    FILE.write_text(json.dumps(surface(), indent=1) + "\n")

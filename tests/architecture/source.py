"""The package's source as text: its modules, and the imports that stand in each."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[2] / "src"


@dataclass(frozen=True)
class Import:
    """One imported module, and where the statement stands."""

    importer: str
    target: str
    line: int
    late: bool  # inside a function
    typing_only: bool  # under `if TYPE_CHECKING`

    def __str__(self) -> str:
        return f"{self.importer}:{self.line} imports {self.target}"


@cache
def modules() -> dict[str, Path]:
    """Every module of the package by its dotted name."""
    files = sorted((ROOT / "gpulayer").rglob("*.py"))
    return {".".join(file.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__"): file for file in files}


@cache
def tree(module: str) -> ast.Module:
    return ast.parse(modules()[module].read_text())


def is_type_checking(node: ast.AST) -> bool:
    return isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test)


def statements(node: ast.AST, late: bool = False, typing_only: bool = False) -> Iterator[tuple[ast.AST, bool, bool]]:
    """Every import statement below a node, with whether it stands in a function and under TYPE_CHECKING."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.Import | ast.ImportFrom):
            yield child, late, typing_only
        in_function = late or isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)
        yield from statements(child, in_function, typing_only or is_type_checking(child))


def targets(module: str, statement: ast.AST) -> list[str]:
    """The modules that one statement imports: `from a import b` imports a.b where that is a module, else a."""
    if isinstance(statement, ast.Import):
        return [alias.name for alias in statement.names]
    assert isinstance(statement, ast.ImportFrom)
    package = module if modules()[module].name == "__init__.py" else module.rpartition(".")[0]
    above = package.split(".")[: len(package.split(".")) - statement.level + 1] if statement.level else []
    origin = ".".join([*above, *([statement.module] if statement.module else [])])
    names = [f"{origin}.{alias.name}" for alias in statement.names]
    return sorted({name if name in modules() else origin for name in names})


@cache
def imports() -> tuple[Import, ...]:
    """All imports of the package's source."""
    return tuple(
        Import(module, target, statement.lineno, late, typing_only)
        for module in modules()
        for statement, late, typing_only in statements(tree(module))
        for target in targets(module, statement)
    )


def own(target: str) -> bool:
    return target == "gpulayer" or target.startswith("gpulayer.")

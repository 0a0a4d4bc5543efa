"""The counters of a run, the fields of `Progress`, are assigned only in `loops/` (section 4 of the plan)."""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from dataclasses import fields, is_dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch

from tests.architecture.source import modules, tree

PROGRESS = "gpulayer.pytorch.loops.progress"
LOOPS = "gpulayer.pytorch.loops."


def progress_classes() -> list[type]:
    """The dataclasses of progress.py."""
    found = [value for value in vars(sys.modules[PROGRESS]).values() if isinstance(value, type) and is_dataclass(value)]
    return [value for value in found if value.__module__ == PROGRESS]


@pytest.fixture(autouse=True)
def progress_module() -> ModuleType:
    return pytest.importorskip(PROGRESS) if PROGRESS not in sys.modules else sys.modules[PROGRESS]


def names_of_progress(module: str) -> set[str]:
    """Local names that hold a Progress: parameters annotated so, and what was assigned from `....progress`."""
    names = {"progress"}
    for node in ast.walk(tree(module)):
        if isinstance(node, ast.arg) and node.annotation is not None and "Progress" in ast.unparse(node.annotation):
            names.add(node.arg)
        if isinstance(node, ast.Assign) and ast.unparse(node.value).endswith(".progress"):
            names |= {target.id for target in node.targets if isinstance(target, ast.Name)}
    return names


def assigned_attributes(module: str) -> Iterator[ast.Attribute]:
    for node in ast.walk(tree(module)):
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store | ast.Del):
            yield node


def writes(module: str) -> list[str]:
    """Assignments to a field through something that is a Progress, as `file:line text`."""
    names = names_of_progress(module)
    field_names = {field.name for kind in progress_classes() for field in fields(kind)}
    return [
        f"{module}:{node.lineno} {ast.unparse(node)}"
        for node in assigned_attributes(module)
        if node.attr in field_names and set(ast.unparse(node.value).split(".")) & names
    ]


def test_source_assigns_counters_only_in_loops() -> None:
    found = {module: writes(module) for module in modules()}
    assert any(found[module] for module in found if module.startswith(LOOPS)), "the search finds nothing at all"
    assert [line for module, lines in found.items() if not module.startswith(LOOPS) for line in lines] == []


class Writers:
    """Notes the file from which each field of a Progress is assigned while a run goes on."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.files: set[str] = set()
        for kind in progress_classes():
            monkeypatch.setattr(kind, "__setattr__", self.spy(kind.__setattr__), raising=False)

    def spy(self, original: Any) -> Any:
        def assign(instance: Any, name: str, value: Any) -> None:
            frame = sys._getframe(1)
            if frame.f_code.co_name != "__init__":  # made by dataclass: has no file
                self.files.add(frame.f_code.co_filename)
            original(instance, name, value)

        return assign


def test_a_run_assigns_counters_only_in_loops(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """fit with validation, save, resume, validate, test and predict."""
    import gpulayer.pytorch as L

    writers = Writers(monkeypatch)
    loader = torch.utils.data.DataLoader(torch.ones(4, 2))
    arguments = {"accelerator": "cpu", "logger": False, "enable_checkpointing": False, "default_root_dir": tmp_path}
    trainer = L.Trainer(max_epochs=1, **arguments)
    trainer.fit(net(L), loader, loader)
    trainer.save_checkpoint(tmp_path / "a.ckpt")
    trainer = L.Trainer(max_epochs=2, **arguments)
    trainer.fit(net(L), loader, loader, ckpt_path=str(tmp_path / "a.ckpt"))
    trainer.validate(net(L), loader, verbose=False)
    trainer.test(net(L), loader, verbose=False)
    trainer.predict(net(L), loader)
    assert {Path(file).parent.name for file in writers.files} == {"loops"}, writers.files


def net(L: ModuleType) -> Any:
    class Net(L.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = torch.nn.Linear(2, 1)

        def training_step(self, batch: Any, batch_idx: int) -> Any:
            return self.layer(batch).sum()

        validation_step = test_step = predict_step = training_step

        def configure_optimizers(self) -> Any:
            return torch.optim.SGD(self.parameters(), lr=0.1)

    return Net()

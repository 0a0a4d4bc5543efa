"""The code in the documentation runs: all blocks of a page, in order, as a reader would type them one after another."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader

import gpulayer.pytorch as L
from tests.pytorch.models import Validated, loader

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "docs"
PAGES = ("callbacks.md", "profiling.md", "tuner.md")
CALLS = re.compile(r"\.(fit|validate|test|predict)\(")


def blocks(page: str) -> list[tuple[int, str]]:
    """The blocks of Python in a page, each with the number of its first line."""
    text = (FOLDER / page).read_text(encoding="utf-8")
    found = re.finditer(r"^```python\n(.*?)^```$", text, flags=re.MULTILINE | re.DOTALL)
    return [(text.count("\n", 0, block.start(1)) + 1, block[1]) for block in found]


class Tunable(Validated):
    """Its learning rate can be set."""

    lr = 0.1

    def configure_optimizers(self) -> Any:
        return torch.optim.SGD(self.parameters(), lr=self.lr)


class Data(L.DataModule):
    """Its batch size can be set."""

    batch_size = 2

    def train_dataloader(self) -> Any:
        return DataLoader(loader(8).dataset, self.batch_size)

    def val_dataloader(self) -> Any:
        return DataLoader(loader(2).dataset, self.batch_size)


@pytest.mark.parametrize("page", PAGES)
def test_code_runs(page: str) -> None:
    """A Trainer that a block makes and does not use trains a line of four weights."""
    names: dict[str, Any] = {
        "__name__": "page", "L": L, "torch": torch, "model": Tunable(), "data": Data(), "DataLoader": DataLoader,
        "loader": loader(8), "val_loader": loader(2), "test_loader": loader(3),
    }  # fmt: skip
    assert blocks(page)
    for line, code in blocks(page):
        names.pop("trainer", None)
        exec(compile("\n" * (line - 1) + code, FOLDER / page, "exec"), names)
        if "trainer" in names and not CALLS.search(code):
            names["trainer"].fit(Validated(), names["loader"], names["val_loader"])


@pytest.mark.parametrize(
    "page", [str(path.relative_to(ROOT)) for path in sorted([*ROOT.glob("*.md"), *FOLDER.rglob("*.md")])]
)
def test_links_lead_somewhere(page: str) -> None:
    """To files that exist, and to headings that they have."""
    path = ROOT / page
    for file, heading in re.findall(r"\]\((?!https?:)([^)#]*)(?:#([^)]*))?\)", path.read_text(encoding="utf-8")):
        target = path.parent / file if file else path
        assert target.exists(), file
        if heading:
            titles = re.findall(r"^#+ (.*)$", target.read_text(encoding="utf-8"), flags=re.MULTILINE)
            assert heading in [re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles]

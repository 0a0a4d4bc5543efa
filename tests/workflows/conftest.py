"""Each workflow runs in a folder of its own, with the same random numbers."""

from pathlib import Path

import pytest
import torch


@pytest.fixture(autouse=True)
def fresh_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    torch.manual_seed(0)
    return tmp_path

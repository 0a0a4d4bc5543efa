"""Every test begins without the variables of any launcher."""

from __future__ import annotations

import os

import pytest

STARTS = ("SLURM_", "OMPI_", "PMI", "MV2_", "JSM_", "LSB_", "TORCHELASTIC_")
NAMES = (
    *("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"),
    *("GROUP_RANK", "NODE_RANK", "MASTER_ADDR", "MASTER_PORT"),
)


@pytest.fixture(autouse=True)
def no_launcher(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in list(os.environ):
        if name in NAMES or name.startswith(STARTS):
            monkeypatch.delenv(name)

"""Two trainings serve all tests of reports."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.report.trained import train


@pytest.fixture(scope="session")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with Line/version_0 and Line/version_1, to be read only."""
    folder = tmp_path_factory.mktemp("trained")
    train(folder, lr=0.1)
    train(folder, lr=0.02)
    return folder

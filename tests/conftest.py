"""What all tests share: one thread, which is plenty for networks this small and the same on every machine."""

import pytest
import torch

torch.set_num_threads(1)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """With several test processes, a file stays in one, and so do all tests that look at the same runs of scenarios."""
    for item in items:
        shared = "outcome" in getattr(item, "fixturenames", ())
        item.add_marker(pytest.mark.xdist_group("scenarios" if shared else str(item.path)))

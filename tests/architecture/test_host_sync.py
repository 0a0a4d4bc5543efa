"""Between two log points the host never waits for the device: a step has no `.item()` and no `float(tensor)`."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from tests.architecture.workload import Net, Validated, batches, trainer

COPYING = ("tolist", "numpy", "cpu")


class ScalarReads(TorchDispatchMode):
    """Counts reads of a tensor's value by the host: on a GPU each would make it wait.

    A read of one number is an operation of torch's; copies to the host are not when the tensor is on the CPU already,
    so their methods are watched.
    """

    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def watched(self, name: str) -> Any:
        original = getattr(torch.Tensor, name)

        def method(tensor: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
            self.count += 1
            return original(tensor, *args, **kwargs)

        return patch.object(torch.Tensor, name, method)

    def __enter__(self) -> ScalarReads:
        self.patches = [self.watched(name) for name in COPYING]
        for one in self.patches:
            one.start()
        super().__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        super().__exit__(*error)
        for one in self.patches:
            one.stop()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.count += "_local_scalar_dense" in str(func)
        return func(*args, **(kwargs or {}))


def reads(folder: Path, count: int, logs: str, **arguments: Any) -> int:
    """Of a whole run of `count` batches."""
    with ScalarReads() as mode:
        trainer(folder, **arguments).fit(Net(logs), batches(count))
    return mode.count


def test_a_read_is_counted() -> None:
    with ScalarReads() as mode:
        float(torch.ones(1))
        torch.ones(2).tolist()
    assert mode.count == 2


@pytest.mark.parametrize("logs", ["", "one", "two"])
def test_no_host_read_between_log_points(logs: str, tmp_path: Path) -> None:
    """A run that is twice as long reads no value more; the end of the epoch reads some, once."""
    assert reads(tmp_path, 200, logs) == reads(tmp_path, 100, logs)


def test_log_points_alone_read(tmp_path: Path) -> None:
    """With a logger, every tenth step: one copy for a row, however many values it has, and none for steps between."""

    def total(count: int) -> int:
        return reads(tmp_path, count, "two", log_every_n_steps=10, logger=True)

    assert 0 < total(200) - total(100) <= 10


def test_validation_reads_only_at_its_end(tmp_path: Path) -> None:
    def total(count: int) -> int:
        with ScalarReads() as mode:
            trainer(tmp_path).fit(Validated("two"), batches(2), batches(count))
        return mode.count

    assert total(60) == total(20)

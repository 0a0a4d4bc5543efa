"""`devices` where each has a number."""

from __future__ import annotations

from typing import Any

import pytest

from gpulayer.fabric.accelerators.indexed import read_indices
from gpulayer.fabric.utilities.exceptions import MisconfigurationException


@pytest.mark.parametrize(
    ("devices", "indices"),
    [(1, [0]), (3, [0, 1, 2]), (-1, [0, 1, 2, 3]), ("2", [0, 1]), ("-1", [0, 1, 2, 3]), ([2], [2]), ([3, 1], [3, 1]),
     ("0,2", [0, 2]), ("3,", [3]), (" 1, 2 ", [1, 2]), ((0, 1), [0, 1])],
)  # fmt: skip
def test_forms(devices: Any, indices: list[int]) -> None:
    assert read_indices(devices, 4, "CUDA") == indices


@pytest.mark.parametrize(
    ("devices", "piece"),
    [(0, "names no device"), ([], "names no device"), ("0", "names no device"), (5, "asks for CUDA device(s) [4]"),
     ([7], "asks for CUDA device(s) [7]"), ([0, 0], "a device twice"), ("0,0", "a device twice"),
     ("two", "not understood"), (1.5, "not understood"), (True, "not understood"), (None, "not understood"),
     ([-1], "asks for CUDA device(s) [-1]")],
)  # fmt: skip
def test_what_is_not_there(devices: Any, piece: str) -> None:
    with pytest.raises(MisconfigurationException) as caught:
        read_indices(devices, 4, "CUDA")
    assert f"`devices={devices!r}`" in str(caught.value)
    assert piece in str(caught.value)


def test_all_of_none() -> None:
    with pytest.raises(MisconfigurationException, match="0 CUDA"):
        read_indices(-1, 0, "CUDA")

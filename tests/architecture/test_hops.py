"""From `Trainer.fit` to `Tensor.backward` a reader crosses three functions: fit, the loop, forward and backward."""

from __future__ import annotations

import traceback
from pathlib import Path
from typing import Any

import pytest
import torch

import gpulayer
from tests.architecture.workload import Net, batches, trainer

PACKAGE = str(Path(gpulayer.__file__).parent)


def frames_to_backward(monkeypatch: pytest.MonkeyPatch, folder: Path, **arguments: Any) -> list[str]:
    """Our own frames on the stack when Tensor.backward is entered, outermost first."""
    stacks: list[traceback.StackSummary] = []
    original = torch.Tensor.backward

    def spy(self: torch.Tensor, *args: Any, **kwargs: Any) -> None:
        stacks.append(traceback.extract_stack()[:-1])
        original(self, *args, **kwargs)

    monkeypatch.setattr(torch.Tensor, "backward", spy)
    trainer(folder, **arguments).fit(Net("two"), batches(3))
    assert len(stacks) == 3
    return [f"{Path(frame.filename).name}:{frame.name}" for frame in stacks[-1] if frame.filename.startswith(PACKAGE)]


@pytest.mark.parametrize(
    "arguments", [{}, {"accumulate_grad_batches": 2, "gradient_clip_val": 1.0}], ids=["plain", "more"]
)
def test_three_hops_from_fit_to_backward(
    arguments: dict[str, Any], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    frames = frames_to_backward(monkeypatch, tmp_path, **arguments)
    assert frames[0] == "trainer.py:fit"
    assert 2 <= len(frames) <= 3, frames

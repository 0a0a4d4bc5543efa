"""OnExceptionCheckpoint: what it saves when training breaks off, and what becomes of it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from gpulayer.fabric.utilities.exceptions import MisconfigurationException
from gpulayer.pytorch.callbacks import OnExceptionCheckpoint
from tests.pytorch.models import Validated, loader, same, trainer, weights


class Breaks(Validated):
    """Breaks off at a batch."""

    def __init__(self, error: BaseException | None = None) -> None:
        super().__init__()
        self.error = error

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        if self.error is not None and batch_idx == 2:
            raise self.error
        return super().training_step(batch, batch_idx)


def fit(error: BaseException | None, path: str | None = None) -> Breaks:
    torch.manual_seed(0)
    model = Breaks(error)
    trainer(callbacks=[OnExceptionCheckpoint("here")], max_epochs=2).fit(model, loader(), loader(), ckpt_path=path)
    return model


@pytest.mark.parametrize("error", [ValueError("broken"), KeyboardInterrupt()], ids=["error", "Ctrl+C"])
def test_the_run_goes_on_from_it_and_it_is_removed(error: BaseException) -> None:
    whole = fit(None)
    assert not Path("here").exists()
    with pytest.raises(type(error)):
        fit(error)
    assert [file.name for file in Path("here").iterdir()] == ["on_exception.ckpt"]
    resumed = fit(None, "here/on_exception.ckpt")
    assert same(weights(resumed), weights(whole))
    assert list(Path("here").iterdir()) == []


def test_only_fit_makes_and_removes_it() -> None:
    used, model = trainer(callbacks=[OnExceptionCheckpoint("here", "broken")]), Breaks(ValueError("broken"))
    with pytest.raises(ValueError, match="broken"):
        used.fit(model, loader(), loader())
    used.validate(model, loader())
    assert [file.name for file in Path("here").iterdir()] == ["broken.ckpt"]


@pytest.mark.parametrize("arguments", [("",), (None,), ("here", "")], ids=str)
def test_nonsense(arguments: tuple[Any, ...]) -> None:
    with pytest.raises(MisconfigurationException, match=r"OnExceptionCheckpoint\(\w+=.*give a path"):
        OnExceptionCheckpoint(*arguments)

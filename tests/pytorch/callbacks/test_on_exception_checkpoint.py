"""OnExceptionCheckpoint: what it saves when training breaks off, and what becomes of it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import fsspec
import pytest
import torch

from gpulayer.fabric.checkpoint import AsyncCheckpointIO, TorchCheckpointIO
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


class Lost(TorchCheckpointIO):
    """A store that loses files of a name."""

    def save_checkpoint(self, checkpoint: dict[str, Any], path: str, storage_options: Any = None) -> None:
        if "lost" in path:
            raise OSError("No space left on device")
        super().save_checkpoint(checkpoint, path, storage_options)


def test_an_earlier_save_that_failed_in_the_background_does_not_hinder_it(caplog: pytest.LogCaptureFixture) -> None:
    class Earlier(Breaks):
        def on_train_batch_start(self, batch: Any, batch_idx: int) -> None:
            if batch_idx == 1:
                self.trainer.save_checkpoint("here/lost.ckpt")

    used = trainer(callbacks=[OnExceptionCheckpoint("here")], plugins=[AsyncCheckpointIO(Lost())])
    with pytest.raises(ValueError, match="broken"):
        used.fit(Earlier(ValueError("broken")), loader(), loader())
    assert torch.load("here/on_exception.ckpt", weights_only=True)["global_step"] == 2
    assert "An earlier checkpoint could not be saved" in caplog.text


def test_in_a_store() -> None:
    saver = OnExceptionCheckpoint("memory://on-exception/run", "broken")
    used, model = trainer(callbacks=[saver]), Breaks(ValueError("broken"))
    with pytest.raises(ValueError, match="broken"):
        used.fit(model, loader(), loader())
    with fsspec.open(saver.ckpt_path) as file:
        assert torch.load(file, weights_only=True)["global_step"] == 2


@pytest.mark.parametrize("arguments", [("",), (None,), ("here", "")], ids=str)
@pytest.mark.parametrize("kind", [MisconfigurationException, ValueError])
def test_nonsense(arguments: tuple[Any, ...], kind: type[Exception]) -> None:
    with pytest.raises(kind, match=r"OnExceptionCheckpoint\(\w+=.*give a path"):
        OnExceptionCheckpoint(*arguments)


def test_a_name_may_be_a_path() -> None:
    saver = OnExceptionCheckpoint("here", Path("broken"))  # type: ignore[arg-type]
    assert saver.ckpt_path == str(Path("here") / "broken.ckpt")
    trainer(callbacks=[saver], max_epochs=1).fit(Validated(), loader(), loader())

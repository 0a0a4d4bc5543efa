"""The batch size finder finds what Lightning's finds, and where Lightning's is wrong, what fits."""

from __future__ import annotations

import gc
import importlib
import inspect
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils.data import DataLoader

from tests.parity.oracle import GPULAYER, LIGHTNING, quiet
from tests.parity.recorder import FEATURES
from tests.pytorch.models import dataset


def search(library: str, room: int, method: str = "fit", samples: int = 1000, own: int = 1, **arguments: Any) -> Any:
    """Search where batches of more than `room` samples are too large: what is returned, set, and left of the weights.

    Args:
        library: which.
        room: how many fit.
        method: the Trainer's call.
        samples: how many there are.
        own: the module's batch size before.
        **arguments: of the search.
    """
    L: ModuleType = importlib.import_module(library)

    class Module(L.LightningModule):  # type: ignore[name-defined,misc]
        def __init__(self) -> None:
            super().__init__()
            self.batch_size = own
            self.net = torch.nn.Linear(FEATURES, 1)

        def training_step(self, batch: Any, batch_idx: int) -> Tensor:
            if len(batch[0]) > room:
                raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB")
            loss: Tensor = self.net(batch[0]).mean()
            return loss

        def predict_step(self, batch: Any, batch_idx: int) -> None:
            self.training_step(batch, batch_idx)

        validation_step = test_step = predict_step

        def configure_optimizers(self) -> Any:
            return torch.optim.SGD(self.parameters(), lr=0.1)

        def train_dataloader(self) -> Any:
            return DataLoader(dataset(samples), batch_size=self.batch_size)

        val_dataloader = test_dataloader = predict_dataloader = train_dataloader

    torch.manual_seed(0)
    module = Module()
    plain = {
        "logger": False,
        "enable_checkpointing": False,
        "enable_progress_bar": False,
        "enable_model_summary": False,
    }
    trainer = L.Trainer(accelerator="cpu", max_epochs=1, **plain)
    tuner = importlib.import_module(f"{library}.tuner").Tuner(trainer)
    found = tuner.scale_batch_size(module, method=method, steps_per_trial=1, **arguments)
    return found, module.batch_size, {name: value.clone() for name, value in module.state_dict().items()}


@cache
def lightnings(room: int, **arguments: Any) -> Any:
    with quiet():
        return search(LIGHTNING, room, **arguments)


@pytest.fixture(scope="module", autouse=True)
def quick_collection() -> Iterator[None]:
    """A search collects garbage again and again; what was imported before need not be looked through each time."""
    gc.freeze()
    yield
    gc.unfreeze()


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize("mode", ["power", "binsearch"])
@pytest.mark.parametrize("room", [2, 3, 10, 64, 100])
def test_the_same_size_is_found(mode: str, room: int) -> None:
    found, size, kept = search(GPULAYER, room, mode=mode)
    expected, theirs, theirs_kept = lightnings(room, mode=mode)
    assert (found, size) == (expected, theirs)
    assert all(torch.equal(kept[name], value) for name, value in theirs_kept.items())


@pytest.mark.parametrize(
    "arguments",
    [
        {"mode": "binsearch", "margin": 0.0},
        {"mode": "binsearch", "margin": 0.3},
        {"mode": "binsearch", "max_trials": 5},
        {"mode": "power", "max_trials": 3},
        {"mode": "power", "init_val": 3},
        {"mode": "binsearch", "init_val": 5},
        {"mode": "power", "method": "validate"},
        {"mode": "binsearch", "method": "test"},
        {"mode": "power", "method": "predict"},
    ],
)
def test_with_other_arguments(arguments: dict[str, Any]) -> None:
    assert search(GPULAYER, 50, **arguments)[:2] == lightnings(50, **arguments)[:2]


@pytest.mark.parametrize(
    ("room", "arguments", "theirs", "ours"),
    [
        (10, {"init_val": 64}, 64, 8),  # their first trial has batches of the size before
        (10, {"init_val": 64, "mode": "binsearch", "margin": 0.0}, 64, 10),
        (63, {"samples": 64}, 64, 32),  # not halved if it is as large as the data
        (1000, {"samples": 10}, 16, 10),  # larger than the data, so that `drop_last` leaves nothing
        (1000, {"max_val": 100}, 128, 100),  # larger than the largest that was asked for, and not tried
        (80, {"max_val": 100, "mode": "binsearch", "margin": 0.0}, 100, 80),  # not tried, and too large
    ],
)
def test_where_lightning_sets_a_size_that_does_not_fit(
    room: int, arguments: dict[str, Any], theirs: int, ours: int
) -> None:
    assert lightnings(room, **arguments)[0] == theirs
    assert search(GPULAYER, room, **arguments)[0] == ours


def test_where_nothing_fits() -> None:
    with pytest.raises(ValueError, match="batch_size=0"):
        lightnings(0, mode="power")
    assert lightnings(0, mode="binsearch")[0] == 1
    for mode in ("power", "binsearch"):
        with pytest.raises(RuntimeError, match="Not even a batch of one sample fits into memory: CUDA out of memory"):
            search(GPULAYER, 0, mode=mode)


def test_the_same_arguments() -> None:
    def arguments(library: str, module: str, of: str) -> list[tuple[str, Any]]:
        function = eval(of, vars(importlib.import_module(f"{library}.{module}")))
        return [(name, one.default) for name, one in inspect.signature(function).parameters.items()]

    for module, of in (("callbacks", "BatchSizeFinder.__init__"), ("tuner", "Tuner.scale_batch_size")):
        assert arguments(GPULAYER, module, of) == arguments(LIGHTNING, module, of)
    for name in ("callbacks.batch_size_finder", "tuner.batch_size_scaling"):
        assert importlib.import_module(f"{GPULAYER}.{name}")

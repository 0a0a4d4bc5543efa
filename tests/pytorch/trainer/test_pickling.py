"""A Trainer can be pickled and copied: before, after and in a run."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from typing import Any

import pytest

from gpulayer.pytorch.callbacks import EarlyStopping, ModelCheckpoint
from tests.pytorch.models import Line, Validated, loader, trainer

COPIES: dict[str, Callable[[Any], Any]] = {
    "pickle": lambda value: pickle.loads(pickle.dumps(value)),
    "copy": copy.deepcopy,
}


MADE: list[Any] = []


class Copies(Line):
    """Copies its Trainer after each batch."""

    def __init__(self, way: str) -> None:
        super().__init__()
        self.way = way

    def on_train_batch_end(self, outputs: Any, batch: Any, batch_idx: int) -> None:
        MADE.append(COPIES[self.way](self.trainer))


@pytest.mark.parametrize("make", COPIES.values(), ids=COPIES)
def test_after_fit(make: Callable[[Any], Any]) -> None:
    """Counters, metrics, callbacks and the module are there, and it can be used."""
    used = trainer(callbacks=[EarlyStopping("val_loss"), ModelCheckpoint(dirpath="kept")], max_epochs=2, logger=True)
    used.fit(Validated(), loader(), loader())
    other = make(used)
    assert (other.global_step, other.current_epoch, other.max_epochs) == (8, 2, 2)
    assert other.callback_metrics == used.callback_metrics
    assert other.checkpoint_callback.best_model_path == used.checkpoint_callback.best_model_path
    assert other.lightning_module is not used.lightning_module
    assert set(other.validate(other.lightning_module, loader())) == {"val_loss"}
    other.max_epochs = 3
    other.fit(other.lightning_module, loader(), loader())
    assert (other.global_step, used.global_step) == (12, 8)


@pytest.mark.parametrize("way", COPIES)
def test_before_and_within_a_run(way: str) -> None:
    MADE[:] = [COPIES[way](trainer())]
    trainer().fit(Copies(way), loader())
    assert [one.global_step for one in MADE] == [0, 1, 2, 3, 4]

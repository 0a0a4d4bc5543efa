"""estimated_stepping_batches: what it says beforehand is what there was in the end."""

from __future__ import annotations

from itertools import product
from math import inf
from typing import Any

import pytest

import gpulayer.pytorch as L
from gpulayer.pytorch.utilities.combined_loader import CombinedLoader
from tests.pytorch.models import Line, loader, stream, trainer


class Asks(Line):
    """Asks where schedulers are made, as one does for a OneCycleLR, and at other moments."""

    def __init__(self) -> None:
        super().__init__()
        self.answers: list[int | float] = []

    def ask(self, *_: Any) -> None:
        self.answers.append(self.trainer.estimated_stepping_batches)

    def configure_optimizers(self) -> Any:
        self.ask()
        return super().configure_optimizers()

    on_train_start = on_train_epoch_end = on_train_end = ask  # type: ignore[assignment]


def steps(data: Any, **arguments: Any) -> tuple[set[int | float], int]:
    """What was answered, and how many steps there were."""
    model, used = Asks(), trainer(**arguments)
    used.fit(model, data)
    return {*model.answers, used.estimated_stepping_batches}, used.global_step


LENGTHS, ACCUMULATED, LIMITS, EPOCHS, STEPS = (1, 5, 6), (1, 2, 4), (None, 3, 0.5), (1, 3), (-1, 2, 7)
MIXES = [
    mix
    for mix in product(LENGTHS, ACCUMULATED, LIMITS, EPOCHS, STEPS)
    if not (mix[0] == 1 and mix[2] == 0.5)  # half of one batch is an error
]


def test_every_mix() -> None:
    for length, accumulate, limit, epochs, most in MIXES:
        data, settings = loader(length), {
            "accumulate_grad_batches": accumulate, "limit_train_batches": limit, "max_epochs": epochs,
            "max_steps": most,
        }  # fmt: skip
        answers, taken = steps(data, **settings)
        assert answers == {taken}, (length, settings)


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({"max_epochs": 2}, 8),
        ({"max_epochs": 2, "accumulate_grad_batches": 3}, 4),
        ({"min_epochs": 3}, 12),
        ({"max_steps": 9}, 9),
        ({"max_steps": 9, "max_epochs": -1}, 9),
        ({"max_steps": 9, "max_epochs": 2}, 8),
        ({"max_steps": 3, "max_epochs": 2}, 3),
        ({"max_steps": 9, "accumulate_grad_batches": 3}, 9),
        ({"overfit_batches": 2, "max_epochs": 3}, 6),
        ({"fast_dev_run": 3, "max_epochs": 5}, 3),
        ({"fast_dev_run": True, "accumulate_grad_batches": 2}, 1),
        ({"precision": "16-mixed", "max_epochs": 2}, 8),
        ({}, 4),
    ],
    ids=str,
)
def test_settings_that_bound_a_run(settings: dict[str, Any], expected: int) -> None:
    assert steps(loader(4), **settings) == ({expected}, expected)


def test_collections_of_loaders() -> None:
    class Pairs(Asks):
        def training_step(self, batch: Any, batch_idx: int) -> Any:
            return super().training_step(next(part for part in batch.values() if part is not None), batch_idx)

    for data, batches in (
        ({"a": loader(2), "b": loader(3)}, 3),
        (CombinedLoader({"a": loader(2), "b": loader(3)}, "min_size"), 2),
        (CombinedLoader({"a": loader(2), "b": loader(3)}, "max_size"), 3),
    ):
        model, used = Pairs(), trainer(max_epochs=2)
        used.fit(model, data)
        assert {*model.answers} == {used.global_step} == {2 * batches}


def test_a_datamodule_and_a_run_that_goes_on() -> None:
    """All epochs are counted, those before a resume included."""

    class Data(L.DataModule):
        def setup(self, stage: str) -> None:
            self.batches = 4

        def train_dataloader(self) -> Any:
            return loader(self.batches)

    first = trainer(max_epochs=1)
    first.fit(Asks(), datamodule=Data())
    first.save_checkpoint("model.ckpt")
    model, again = Asks(), trainer(max_epochs=3)
    again.fit(model, datamodule=Data(), ckpt_path="model.ckpt")
    assert {*model.answers} == {12} == {again.global_step}


@pytest.mark.parametrize(
    ("settings", "expected"),
    [({"max_epochs": 2}, inf), ({"max_epochs": 2, "max_steps": 3}, 3), ({"max_steps": 3}, 3),
     ({"limit_train_batches": 2, "max_epochs": 2}, 4)],
    ids=str,
)  # fmt: skip
def test_without_a_length(settings: dict[str, Any], expected: int | float) -> None:
    answers, taken = steps(stream(4), **settings)
    assert answers == {expected}
    assert expected in (inf, taken)


def test_without_an_end() -> None:
    class Stops(Asks):
        def on_train_batch_end(self, *_: Any) -> None:
            self.trainer.should_stop = True

    for settings in ({"max_epochs": -1}, {"max_time": "00:01:00:00"}):
        model = Stops()
        trainer(**settings).fit(model, loader(4))
        assert {*model.answers} == {inf}


def test_before_there_is_data() -> None:
    with pytest.raises(RuntimeError, match="needs the training data"):
        _ = trainer(max_epochs=2).estimated_stepping_batches
    assert trainer(max_steps=5).estimated_stepping_batches == 5

"""Loaders that give fewer batches than they say, and iterators that are used up."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from torch.utils.data import DataLoader, Sampler

from tests.pytorch.models import Line, Validated, dataset, loader, trainer


class Short:
    """Says that it has `says` batches and gives `gives`."""

    def __init__(self, says: int, gives: int) -> None:
        self.says, self.gives = says, gives

    def __len__(self) -> int:
        return self.says

    def __iter__(self) -> Iterator[Any]:
        return iter(list(loader(4))[: self.gives])


def test_a_training_loader() -> None:
    """Both numbers are said; the epoch is shorter, and the run goes on."""
    used = trainer(max_epochs=2)
    with pytest.warns(UserWarning, match="A Short said that it has 5 batches and gave 3") as caught:
        used.fit(Line(), Short(5, 3))
    assert len(caught) == 2  # in each epoch
    assert (used.global_step, used.current_epoch) == (6, 2)


@pytest.mark.parametrize("call", ["validate", "test"])
def test_an_evaluation_loader(call: str) -> None:
    with pytest.warns(UserWarning, match="A Short said that it has 4 batches and gave 2"):
        result = getattr(trainer(), call)(Validated(), Short(4, 2))
    assert len(result) == 1


def test_a_loader_to_predict() -> None:
    with pytest.warns(UserWarning, match="A Short said that it has 4 batches and gave 2"):
        assert len(trainer().predict(Line(), Short(4, 2)) or []) == 2


def test_under_a_limit_the_limit_counts() -> None:
    used = trainer(limit_train_batches=2)
    used.fit(Line(), Short(5, 3))
    assert used.global_step == 2
    with pytest.warns(UserWarning, match="said that it has 4 batches and gave 3"):
        trainer(limit_train_batches=4).fit(Line(), Short(5, 3))


def test_a_run_that_ends_within_an_epoch_warns_of_nothing() -> None:
    class Stops(Line):
        def on_train_batch_start(self, batch: Any, batch_idx: int) -> int | None:
            return -1 if batch_idx == 1 else None

    used = trainer(max_steps=2)
    used.fit(Line(), loader())
    assert used.global_step == 2
    trainer().fit(Stops(), loader())


def test_several_loaders_of_which_one_is_short() -> None:
    """Begun anew, it lasts; going with the shortest, both numbers are said."""

    class First(Line):
        def training_step(self, batch: Any, batch_idx: int) -> Any:
            return super().training_step(batch[0], batch_idx)

    used = trainer()
    used.fit(First(), [Short(5, 3), loader(6)])
    assert used.global_step == 6


def used_up(batches: int = 4) -> Iterator[Any]:
    yield from loader(batches)


@pytest.mark.parametrize("limits", [{"max_steps": 10}, {"max_epochs": -1}, {"max_time": "00:01:00:00"}], ids=str)
def test_an_iterator_that_is_used_up(limits: dict[str, Any]) -> None:
    """It can only be gone through once, and the run would turn in circles: it ends, and says why."""
    used = trainer(**limits)
    with pytest.warns(UserWarning, match="gave no batches in this epoch, so training ends: is it used up"):
        used.fit(Line(), used_up())
    assert used.global_step == 4
    assert not used.interrupted


def test_an_iterator_that_lasts_as_long_as_the_steps() -> None:
    used = trainer(max_steps=4)
    used.fit(Line(), used_up())
    assert (used.global_step, used.interrupted) == (4, False)


class Growing(Sampler[int]):
    """Gives so many samples in each epoch."""

    def __init__(self, *sizes: int) -> None:
        self.sizes, self.epoch = sizes, 0

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def __len__(self) -> int:
        return self.sizes[self.epoch]

    def __iter__(self) -> Iterator[int]:
        return iter(range(len(self)))


class Counts(Validated):
    """After which batch it validates."""

    def __init__(self) -> None:
        super().__init__()
        self.validated: list[int] = []

    def on_validation_start(self) -> None:
        self.validated.append(self.global_step)


@pytest.mark.parametrize(
    ("settings", "validated"),
    [
        ({}, [4, 6, 12]),
        ({"val_check_interval": 0.5}, [2, 4, 5, 6, 9, 12]),
        ({"limit_train_batches": 3}, [3, 5, 8]),
        ({"limit_train_batches": 0.5}, [2, 3, 6]),
    ],
    ids=str,
)
@pytest.mark.parametrize("several", [False, True], ids=["one", "several"])
def test_a_length_that_changes_with_the_epoch(several: bool, settings: dict[str, Any], validated: list[int]) -> None:
    """Every epoch is trained and validated whole."""
    train: Any = DataLoader(dataset(8), batch_size=1, sampler=Growing(4, 2, 6))

    class Both(Counts):
        def training_step(self, batch: Any, batch_idx: int) -> Any:
            return super().training_step(batch[0] if several else batch, batch_idx)

    model = Both()
    trainer(max_epochs=3, **settings).fit(model, [train, loader(2)] if several else train, loader())
    assert model.validated == validated

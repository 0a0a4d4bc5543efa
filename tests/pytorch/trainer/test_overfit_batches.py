"""overfit_batches: the same few batches in each epoch."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    RandomSampler,
    Sampler,
    SequentialSampler,
    SubsetRandomSampler,
    WeightedRandomSampler,
)

from tests.pytorch.models import Line, Validated, dataset, loader, stream, trainer


class Notes(Validated):
    """The first number of each row, by batch, of training and of validation."""

    def __init__(self) -> None:
        super().__init__()
        self.trained: list[list[float]] = []
        self.validated: list[list[float]] = []

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        self.trained.append(batch[0][:, 0].tolist())
        return super().training_step(batch, batch_idx)

    def validation_step(self, batch: Any, batch_idx: int) -> Any:
        self.validated.append(batch[0][:, 0].tolist())
        return super().validation_step(batch, batch_idx)


def first(batches: int, size: int = 2) -> list[list[float]]:
    """Those of the first batches, in the dataset's own order."""
    return [batch[0][:, 0].tolist() for batch in list(loader(8, size))[:batches]]


def fit(overfit_batches: Any, train: Any, validation: Any, **arguments: Any) -> tuple[Notes, Any]:
    model, used = Notes(), trainer(overfit_batches=overfit_batches, max_epochs=2, **arguments)
    used.fit(model, train, validation)
    return model, used


@pytest.mark.parametrize(("overfit", "batches"), [(1, 1), (2, 2), (0.25, 2), (1.0, 8), (20, 8)])
@pytest.mark.parametrize("shuffle", [False, True])
def test_the_first_batches_unshuffled(overfit: Any, batches: int, shuffle: bool) -> None:
    """Of training and of validation alike, in each epoch."""
    model, used = fit(overfit, loader(8, shuffle=shuffle), loader(8, shuffle=shuffle))
    assert model.trained == first(batches) * 2
    assert model.validated == first(batches) * 2
    assert (used.num_training_batches, used.num_val_batches) == (batches, [batches])
    assert used.global_step == 2 * batches


@pytest.mark.parametrize("off", [0, 0.0])
def test_nothing_to_overfit(off: Any) -> None:
    model, used = fit(off, loader(4), loader(4))
    assert used.global_step == len(model.validated) == 8


def test_a_shuffled_loader_is_said_to_be_unshuffled(caplog: pytest.LogCaptureFixture) -> None:
    fit(2, loader(8), loader(8))
    assert "shuffling" not in caplog.text
    fit(2, loader(8, shuffle=True), loader(8))
    assert caplog.text.count("the loader's shuffling is left out") == 1


def test_the_loader_that_was_given_stays_as_it_is() -> None:
    """Another Trainer shuffles it again."""
    data = loader(8, shuffle=True)
    fit(2, data, loader(2))
    assert isinstance(data.sampler, RandomSampler)
    model = Notes()
    trainer(limit_val_batches=0).fit(model, data, loader(1))
    assert sorted(chain(*model.trained)) == sorted(chain(*first(8)))
    assert model.trained != first(8)


@pytest.mark.parametrize("kind", [SubsetRandomSampler, WeightedRandomSampler, RandomSampler])
def test_other_samplers_that_draw(kind: type[Sampler[int]]) -> None:
    """Whatever a sampler would draw anew in each epoch, the batches stay the same."""
    data = dataset(16)
    samplers: dict[type, Sampler[int]] = {
        SubsetRandomSampler: SubsetRandomSampler(range(16)),
        WeightedRandomSampler: WeightedRandomSampler([1.0] * 16, 16),
        RandomSampler: RandomSampler(data, replacement=True, num_samples=16),
    }
    model, _ = fit(2, DataLoader(data, batch_size=2, sampler=samplers[kind]), loader(1))
    assert model.trained[:2] == model.trained[2:]


def test_a_collate_function_of_ones_own() -> None:
    def doubled(rows: list[tuple[Tensor, Tensor]]) -> list[Tensor]:
        return [torch.stack([x for x, _ in rows]) * 2, torch.stack([y for _, y in rows])]

    model, _ = fit(2, loader(8, shuffle=True, collate_fn=doubled), loader(1))
    assert model.trained == [[2 * x for x in batch] for batch in first(2)] * 2


def test_other_settings_of_the_loader() -> None:
    generator = torch.Generator()
    data = DataLoader(dataset(7), batch_size=3, shuffle=True, drop_last=True, timeout=0, generator=generator)
    _, used = fit(1.0, data, loader(1))
    kept = used.train_dataloader
    assert (kept.batch_size, kept.drop_last, kept.generator, len(kept)) == (3, True, generator, 2)
    assert isinstance(kept.sampler, SequentialSampler)
    assert kept.dataset is data.dataset


def test_a_batch_sampler_of_ones_own() -> None:
    """It says itself which rows go together."""
    data = dataset(16)
    model, _ = fit(2, DataLoader(data, batch_sampler=BatchSampler(SequentialSampler(data), 3, True)), loader(1))
    assert model.trained == first(2, size=3) * 2


class Doubles(DataLoader[Any]):
    """A loader of a class of its own."""

    def __iter__(self) -> Iterator[Any]:  # type: ignore[override]
        return ((x * 2, y) for x, y in super().__iter__())


@pytest.mark.parametrize("shuffle", [False, True])
def test_a_loader_of_a_class_of_its_own(shuffle: bool) -> None:
    model, _ = fit(2, Doubles(dataset(16), batch_size=2, shuffle=shuffle), loader(1))
    assert model.trained == [[2 * x for x in batch] for batch in first(2)] * 2


def test_several_loaders_and_streams() -> None:
    class Pairs(Notes):
        def training_step(self, batch: Any, batch_idx: int) -> Any:
            self.trained += [batch["a"][0][:, 0].tolist(), batch["b"][0][:, 0].tolist()]
            return self.loss(batch["a"])

    model = Pairs()
    used = trainer(overfit_batches=1, max_epochs=2)
    used.fit(model, {"a": loader(8, shuffle=True), "b": stream(8)}, [loader(8, shuffle=True), stream(8)][:1])
    assert model.trained == first(1) * 4
    assert model.validated == first(1) * 2


def test_a_test_is_not_limited() -> None:
    used = trainer(overfit_batches=1)
    used.test(Line(), loader(4))
    assert used.num_test_batches == [4]


def test_steps_that_are_to_come() -> None:
    class Asks(Notes):
        def configure_optimizers(self) -> Any:
            asked.append(self.trainer.estimated_stepping_batches)
            return super().configure_optimizers()

    asked: list[Any] = []
    used = trainer(overfit_batches=0.5, max_epochs=3, accumulate_grad_batches=3)
    used.fit(Asks(), loader(8), loader(8))
    assert asked == [used.global_step] == [6]

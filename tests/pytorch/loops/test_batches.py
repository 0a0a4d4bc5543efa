"""What the loops take from loaders: limits, loaders without length, iterators handed over, odd loaders."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import wraps
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader

import gpulayer.pytorch as L
from tests.pytorch.models import Line, Validated, dataset, loader, stream, trainer


class Counts(Validated):
    """Notes the numbers of the batches of each stage."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: dict[str, list[int]] = {"train": [], "validation": [], "test": [], "predict": []}

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        self.seen["train"].append(batch_idx)
        return super().training_step(batch, batch_idx)

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        self.seen["validation"].append(batch_idx)

    def test_step(self, batch: Any, batch_idx: int) -> None:
        self.seen["test"].append(batch_idx)

    def predict_step(self, batch: Any, batch_idx: int) -> None:
        self.seen["predict"].append(batch_idx)


# -- limits -----------------------------------------------------------------------------------------------------------

LIMITS = [(None, 10), (3, 3), (20, 10), (0, 0), (1.0, 10), (0.5, 5), (0.39, 3), (0.0, 0), (1, 1)]


@pytest.mark.parametrize(("limit", "batches"), LIMITS)
def test_limit_train_batches(limit: float | None, batches: int) -> None:
    model, used = Line(), trainer(limit_train_batches=limit)
    used.fit(model, loader(10))
    assert used.global_step == batches
    assert used.num_training_batches == batches


@pytest.mark.parametrize(("limit", "batches"), LIMITS)
def test_limit_val_batches(limit: float | None, batches: int) -> None:
    """In `fit` and alone."""
    model, used = Counts(), trainer(limit_val_batches=limit)
    used.fit(model, loader(2), loader(10))
    assert model.seen["validation"] == list(range(batches))
    used.validate(model, loader(10))
    assert model.seen["validation"] == list(range(batches)) * 2
    assert used.num_val_batches == [batches]


@pytest.mark.parametrize("stage", ["test", "predict"])
@pytest.mark.parametrize(("limit", "batches"), LIMITS)
def test_limits_of_tests_and_predictions(stage: str, limit: float | None, batches: int) -> None:
    model, used = Counts(), trainer(**{f"limit_{stage}_batches": limit})
    getattr(used, stage)(model, loader(10))
    assert model.seen[stage] == list(range(batches))
    assert getattr(used, f"num_{stage}_batches") == [batches]


def test_a_limit_is_for_each_loader() -> None:
    class Two(Counts):
        def validation_step(self, batch: Any, batch_idx: int, dataloader_idx: int) -> None:
            self.seen["validation"].append(10 * dataloader_idx + batch_idx)

    model = Two()
    trainer(limit_val_batches=0.5).validate(model, [loader(4), loader(6)])
    assert model.seen["validation"] == [0, 1, 10, 11, 12]


def test_the_limited_epoch_ends_like_any_other() -> None:
    """Validation, the epoch's scheduler and the last, ragged window come at the last batch that is taken."""
    model = Counts()
    used = trainer(max_epochs=2, limit_train_batches=3, accumulate_grad_batches=2)
    used.fit(model, loader(10), loader(1))
    assert used.global_step == 4
    assert model.seen["validation"] == [0, 0]


def test_a_limited_loader_is_asked_for_no_more() -> None:
    """Fetching costs time, and draws random numbers."""

    class Fetched:
        def __len__(self) -> int:
            return 10

        def __iter__(self) -> Iterator[Any]:
            for batch in loader(10):
                fetched.append(1)
                yield batch

    fetched: list[int] = []
    trainer(limit_train_batches=3).fit(Line(), Fetched())
    assert len(fetched) == 3


def test_no_batches_are_warned_of() -> None:
    used = trainer()
    with pytest.warns(UserWarning, match="the training loader has no batches"):
        used.fit(Line(), [])
    assert used.global_step == 0


@pytest.mark.parametrize("steps", [1, 3, 4, 7])
def test_max_steps_ends_in_the_middle_of_an_epoch(steps: int) -> None:
    model, used = Counts(), trainer(max_steps=steps)
    used.fit(model, loader(4), loader(1))
    assert used.global_step == steps
    assert len(model.seen["train"]) == steps


def test_sanity_check_takes_two_batches_of_each_loader_by_default() -> None:
    model = Counts()
    used = L.Trainer(accelerator="cpu", logger=False, enable_checkpointing=False, limit_train_batches=0)
    used.fit(model, loader(4), loader(5))
    assert model.seen["validation"] == [0, 1]
    assert used.num_sanity_val_batches == [2]
    assert used.callback_metrics == {}


@pytest.mark.parametrize(("steps", "batches"), [(0, 0), (1, 1), (7, 5), (-1, 5)])
def test_num_sanity_val_steps(steps: int, batches: int) -> None:
    model = Counts()
    trainer(num_sanity_val_steps=steps, limit_train_batches=0).fit(model, loader(4), loader(5))
    assert model.seen["validation"] == list(range(batches))


# -- loaders without a length -----------------------------------------------------------------------------------------


def test_a_stream_ends_when_it_ends() -> None:
    model, used = Counts(), trainer(max_epochs=2)
    used.fit(model, stream(3), stream(2))
    assert model.seen["train"] == [0, 1, 2] * 2
    assert model.seen["validation"] == [0, 1] * 2
    assert used.num_training_batches == float("inf")


def test_a_limited_stream() -> None:
    model = Counts()
    trainer(limit_train_batches=2, limit_val_batches=1).fit(model, stream(3), stream(2))
    assert (model.seen["train"], model.seen["validation"]) == ([0, 1], [0])


def test_the_last_batch_of_a_stream_is_known() -> None:
    """`trainer.is_last_batch` is right in `training_step`, with a length and without one."""

    class Asks(Line):
        def training_step(self, batch: Any, batch_idx: int) -> Any:
            answers.append(self.trainer.is_last_batch)
            return self.loss(batch)

    for data in (loader(3), stream(3)):
        answers: list[bool] = []
        trainer().fit(Asks(), data)
        assert answers == [False, False, True]


def test_a_stream_steps_at_its_ragged_end() -> None:
    used = trainer(accumulate_grad_batches=2)
    used.fit(Line(), stream(5))
    assert used.global_step == 3


def test_validation_within_a_stream() -> None:
    """Every second of five batches, and at the end, which only the stream itself knows."""
    model = Counts()
    trainer(val_check_interval=2).fit(model, stream(5), loader(1))
    assert len(model.seen["validation"]) in (2, 3)


def test_a_generator_is_used_up_after_an_epoch() -> None:
    """Three batches in all: further epochs have none, and the run ends."""
    used = trainer(max_epochs=3)
    used.fit(Line(), (batch for batch in loader(3)))
    assert used.global_step == 3


@pytest.mark.timeout(10)
def test_a_generator_that_is_used_up_ends_a_run_without_bound() -> None:
    """10 steps are asked for, 3 batches there: the run must not turn in circles for ever."""
    used = trainer(max_steps=10)
    with pytest.warns(UserWarning, match="no batches|batch"):
        used.fit(Line(), (batch for batch in loader(3)))
    assert used.global_step == 3


# -- the step takes the iterator --------------------------------------------------------------------------------------


def test_a_step_that_fetches_its_batches_itself() -> None:
    class Fetches(Line):
        def training_step(self, dataloader_iter: Any) -> Any:
            batch, batch_idx, dataloader_idx = next(dataloader_iter)
            taken.append((batch_idx, dataloader_idx))
            return self.loss(batch)

    for data in (loader(4), stream(4)):
        taken: list[tuple[int, int]] = []
        used = trainer(max_epochs=2)
        used.fit(Fetches(), data)
        assert taken == [(i, 0) for i in range(4)] * 2
        assert used.global_step == 8


def test_a_step_that_fetches_two_batches() -> None:
    """Six batches are three steps; the epoch ends as usual, with its validation and its checkpoint."""

    class Pairs(Validated):
        def training_step(self, dataloader_iter: Any) -> Any:
            (first, _, _), (second, _, _) = next(dataloader_iter), next(dataloader_iter)
            return self.loss(first) + self.loss(second)

    for data in (loader(6), stream(6)):
        used = trainer(max_epochs=2)
        used.fit(Pairs(), data, loader(1))
        assert used.global_step == 6
        assert used.current_epoch == 2
        assert "val_loss" in used.callback_metrics


def test_a_step_that_fetches_may_log_a_mean() -> None:
    """To read the batch's size off must not use the iterator up; the batch is the one that was fetched last."""

    class Logs(Line):
        def training_step(self, dataloader_iter: Any) -> Any:
            batch, _, _ = next(dataloader_iter)
            self.log("size", float(len(batch[0])), on_step=False, on_epoch=True)
            return self.loss(batch)

    used = trainer()
    used.fit(Logs(), DataLoader(dataset(7), batch_size=3))
    assert used.global_step == 3
    assert float(used.callback_metrics["size"]) == pytest.approx((3 * 3 + 3 * 3 + 1 * 1) / 7)


def test_evaluation_steps_may_fetch_too() -> None:
    class Fetches(Counts):
        def validation_step(self, dataloader_iter: Any) -> None:
            batch, batch_idx, _ = next(dataloader_iter)
            self.seen["validation"].append(batch_idx)
            self.log("loss", self.loss(batch))

        def predict_step(self, dataloader_iter: Any) -> Any:
            _, batch_idx, _ = next(dataloader_iter)
            return batch_idx

    model = Fetches()
    assert trainer().validate(model, loader(3))["loss"] > 0
    assert model.seen["validation"] == [0, 1, 2]
    assert trainer().predict(model, loader(3)) == [0, 1, 2]


# -- signatures -------------------------------------------------------------------------------------------------------


def test_a_step_may_leave_out_the_number_of_the_batch() -> None:
    class Short(Line):
        def training_step(self, batch: Any) -> Any:
            return self.loss(batch)

        def validation_step(self, batch: Any) -> None:
            self.log("val_loss", self.loss(batch))

        def test_step(self, batch: Any) -> None:
            self.log("test_loss", self.loss(batch))

        def predict_step(self, batch: Any) -> Any:
            return len(batch[0])

    model, used = Short(), trainer()
    used.fit(model, loader(), loader())
    assert used.global_step == 4
    assert set(used.test(model, loader())) == {"test_loss"}
    assert used.predict(model, loader(3)) == [2, 2, 2]


def test_a_step_may_take_anything() -> None:
    class Open(Line):
        def training_step(self, *args: Any, **kwargs: Any) -> Any:
            assert len(args) == 2
            return self.loss(args[0])

        def validation_step(self, *args: Any) -> None:
            sizes.add(len(args))

    sizes: set[int] = set()
    trainer().fit(Open(), loader(), loader())
    trainer().validate(Open(), [loader(), loader()])
    assert sizes == {2, 3}


def test_a_step_may_give_the_loader_a_default() -> None:
    class Default(Counts):
        def validation_step(self, batch: Any, batch_idx: int, dataloader_idx: int = 7) -> None:
            self.seen["validation"].append(dataloader_idx)

    model = Default()
    trainer().validate(model, loader(1))
    trainer().validate(model, [loader(1), loader(1)])
    assert model.seen["validation"][1:] == [0, 1]


def test_a_decorated_step_keeps_its_signature() -> None:
    def decorated(step: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(step)
        def inner(*args: Any, **kwargs: Any) -> Any:
            return step(*args, **kwargs)

        return inner

    class Decorated(Line):
        @decorated
        def training_step(self, batch: Any) -> Any:
            return self.loss(batch)

    used = trainer()
    used.fit(Decorated(), loader())
    assert used.global_step == 4


# -- other loaders ----------------------------------------------------------------------------------------------------


def test_a_plain_list_of_batches() -> None:
    used = trainer(max_epochs=2)
    used.fit(Validated(), list(loader(3)), list(loader(2)))
    assert used.global_step == 6
    assert used.num_val_batches == [2]


def test_worker_processes() -> None:
    used = trainer(max_epochs=2)
    used.fit(Line(), loader(3, num_workers=1))
    assert used.global_step == 6


def test_a_sampler_is_told_the_epoch() -> None:
    class Sampler(torch.utils.data.SequentialSampler):
        def set_epoch(self, epoch: int) -> None:
            told.append(epoch)

    told: list[int] = []
    data = dataset(4)
    trainer(max_epochs=3).fit(Line(), DataLoader(data, sampler=Sampler(data)))
    assert told == [0, 1, 2]


def test_a_batch_sampler_is_told_the_epoch() -> None:
    class Sampler(torch.utils.data.BatchSampler):
        def set_epoch(self, epoch: int) -> None:
            told.append(epoch)

    told: list[int] = []
    data = dataset(4)
    sampler = Sampler(torch.utils.data.SequentialSampler(data), 2, False)
    trainer(max_epochs=2).fit(Line(), DataLoader(data, batch_sampler=sampler))
    assert told == [0, 1]


# -- made anew --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("every", "made"), [(0, [0]), (1, [0, 1, 2, 3, 4]), (2, [0, 2, 4])])
def test_reload_dataloaders_every_n_epochs(every: int, made: list[int]) -> None:
    class Data(L.DataModule):
        def train_dataloader(self) -> Any:
            train.append(used.current_epoch)
            return loader(1 + used.current_epoch)

        def val_dataloader(self) -> Any:
            val.append(used.current_epoch)
            return loader(1)

    train: list[int] = []
    val: list[int] = []
    used = trainer(max_epochs=5, reload_dataloaders_every_n_epochs=every)
    used.fit(Validated(), datamodule=Data())
    assert train == made
    assert val == made
    newest = {epoch: max(at for at in made if at <= epoch) for epoch in range(5)}
    assert used.global_step == sum(1 + newest[epoch] for epoch in range(5))

"""BasePredictionWriter: what it is given, when, and which samples that was made of."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import BatchSampler, DataLoader, Dataset, IterableDataset, RandomSampler, SequentialSampler

import gpulayer.pytorch as L
from gpulayer.fabric.utilities.exceptions import MisconfigurationException
from gpulayer.pytorch.callbacks import BasePredictionWriter
from tests.pytorch.models import trainer


class Tenfold(L.Module):
    """Predicts ten times its input."""

    def predict_step(self, batch: Any, batch_idx: int, dataloader_idx: int = 0) -> Any:
        return batch * 10


class Writer(BasePredictionWriter):
    """Writes to files, and notes which."""

    def __init__(self, folder: Path, write_interval: Any = "batch_and_epoch") -> None:
        super().__init__(write_interval)
        self.folder = folder

    def write_on_batch_end(
        self, trainer: Any, pl_module: Any, prediction: Any, batch_indices: Any, batch: Any, batch_idx: int,
        dataloader_idx: int,
    ) -> None:  # fmt: skip
        rows = {"prediction": prediction, "indices": list(batch_indices), "batch": batch}
        torch.save(rows, self.folder / f"{dataloader_idx}-{batch_idx}.pt")

    def write_on_epoch_end(self, trainer: Any, pl_module: Any, predictions: Any, batch_indices: Any) -> None:
        torch.save({"predictions": predictions, "indices": batch_indices}, self.folder / "all.pt")


def numbers(size: int = 7, **arguments: Any) -> DataLoader[Any]:
    """0, 1, 2 ..., so that a sample is its own index."""
    return DataLoader(torch.arange(size), **{"batch_size": 2, **arguments})  # type: ignore[arg-type]


def written(folder: Path) -> tuple[list[Any], Any]:
    """What was written for the batches, in order, and at the end."""
    batches = [torch.load(path) for path in sorted(folder.glob("*-*.pt"))]
    whole = folder / "all.pt"
    return batches, torch.load(whole) if whole.exists() else None


def predicted(folder: Path, loaders: Any, interval: str = "batch_and_epoch", **arguments: Any) -> tuple[list[Any], Any]:
    trainer(callbacks=[Writer(folder, interval)]).predict(Tenfold(), loaders, return_predictions=False, **arguments)
    return written(folder)


LOADERS: dict[str, Any] = {
    "in order": numbers,
    "shuffled": lambda: numbers(shuffle=True),
    "workers": lambda: numbers(13, shuffle=True, num_workers=2),
    "the last dropped": lambda: numbers(drop_last=True),
    "own batch sampler": lambda: numbers(batch_size=1, batch_sampler=BatchSampler(RandomSampler(range(7)), 3, False)),
    "no batching": lambda: numbers(batch_size=None),
    "indices as one": lambda: numbers(
        batch_size=None, sampler=BatchSampler(SequentialSampler(range(7)), 3, drop_last=False)
    ),
}


@pytest.mark.parametrize("name", LOADERS)
def test_each_prediction_comes_with_the_indices_of_its_samples(name: str, tmp_path: Path) -> None:
    batches, whole = predicted(tmp_path, LOADERS[name]())
    assert len(batches) > 2
    for batch in batches:
        assert batch["indices"] == batch["batch"].reshape(-1).tolist()
        assert torch.equal(batch["prediction"], batch["batch"] * 10)
    assert [list(indices) for indices in whole["indices"][0]] == [batch["indices"] for batch in batches]
    assert all(map(torch.equal, whole["predictions"], [batch["prediction"] for batch in batches]))


@pytest.mark.parametrize("interval", ["batch", "epoch", "batch_and_epoch"])
def test_intervals(interval: str, tmp_path: Path) -> None:
    batches, whole = predicted(tmp_path, numbers(), interval)
    assert len(batches) == (4 if "batch" in interval else 0)
    assert (whole is not None) == ("epoch" in interval)


def test_several_loaders(tmp_path: Path) -> None:
    """The same loader may come twice."""
    loader = numbers(5)
    batches, whole = predicted(tmp_path, [loader, numbers(3, shuffle=True), loader])
    assert [len(one) for one in whole["predictions"]] == [3, 2, 3]
    assert whole["indices"][0] == whole["indices"][2] == [[0, 1], [2, 3], [4]]
    for own, indices in zip(whole["predictions"], whole["indices"], strict=True):
        for prediction, samples in zip(own, indices, strict=True):
            assert (prediction // 10).tolist() == samples
    assert len(batches) == 8


def test_a_limit(tmp_path: Path) -> None:
    writer = Writer(tmp_path)
    trainer(callbacks=[writer], limit_predict_batches=2).predict(Tenfold(), numbers(99, num_workers=1))
    batches, whole = written(tmp_path)
    assert [batch["indices"] for batch in batches] == whole["indices"][0] == [[0, 1], [2, 3]]


def test_workers_that_live_on(tmp_path: Path) -> None:
    """Used before, with a writer and without; its sampler is its own again each time."""
    loader = numbers(9, shuffle=True, num_workers=1, persistent_workers=True)
    sampler = loader.batch_sampler
    list(loader)
    for _ in range(2):
        batches, _ = predicted(tmp_path, loader)
        assert [batch["indices"] for batch in batches] == [batch["batch"].tolist() for batch in batches]
        assert loader.batch_sampler is sampler
    assert sorted(int(number) for batch in loader for number in batch) == list(range(9))


def test_a_writer_changes_nothing_of_what_is_drawn(tmp_path: Path) -> None:
    torch.manual_seed(3)
    without = trainer().predict(Tenfold(), numbers(shuffle=True))
    torch.manual_seed(3)
    batches, _ = predicted(tmp_path, numbers(shuffle=True))
    assert without is not None
    assert all(map(torch.equal, without, [batch["prediction"] for batch in batches]))


class Endless(IterableDataset[Any]):
    def __iter__(self) -> Any:
        return iter(torch.arange(6))


@pytest.mark.parametrize("loader", [DataLoader(Endless(), batch_size=2), [torch.arange(2), torch.arange(2)]])
def test_where_samples_have_no_indices_there_are_none(loader: Any, tmp_path: Path) -> None:
    with pytest.warns(UserWarning, match="Writer gets no `batch_indices` for a (DataLoader|list)"):
        batches, whole = predicted(tmp_path, loader)
    assert len(batches) == len(whole["predictions"]) > 1
    assert all(batch["indices"] == [] for batch in batches)
    assert whole["indices"] == [[]]


def test_predictions_are_returned_and_let_go() -> None:
    """Whether there is a writer or not; the Trainer keeps none."""

    class Ends(BasePredictionWriter):
        seen: Any = None

        def write_on_epoch_end(self, trainer: Any, pl_module: Any, predictions: Any, batch_indices: Any) -> None:
            self.seen = [one.tolist() for one in predictions]
            assert trainer.predict_loop.predictions is predictions

    writer = Ends("epoch")
    used = trainer(callbacks=[writer])
    returned = used.predict(Tenfold(), numbers(3))
    assert returned is not None
    assert [one.tolist() for one in returned] == writer.seen == [[0, 10], [20]]
    assert used.predict(Tenfold(), numbers(3), return_predictions=False) is None
    assert used.predict_loop.predictions == used.predict_loop.epoch_batch_indices == []


def test_two_writers_at_once(tmp_path: Path) -> None:
    folders = [tmp_path / "one", tmp_path / "other"]
    for folder in folders:
        folder.mkdir()
    trainer(callbacks=[Writer(folders[0], "batch"), Writer(folders[1], "epoch")]).predict(Tenfold(), numbers(4))
    assert [batch["indices"] for batch in written(folders[0])[0]] == [[0, 1], [2, 3]]
    assert written(folders[1])[1]["indices"] == [[[0, 1], [2, 3]]]


def test_after_an_error_the_next_prediction_is_whole(tmp_path: Path) -> None:
    class Fails(Tenfold):
        def predict_step(self, batch: Any, batch_idx: int, dataloader_idx: int = 0) -> Any:
            if batch_idx == 1:
                raise ValueError("no")
            return batch * 10

    loader, used = numbers(), trainer(callbacks=[Writer(tmp_path)])
    with pytest.raises(ValueError, match="no"):
        used.predict(Fails(), loader)
    used.predict(Tenfold(), loader)
    assert written(tmp_path)[1]["indices"] == [[[0, 1], [2, 3], [4, 5], [6]]]


def test_mistakes(tmp_path: Path) -> None:
    with pytest.raises(MisconfigurationException, match=r"Writer\(write_interval='step'\)`: choose 'batch'"):
        Writer(tmp_path, "step")

    class Empty(BasePredictionWriter):
        pass

    for interval, name in (("batch", "write_on_batch_end"), ("epoch", "write_on_epoch_end")):
        with pytest.raises(MisconfigurationException, match=f"has no `{name}`"):
            trainer(callbacks=[Empty(interval)]).predict(Tenfold(), numbers())  # type: ignore[arg-type]

    class Iterates(L.Module):
        def predict_step(self, dataloader_iter: Any) -> Any:
            return next(dataloader_iter)

    with pytest.raises(MisconfigurationException, match="takes `dataloader_iter`"):
        trainer(callbacks=[Writer(tmp_path)]).predict(Iterates(), numbers())


class Given:
    """A batch sampler that gives indices as something else than lists of numbers."""

    def __init__(self, form: Any) -> None:
        self.form = form

    def __len__(self) -> int:
        return 3

    def __iter__(self) -> Any:
        order = torch.randperm(7)
        for start in range(0, 7, 3):
            yield self.form(order[start : start + 3])


REUSED: list[Any] = []


def reused(indices: torch.Tensor) -> list[Any]:
    REUSED[:] = indices.tolist()
    return REUSED


@pytest.mark.parametrize("form", [lambda one: one, lambda one: one.numpy(), list, tuple, reused],
                         ids=["tensor", "array", "tensors", "tuple", "reused"])  # fmt: skip
def test_indices_are_plain_numbers_whatever_the_sampler_gives(form: Any, tmp_path: Path) -> None:
    batches, whole = predicted(tmp_path, numbers(batch_size=1, batch_sampler=Given(form)))
    assert (
        [batch["indices"] for batch in batches] == [batch["batch"].tolist() for batch in batches] == whole["indices"][0]
    )
    assert all(type(index) is int for batch in batches for index in batch["indices"])


def test_samples_that_have_names(tmp_path: Path) -> None:
    class Named(Dataset[Any]):
        def __getitem__(self, name: Any) -> Any:
            return torch.tensor(len(name))

    names = ["one", ("a", "pair"), "three"]
    batches, _ = predicted(tmp_path, DataLoader(Named(), batch_size=None, sampler=names))  # type: ignore[arg-type]
    assert [batch["indices"] for batch in batches] == [["one"], [("a", "pair")], ["three"]]


def test_a_loader_that_leaves_batches_out_gets_no_wrong_indices(tmp_path: Path) -> None:
    class Filtered(DataLoader[Any]):
        def __iter__(self) -> Any:
            return filter(lambda batch: int(batch.sum()) % 2 == 0, super().__iter__())

        def __len__(self) -> int:
            raise TypeError

    with pytest.warns(UserWarning, match="Filtered.__iter__"):
        batches, _ = predicted(tmp_path, Filtered(torch.arange(9), batch_size=1))  # type: ignore[arg-type]
    assert [int(batch["batch"]) for batch in batches] == [0, 2, 4, 6, 8]
    assert all(batch["indices"] == [] for batch in batches)

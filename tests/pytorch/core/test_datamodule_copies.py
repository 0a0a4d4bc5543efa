"""Copies and pickles of a DataModule that a Trainer holds, as worker processes get them."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from copy import copy, deepcopy
from typing import Any

import pytest
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

import gpulayer.pytorch as L
from gpulayer.fabric.utilities.exceptions import MisconfigurationException
from tests.pytorch.models import Line, dataset, loader, trainer


class Rows(Dataset[Any]):
    """A dataset that knows its DataModule, as many do for a setting of it."""

    def __init__(self, data: Data) -> None:
        self.data = data

    def __len__(self) -> int:
        return 4

    def __getitem__(self, index: int) -> tuple[Tensor, ...]:
        assert self.data.trainer is None, "the Trainer came along"
        row, total = dataset(4)[index]
        return row * self.data.factor, total


class Data(L.DataModule):
    def __init__(self, factor: float = 1.0, workers: int = 0) -> None:
        super().__init__()
        self.save_hyperparameters()
        self.factor, self.workers = factor, workers

    def train_dataloader(self) -> Any:
        if not self.workers:
            return loader()
        return DataLoader(Rows(self), batch_size=2, num_workers=self.workers, multiprocessing_context="spawn")

    def state_dict(self) -> dict[str, Any]:
        return {"factor": self.factor}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.factor = state_dict["factor"]


def pickled(data: Any) -> Any:
    return pickle.loads(pickle.dumps(data))


WAYS: list[Callable[[Any], Any]] = [deepcopy, pickled, copy]


class Copies(L.Callback):
    """Makes a copy in each way while the DataModule is in use."""

    def __init__(self, data: Data) -> None:
        self.data, self.made = data, []

    def on_train_batch_end(self, *_: Any) -> None:
        self.made += [way(self.data) for way in WAYS]


def test_copies_leave_the_trainer_behind() -> None:
    data = Data(factor=3.0)
    copies = Copies(data)
    used = trainer(max_steps=1, callbacks=[copies])
    used.fit(Line(), datamodule=data)
    for one in (*copies.made, *[way(data) for way in WAYS]):
        assert type(one) is Data
        assert one.trainer is None
        assert (one.factor, one.hparams.factor) == (3.0, 3.0)
        again = trainer()
        again.fit(Line(), datamodule=one)
        assert (again.global_step, one.trainer) == (4, again)
    assert data.trainer is used


@pytest.mark.parametrize("way", WAYS, ids=lambda way: way.__name__)
def test_ready_made_datasets_can_be_copied(way: Callable[[Any], Any]) -> None:
    data = L.DataModule.from_datasets(dataset(8), batch_size=2)
    trainer().fit(Line(), datamodule=data)
    again = trainer()
    again.fit(Line(), datamodule=way(data))
    assert again.global_step == 4


def test_a_worker_process_gets_it() -> None:
    """With "spawn" the dataset is pickled, and the DataModule with it."""

    class Notes(Line):
        def training_step(self, batch: Any, batch_idx: int) -> Any:
            sums.append(float(batch[0].sum()))
            return super().training_step(batch, batch_idx)

    sums: list[float] = []
    data = Data(factor=10.0, workers=1)
    used = trainer()
    used.fit(Notes(), datamodule=data)
    rows = dataset(4).tensors[0] * 10
    assert sums == [float(rows[:2].sum()), float(rows[2:].sum())]
    assert data.trainer is used


# -- load_from_checkpoint ---------------------------------------------------------------------------------------------


def saved(data: Data) -> str:
    used = trainer()
    used.fit(Line(), datamodule=data)
    used.save_checkpoint("model.ckpt")
    return "model.ckpt"


def test_loading_into_an_object_that_is_there() -> None:
    """Its answer would be dropped, and the object left as it was."""
    data = Data(factor=3.0)
    path = saved(data)
    with pytest.raises(TypeError, match=r"Data\.load_from_checkpoint"):
        Data().load_from_checkpoint(path)
    with pytest.raises(TypeError, match="call it on the class"):
        data.load_from_checkpoint(path)
    assert Data.load_from_checkpoint(path).factor == 3.0


def test_an_argument_that_is_missing_and_one_that_is_wrong_deep_inside() -> None:
    class Needs(Data):
        def __init__(self, folder: str, factor: float = 1.0) -> None:
            super().__init__(factor)
            len(folder)

    path = saved(Data())
    with pytest.raises(MisconfigurationException, match=r"Needs could not be made.*'folder'"):
        Needs.load_from_checkpoint(path)
    with pytest.raises(TypeError, match=r"object of type 'int' has no len\(\)"):
        Needs.load_from_checkpoint(path, folder=5)

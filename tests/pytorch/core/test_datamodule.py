"""DataModule: hooks, ready-made datasets, and state in checkpoints."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, RandomSampler, SequentialSampler

import gpulayer.pytorch as L
from tests.pytorch.models import Line, Stream, Validated, dataset, loader, trainer


class Recorded(L.DataModule):
    """Notes what is called."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[str] = []

    def prepare_data(self) -> None:
        self.calls.append("prepare_data")

    def setup(self, stage: str) -> None:
        self.calls.append(f"setup {stage}")

    def teardown(self, stage: str) -> None:
        self.calls.append(f"teardown {stage}")

    def train_dataloader(self) -> Any:
        self.calls.append("train_dataloader")
        return loader()

    def val_dataloader(self) -> Any:
        self.calls.append("val_dataloader")
        return [loader(1), loader(2)]

    def test_dataloader(self) -> Any:
        self.calls.append("test_dataloader")
        return loader()

    def predict_dataloader(self) -> Any:
        self.calls.append("predict_dataloader")
        return loader(3)


class Four(L.DataModule):
    def train_dataloader(self) -> Any:
        return loader(4)


class Several(Line):
    def validation_step(self, batch: Any, batch_idx: int, dataloader_idx: int) -> None:
        self.log("val_loss", self.loss(batch))


def test_hooks_come_in_order_and_once() -> None:
    data, used = Recorded(), trainer(max_epochs=2)
    used.fit(Several(), datamodule=data)
    assert data.calls == [
        "prepare_data", "setup fit", "train_dataloader", "val_dataloader", "teardown fit",
    ]  # fmt: skip
    data.calls.clear()
    used.test(Several(), datamodule=data)
    assert data.calls == ["prepare_data", "setup test", "test_dataloader", "teardown test"]
    assert used.num_val_batches == [1, 2]
    assert used.datamodule is data
    assert data.trainer is used


def test_it_may_stand_in_the_place_of_loaders() -> None:
    data, used = Recorded(), trainer()
    used.fit(Several(), data)
    assert used.global_step == 4
    predictions = used.predict(Several(), data)
    assert predictions is not None
    assert len(predictions) == 3
    assert set(used.validate(Several(), data)) == {"val_loss/dataloader_idx_0", "val_loss/dataloader_idx_1"}


def test_its_loaders_come_before_the_modules() -> None:
    class Both(Line):
        def train_dataloader(self) -> Any:
            return loader(1)

    used = trainer()
    used.fit(Both(), datamodule=Four())
    assert used.num_training_batches == 4


def test_a_module_may_load_its_own_data() -> None:
    class Own(Line):
        def train_dataloader(self) -> Any:
            return loader(3)

    used = trainer()
    used.fit(Own())
    assert used.global_step == 3


def test_batches_pass_its_transfer_hooks() -> None:
    class Moves(Four):
        def on_before_batch_transfer(self, batch: Any, dataloader_idx: int) -> Any:
            order.append("before")
            return batch

        def transfer_batch_to_device(self, batch: Any, device: torch.device, dataloader_idx: int) -> Any:
            order.append(f"to {device}")
            return super().transfer_batch_to_device(batch, device, dataloader_idx)

        def on_after_batch_transfer(self, batch: Any, dataloader_idx: int) -> Any:
            order.append("after")
            return [batch[0] * 0, batch[1]]

    class Sees(Line):
        def training_step(self, batch: Any, batch_idx: int) -> Any:
            assert not batch[0].any()
            return self.loss(batch)

    order: list[str] = []
    trainer().fit(Sees(), Moves())
    assert order == ["before", "to cpu", "after"] * 4


def test_it_is_told_of_an_error() -> None:
    class Told(Four):
        def on_exception(self, exception: BaseException) -> None:
            told.append(exception)

    class Breaks(Line):
        def training_step(self, batch: Any, batch_idx: int) -> Any:
            raise ValueError("the user's own")

    told: list[BaseException] = []
    with pytest.raises(ValueError, match="the user's own") as caught:
        trainer().fit(Breaks(), Told())
    assert told == [caught.value]


# -- from_datasets ----------------------------------------------------------------------------------------------------


def test_ready_made_datasets() -> None:
    data = L.DataModule.from_datasets(dataset(8), dataset(6), dataset(4), dataset(2), batch_size=2)
    sizes = [len(data.train_dataloader()), len(data.val_dataloader()), len(data.test_dataloader())]
    assert [*sizes, len(data.predict_dataloader())] == [4, 3, 2, 1]
    assert isinstance(data.train_dataloader().sampler, RandomSampler)
    for other in (data.val_dataloader(), data.test_dataloader(), data.predict_dataloader()):
        assert isinstance(other.sampler, SequentialSampler)


def test_several_datasets_and_streams() -> None:
    data = L.DataModule.from_datasets(Stream(8), [dataset(6), dataset(4)], batch_size=2)
    assert [len(each) for each in data.val_dataloader()] == [3, 2]
    assert len(list(data.train_dataloader())) == 4


def test_a_run_with_ready_made_datasets() -> None:
    used = trainer(max_epochs=2)
    used.fit(Validated(), datamodule=L.DataModule.from_datasets(dataset(8), dataset(4), batch_size=4))
    assert used.global_step == 4
    assert "val_loss" in used.callback_metrics


def test_what_is_not_given_is_not_there() -> None:
    with pytest.warns(UserWarning, match="no validation loader"):
        trainer().fit(Validated(), datamodule=L.DataModule.from_datasets(dataset(8)))


def test_arguments_of_a_subclass() -> None:
    class Own(L.DataModule):
        def __init__(self, batch_size: int, note: str = "") -> None:
            super().__init__()
            self.batch_size, self.note = batch_size, note

    data = Own.from_datasets(dataset(8), batch_size=4, note="hello")
    assert isinstance(data, Own)
    assert (data.batch_size, data.note) == (4, "hello")


# -- state ------------------------------------------------------------------------------------------------------------


class Stateful(L.DataModule):
    def __init__(self, size: int = 2) -> None:
        super().__init__()
        self.save_hyperparameters()
        self.seen = 0

    def train_dataloader(self) -> Any:
        return DataLoader(dataset(8), batch_size=self.hparams.size)

    def on_after_batch_transfer(self, batch: Any, dataloader_idx: int) -> Any:
        self.seen += 1
        return batch

    def state_dict(self) -> dict[str, Any]:
        return {"seen": self.seen}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.seen = state_dict["seen"]


def test_state_is_kept_in_checkpoints() -> None:
    used = trainer()
    used.fit(Line(), Stateful())
    used.save_checkpoint("data.ckpt")
    assert torch.load("data.ckpt", weights_only=True)["Stateful"] == {"seen": 4}
    data = Stateful()
    trainer(max_epochs=2).fit(Line(), data, ckpt_path="data.ckpt")
    assert data.seen == 8


def test_it_can_be_made_from_a_checkpoint() -> None:
    used = trainer()
    used.fit(Line(), Stateful(size=4))
    used.save_checkpoint("data.ckpt")
    data = Stateful.load_from_checkpoint("data.ckpt")
    assert (data.hparams.size, data.seen) == (4, 2)
    assert Stateful.load_from_checkpoint("data.ckpt", size=8).hparams.size == 8

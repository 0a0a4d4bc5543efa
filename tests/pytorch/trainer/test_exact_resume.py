"""A run resumed in mid-epoch ends as one that was not interrupted: the next batch, the same numbers, bit for bit."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import BatchSampler, DataLoader, Dataset, IterableDataset, RandomSampler, WeightedRandomSampler

import gpulayer.pytorch as L
from gpulayer.pytorch.callbacks import ModelCheckpoint
from gpulayer.pytorch.core.resume import go_on, start_of
from gpulayer.pytorch.utilities import CombinedLoader
from tests.pytorch.models import trainer

pytestmark = [
    pytest.mark.filterwarnings("ignore:The checkpoint holds the state of callbacks"),
    pytest.mark.filterwarnings("ignore:.*has a `validation_step`, but there is no validation loader"),
]

SAMPLES, SIZE = 22, 2  # eleven batches


class Data(Dataset[Tensor]):
    """Rows that tell their index; remembers which were loaded, and adds noise drawn in the main process."""

    def __init__(self, samples: int = SAMPLES, noise: bool = False) -> None:
        self.samples, self.noise = samples, noise
        self.loaded: list[int] = []

    def __len__(self) -> int:
        return self.samples

    def __getitem__(self, index: int) -> Tensor:
        self.loaded.append(index)
        row = torch.full((4,), float(index))
        if self.noise:
            row = row + torch.rand(4) + random.random() + float(np.random.rand())
        return row


class Model(L.Module):
    """With dropout and BatchNorm; notes the rows of every batch."""

    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Dropout(0.5), nn.Linear(8, 1))
        self.seen: list[Any] = []

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        parts = (
            batch if isinstance(batch, (list, tuple)) else list(batch.values()) if isinstance(batch, dict) else [batch]
        )
        self.seen.append([None if part is None else part.tolist() for part in parts])
        loss = torch.stack([self.net(part / SAMPLES).square().mean() for part in parts if part is not None]).sum()
        self.log("loss", loss, on_step=True, on_epoch=True)
        return loss

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        self.log("val_loss", self.net(batch / SAMPLES).square().mean() + torch.rand(()))

    def configure_optimizers(self) -> Any:
        optimizer = torch.optim.AdamW(self.parameters(), lr=0.01)
        return [optimizer], [{"scheduler": torch.optim.lr_scheduler.StepLR(optimizer, 3), "interval": "step"}]


def shuffled(**arguments: Any) -> DataLoader[Tensor]:
    return DataLoader(Data(), batch_size=SIZE, shuffle=True, **arguments)


class Stream(IterableDataset[Tensor]):
    def __iter__(self) -> Iterator[Tensor]:
        return (torch.full((4,), float(index)) for index in range(SAMPLES))


LOADERS: dict[str, Callable[[], Any]] = {
    "shuffled": shuffled,
    "in order": lambda: DataLoader(Data(), batch_size=SIZE),
    "noise": lambda: DataLoader(Data(noise=True), batch_size=SIZE, shuffle=True),
    "the last dropped": lambda: DataLoader(Data(23), batch_size=SIZE, shuffle=True, drop_last=True),
    "the last shorter": lambda: DataLoader(Data(23), batch_size=3, shuffle=True),
    "own generator": lambda: shuffled(generator=torch.Generator().manual_seed(3)),
    "with replacement": lambda: DataLoader(
        Data(), batch_size=SIZE, sampler=RandomSampler(Data(), replacement=True, num_samples=SAMPLES)
    ),
    "weighted": lambda: DataLoader(
        Data(), batch_size=SIZE, sampler=WeightedRandomSampler([float(i + 1) for i in range(SAMPLES)], SAMPLES)
    ),
    "own batch sampler": lambda: DataLoader(Data(), batch_sampler=BatchSampler(RandomSampler(Data()), SIZE, False)),
    "no batching": lambda: DataLoader(
        [torch.full((2, 4), float(i)) for i in range(11)],
        batch_size=None,
        shuffle=True,  # type: ignore[arg-type]
    ),
    "ready-made batches": lambda: [torch.full((2, 4), float(i)) for i in range(11)],
    "workers": lambda: shuffled(num_workers=2),
    "persistent workers": lambda: shuffled(num_workers=1, persistent_workers=True),
    "several, the shorter begun anew": lambda: [
        shuffled(),
        DataLoader(Data(6), batch_size=SIZE, shuffle=True),
        DataLoader(Data(8), batch_size=SIZE, shuffle=True, generator=torch.Generator().manual_seed(5)),
    ],
    "several, the shortest counts": lambda: CombinedLoader(
        {"a": shuffled(), "b": DataLoader(Data(16), batch_size=SIZE, shuffle=True)}, "min_size"
    ),
    "several, the longest counts": lambda: CombinedLoader(
        [shuffled(), DataLoader(Data(6), batch_size=SIZE, shuffle=True)], "max_size"
    ),
    "several, one after another": lambda: CombinedLoader(
        [shuffled(), DataLoader(Data(6), batch_size=SIZE, shuffle=True)], "sequential"
    ),
}


def fit(make: Callable[[], Any], path: str | None = None, saves: bool = False, **arguments: Any) -> Model:
    """Two epochs; the same start, whatever was drawn before."""
    L.seed_everything(1, verbose=False)
    model = Model()
    savers = [ModelCheckpoint("saved", "{step}-{epoch}", every_n_train_steps=1, save_top_k=-1)] if saves else []
    if path is not None:
        L.seed_everything(99, verbose=False)
    trainer(**{"max_epochs": 2, "callbacks": savers, **arguments}).fit(model, make(), ckpt_path=path)
    return model


def weights(model: Model) -> list[Tensor]:
    return [value.clone() for value in model.state_dict().values()]


def same_end(resumed: Model, whole: Model) -> bool:
    """The rest of the batches, and the weights, bit for bit."""
    return (
        resumed.seen == whole.seen[len(whole.seen) - len(resumed.seen) :]
        and all(map(torch.equal, weights(resumed), weights(whole)))
        and float(resumed.trainer.callback_metrics["loss_epoch"]) == float(whole.trainer.callback_metrics["loss_epoch"])
    )


def saved() -> list[str]:
    return [str(path) for path in sorted(Path("saved").glob("*.ckpt"), key=lambda path: path.stat().st_mtime_ns)]


@pytest.mark.parametrize("name", LOADERS)
def test_the_next_batch_is_the_very_next(name: str) -> None:
    whole = fit(LOADERS[name], saves=True)
    for number, path in enumerate(saved(), 1):
        if number in (
            (4, 12) if name == "persistent workers" else (1, 3, 4, 7, 10, 11, 12, 15)
        ):  # each takes 5 s to end
            resumed = fit(LOADERS[name], path)
            assert len(resumed.seen) == len(whole.seen) - number
            assert same_end(resumed, whole), (name, path)


@pytest.mark.parametrize("accumulate", [2, 3, 4])
def test_in_the_middle_of_an_accumulated_step(accumulate: int) -> None:
    """What the batches before have added to the gradients is there."""

    class Saves(L.Callback):
        def on_train_batch_end(self, trainer: L.Trainer, *_: Any) -> None:
            trainer.save_checkpoint(f"saved/{trainer.progress.batch:02}.ckpt")

    whole = fit(shuffled, accumulate_grad_batches=accumulate, callbacks=[Saves()])
    for number, path in enumerate(sorted(Path("saved").glob("*.ckpt")), 1):
        resumed = fit(shuffled, str(path), accumulate_grad_batches=accumulate)
        assert len(resumed.seen) == 22 - number
        assert same_end(resumed, whole), path


def test_with_validation_in_mid_epoch() -> None:
    def run(path: str | None = None, saves: bool = False) -> Model:
        L.seed_everything(1, verbose=False)
        model = Model()
        savers = [ModelCheckpoint("saved", "{step}", every_n_train_steps=1, save_top_k=-1)] if saves else []
        trainer(max_epochs=2, callbacks=savers, val_check_interval=3).fit(model, shuffled(), shuffled(), ckpt_path=path)
        return model

    whole = run(saves=True)
    for path in saved():
        assert same_end(run(path), whole), path


def test_nothing_is_loaded_only_to_be_passed_over() -> None:
    fit(shuffled, saves=True)
    loader = shuffled()
    fit(lambda: loader, saved()[6], max_epochs=1)
    assert len(loader.dataset.loaded) == SAMPLES - 7 * SIZE  # type: ignore[attr-defined]
    assert loader.batch_sampler is not None
    assert type(loader.batch_sampler) is BatchSampler


def test_an_epoch_after_the_resumed_one_is_whole() -> None:
    fit(shuffled, saves=True, max_epochs=1)
    resumed = fit(shuffled, saved()[6], max_epochs=3)
    epochs = resumed.seen[4:15], resumed.seen[15:]
    for epoch in epochs:
        assert sorted(row[0] for (batch,) in epoch for row in batch) == list(range(SAMPLES))
    assert all(one != other for one, other in pairwise(epochs))


def test_data_without_indices_are_passed_over_with_a_warning() -> None:
    def stream() -> Any:
        return DataLoader(Stream(), batch_size=SIZE)

    whole = fit(stream, saves=True)
    with pytest.warns(UserWarning, match=r"its first 3 batches are loaded once more.*state_dict"):
        resumed = fit(stream, saved()[2])
    assert same_end(resumed, whole)


class Stateful(IterableDataset[Tensor]):
    """Knows where it is."""

    def __init__(self) -> None:
        self.at = 0

    def __iter__(self) -> Iterator[Tensor]:
        self.at %= SAMPLES
        while self.at < SAMPLES:
            self.at += 1
            yield torch.full((4,), float(self.at - 1))

    def __len__(self) -> int:
        return SAMPLES

    def state_dict(self) -> dict[str, int]:
        return {"at": self.at}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.at = state["at"]


def test_data_that_know_where_they_are_are_asked() -> None:
    def stateful() -> Any:
        return DataLoader(Stateful(), batch_size=SIZE)

    whole = fit(stateful, saves=True)
    for number in (1, 4, 10, 14):
        assert same_end(fit(stateful, saved()[number - 1]), whole), number


class Caches(Data):
    """Has a state that says nothing of the place: its samples have indices."""

    def state_dict(self) -> dict[str, int]:
        return {"cached": 3}

    def load_state_dict(self, state: dict[str, int]) -> None:
        raise AssertionError("it is no stream")


def test_the_state_of_data_with_indices_is_their_own_affair() -> None:
    def caches() -> Any:
        return DataLoader(Caches(), batch_size=SIZE, shuffle=True)

    whole = fit(caches, saves=True)
    assert same_end(fit(caches, saved()[4]), whole)


class Custom:
    """A loader of the user's own, with names that a DataLoader has, too."""

    persistent_workers = True

    def __iter__(self) -> Iterator[Tensor]:
        self._iterator = iter([torch.full((2, 4), float(index)) for index in range(11)])
        return self._iterator

    def __len__(self) -> int:
        return 11


@pytest.mark.filterwarnings("ignore:The run goes on in mid-epoch with a Custom that cannot be told")
def test_a_loader_of_the_users_own() -> None:
    whole = fit(Custom, saves=True)
    for number in (3, 11, 14):
        assert same_end(fit(Custom, saved()[number - 1]), whole), number


def test_a_late_batch_is_there_at_once() -> None:
    """A hundred thousand batches into a shuffled epoch: a matter of indices."""
    loader = DataLoader(range(3_300_000), batch_size=32, shuffle=True)  # type: ignore[arg-type]
    start = start_of(loader)
    began = time.perf_counter()
    next(go_on(loader, 100_000, start))
    assert time.perf_counter() - began < 5  # about one second on a quiet machine

"""Resuming with loaders that know their place, steps that take several batches, and gradients gathered by hand."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, IterableDataset
from torchdata.stateful_dataloader import StatefulDataLoader

import gpulayer.pytorch as L
from gpulayer.pytorch.utilities import CombinedLoader
from tests.pytorch.models import trainer

# What torchdata 0.11 itself gives rise to, with torch from 2.12 on.
pytestmark = pytest.mark.filterwarnings("ignore:'set_vital' is deprecated")

ROWS = torch.arange(44.0).reshape(11, 4) / 44


class Stream(IterableDataset[Tensor]):
    """Has no length, draws random numbers, and knows its place."""

    def __init__(self, samples: int = 11) -> None:
        self.samples, self.at, self.passes = samples, 0, 0

    def __iter__(self) -> Iterator[Tensor]:
        while self.at < self.samples:
            self.at += 1
            yield torch.rand(4) + self.at + 100 * self.passes
        self.at, self.passes = 0, self.passes + 1

    def state_dict(self) -> dict[str, int]:
        return {"at": self.at, "passes": self.passes}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.at, self.passes = state["at"], state["passes"]


class Model(L.Module):
    def __init__(self, how: str = "") -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.5), nn.Linear(4, 1))
        self.automatic_optimization = not how
        self.how = how
        self.seen: list[Any] = []

    def loss(self, batch: Any) -> Tensor:
        parts = [part for part in (batch if isinstance(batch, list) else [batch]) if part is not None]
        self.seen.append([part.tolist() for part in parts])
        return self.net(torch.cat(parts)).square().mean()

    def training_step(self, batch: Any, batch_idx: int) -> Tensor | None:
        loss = self.loss(batch)
        if self.automatic_optimization:
            return loss
        optimizer: Any = self.optimizers()
        if self.how in ("before", "plain") and (self.how == "plain" or batch_idx % 3 == 0):
            optimizer.zero_grad()
        loss.backward()
        if self.how == "plain" or batch_idx % 3 == 2:
            optimizer.step()
            if self.how in ("after", "to zero"):
                optimizer.zero_grad(set_to_none=self.how == "after")
        return None

    def configure_optimizers(self) -> Any:
        return torch.optim.Adam(self.parameters(), lr=0.05)


class Taking(Model):
    """Takes up to three batches for a step."""

    def training_step(self, dataloader_iter: Any) -> Tensor:  # type: ignore[override]
        batches = [batch for _, (batch, _, _) in zip(range(3), dataloader_iter, strict=False)]
        return self.loss(torch.cat(batches))


class Saves(L.Callback):
    """After each batch, and each epoch."""

    def on_train_batch_end(self, trainer: L.Trainer, *_: Any) -> None:
        trainer.save_checkpoint(f"saved/{trainer.progress.batch:02}.ckpt")

    def on_train_epoch_end(self, trainer: L.Trainer, *_: Any) -> None:
        trainer.save_checkpoint(f"saved/{trainer.progress.batch:02}-epoch.ckpt")


def fit(make: Callable[[], Any], path: Any = None, model: Callable[[], Model] = Model, **arguments: Any) -> Model:
    L.seed_everything(1 if path is None else 5, verbose=False)
    module = model()
    callbacks = [Saves()] if path is None else []
    trainer(**{"max_epochs": 2, "callbacks": callbacks, **arguments}).fit(module, make(), ckpt_path=path)
    return module


def check(make: Callable[[], Any], every: int = 1, **arguments: Any) -> None:
    """From each checkpoint the rest is the same, bit for bit."""
    whole = fit(make, **arguments)
    for path in sorted(Path("saved").glob("*.ckpt"))[::every]:
        resumed = fit(make, path, **arguments)
        assert resumed.seen == whole.seen[len(whole.seen) - len(resumed.seen) :], path
        for one, other in zip(resumed.state_dict().values(), whole.state_dict().values(), strict=True):
            assert torch.equal(one, other), path


def stateful(data: Any = ROWS, **arguments: Any) -> StatefulDataLoader[Any]:
    return StatefulDataLoader(data, batch_size=2, **arguments)


LOADERS: dict[str, Callable[[], Any]] = {
    "shuffled": lambda: stateful(shuffle=True),
    "own generator": lambda: stateful(shuffle=True, generator=torch.Generator().manual_seed(2)),
    "stream": lambda: stateful(Stream()),
    "several": lambda: [stateful(shuffle=True), stateful(Stream(3)), DataLoader(Stream(5), batch_size=2)],
    "the longest counts": lambda: CombinedLoader([stateful(shuffle=True), stateful(Stream(4))], "max_size"),
    "in turn": lambda: CombinedLoader([stateful(Stream()), stateful(shuffle=True)], "sequential"),
}


@pytest.mark.parametrize("name", LOADERS)
def test_stateful_dataloader(name: str) -> None:
    check(LOADERS[name])


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # torchdata's own, in its workers
@pytest.mark.parametrize("arguments", [{"snapshot_every_n_steps": 3}, {"persistent_workers": True}])
def test_stateful_dataloader_with_workers(arguments: dict[str, Any]) -> None:
    check(lambda: stateful(shuffle=True, num_workers=1, **arguments), every=8)


@pytest.mark.parametrize("name", ["shuffled", "stream"])
def test_stateful_dataloader_under_a_limit(name: str) -> None:
    check(LOADERS[name], limit_train_batches=4)


@pytest.mark.parametrize("make", [lambda: DataLoader(ROWS, batch_size=1, shuffle=True), lambda: stateful(Stream(20))])  # type: ignore[arg-type]
def test_a_step_that_takes_several_batches(make: Callable[[], Any]) -> None:
    check(make, model=Taking)


HOW = ["plain", "before", "after", "to zero", "never"]


@pytest.mark.parametrize("how", HOW)
def test_gradients_gathered_by_hand(how: str) -> None:
    check(lambda: DataLoader(ROWS, batch_size=1, shuffle=True), model=lambda: Model(how))  # type: ignore[arg-type]


def test_gradients_that_have_served_are_left_out() -> None:
    fit(lambda: DataLoader(ROWS, batch_size=1), model=lambda: Model("plain"))  # type: ignore[arg-type]
    held = [len(torch.load(path)["gpulayer"]["gradients"]) for path in sorted(Path("saved").glob("??.ckpt"))]
    assert held == [4] + [0] * 21  # after the first step nobody knows whether the module will add to them


def test_gradients_that_a_hook_sees_are_there() -> None:
    class Looks(Model):
        def on_before_zero_grad(self, optimizer: Any) -> None:
            gradient = self.net[0].weight.grad
            self.seen.append(None if gradient is None else gradient.tolist())

    check(lambda: DataLoader(ROWS, batch_size=1, shuffle=True), model=Looks)  # type: ignore[arg-type]


def test_random_numbers_of_the_first_hooks_are_not_drawn_twice() -> None:
    class Draws(Model):
        def on_train_start(self) -> None:
            torch.rand(3)

        def on_train_epoch_start(self) -> None:
            torch.rand(3)

    check(lambda: DataLoader(ROWS, batch_size=2, shuffle=True), model=Draws)  # type: ignore[arg-type]


def test_one_warning_says_what_passing_over_costs() -> None:
    def generated() -> Any:
        class Generated:
            def __iter__(self) -> Iterator[Tensor]:
                return iter(torch.rand(6, 2, 4))

        return Generated()

    fit(generated)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        fit(generated, "saved/04.ckpt")
    told = [str(one.message) for one in caught if "goes on in mid-epoch" in str(one.message)]
    assert len(told) == 1
    assert "a Generated that cannot be told where to begin: its first 4 batches are loaded once more" in told[0]

"""A run that is broken off at the end of an epoch and resumed ends as if it had not been."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import gpulayer.pytorch as L
from gpulayer.pytorch.callbacks import ModelCheckpoint
from tests.pytorch.models import FEATURES, Line, Validated, loader, same, trainer, weights


class Noisy(Validated):
    """Everything that has state: dropout, batch statistics, momenta, a scheduler, random numbers of three kinds."""

    def __init__(self, schedule: str = "epoch") -> None:
        super().__init__()
        self.net = nn.Sequential(  # type: ignore[assignment]
            nn.Linear(FEATURES, 8), nn.BatchNorm1d(8), nn.Dropout(0.5), nn.Linear(8, 1)
        )
        self.schedule = schedule
        self.trained = 0  # batches

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        self.trained += 1
        loss = super().training_step(batch, batch_idx)
        return loss * (1 + random.random() + float(np.random.rand()) + float(torch.rand(())))

    def validation_step(self, batch: Any, batch_idx: int) -> Any:
        torch.rand(3)
        random.random()
        return super().validation_step(batch, batch_idx)

    def configure_optimizers(self) -> Any:
        optimizer = torch.optim.AdamW(self.parameters(), lr=0.01)
        if self.schedule == "plateau":
            scheduler: Any = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, factor=0.5, patience=0)
            return {"optimizer": optimizer, "lr_scheduler": scheduler, "monitor": "val_loss"}
        scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 2, gamma=0.7)
        return [optimizer], [{"scheduler": scheduler, "interval": self.schedule}]


def data() -> Any:
    return loader(4, 4, shuffle=True)


def train(model: L.Module, epochs: int, saver: ModelCheckpoint | None = None, seed: int = 3, **arguments: Any) -> Any:
    """Train from whatever random state, as a new process would have; returns the Trainer."""
    L.seed_everything(seed, verbose=False)
    ckpt_path = arguments.pop("ckpt_path", None)
    used = trainer(max_epochs=epochs, callbacks=[saver or ModelCheckpoint("saved", save_last=True)], **arguments)
    used.fit(model, data(), loader(2), ckpt_path=ckpt_path)
    return used


def state(used: L.Trainer) -> dict[str, Any]:
    """All that training goes on from."""
    return {
        "optimizer": used.optimizers[0].state_dict(),
        "schedulers": [config.scheduler.state_dict() for config in used.lr_scheduler_configs],
        "counters": (used.global_step, used.current_epoch, used.fit_loop.epoch_loop.total_batch_idx),
        "metrics": {name: float(value) for name, value in used.callback_metrics.items()},
    }


def assert_same_state(one: Any, other: Any) -> None:
    if isinstance(one, dict):
        assert one.keys() == other.keys()
        for key in one:
            assert_same_state(one[key], other[key])
    elif isinstance(one, (list, tuple)):
        assert len(one) == len(other)
        for mine, theirs in zip(one, other, strict=True):
            assert_same_state(mine, theirs)
    elif isinstance(one, torch.Tensor):
        assert torch.equal(one, other)
    else:
        assert one == other


@pytest.mark.parametrize("schedule", ["epoch", "step", "plateau"])
@pytest.mark.parametrize("broken_at", [1, 2, 3])
def test_a_resumed_run_is_bit_identical(schedule: str, broken_at: int) -> None:
    whole = Noisy(schedule)
    start = weights(whole)
    expected = train(whole, 4, ModelCheckpoint("whole"))

    first = Noisy(schedule)
    first.load_state_dict(start)
    train(first, broken_at)
    second = Noisy(schedule)  # other weights and other random numbers: all comes from the checkpoint
    found = train(second, 4, seed=99, ckpt_path="saved/last.ckpt")

    assert second.trained == 4 * (4 - broken_at)
    assert same(weights(second), weights(whole))
    assert_same_state(state(found), state(expected))


@pytest.mark.parametrize(
    "settings",
    [
        {"accumulate_grad_batches": 3},
        {"num_sanity_val_steps": 2},
        {"val_check_interval": 0.5},
        {"check_val_every_n_epoch": 2},
        {"gradient_clip_val": 0.1},
        {"precision": "bf16"},
        {"log_every_n_steps": 1, "logger": True},
    ],
    ids=str,
)
def test_a_resumed_run_is_bit_identical_in_other_settings(settings: dict[str, Any]) -> None:
    whole = Noisy()
    start = weights(whole)
    train(whole, 4, ModelCheckpoint("whole"), **settings)
    first = Noisy()
    first.load_state_dict(start)
    train(first, 2, **settings)
    second = Noisy()
    found = train(second, 4, seed=99, ckpt_path="saved/last.ckpt", **settings)
    assert second.trained == 8
    assert found.current_epoch == 4
    assert same(weights(second), weights(whole))


def test_a_checkpoint_of_a_validation_holds_the_random_state_of_training() -> None:
    """A validation draws random numbers (its loader's seed, for one) that training never sees."""
    states = {}

    class Keeps(Noisy):
        def on_validation_start(self) -> None:
            states[self.current_epoch] = torch.get_rng_state()

    train(Keeps(), 2, ModelCheckpoint("saved", filename="{epoch}", save_on_train_epoch_end=False, save_top_k=-1))
    for epoch in range(2):
        saved = torch.load(f"saved/epoch={epoch}.ckpt", weights_only=True)["gpulayer"]["rng"]["torch"]
        assert torch.equal(saved, states[epoch])


@pytest.mark.parametrize("moment", ["train epoch end", "validation end", "after fit"])
def test_whichever_moment_of_the_epochs_end_was_saved(moment: str) -> None:
    """At the end of the epoch, after its validation, or when the run was over."""
    whole = Noisy()
    start = weights(whole)
    expected = train(whole, 4, ModelCheckpoint("whole"))

    def saver() -> ModelCheckpoint:
        return ModelCheckpoint("saved", filename="two", save_on_train_epoch_end=moment == "train epoch end")

    first = Noisy()
    first.load_state_dict(start)
    used = train(first, 2, saver())
    if moment == "after fit":
        used.save_checkpoint("saved/two.ckpt")
    second = Noisy()
    found = train(second, 4, saver(), seed=99, ckpt_path="saved/two.ckpt")
    assert (used.current_epoch, found.current_epoch) == (2, 4)
    assert same(weights(second), weights(whole))
    assert_same_state(state(found), state(expected))


def test_hooks_of_a_resumed_run_come_as_in_a_whole_one() -> None:
    """Neither an epoch nor its end comes twice."""

    class Notes(Line):
        def on_train_epoch_start(self) -> None:
            noted.append(f"start {self.current_epoch}")

        def on_train_epoch_end(self) -> None:
            noted.append(f"end {self.current_epoch}")

    noted: list[str] = []
    for epochs in (2, 4):
        used = trainer(max_epochs=epochs, callbacks=[ModelCheckpoint("saved", save_last=True)])
        used.fit(Notes(), loader(), ckpt_path="last")
    assert noted == [f"{what} {epoch}" for epoch in range(4) for what in ("start", "end")]


def test_last_is_the_beginning_where_there_is_none(caplog: pytest.LogCaptureFixture) -> None:
    """So one command starts a run and goes on with it."""
    used = trainer(callbacks=[ModelCheckpoint("saved", save_last=True)])
    used.fit(Line(), loader(), ckpt_path="last")
    assert used.global_step == 4
    assert "there is no last checkpoint yet" in caplog.text


def test_a_finished_run_has_nothing_to_resume() -> None:
    train(Noisy(), 2)
    before = torch.load("saved/last.ckpt", weights_only=True)
    model = Noisy()
    used = train(model, 2, seed=99, ckpt_path="saved/last.ckpt")
    assert (used.global_step, used.current_epoch) == (8, 2)
    assert same(weights(model), before["state_dict"])


def test_a_longer_run_by_steps() -> None:
    used = trainer(max_steps=4, callbacks=[ModelCheckpoint("saved", save_last=True)])
    used.fit(Line(), loader())
    again = trainer(max_steps=10, callbacks=[ModelCheckpoint("saved")])
    again.fit(Line(), loader(), ckpt_path="saved/last.ckpt")
    assert (used.global_step, again.global_step) == (4, 10)


def test_callbacks_and_modules_get_their_state_back() -> None:
    class Counts(L.Callback):
        def __init__(self) -> None:
            self.batches = 0

        def on_train_batch_end(self, *arguments: Any) -> None:
            self.batches += 1

        def state_dict(self) -> dict[str, Any]:
            return {"batches": self.batches}

        def load_state_dict(self, state_dict: dict[str, Any]) -> None:
            self.batches = state_dict["batches"]

    first, second = Counts(), Counts()
    trainer(max_epochs=1, callbacks=[first, ModelCheckpoint("saved", save_last=True)]).fit(Line(), loader())
    again = trainer(max_epochs=2, callbacks=[second, ModelCheckpoint("saved")])
    again.fit(Line(), loader(), ckpt_path="saved/last.ckpt")
    assert (first.batches, second.batches) == (4, 8)


def test_a_callback_that_is_gone_is_told() -> None:
    trainer(callbacks=[L.callbacks.EarlyStopping("train_loss"), ModelCheckpoint("saved", save_last=True)]).fit(
        Line(), loader()
    )
    with pytest.warns(UserWarning, match=r"callbacks that this Trainer lacks: \[.EarlyStopping"):
        trainer(max_epochs=2, callbacks=[ModelCheckpoint("saved")]).fit(Line(), loader(), ckpt_path="saved/last.ckpt")


def test_one_trainer_goes_on_where_it_stopped() -> None:
    """`fit` again with a raised limit, as people extend a run in a notebook."""
    model, used = Line(), trainer(max_epochs=2)
    used.fit(model, loader())
    used.fit_loop.max_epochs = 3
    used.fit(model, loader())
    assert (used.current_epoch, used.global_step) == (3, 12)


def test_a_checkpoint_in_memory_of_another_file_system() -> None:
    used = trainer()
    used.fit(Line(), loader())
    used.save_checkpoint("memory://resume/model.ckpt")
    again = trainer(max_epochs=2)
    again.fit(Line(), loader(), ckpt_path="memory://resume/model.ckpt")
    assert again.global_step == 8


def test_validation_does_not_change_training() -> None:
    """With and without one, with a sanity check or without: the same weights."""
    found = []
    settings: list[dict[str, Any]] = [
        {"limit_val_batches": 0}, {"num_sanity_val_steps": 2}, {"val_check_interval": 0.25},
    ]  # fmt: skip
    for each in settings:
        torch.manual_seed(11)
        model = Noisy()
        train(model, 2, **each)
        found.append(weights(model))
    assert same(found[0], found[1])
    assert same(found[0], found[2])


def test_a_resumed_run_goes_on_in_the_files_of_the_first() -> None:
    """No last-v1.ckpt beside a last.ckpt that grows stale, and no old best that nobody deletes."""
    train(Noisy(), 1)
    train(Noisy(), 3, ckpt_path="last")
    assert sorted(file.name for file in Path("saved").iterdir()) == ["epoch=2-step=12.ckpt", "last.ckpt"]

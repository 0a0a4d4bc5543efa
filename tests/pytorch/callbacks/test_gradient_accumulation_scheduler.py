"""GradientAccumulationScheduler against steps counted by hand."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch.optim import SGD

import gpulayer.pytorch as L
from gpulayer.fabric.utilities.exceptions import MisconfigurationException
from gpulayer.pytorch.callbacks import GradientAccumulationScheduler, ModelCheckpoint
from tests.pytorch.models import Line, loader, same, trainer, weights


class Counts(Line):
    """Notes how many steps there were after each epoch."""

    def __init__(self) -> None:
        super().__init__()
        self.steps: list[int] = []

    def on_train_epoch_end(self) -> None:
        self.steps.append(self.trainer.global_step)


@pytest.mark.parametrize(
    ("scheduling", "steps"),
    [
        ({1: 2, 3: 4}, [4, 6, 8, 9, 10]),
        ({0: 4, 2: 1}, [1, 2, 6, 10, 14]),
        ({4: 8}, [4, 8, 12, 16, 17]),
        ({3: 3}, [4, 8, 12, 14, 16]),  # the last step of an epoch has one batch
    ],
)
def test_steps_an_epoch(scheduling: dict[int, int], steps: list[int]) -> None:
    model, given = Counts(), dict(scheduling)
    trainer(max_epochs=5, callbacks=[GradientAccumulationScheduler(given)]).fit(model, loader())
    assert model.steps == steps
    assert given == scheduling


def test_weights_are_those_of_a_hand_written_loop() -> None:
    torch.manual_seed(1)
    model = Line()
    own = Line()
    own.load_state_dict(model.state_dict())
    trainer(max_epochs=3, callbacks=[GradientAccumulationScheduler({0: 2, 2: 3})]).fit(model, loader())
    optimizer = SGD(own.parameters(), lr=own.lr, momentum=0.9)
    for windows in ((2, 2), (2, 2), (3, 1)):
        batches = iter(loader())
        for size in windows:
            optimizer.zero_grad()
            for _ in range(size):
                (own.loss(next(batches)) / size).backward()
            optimizer.step()
    assert same(weights(model), weights(own))


def test_how_many_steps_there_will_be_is_known() -> None:
    """So that a scheduler of learning rates can be made for them."""

    class Asks(Counts):
        estimate: Any = None

        def configure_optimizers(self) -> Any:
            self.estimate = self.trainer.estimated_stepping_batches
            return super().configure_optimizers()

    for limit, expected in ((-1, 10), (7, 7)):
        model = Asks()
        used = trainer(max_epochs=5, max_steps=limit, callbacks=[GradientAccumulationScheduler({1: 2, 3: 4})])
        used.fit(model, loader())
        assert model.estimate == used.global_step == expected


@pytest.mark.filterwarnings("ignore:The checkpoint holds the state of callbacks")
def test_a_run_saved_at_any_batch_ends_as_the_whole_one() -> None:
    """In the middle of a window and at the end of an epoch, too; bit for bit."""

    class Saves(L.Callback):
        def on_train_batch_end(self, trainer: L.Trainer, *_: Any) -> None:
            trainer.save_checkpoint(f"saved/{trainer.progress.batch:02}.ckpt")

    def run(path: str | None = None) -> tuple[int, dict[str, Any]]:
        L.seed_everything(1, verbose=False)
        model, savers = Line(), [Saves(), ModelCheckpoint("ends", save_top_k=-1, filename="{epoch}")]
        used = trainer(max_epochs=4, callbacks=[GradientAccumulationScheduler({1: 2, 2: 3}), *([] if path else savers)])
        used.fit(model, loader(shuffle=True), ckpt_path=path)
        return used.global_step, weights(model)

    steps, whole = run()
    files = [*Path("saved").glob("*.ckpt"), *Path("ends").glob("*.ckpt")]
    assert len(files) == 20
    for path in files:
        again, resumed = run(str(path))
        assert again == steps == 10, path
        assert same(whole, resumed), path


def test_fit_can_be_called_again() -> None:
    used, model = trainer(max_epochs=2, callbacks=[GradientAccumulationScheduler({1: 4})]), Counts()
    used.fit(model, loader())
    used.fit_loop.max_epochs = 3
    used.fit(model, loader())
    assert model.steps == [4, 5, 6]


def test_what_it_answers() -> None:
    plan = GradientAccumulationScheduler({4: 2, 2: 8})
    assert [plan.get_accumulate_grad_batches(epoch) for epoch in (0, 1, 2, 3, 4, 99)] == [1, 1, 8, 8, 2, 2]
    assert plan.epochs == [0, 2, 4]
    assert plan.going_to_accumulate_grad_batches()
    assert not GradientAccumulationScheduler({3: 1}).going_to_accumulate_grad_batches()


@pytest.mark.parametrize(
    ("scheduling", "message"),
    [
        ({}, "give a dict"),
        (None, "give a dict"),
        ([(0, 2)], "give a dict"),
        ({-1: 2}, "epochs are whole numbers from 0, not -1"),
        ({0.5: 2}, "epochs are whole numbers from 0, not 0.5"),
        ({0: 0}, "numbers of batches are whole numbers from 1, not 0"),
        ({0: 1.5}, "numbers of batches are whole numbers from 1, not 1.5"),
        ({0: True}, "numbers of batches are whole numbers from 1, not True"),
    ],
)
def test_bad_values_are_refused_when_it_is_made(scheduling: Any, message: str) -> None:
    with pytest.raises(MisconfigurationException, match=message):
        GradientAccumulationScheduler(scheduling)


def test_what_contradicts_it_is_refused_before_training() -> None:
    plan = GradientAccumulationScheduler({0: 2})
    with pytest.raises(MisconfigurationException, match=r"Trainer\(accumulate_grad_batches=3\)` and a"):
        trainer(max_epochs=1, accumulate_grad_batches=3, callbacks=[plan]).fit(Line(), loader())

    class ByHand(Line):
        def __init__(self) -> None:
            super().__init__()
            self.automatic_optimization = False

    with pytest.raises(MisconfigurationException, match="ByHand steps its optimizers itself"):
        trainer(max_epochs=1, callbacks=[plan]).fit(ByHand(), loader())

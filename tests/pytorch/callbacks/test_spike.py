"""SpikeDetection on losses that are known beforehand."""

from __future__ import annotations

import json
from collections.abc import Sequence
from math import inf, nan
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader

import gpulayer.pytorch as L
from gpulayer.fabric.utilities.exceptions import MisconfigurationException
from gpulayer.fabric.utilities.spike import TrainingSpikeException
from gpulayer.pytorch.callbacks import ModelCheckpoint, OnExceptionCheckpoint, SpikeDetection
from tests.architecture.test_host_sync import ScalarReads
from tests.pytorch.models import same, trainer, weights


class Told(L.Module):
    """A batch is its own loss, which trains one weight that does not change it."""

    def __init__(self, by_hand: bool = False) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.zeros(()))
        self.automatic_optimization = not by_hand

    def training_step(self, batch: torch.Tensor, batch_idx: int) -> Any:
        loss = batch.sum() + self.weight - self.weight.detach()
        if self.automatic_optimization:
            return loss
        optimizer: Any = self.optimizers()
        optimizer.zero_grad()
        self.manual_backward(loss)
        optimizer.step()
        return {"loss": loss}

    def configure_optimizers(self) -> Any:
        return torch.optim.SGD(self.parameters(), lr=0.1)


def losses(*values: float) -> DataLoader[Any]:
    return DataLoader(torch.tensor(values), batch_size=1)  # type: ignore[arg-type]


STEADY = [1.0, 0.9, 1.1, 1.0, 0.95]


def spike_in(values: Sequence[float], epochs: int = 1, by_hand: bool = False, **settings: Any) -> int | None:
    """The batch in which training ended; None if it did not."""
    limits = {name: settings.pop(name) for name in list(settings) if name not in ARGUMENTS}
    used = trainer(
        **{"max_epochs": epochs, "log_every_n_steps": 1, "callbacks": [SpikeDetection(**settings)], **limits}
    )
    try:
        used.fit(Told(by_hand), losses(*values))
    except TrainingSpikeException as error:
        return error.batch_idx
    return None


ARGUMENTS = ("mode", "window", "warmup", "atol", "rtol", "exclude_batches_path", "finite_only")


@pytest.mark.parametrize(
    ("values", "settings", "expected"),
    [
        (STEADY, {}, None),
        ([*STEADY, 2.9, 1], {}, None),  # off by less than twice the mean
        ([*STEADY, 3.1, 1], {}, 5),
        ([*STEADY, 3.1, 1], {"rtol": 3.0}, None),
        ([*STEADY, 3.1, 1], {"rtol": None, "atol": 2.0}, 5),
        ([*STEADY, 3.1, 1], {"atol": 3.0}, None),  # both must be exceeded
        ([*STEADY, 1.5, 1], {"rtol": 0.5}, 5),
        ([9, *STEADY, 3.1], {"window": 3}, 6),  # the mean is that of the last three
        ([9, *STEADY, 3.1], {"window": 99}, None),
        ([1, 9, 1, 1, 1, 1], {}, 1),
        ([1, 9, 1, 1, 1, 1], {"warmup": 3}, None),
        ([1, 1, 9, 8, 1, 1], {"warmup": 3, "window": 2, "rtol": 0.1}, None),  # better than the one before
        ([10, 10, 10, 1, 10], {"mode": "max", "rtol": 0.5}, 3),
        ([1, 1, 30, 10], {"mode": "max"}, None),
        ([1, nan, 1], {}, 1),
        ([1, inf, 1], {}, 1),
        ([1, -inf, 1], {}, 1),
        ([1, nan, 1, 1.1, 5], {"finite_only": False}, 4),
        ([nan, 1, 1, 1], {}, None),  # in the warm-up, and no part of the mean
        ([nan, 1, 1, 4], {"warmup": 0, "finite_only": False}, 3),
    ],
)
def test_what_a_spike_is(values: list[float], settings: dict[str, Any], expected: int | None) -> None:
    assert spike_in(values, **settings) == expected


def test_what_is_written_and_where() -> None:
    for path, found in (
        (None, "skip_batches.json"),
        ("left/out", "left/out/skip_batches.json"),
        (Path("by/name.json"), "by/name.json"),
        ("name.json", "name.json"),
    ):
        assert spike_in([*STEADY, 9, 1], exclude_batches_path=path) == 5
        assert json.loads(Path(found).read_text()) == [4, 5]
    assert spike_in([*STEADY, 9, 1], default_root_dir="root") == 5
    assert json.loads(Path("root/skip_batches.json").read_text()) == [4, 5]


def test_the_first_batch_has_none_before_it_in_its_epoch() -> None:
    """The warm-up is over in the second epoch, and the loss of the first batch is far off."""
    assert spike_in([5, 1, 1, 1], epochs=2, window=3) == 0
    assert json.loads(Path("skip_batches.json").read_text()) == [0]


@pytest.mark.parametrize("limits", [{"accumulate_grad_batches": 4}, {"accumulate_grad_batches": 2}, {"by_hand": True}])
def test_the_loss_is_that_of_the_step(limits: dict[str, Any]) -> None:
    """Not divided for accumulation, by less in an epoch's last, shorter optimizer step."""
    assert spike_in(STEADY, epochs=3, rtol=0.3, **limits) is None
    assert spike_in([*STEADY, 3.1], rtol=None, atol=2.0, **limits) == 5


def test_a_step_without_a_loss() -> None:
    class Silent(Told):
        def training_step(self, batch: torch.Tensor, batch_idx: int) -> Any:
            return None

    with pytest.raises(MisconfigurationException, match="needs the loss: in manual optimization return it"):
        trainer(max_epochs=1, callbacks=[SpikeDetection()]).fit(Silent(by_hand=True), losses(1, 1))
    with pytest.warns(UserWarning, match="returned None"):
        trainer(max_epochs=1, callbacks=[SpikeDetection()]).fit(Silent(), losses(1, 1))


def test_losses_are_read_at_log_points_and_no_later_than_at_the_end_of_the_epoch() -> None:
    class Notes(Told):
        def __init__(self, mode: ScalarReads) -> None:
            super().__init__()
            self.mode = mode
            self.counts: list[int] = []

        def training_step(self, batch: torch.Tensor, batch_idx: int) -> Any:
            self.counts.append(self.mode.count)
            return super().training_step(batch, batch_idx)

    with ScalarReads() as mode:
        model = Notes(mode)
        used = trainer(max_epochs=1, log_every_n_steps=4, callbacks=[SpikeDetection()])
        used.fit(model, losses(*[1.0] * 10))
        total = mode.count
    read = [after - before for before, after in zip(model.counts, [*model.counts[1:], total], strict=True)]
    assert [step for step, count in enumerate(read) if count] == [3, 7, 9]

    for every, batches in ((4, 4), (100, 10), (0, 10)):
        model = Notes(mode)
        with pytest.raises(TrainingSpikeException, match="in batch 1"):
            trainer(max_epochs=2, log_every_n_steps=every, callbacks=[SpikeDetection()]).fit(
                model, losses(1, 9, *[1.0] * 8)
            )
        assert len(model.counts) == batches


def test_no_checkpoint_is_written_of_the_time_after_a_spike() -> None:
    """The losses are read before each save; the state of the spike's end can be asked for."""
    saver = ModelCheckpoint("saved", "{step}", save_top_k=-1, every_n_train_steps=2)
    callbacks = [SpikeDetection(), saver, OnExceptionCheckpoint(".", "at_error")]
    with pytest.raises(TrainingSpikeException, match="in batch 4"):
        trainer(max_epochs=1, callbacks=callbacks).fit(Told(), losses(1, 1, 1, 1, 9, 1, 1, 1))
    assert sorted(path.name for path in Path("saved").iterdir()) == ["step=2.ckpt", "step=4.ckpt"]
    kept = torch.load("at_error.ckpt", weights_only=True)["callbacks"]["SpikeDetection"]
    assert kept["bad_batches"] == [3, 4]


@pytest.mark.filterwarnings("ignore:The checkpoint holds the state of callbacks")
def test_a_resumed_run_ends_in_the_same_batch() -> None:
    """From a checkpoint of any batch, with the mean of the batches before; its weights bit for bit."""

    def run(path: str | None = None) -> tuple[int, dict[str, Any], SpikeDetection]:
        saver = ModelCheckpoint("saved", "{step}", save_top_k=-1, every_n_train_steps=1)
        spikes, model = SpikeDetection(window=20, rtol=1.5), Told()
        used = trainer(max_epochs=2, log_every_n_steps=1, callbacks=[spikes, *([] if path else [saver])])
        with pytest.raises(TrainingSpikeException) as raised:
            used.fit(model, losses(4, 4, 1, 1, 1, 6, 1, 0.2, 5.9, 1), ckpt_path=path)
        return raised.value.batch_idx, weights(model), spikes

    batch, whole, spikes = run()
    assert batch == 5
    files = sorted(Path("saved").glob("*.ckpt"))
    assert len(files) == 5
    for path in files:
        again, ended, resumed = run(str(path))
        assert again == batch, path
        assert same(whole, ended)
        assert resumed.state_dict() == spikes.state_dict()


@pytest.mark.filterwarnings("ignore:The checkpoint holds the state of callbacks")
def test_a_run_without_spikes_ends_bit_for_bit() -> None:
    def run(path: str | None = None) -> tuple[dict[str, Any], dict[str, Any]]:
        saver = ModelCheckpoint("saved", "{step}", save_top_k=-1, every_n_train_steps=1)
        spikes, model = SpikeDetection(), Told()
        trainer(max_epochs=2, log_every_n_steps=4, callbacks=[spikes, *([] if path else [saver])]).fit(
            model, losses(*STEADY), ckpt_path=path
        )
        return spikes.state_dict(), weights(model)

    state, whole = run()
    assert len(state["recent"]) == 10
    for path in Path("saved").glob("*.ckpt"):
        again, resumed = run(str(path))
        assert again == state, path
        assert same(whole, resumed)


def test_a_signal_keeps_what_was_not_read_yet() -> None:
    """A run that is told to end saves all losses up to there."""

    class Ends(Told):
        def training_step(self, batch: torch.Tensor, batch_idx: int) -> Any:
            if batch_idx == 3:
                raise ValueError("no")
            return super().training_step(batch, batch_idx)

    with pytest.raises(ValueError, match="no"):
        trainer(max_epochs=1, callbacks=[SpikeDetection(), OnExceptionCheckpoint(".", "at_error")]).fit(
            Ends(), losses(*STEADY)
        )
    kept = torch.load("at_error.ckpt", weights_only=True)["callbacks"]["SpikeDetection"]
    assert kept["recent"] == pytest.approx(STEADY[:3])


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"mode": "auto"}, "choose 'min' or 'max'"),
        ({"window": 0}, "window=0.*from 1"),
        ({"window": 2.5}, "window=2.5.*from 1"),
        ({"warmup": -1}, "warmup=-1.*from 0"),
        ({"warmup": True}, "warmup=True.*from 0"),
        ({"atol": "1"}, "atol='1'.*a number from 0"),
        ({"rtol": -2.0}, "rtol=-2.0.*a number from 0"),
        ({"rtol": nan}, "rtol=nan.*a number from 0"),
        ({"rtol": None}, "every loss that is worse"),
        ({"exclude_batches_path": 3}, "exclude_batches_path=3.*give a path"),
    ],
)
def test_bad_values_are_refused_when_it_is_made(given: dict[str, Any], message: str) -> None:
    with pytest.raises(MisconfigurationException, match=message):
        SpikeDetection(**given)


def test_a_window_of_numpy() -> None:
    assert spike_in([*STEADY, 50.0], window=np.int64(3)) == 5


def test_a_file_that_cannot_be_written_does_not_hide_the_spike(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").write_text("")
    assert spike_in([*STEADY, 50.0], exclude_batches_path=tmp_path / "file") == 5
    assert "could not write [4, 5]" in caplog.text

"""The lines that a run prints."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from textwrap import dedent
from typing import Any

import pytest

from gpulayer.fabric.utilities.rank_zero import rank_zero_only
from gpulayer.pytorch.loops import fit, run
from gpulayer.pytorch.trainer import report
from tests.pytorch.models import Line, Scored, Validated, loader, stream, trainer

SCRIPT = dedent("""\
    import torch
    import gpulayer.pytorch as L

    class Model(L.LightningModule):
        def __init__(self):
            super().__init__()
            self.net = torch.nn.Linear(1, 1)

        def training_step(self, batch, batch_idx):
            loss = self.net(batch).square().sum()
            self.log("train_loss", loss)
            return loss

        def validation_step(self, batch, batch_idx):
            self.log("val_loss", self.net(batch).square().sum())

        def configure_optimizers(self):
            return torch.optim.SGD(self.parameters(), lr=0.1)

    batches = [torch.ones(2, 1)] * 5
    trainer = L.Trainer(max_epochs=3, accelerator="cpu")
    trainer.fit(Model(), batches, batches)
    """)


def test_a_script_prints_one_line_an_epoch(tmp_path: Path) -> None:
    """To standard error and nothing else, with the epoch, the step, the metrics, the time and the rate."""
    script = tmp_path / "train.py"
    script.write_text(SCRIPT)
    done = subprocess.run(
        [sys.executable, "-W", "error", str(script)], capture_output=True, text=True, cwd=tmp_path, timeout=100
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout == ""
    lines = done.stderr.splitlines()
    assert len(lines) == 3
    number = r"[\d.e+-]+"
    metrics = rf"train_loss {number}  val_loss {number}"
    for epoch, line in enumerate(lines, 1):
        assert re.fullmatch(rf"epoch {epoch}/3  step {5 * epoch}  {metrics}  {number} s, {number} batches/s", line), (
            line
        )


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The time, its only item, for everything that prints."""
    now = [1000.0]
    for module in (fit, run, report):
        monkeypatch.setattr(module, "monotonic", lambda: now[0])
    return now


class Slow(Line):
    """Each batch takes so many seconds."""

    def __init__(self, clock: list[float], seconds: float) -> None:
        super().__init__()
        self.clock, self.seconds = clock, seconds

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        self.clock[0] += self.seconds
        loss = self.loss(batch)
        self.log("loss", loss.detach() * 0 + 2, prog_bar=True)
        return loss


def test_a_long_epoch_prints_a_line_about_once_a_minute(clock: list[float], caplog: pytest.LogCaptureFixture) -> None:
    """Ten batches of 25 seconds: after the third, 75 seconds in, and after every third from there."""
    trainer().fit(Slow(clock, 25), loader(10))
    assert caplog.messages == [
        "epoch 1/1  batch 3/10  step 3  25 s/batch  2 min 55 s left in the epoch  loss 2",
        "epoch 1/1  batch 6/10  step 6  25 s/batch  1 min 40 s left in the epoch  loss 2",
        "epoch 1/1  batch 9/10  step 9  25 s/batch  25 s left in the epoch  loss 2",
        "epoch 1/1  step 10  loss 2  4 min 10 s, 25 s/batch",
    ]


def test_a_short_epoch_prints_none(clock: list[float], caplog: pytest.LogCaptureFixture) -> None:
    trainer(max_epochs=3).fit(Slow(clock, 5), loader(10))
    assert caplog.messages == [f"epoch {epoch}/3  step {10 * epoch}  loss 2  50 s, 5 s/batch" for epoch in (1, 2, 3)]


def test_without_a_length_there_is_no_time_left(clock: list[float], caplog: pytest.LogCaptureFixture) -> None:
    trainer(max_epochs=-1, max_steps=4).fit(Slow(clock, 40), stream(4))
    assert caplog.messages == [
        "epoch 1  batch 2  step 2  40 s/batch  loss 2",
        "epoch 1  batch 4  step 4  40 s/batch  loss 2",
        "epoch 1  step 4  loss 2  2 min 40 s, 40 s/batch",
    ]


def test_many_metrics_are_cut_short(caplog: pytest.LogCaptureFixture) -> None:
    class Many(Line):
        def training_step(self, batch: Any, batch_idx: int) -> Any:
            self.log_dict({f"m{i}": i for i in range(12)}, on_step=False, on_epoch=True)
            return self.loss(batch)

    trainer().fit(Many(), loader())
    shown = caplog.messages[-1]
    assert shown.count("  m") == 8
    assert "(+4 more)" in shown


def test_of_a_value_by_step_and_by_epoch_the_epochs_is_shown(caplog: pytest.LogCaptureFixture) -> None:
    class Both(Line):
        def training_step(self, batch: Any, batch_idx: int) -> Any:
            self.log("m", float(batch_idx), on_step=True, on_epoch=True)
            return self.loss(batch)

    trainer().fit(Both(), loader(4))
    assert "  m 1.5  " in caplog.messages[-1]
    assert "m_step" not in caplog.messages[-1]


def test_only_what_the_user_wants_in_the_bar(caplog: pytest.LogCaptureFixture) -> None:
    class Bar(Validated):
        def validation_step(self, batch: Any, batch_idx: int) -> None:
            self.log("hidden", 1.0)
            self.log("shown", 2.0, prog_bar=True)

    trainer().fit(Bar(), loader(), loader())
    assert "shown 2" in caplog.messages[-1]
    assert "hidden" not in caplog.messages[-1]


def test_a_line_for_a_test(caplog: pytest.LogCaptureFixture) -> None:
    model, used = Validated(), trainer()
    result = used.test(model, loader())
    assert caplog.messages == [f"test: test_loss {result['test_loss']:.4g}"]
    caplog.clear()
    used.validate(model, loader(), verbose=False)
    assert caplog.messages == []


def test_only_the_first_process_prints(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setattr(rank_zero_only, "rank", 1)
    trainer(max_epochs=2).fit(Scored([1, 2]), loader(), loader())
    assert caplog.messages == []


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0.0, "0.0 s"), (9.94, "9.9 s"), (10.4, "10 s"), (42.4, "42 s"), (59.6, "1 min 00 s"), (185, "3 min 05 s"),
     (3599.7, "1 h 00 min"), (8040, "2 h 14 min"), (100000, "27 h 46 min")],
)  # fmt: skip
def test_durations_as_a_person_says_them(seconds: float, text: str) -> None:
    assert report.duration(seconds) == text


@pytest.mark.parametrize(
    ("rate", "text"),
    [(1234.5, "1234 batches/s"), (12.34, "12.3 batches/s"), (0.5, "2 s/batch"), (0, "0 batches/s")],
)
def test_rates(rate: float, text: str) -> None:
    assert report.speed(rate) == text

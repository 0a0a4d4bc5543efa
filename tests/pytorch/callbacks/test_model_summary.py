"""The callbacks that show a summary: when, where, and that training goes on as without them."""

from __future__ import annotations

import fcntl
import logging
import os
import pty
import struct
import subprocess
import sys
import termios
import textwrap
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from gpulayer.fabric.accelerators import CPUAccelerator
from gpulayer.fabric.strategies import SingleDeviceStrategy
from gpulayer.fabric.utilities.exceptions import MisconfigurationException
from gpulayer.pytorch.callbacks import ModelSummary, RichModelSummary
from gpulayer.pytorch.utilities.model_summary.table import width_of
from tests.pytorch.models import FEATURES, Validated, loader, same, trainer, weights


class WithExample(Validated):
    """Its forward pass is noted, and disturbed by dropout, noise and batch statistics."""

    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(FEATURES, 8), nn.BatchNorm1d(8), nn.Dropout(), nn.Linear(8, 1))
        self.example_input_array = torch.ones(2, FEATURES)
        self.seen: list[Any] = []

    def forward(self, x: Tensor) -> Tensor:
        self.seen.append((self.training, torch.is_autocast_enabled("cpu"), x.dtype))
        return super().forward(x + torch.rand(())).float()


def summaries(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if "trainable parameters" in record.getMessage()]


@pytest.fixture
def logged(caplog: pytest.LogCaptureFixture) -> pytest.LogCaptureFixture:
    caplog.set_level(logging.INFO, "gpulayer")
    return caplog


def test_one_block_at_the_start_of_each_fit(logged: pytest.LogCaptureFixture) -> None:
    used = trainer(callbacks=[ModelSummary(max_depth=-1)])
    model = WithExample()
    used.validate(model, loader())
    used.test(model, loader())
    used.predict(model, loader())
    assert not summaries(logged)
    used.fit(model, loader(), loader())
    (text,) = summaries(logged)
    assert text.startswith("\n")
    assert text.endswith("\n")
    assert "net.3  Linear" in text
    used.fit(model, loader(), loader())
    assert len(summaries(logged)) == 2


def test_depth_zero_does_nothing(logged: pytest.LogCaptureFixture) -> None:
    model = WithExample()
    ModelSummary(0).on_fit_start(trainer(), model)
    assert not model.seen
    assert not summaries(logged)


class OfAnotherRank(SingleDeviceStrategy):
    global_rank = 1


@pytest.mark.parametrize("callback", [ModelSummary(), RichModelSummary()])
def test_silent_on_other_ranks(
    callback: ModelSummary, logged: pytest.LogCaptureFixture, capsys: pytest.CaptureFixture[str]
) -> None:
    model = WithExample()
    strategy = OfAnotherRank("cpu", CPUAccelerator())
    trainer(strategy=strategy, callbacks=[callback]).fit(model, loader(), loader())
    assert model.seen[0][0] is False, "all ranks run the example, for a sharded model needs them"
    assert not summaries(logged)
    assert not capsys.readouterr().out


@pytest.mark.parametrize(
    ("precision", "autocast", "dtype"),
    [("32", False, torch.float32), ("bf16-mixed", True, torch.float32), ("bf16-true", False, torch.bfloat16)],
)
def test_the_example_runs_in_the_precision_of_the_trainer(precision: str, autocast: bool, dtype: torch.dtype) -> None:
    model = WithExample()
    trainer(precision=precision, callbacks=[ModelSummary()]).fit(model, loader(), loader())
    assert model.seen[0] == (False, autocast, dtype)
    assert len(model.seen) == 1 + 4 + 4


def test_training_is_the_same_with_a_summary() -> None:
    results = []
    for callbacks in ([], [ModelSummary(-1)], [RichModelSummary(-1)]):
        torch.manual_seed(3)
        model = WithExample()
        trainer(max_epochs=2, callbacks=callbacks).fit(model, loader(shuffle=True), loader())
        results.append(weights(model))
    assert same(results[0], results[1])
    assert same(results[0], results[2])


def test_lazy_layers_are_trained() -> None:
    model = WithExample()
    model.net = nn.Sequential(nn.LazyLinear(8), nn.LazyLinear(1))
    trainer(callbacks=[ModelSummary()]).fit(model, loader(), loader())
    before = weights(model)
    trainer(callbacks=[ModelSummary()]).fit(model, loader(), loader())
    assert not same(before, weights(model))


def test_summarize_can_be_overridden() -> None:
    class Kept(ModelSummary):
        got: Any = None

        @staticmethod
        def summarize(*args: Any, **kwargs: Any) -> None:
            Kept.got = (args, kwargs)

    trainer(callbacks=[Kept(max_depth=1, colour="red")]).fit(WithExample(), loader(), loader())
    (columns, total, trainable, size, modes), others = Kept.got
    assert [header for header, _ in columns] == [
        *(" ", "Name", "Type", "Params", "Mode", "FLOPs", "In sizes", "Out sizes"),
    ]
    assert columns[1:3] == [("Name", ["net"]), ("Type", ["Sequential"])]
    assert (total, trainable, modes) == (65, 65, {"train": 5, "eval": 0})
    assert size == pytest.approx(65 * 4 / 1e6)
    assert others == {"total_flops": 2 * 2 * (FEATURES * 8 + 8), "colour": "red"}


def test_a_wrong_example_is_an_error_before_training() -> None:
    model = WithExample()
    model.example_input_array = torch.ones(2, FEATURES + 1)
    used = trainer(callbacks=[ModelSummary()])
    with pytest.raises(MisconfigurationException, match=r"`WithExample\.forward` failed on its `example_input_array`"):
        used.fit(model, loader(), loader())
    assert used.global_step == 0


@pytest.mark.parametrize("kind", [ModelSummary, RichModelSummary])
def test_wrong_depth(kind: Any) -> None:
    with pytest.raises(MisconfigurationException, match=rf"`{kind.__name__}\(max_depth=-2\)`"):
        kind(-2)


def test_without_rich(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "rich", None)
    with pytest.raises(ModuleNotFoundError, match=r"pip install gpulayer\[rich\]"):
        RichModelSummary()


def test_rich_without_a_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    """Nothing is cut, and a name in brackets is no markup."""
    model = WithExample()
    model.net.add_module("[bold]", nn.ReLU())
    setattr(model, "long" * 15, nn.Linear(1, 1))
    trainer(callbacks=[RichModelSummary(-1, header_style="bold blue")]).fit(model, loader(), loader())
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert ["4", "net.3", "Linear", "9", "train", "32", "[2,", "8]", "[2,", "1]"] in lines
    assert ["5", "net.[bold]", "ReLU", "0", "train", "0", "[2,", "1]", "[2,", "1]"] in lines
    assert ["6", "long" * 15, "Linear", "2", "train", "0", "?", "?"] in lines
    assert ["67", "trainable", "parameters"] in lines


SCRIPT = """
    import torch
    from torch import nn
    import gpulayer.pytorch as L
    from gpulayer.pytorch.callbacks import ModelSummary, RichModelSummary

    class Net(L.Module):
        def __init__(self):
            super().__init__()
            self.an_attribute_with_a_name_that_does_not_fit = nn.Sequential(nn.Conv2d(3, 8, 3), nn.AdaptiveAvgPool2d(1))
            self.編碼器 = nn.Flatten()
            self.example_input_array = torch.ones(1, 3, 224, 224)

        def forward(self, x):
            return self.編碼器(self.an_attribute_with_a_name_that_does_not_fit(x))

    for callback in (ModelSummary(-1), RichModelSummary(-1)):
        callback.on_fit_start(L.Trainer(accelerator="cpu", logger=False, enable_checkpointing=False), Net())
"""


def test_in_a_terminal() -> None:
    """Lines fit into its 64 columns, and end where they shall."""
    ours, its = pty.openpty()
    fcntl.ioctl(its, termios.TIOCSWINSZ, struct.pack("HHHH", 50, 64, 0, 0))
    environment = {key: value for key, value in os.environ.items() if key not in ("COLUMNS", "NO_COLOR")}
    process = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(SCRIPT)],
        stdin=its,
        stdout=its,
        stderr=its,
        env={**environment, "TERM": "xterm", "PYTHONIOENCODING": "utf-8"},
    )
    os.close(its)
    output = b""
    while True:
        try:
            part = os.read(ours, 4096)
        except OSError:  # how Linux reports that the other end is closed
            break
        if not part:
            break
        output += part
    os.close(ours)
    assert process.wait() == 0, output.decode()
    plain, rich = output.decode().split("FLOPs of a forward pass", 1)
    assert "\x1b[" in rich
    assert "\x1b[" not in plain
    lines = plain.splitlines() + [strip_colours(line) for line in rich.splitlines()]
    assert max(map(width_of, lines)) <= 64
    rows = [line.split() for line in lines if "Conv2d" in line]
    assert [row[1:5] for row in rows] == [["Conv2d", "224", "train", "21.3"]] * 2
    assert all(row[0].endswith("_fit.0") for row in rows)


def strip_colours(line: str) -> str:
    parts = line.split("\x1b[")
    return parts[0] + "".join(part.split("m", 1)[-1] for part in parts[1:])

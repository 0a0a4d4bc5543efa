"""Every script in examples/ runs as a user would run it, and shows what it promises."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[2] / "examples"


def percent(pattern: str, text: str) -> float:
    """The percentage that a line of the output gives."""
    found = re.search(pattern + r"\D*?([\d.]+)%", text)
    assert found is not None, text
    return float(found[1])


def ema(out: str, folder: Path) -> None:
    assert percent("with their average", out) > 90
    assert percent("with the trained weights", out) > 90


def early_stopping(out: str, folder: Path) -> None:
    stopped, best = (int(re.search(pattern, out)[1]) for pattern in (r"epoch  (\d+)", r"epoch=(\d+)-"))  # type: ignore[index]
    assert best < stopped < 49
    assert "val_loss was not better" in out


def checkpoints(out: str, folder: Path) -> None:
    kept = re.findall(r"kept +(\S+)", out)
    assert len(kept) == 3
    assert "last.ckpt" in kept
    assert percent("test", out) > 90


def resume(out: str, folder: Path) -> None:
    assert "bit for bit: True" in out


def stochastic_weight_averaging(out: str, folder: Path) -> None:
    assert percent("of the average", out) > 90


def finetuning(out: str, folder: Path) -> None:
    trained = [int(number.replace(",", "")) for number in re.findall(r"([\d,]+) trainable", out)]
    assert trained[0] == trained[1] == 10_250  # the head
    assert trained[2] == trained[3] > 20_000
    assert percent("test accuracy", out) > 85


def pruning(out: str, folder: Path) -> None:
    assert 45 <= percent("zeros in the checkpoint", out) <= 55
    assert percent("test accuracy", out) > 85


def learning_rate_finder(out: str, folder: Path) -> None:
    assert (folder / "learning_rate.png").stat().st_size > 10_000
    assert percent("val_acc", out) > 80


def batch_size_finder(out: str, folder: Path) -> None:
    assert re.search(r"batch size +95", out)


def profiling(out: str, folder: Path) -> None:
    """The report is logged: see `test_an_example`."""


def prediction_writer(out: str, folder: Path) -> None:
    assert len((folder / "predictions.csv").read_text().splitlines()) == 269
    assert percent("of which", out) > 80


def accumulation(out: str, folder: Path) -> None:
    assert re.findall(r"(\d+) optimizer steps\n", out) == ["20", "10", "10", "5"]


def gan(out: str, folder: Path) -> None:
    assert (folder / "samples.png").stat().st_size > 2_000


def torchmetrics_objects(out: str, folder: Path) -> None:
    assert float(re.search(r"'val_f1': ([\d.]+)", out)[1]) > 0.85  # type: ignore[index]


def several_loaders(out: str, folder: Path) -> None:
    assert percent("dataloader_idx_0", out) > 80
    assert percent("dataloader_idx_1", out) > 80


def k_fold(out: str, folder: Path) -> None:
    assert len(re.findall(r"fold \d", out)) == 5
    assert percent(r"\naccuracy", out) > 85


def own_callback(out: str, folder: Path) -> None:
    assert "gradient_norm" in next(folder.glob("runs/*/*/metrics.csv")).read_text()


def loggers(out: str, folder: Path) -> None:
    assert "metrics.csv" in out
    assert "events.out.tfevents" in out


def language_model(out: str, folder: Path) -> None:
    assert float(re.search(r"loss ([\d.]+);", out)[1]) < 2.2  # type: ignore[index]
    assert len(out[out.index("\ndef ") :]) > 200


def digits(out: str, folder: Path) -> None:
    assert percent("test accuracy", out) > 95
    assert next(folder.glob("runs/*/*/learning_curve.png")).stat().st_size > 10_000


PROMISES: list[Callable[[str, Path], None]] = [
    accumulation, batch_size_finder, checkpoints, digits, early_stopping, ema, finetuning, gan, k_fold,
    language_model, learning_rate_finder, loggers, own_callback, prediction_writer, profiling, pruning, resume,
    several_loaders, stochastic_weight_averaging, torchmetrics_objects,
]  # fmt: skip


def test_each_example_is_tested_and_in_the_table() -> None:
    scripts = sorted(path.stem for path in EXAMPLES.glob("*.py"))
    assert scripts == sorted(promise.__name__ for promise in PROMISES)
    table = (EXAMPLES / "README.md").read_text()
    assert scripts == sorted(re.findall(r"\[(\w+)\.py\]\(\1\.py\)", table))


@pytest.mark.parametrize("promise", PROMISES, ids=lambda promise: promise.__name__)
def test_an_example(promise: Callable[[str, Path], None], tmp_path: Path) -> None:
    ended = subprocess.run(
        [sys.executable, "-W", "error::UserWarning", str(EXAMPLES / f"{promise.__name__}.py")],
        cwd=tmp_path,
        env={**os.environ, "MPLBACKEND": "agg"},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr
    assert "Traceback" not in ended.stderr
    assert "Warning" not in ended.stderr
    if promise is profiling:
        assert re.search(r"data +\S+ s +[5-9]\d\.\d %", ended.stderr), ended.stderr
        assert "waits for data" in ended.stderr
    promise(ended.stdout, tmp_path)

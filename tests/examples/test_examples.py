"""Every script in examples/ runs as a user would run it, and shows what it promises."""

from __future__ import annotations

import csv
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
    trained, averaged = re.findall(r"accuracy ([\d.]+)%, loss ([\d.]+)\n", out)
    assert float(averaged[0]) > 90
    assert float(averaged[1]) < float(trained[1])
    losses = re.findall(r"train_loss (\S+)", out)
    assert losses[:4] == losses[4:]  # averaging changed nothing in training


def early_stopping(out: str, folder: Path) -> None:
    epochs, best = map(int, re.search(r"stopped after  (\d+) of.*epoch=(\d+)-", out, re.DOTALL).groups())  # type: ignore[union-attr]
    assert best + 1 + 3 == epochs < 50
    assert "val_loss was not better" in out
    assert len(list(folder.glob(f"runs/*/*/checkpoints/epoch={best}-*.ckpt"))) == 1


def checkpoints(out: str, folder: Path) -> None:
    kept = re.findall(r"kept +(\S+)", out)
    assert len(kept) == 3
    assert "last.ckpt" in kept
    assert percent("test", out) > 90


def resume(out: str, folder: Path) -> None:
    assert "exit code -9" in out
    assert re.findall(r"^epoch (\d)/2 +step", out, re.MULTILINE) == [
        "1",
        "2",
        "1",
        "2",
    ]  # the third process did the last
    assert "bit for bit: True" in out


def stochastic_weight_averaging(out: str, folder: Path) -> None:
    assert percent("with it", out) > 90
    assert percent("without the average", out) > 80
    rates = re.findall(r"lr-AdamW (\S+)", out)
    assert rates == ["0.02"] * 12 + ["0.01"] * 4


def finetuning(out: str, folder: Path) -> None:
    trained = [int(number.replace(",", "")) for number in re.findall(r"([\d,]+) trainable", out)]
    assert trained[0] == trained[1] == 10_250  # the head
    assert trained[2] == trained[3] > 20_000
    assert re.findall(r"learning rates (.*)", out) == ["0.003", "0.003", "0.003, 0.0003", "0.003, 0.0006"]
    assert percent("test accuracy", out) > 85


def pruning(out: str, folder: Path) -> None:
    assert 45 <= percent("zeros in the checkpoint", out) <= 55
    assert percent("test accuracy", out) > 85


def learning_rate_finder(out: str, folder: Path) -> None:
    assert (folder / "learning_rate.png").stat().st_size > 10_000
    assert percent("val_acc", out) > 80


def batch_size_finder(out: str, folder: Path) -> None:
    assert "Batch size 100 fits." in out
    assert "Batch size 101 is too large." in out
    assert re.search(r"batch size +95,", out)
    assert re.findall(r"step (\d+)", out) == ["14", "28"]  # 1258 scans in batches of 95


def profiling(out: str, folder: Path) -> None:
    assert percent("data .*?s", re.sub(" %", "%", out)) > 50  # of the training, in the first column
    assert "waits for data" in out


def prediction_writer(out: str, folder: Path) -> None:
    assert len((folder / "predictions.csv").read_text().splitlines()) == 269
    assert percent("of which", out) > 80


def accumulation(out: str, folder: Path) -> None:
    assert re.findall(r"(\d+) optimizer steps\n", out) == ["20", "10", "10", "5"]
    assert "45 optimizer steps to come" in out
    assert "45 optimizer steps in all" in out


def gan(out: str, folder: Path) -> None:
    before, after = map(float, re.search(r"([\d.]+) before, ([\d.]+) after", out).groups())  # type: ignore[union-attr]
    assert after < 0.7 * before
    assert (folder / "samples.png").stat().st_size > 2_000


def torchmetrics_objects(out: str, folder: Path) -> None:
    assert float(re.search(r"'val_f1': ([\d.]+)", out)[1]) > 0.85  # type: ignore[index]


def several_loaders(out: str, folder: Path) -> None:
    assert percent("dataloader_idx_0", out) > 80
    assert percent("dataloader_idx_1", out) > 80


def k_fold(out: str, folder: Path) -> None:
    assert re.findall(r"fold (\d) of 5", out) == list("12345")
    assert percent(r"\naccuracy", out) > 85


def own_callback(out: str, folder: Path) -> None:
    with next(folder.glob("runs/*/*/metrics.csv")).open(newline="") as file:
        norms = [float(row["gradient_norm"]) for row in csv.DictReader(file) if row["gradient_norm"]]
    assert len(norms) == 8  # each fifth step of 40
    assert max(norms) <= float(re.search(r"gradient, ([\d.]+),", out)[1]) + 0.01  # type: ignore[index]


def loggers(out: str, folder: Path) -> None:
    with (folder / "runs/digits/version_0/metrics.csv").open(newline="") as file:
        assert sum(bool(row["val_acc"]) for row in csv.DictReader(file)) == 2
    events = next((folder / "runs/board/version_0").glob("events.out.tfevents*")).read_bytes()
    assert b"val_acc" in events
    assert b"first scan" in events
    assert events.count(b"\x89PNG") == 1


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
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,  # as in a terminal: what it prints among the lines of the run
        text=True,
        timeout=120,
        check=False,
    )
    assert ended.returncode == 0, ended.stdout
    assert "Traceback" not in ended.stdout
    assert "Warning" not in ended.stdout
    promise(ended.stdout, tmp_path)

"""CSVLogger: rows that are appended and outlive the process, and a folder for each run."""

from __future__ import annotations

import csv
import gc
import os
import shutil
import signal
import subprocess
import sys
import time
import tracemalloc
from argparse import Namespace
from collections.abc import Iterator
from pathlib import Path
from textwrap import dedent

import pytest
import torch
import yaml

import gpulayer.pytorch as L
from gpulayer.pytorch.loggers import CSVLogger
from tests.pytorch.models import Line, loader


@pytest.fixture
def logger() -> Iterator[CSVLogger]:
    """Writes to runs/a/version_0."""
    logger = CSVLogger("runs", "a")
    yield logger
    logger.finalize("success")


def rows(folder: str | Path) -> list[dict[str, str]]:
    """The rows of metrics.csv as any reader of CSV gets them; cells that are missing are empty."""
    with (Path(folder) / "metrics.csv").open(newline="") as file:
        return list(csv.DictReader(file, restval=""))


def start_together(script: str, *arguments: list[str]) -> list[str]:
    """Run a script that prints "ready" and waits for a line, once for each list; returns what each prints then."""
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", script, *each], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        for each in arguments
    ]
    for process in processes:
        assert process.stdout
        assert process.stdout.readline() == "ready\n"
    for process in processes:
        assert process.stdin
        process.stdin.write("go\n")
        process.stdin.flush()
    printed = [process.communicate(timeout=60)[0] for process in processes]
    assert [process.returncode for process in processes] == [0] * len(processes)
    return printed


def test_a_row_is_there_as_soon_as_it_is_logged(logger: CSVLogger) -> None:
    logger.log_metrics({"loss": 0.5, "epoch": 0}, step=0)
    assert rows(logger.log_dir) == [{"epoch": "0", "step": "0", "loss": "0.5"}]


def test_epoch_and_step_are_the_first_columns(logger: CSVLogger) -> None:
    logger.log_metrics({"acc": 1.0, "epoch": 3, "loss": 0.5}, step=7)
    assert (Path(logger.log_dir) / "metrics.csv").read_text().splitlines() == ["epoch,step,acc,loss", "3,7,1.0,0.5"]


def test_rows_are_appended_and_those_before_are_not_touched(logger: CSVLogger) -> None:
    """The file only grows: same file, same beginning, one line a row."""
    logger.log_metrics({"loss": 0.0}, step=0)
    path = Path(logger.log_dir) / "metrics.csv"
    before, node = path.read_bytes(), path.stat().st_ino
    for step in range(1, 50):
        logger.log_metrics({"loss": float(step)}, step=step)
        now = path.read_bytes()
        assert now.startswith(before)
        assert now.count(b"\n") == before.count(b"\n") + 1
        assert path.stat().st_ino == node
        before = now


def test_a_new_metric_gets_a_column_and_older_rows_an_empty_cell(logger: CSVLogger) -> None:
    logger.log_metrics({"loss": 0.5}, step=0)
    logger.log_metrics({"loss": 0.25}, step=1)
    logger.log_metrics({"acc": 0.75}, step=2)
    logger.log_metrics({"loss": 0.125, "acc": 1.0}, step=3)
    found = [(row["step"], row["loss"], row["acc"]) for row in rows(logger.log_dir)]
    assert found == [("0", "0.5", ""), ("1", "0.25", ""), ("2", "", "0.75"), ("3", "0.125", "1.0")]
    assert not list(Path(logger.log_dir).glob("*.part"))


def test_numbers_keep_all_their_digits(logger: CSVLogger) -> None:
    logger.log_metrics({"third": 1 / 3, "tiny": 5e-324, "nan": float("nan"), "inf": float("inf")}, step=0)
    row = rows(logger.log_dir)[0]
    assert float(row["third"]) == 1 / 3
    assert float(row["tiny"]) == 5e-324
    assert row["nan"] == "nan"
    assert row["inf"] == "inf"


def test_names_that_need_quotes(logger: CSVLogger) -> None:
    names = ["a,b", 'say "x"', "val/loss", "größe"]
    logger.log_metrics(dict.fromkeys(names, 1.0), step=0)
    assert {name: rows(logger.log_dir)[0][name] for name in names} == dict.fromkeys(names, "1.0")


def test_tensors_are_written_as_numbers(logger: CSVLogger) -> None:
    """`self.logger.log_metrics({"x": tensor})` is common in code written for Lightning."""
    logger.log_metrics({"x": torch.tensor(0.5), "n": torch.tensor([3])}, step=0)
    row = rows(logger.log_dir)[0]
    assert float(row["x"]) == 0.5
    assert float(row["n"]) == 3


def test_steps_are_counted_where_none_are_given(logger: CSVLogger) -> None:
    for _ in range(3):
        logger.log_metrics({"loss": 0.5})
    assert [row["step"] for row in rows(logger.log_dir)] == ["0", "1", "2"]


def test_a_prefix() -> None:
    logger = CSVLogger("runs", "a", prefix="exp")
    logger.log_metrics({"loss": 0.5}, step=0)
    logger.finalize("success")
    assert rows(logger.log_dir)[0]["exp-loss"] == "0.5"


def test_rows_may_be_gathered() -> None:
    """With flush_logs_every_n_steps=10 rows reach the file in tens, or when the logger is told to save."""
    logger = CSVLogger("runs", "a", flush_logs_every_n_steps=10)
    for step in range(15):
        logger.log_metrics({"loss": 0.5}, step=step)
    assert len(rows(logger.log_dir)) == 10
    logger.finalize("success")
    assert len(rows(logger.log_dir)) == 15


def test_hyperparameters_lie_beside_the_metrics(logger: CSVLogger) -> None:
    """What YAML has no form for is written as text."""
    logger.log_hyperparams(Namespace(lr=0.1, layers=[1, 2], net=torch.nn.ReLU(), folder=Path("data")))
    logger.save()
    with (Path(logger.log_dir) / "hparams.yaml").open() as file:
        assert yaml.safe_load(file) == {"lr": 0.1, "layers": [1, 2], "net": "ReLU()", "folder": "data"}


def test_each_logger_claims_the_next_version() -> None:
    assert [CSVLogger("runs", "a").version for _ in range(3)] == [0, 1, 2]
    Path("runs/a/version_7").mkdir()
    Path("runs/a/version_x").mkdir()
    (Path("runs/a") / "version_9").touch()  # a file of that name cannot be a folder either
    assert CSVLogger("runs", "a").version in (8, 10)


def test_a_version_is_kept(logger: CSVLogger) -> None:
    assert logger.version == logger.version == 0
    assert logger.log_dir == os.path.join("runs", "a", "version_0")


def test_a_named_version() -> None:
    assert CSVLogger("runs", "a", version="first").log_dir == os.path.join("runs", "a", "first")
    assert CSVLogger("runs", "a", version=5).log_dir == os.path.join("runs", "a", "version_5")


def test_a_given_version_goes_on_in_the_same_file() -> None:
    """Two runs into one folder: the rows of the first stay, a metric that only the second has gets its column."""
    for loss in (0.5, 0.25):
        logger = CSVLogger("runs", "a", version=0)
        logger.log_metrics({"loss": loss, **({"acc": 1.0} if loss == 0.25 else {})}, step=0)
        logger.finalize("success")
    assert [(row["loss"], row["acc"]) for row in rows("runs/a/version_0")] == [("0.5", ""), ("0.25", "1.0")]


@pytest.mark.parametrize("every", [1, 3])
def test_loggers_that_share_a_folder(every: int) -> None:
    """Each value lies under its name, whoever added its column; rows that wait for others are no exception."""
    loggers = [CSVLogger("runs", "a", version=0, prefix=name, flush_logs_every_n_steps=every) for name in ("", "b")]
    for step in range(12):
        for number, logger in enumerate(loggers):
            logger.log_metrics({"loss": step + number / 2, **({f"late{number}": 1.0} if step == 6 else {})}, step)
    for logger in loggers:
        logger.finalize("success")
    found = rows("runs/a/version_0")
    assert [(row["step"], row["loss"]) for row in found if row["loss"]] == [(str(s), f"{s}.0") for s in range(12)]
    assert [(row["step"], row["b-loss"]) for row in found if row["b-loss"]] == [(str(s), f"{s}.5") for s in range(12)]
    assert [row["step"] for row in found if row["late0"]] == [row["step"] for row in found if row["b-late1"]] == ["6"]
    assert len(found) == 24


SHARE = """
import sys, time
from gpulayer.pytorch.loggers import CSVLogger
logger = CSVLogger("runs", "a", version=0, prefix=sys.argv[1])
print("ready", flush=True)
sys.stdin.readline()
for step in range(600):
    logger.log_metrics({f"x{step // 30}": float(step)}, step)
    time.sleep(0.001)
logger.finalize("success")
"""


def test_processes_that_share_a_folder() -> None:
    """Both add twenty columns. A row that is written while the other copies the file may be lost, but not misplaced."""
    start_together(SHARE, ["a"], ["b"])
    found = rows("runs/a/version_0")
    for row in found:
        ((name, value),) = [(name, value) for name, value in row.items() if value and name != "step"]
        assert float(value) == int(row["step"])
        assert name[2:] == f"x{int(row['step']) // 30}"
    assert len(found) > 1150
    assert not list(Path("runs/a/version_0").glob("*.part"))


@pytest.mark.parametrize("lost", ["metrics.csv", "."])
def test_what_was_deleted_in_mid_run_begins_anew(lost: str, logger: CSVLogger) -> None:
    logger.log_metrics({"loss": 0.5, "acc": 1.0}, step=0)
    shutil.rmtree(logger.log_dir) if lost == "." else Path(logger.log_dir, lost).unlink()
    logger.log_metrics({"loss": 0.25}, step=1)
    assert rows(logger.log_dir) == [{"step": "1", "loss": "0.25"}]


def test_a_name_of_two_lines_keeps_its_cells_as_columns_are_added(logger: CSVLogger) -> None:
    logger.log_metrics({"a\nb": 0.5}, step=0)
    logger.log_metrics({"c": 0.25}, step=1)
    assert rows(logger.log_dir) == [{"step": "0", "a\nb": "0.5", "c": ""}, {"step": "1", "a\nb": "", "c": "0.25"}]


def test_text_is_written_as_it_is(logger: CSVLogger) -> None:
    """What it says when it is logged, not when it is written; a tensor of several elements is refused with its row."""
    logger.log_metrics({"note": "a, b", "none": None, "true": True}, step=0)  # type: ignore[dict-item]
    with pytest.raises(RuntimeError, match="2 elements"):
        logger.log_metrics({"loss": 0.5, "note": torch.ones(2)}, step=1)  # type: ignore[dict-item]
    assert rows(logger.log_dir) == [{"step": "0", "note": "a, b", "none": "", "true": "True"}]


def test_a_logger_that_goes_out_of_use_with_rows_that_cannot_be_written() -> None:
    """Nothing is raised where nobody could catch it: pytest would make an error of it."""
    logger = CSVLogger("runs", "a", version=0, flush_logs_every_n_steps=10)
    logger.log_metrics({"loss": 0.5}, step=0)
    Path("runs/a/version_0/metrics.csv").mkdir()
    with pytest.raises(IsADirectoryError):
        logger.finalize("success")
    del logger
    gc.collect()


def test_nothing_is_written_before_something_is_logged() -> None:
    CSVLogger("runs", "a")
    assert not Path("runs").exists()


CLAIM = """
import sys
from gpulayer.pytorch.loggers import CSVLogger
print("ready", flush=True)
sys.stdin.readline()
print(*[CSVLogger("runs", "a").version for _ in range(200)])
"""


def test_two_processes_at_once_get_versions_of_their_own() -> None:
    """Both claim 200 at the same time; no number is given twice, and none is left out."""
    claimed = [list(map(int, printed.split())) for printed in start_together(CLAIM, [], [])]
    assert sorted(claimed[0] + claimed[1]) == list(range(400))
    assert max(claimed[0]) > min(claimed[1])
    assert max(claimed[1]) > min(claimed[0])


ENDLESS = dedent("""
    import itertools, torch
    import gpulayer.pytorch as L

    class Model(L.LightningModule):
        def __init__(self):
            super().__init__()
            self.net = torch.nn.Linear(1, 1)

        def training_step(self, batch, batch_idx):
            loss = self.net(batch).sum()
            self.log("loss", loss)
            if batch_idx == 30:
                self.log("late", 1.0)
            return loss

        def configure_optimizers(self):
            return torch.optim.SGD(self.parameters(), lr=0.1)

    batches = itertools.repeat(torch.ones(1, 1))
    trainer = L.Trainer(max_steps=10**9, accelerator="cpu", log_every_n_steps=1, enable_checkpointing=False)
    trainer.fit(Model(), batches)
    """)


def test_a_killed_run_keeps_its_rows() -> None:
    """kill -9 in mid-run: every row but perhaps the one being written is whole, and none is missing."""
    process = subprocess.Popen([sys.executable, "-c", ENDLESS])
    path = Path("runs/Model/version_0/metrics.csv")
    try:
        deadline = time.monotonic() + 60
        while not (path.exists() and path.read_bytes().count(b"\n") > 100):
            assert process.poll() is None, "the run ended by itself"
            assert time.monotonic() < deadline, "no rows came"
            time.sleep(0.01)
        seen = path.read_bytes()
    finally:
        process.send_signal(signal.SIGKILL)
        process.wait()
    assert process.returncode == -signal.SIGKILL
    assert path.read_bytes().startswith(seen[: seen.rindex(b"\n")])
    kept = rows(path.parent)
    assert [int(row["step"]) for row in kept[:-1]] == list(range(len(kept) - 1))
    assert all(float(row["loss"]) == float(row["loss"]) for row in kept[:-1])
    assert [row["step"] for row in kept if row["late"]] == ["30"]


def test_a_failed_run_keeps_its_rows() -> None:
    """The user's error closes the file; rows and hyperparameters are there."""

    class Breaks(Line):
        def __init__(self, size: int = 3) -> None:
            super().__init__()
            self.save_hyperparameters()

        def training_step(self, batch: object, batch_idx: int) -> torch.Tensor:
            if batch_idx == 2:
                raise ValueError("the user's own")
            return super().training_step(batch, batch_idx)

    trainer = L.Trainer(accelerator="cpu", log_every_n_steps=1, enable_checkpointing=False)
    with pytest.raises(ValueError, match="the user's own"):
        trainer.fit(Breaks(), loader())
    assert [row["step"] for row in rows("runs/Breaks/version_0")] == ["0", "1"]
    assert Path("runs/Breaks/version_0/hparams.yaml").read_text() == "size: 3\n"


def test_a_long_file_is_written_in_constant_memory() -> None:
    """Nothing of 20,000 rows stays in memory; the file has them all. benchmarks/csv_rows.py writes a million."""
    logger = CSVLogger("runs", "a")
    logger.log_metrics({"loss": 0.0, "epoch": 0}, step=0)
    tracemalloc.start()
    try:
        for step in range(1, 20_000):
            logger.log_metrics({"loss": step / 7, "epoch": step // 100}, step=step)
            if step == 1_000:
                before, _ = tracemalloc.get_traced_memory()
                tracemalloc.reset_peak()
        after, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    logger.finalize("success")
    assert after - before < 10_000
    assert peak - before < 20_000
    found = rows(logger.log_dir)
    assert len(found) == 20_000
    assert all(
        (int(row["step"]), int(row["epoch"]), float(row["loss"])) == (step, step // 100, step / 7)
        for step, row in enumerate(found)
    )


@pytest.mark.parametrize("header", ["epoch,step,old\n", '"epoch","step","old"\r\n', '"epoch","step","two\nlines"\n'])
def test_a_file_that_somebody_else_wrote_keeps_its_rows(header: str) -> None:
    """When a column is added, and when a run goes on."""
    folder = Path("runs/a/version_0")
    folder.mkdir(parents=True)
    (folder / "metrics.csv").write_bytes((header + "12,345,1.5\n").encode())
    logger = CSVLogger("runs", "a", version=0)
    state = logger.state_dict()
    logger.log_metrics({"new": 2.0}, 7)
    logger.save()
    assert [(row["epoch"], row["step"], row["new"] or "") for row in rows("runs/a/version_0")] == [
        ("12", "345", ""),
        ("", "7", "2.0"),
    ]
    logger.load_state_dict(state)
    assert [(row["epoch"], row["step"]) for row in rows("runs/a/version_0")] == [("12", "345")]

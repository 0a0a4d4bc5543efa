"""Loggers that fail in a run: training goes on, others get their rows, and what is lost is said."""

from __future__ import annotations

import csv
import json
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, HTTPServer
from itertools import pairwise
from pathlib import Path
from textwrap import dedent
from typing import Any

import pytest
import torch

import gpulayer.pytorch as L
from gpulayer.pytorch.callbacks import LearningRateMonitor, ModelCheckpoint
from gpulayer.pytorch.loggers import CSVLogger, Logger, delivery
from tests.pytorch.models import Line, loader, same, trainer, weights

STEPS = 12


class Memory(Logger):
    """Keeps the steps of its rows in `steps`; a call for which `fails(number of the call, metrics)` holds raises."""

    name, version = "memory", 0  # type: ignore[assignment]

    def __init__(self, fails: Callable[[int, dict[str, float]], bool] = lambda call, metrics: False) -> None:
        super().__init__()
        self.fails = fails
        self.calls = 0
        self.steps: list[int | None] = []
        self.ends: list[str] = []

    def log_metrics(self, metrics: dict[str, float], step: int | None = None) -> None:
        self.calls += 1
        if self.fails(self.calls, metrics):
            raise ConnectionError("nobody answers")
        self.steps.append(step)

    def log_hyperparams(self, params: Any, *args: Any, **kwargs: Any) -> None:
        pass

    def finalize(self, status: str) -> None:
        self.ends.append(status)


def always(call: int, metrics: dict[str, float]) -> bool:
    return True


def fit(*loggers: Logger, model: L.Module | None = None, **arguments: Any) -> L.Trainer:
    """A run of 12 steps, each of which is a log point."""
    used = trainer(**{"logger": list(loggers), "log_every_n_steps": 1, **arguments})
    used.fit(Line() if model is None else model, loader(STEPS))
    return used


@pytest.fixture
def no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    """A logger that failed is tried again at the next row."""
    monkeypatch.setattr(delivery, "FIRST_PAUSE", 0.0)
    monkeypatch.setattr(delivery, "LONGEST_PAUSE", 0.0)


def warnings_in(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]


# -- a logger that raises ---------------------------------------------------------------------------------------------


def test_one_that_always_raises(caplog: pytest.LogCaptureFixture) -> None:
    """The others get their rows, the weights are those of a run without loggers, and the log has two lines."""
    torch.manual_seed(1)
    alone, watched = Line(), Line()
    watched.load_state_dict(alone.state_dict())
    fit(model=alone, logger=False)
    first, broken, last = Memory(), Memory(always), Memory()
    used = fit(first, broken, last, model=watched)
    assert used.state.finished
    assert first.steps == last.steps == list(range(STEPS))
    assert broken.steps == []
    assert [logger.ends for logger in (first, broken, last)] == [["success"]] * 3
    assert same(weights(alone), weights(watched))
    started, ended = warnings_in(caplog)
    assert started.startswith("Memory failed (ConnectionError: nobody answers, at ")
    assert f"{__file__}:" in started
    assert ended.startswith(f"Memory lacks {STEPS} rows of this run. Its last error: ConnectionError: nobody answers")


def test_one_that_raises_for_a_while(no_pauses: None, caplog: pytest.LogCaptureFixture) -> None:
    """Its rows come later, all of them and in order."""
    here: list[bool] = []

    class Model(Line):
        def on_train_batch_start(self, batch: Any, batch_idx: int) -> None:
            if batch_idx == 9:
                here.append(True)

    away = Memory(lambda call, metrics: not here)
    fit(away, model=Model())
    assert away.steps == list(range(STEPS))
    assert len(warnings_in(caplog)) == 1
    assert "Memory has taken all rows of this run after all." in caplog.text


def test_one_that_comes_back_for_the_end_of_the_run(caplog: pytest.LogCaptureFixture) -> None:
    """A second has not passed since its failure, so the rows that came meanwhile wait until the run is over."""
    away = Memory(lambda call, metrics: call == 1)
    fit(away)
    assert away.steps == list(range(STEPS))
    assert away.calls == 1 + STEPS


@pytest.mark.parametrize("every", [2, 3, 5])
def test_one_that_raises_from_time_to_time(every: int, no_pauses: None, caplog: pytest.LogCaptureFixture) -> None:
    """Each row gets there once, and in order."""
    shaky = Memory(lambda call, metrics: call % every == 0)
    fit(shaky)
    assert shaky.steps == list(range(STEPS))
    assert len(warnings_in(caplog)) == 1


class Oddly(Line):
    """Logs "odd" in steps 3 and 4."""

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        if batch_idx in (3, 4):
            self.log("odd", 1.0)
        return super().training_step(batch, batch_idx)


def test_rows_that_are_refused_do_not_keep_the_others(no_pauses: None, caplog: pytest.LogCaptureFixture) -> None:
    """As a service does that forbids some names: the two rows are given up, all others arrive in order."""
    strict = Memory(lambda call, metrics: "odd" in metrics)
    fit(strict, model=Oddly())
    assert strict.steps == [step for step in range(STEPS) if step not in (3, 4)]
    assert "Memory lacks 2 rows of this run." in caplog.text


def test_many_rows_that_are_refused(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    """Twenty in a row: each is given up in its turn, and those behind them arrive."""
    clock = [0.0]
    monkeypatch.setattr(delivery, "monotonic", lambda: clock[0])
    strict = Memory(lambda call, metrics: "odd" in metrics)
    used = trainer(logger=strict)
    for second in range(8_000):
        clock[0] += 1.0
        used.delivery.row({"odd" if 10 <= second < 30 else "loss": 0.5}, second)
    assert strict.steps == [step for step in range(8_000) if not 10 <= step < 30]
    used.delivery.finalize("success")
    assert "Memory lacks 20 rows of this run." in caplog.text


@pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit])
def test_what_is_no_error_ends_the_run(error: type[BaseException]) -> None:
    class Stops(Memory):
        def log_metrics(self, metrics: dict[str, float], step: int | None = None) -> None:
            raise error

    stops = Stops()
    with pytest.raises(error):
        fit(stops)
    assert stops.ends in ([], ["failed"])


# -- bounds -----------------------------------------------------------------------------------------------------------


def test_the_oldest_rows_go_where_too_many_wait(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(delivery, "MOST_WAITING", 5)
    away = Memory(lambda call, metrics: call == 1)
    fit(away)
    assert away.steps == list(range(STEPS - 5, STEPS))
    assert f"Memory lacks {STEPS - 5} rows of this run." in caplog.text


def test_pauses_grow(monkeypatch: pytest.MonkeyPatch) -> None:
    """While the logger is away, tries get rarer: 1, 2, 4, 8 seconds and so on up to a minute."""
    clock = [0.0]
    monkeypatch.setattr(delivery, "monotonic", lambda: clock[0])
    times = []

    class Away(Memory):
        def log_metrics(self, metrics: dict[str, float], step: int | None = None) -> None:
            if not times or times[-1] != clock[0]:
                times.append(clock[0])
            raise ConnectionError

    used = trainer(logger=Away())
    for second in range(1, 301):
        clock[0] = float(second)
        used.delivery.row({"loss": 0.5}, second)
    assert [after - before for before, after in pairwise(times)] == [1, 2, 4, 8, 16, 32, 60, 60, 60]


@pytest.mark.parametrize("method", ["log_metrics", "save"])
def test_a_server_that_hangs_takes_a_tenth_of_the_time(method: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each try of it lasts 30 seconds."""
    clock, hung = [0.0], [0.0]
    monkeypatch.setattr(delivery, "monotonic", lambda: clock[0])

    def hang(*args: Any, **kwargs: Any) -> None:
        clock[0] += 30.0
        hung[0] += 30.0
        raise TimeoutError

    used = trainer(logger=type("Hangs", (Memory,), {method: hang})())
    while clock[0] < 36_000:
        clock[0] += 1.0
        used.delivery.row({"loss": 0.5}, 0)
    assert 0.08 < hung[0] / clock[0] <= 0.1


# -- other calls ------------------------------------------------------------------------------------------------------


def test_saving_and_finalizing(caplog: pytest.LogCaptureFixture) -> None:
    class Unsaved(Memory):
        def save(self) -> None:
            if self.steps:  # not in set-up
                raise OSError("no space left")

        def finalize(self, status: str) -> None:
            raise OSError("no space left at the end")

    unsaved, other = Unsaved(), Memory()
    fit(unsaved, other)
    assert unsaved.steps == other.steps == list(range(STEPS))
    assert other.ends == ["success"]
    assert [line.split(",")[0] for line in warnings_in(caplog)] == [
        "Unsaved failed (OSError: no space left", "Unsaved could not end its run (OSError: no space left at the end",
        f"Unsaved took {STEPS} rows that it could not save; it may lack them.",
    ]  # fmt: skip


@pytest.mark.parametrize("when", ["at a later row", "at the end", "finalize"])
def test_saving_that_works_later(
    when: str, no_pauses: None, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Nothing is lacking then, whichever call did it."""
    if when != "at a later row":
        monkeypatch.setattr(delivery, "FIRST_PAUSE", 1000.0)
    saved: list[int] = []

    class Late(Memory):
        def save(self) -> None:
            if self.steps and (when == "finalize" or not saved):
                saved.append(len(self.steps))
                raise OSError("no space left")

        def finalize(self, status: str) -> None:
            pass

    late = Late()
    fit(late)
    assert late.steps == list(range(STEPS))
    assert saved[0] == 1
    assert len(warnings_in(caplog)) == 1
    assert "Late has taken all rows of this run after all." in caplog.text


def test_telling_of_checkpoints(caplog: pytest.LogCaptureFixture) -> None:
    """The checkpoint is there, and the other logger hears of it."""

    class Uploads(Memory):
        def __init__(self, broken: bool) -> None:
            super().__init__()
            self.broken, self.uploaded = broken, list[str]()

        def after_save_checkpoint(self, checkpoint_callback: Any) -> None:
            if self.broken:
                raise ConnectionError("the store is away")
            self.uploaded.append(Path(checkpoint_callback.best_model_path).name)

    broken, works = Uploads(True), Uploads(False)
    fit(broken, works, callbacks=[ModelCheckpoint("saved")])
    assert Path(f"saved/epoch=0-step={STEPS}.ckpt").is_file()
    assert works.uploaded == [f"epoch=0-step={STEPS}.ckpt"]
    assert broken.steps == list(range(STEPS))
    assert "Uploads lacks 1 checkpoint of this run." in caplog.text


def test_checkpoints_are_nothing_to_a_logger_that_takes_none(caplog: pytest.LogCaptureFixture) -> None:
    fit(Memory(always), callbacks=[ModelCheckpoint("saved")])
    assert f"Memory lacks {STEPS} rows of this run." in caplog.text


def test_the_rows_of_a_callback(caplog: pytest.LogCaptureFixture) -> None:
    """LearningRateMonitor's rows are kept like those of self.log."""
    works, away = Memory(), Memory(lambda call, metrics: call == 1)
    fit(works, away, callbacks=[LearningRateMonitor("step")])
    assert works.steps == away.steps == [step for step in range(STEPS) for _ in range(2)]


@pytest.mark.parametrize("call", ["validate", "test"])
def test_evaluations(call: str, caplog: pytest.LogCaptureFixture) -> None:
    model = Line()
    model.validation_step = model.test_step  # type: ignore[assignment, method-assign]
    result = getattr(trainer(logger=[Memory(always)]), call)(model, loader())
    assert list(result) == ["test_loss"]
    assert "Memory lacks 1 row of this run." in caplog.text


def test_a_run_that_fails_by_itself(caplog: pytest.LogCaptureFixture) -> None:
    """The user's error arrives; the loggers are finalized, and what is lost is said."""

    class Breaks(Line):
        def training_step(self, batch: Any, batch_idx: int) -> Any:
            if batch_idx == 4:
                raise ValueError("the user's own")
            return super().training_step(batch, batch_idx)

    broken = Memory(always)
    with pytest.raises(ValueError, match="the user's own"):
        fit(broken, model=Breaks())
    assert broken.ends == ["failed"]
    assert "Memory lacks 4 rows of this run." in caplog.text


def test_the_next_run_begins_anew(caplog: pytest.LogCaptureFixture) -> None:
    """What the first run lost is not counted again; the second has its own warning."""
    broken = Memory(always)
    used = fit(broken)
    used.test(Line(), loader(2))
    lines = [line.split(" of ")[0] for line in warnings_in(caplog) if "lacks" in line]
    assert lines == [f"Memory lacks {STEPS} rows", "Memory lacks 1 row"]
    assert len(warnings_in(caplog)) == 4


def test_a_logger_that_is_replaced_in_the_run() -> None:
    before, after = Memory(lambda call, metrics: call == 1), Memory()

    class Replaces(Line):
        def on_train_batch_start(self, batch: Any, batch_idx: int) -> None:
            if batch_idx == 4:
                self.trainer.logger = after

    fit(before, model=Replaces())
    assert (before.steps, after.steps) == ([0, 1, 2, 3], list(range(4, STEPS)))


@pytest.mark.parametrize("method", ["experiment", "log_hyperparams", "log_graph"])
def test_before_the_first_batch_an_error_ends_the_run(method: str) -> None:
    def fails(*args: Any, **kwargs: Any) -> None:
        raise ConnectionError("no such server")

    class Model(Line):
        def __init__(self, size: int = 1) -> None:
            super().__init__()
            self.save_hyperparameters()

    kind = type("Wrong", (Memory,), {method: property(fails) if method == "experiment" else fails})
    with pytest.raises(ConnectionError, match="no such server"):
        fit(kind(), model=Model())


# -- a server that is away --------------------------------------------------------------------------------------------


class Server:
    """A service on this machine that takes rows by HTTP; it can go away and come back at the same address."""

    def __init__(self) -> None:
        self.steps: list[int] = []
        self.port = 0
        self.start()

    def start(self) -> None:
        steps = self.steps

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                steps.append(json.loads(self.rfile.read(int(self.headers["Content-Length"])))["step"])
                self.send_response(200)
                self.end_headers()

            def log_message(self, *args: Any) -> None:
                pass

        self.server = HTTPServer(("127.0.0.1", self.port), Handler)
        self.port = self.server.server_port
        self.thread = threading.Thread(target=self.server.serve_forever, args=(0.01,))
        self.thread.start()

    def stop(self) -> None:
        self.server.shutdown()
        self.thread.join()
        self.server.server_close()


class Posts(Memory):
    """Sends its rows to a server."""

    def __init__(self, server: Server) -> None:
        super().__init__()
        self.url = f"http://127.0.0.1:{server.port}/"

    def log_metrics(self, metrics: dict[str, float], step: int | None = None) -> None:
        request = urllib.request.Request(self.url, json.dumps({"step": step, **metrics}).encode())
        with urllib.request.urlopen(request, timeout=5) as answer:
            answer.read()


@pytest.mark.parametrize("back", [True, False])
def test_a_server_that_goes_away(back: bool, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    """In step 3 it is gone; if it is back in step 8, all rows get there in order, else it lacks those since."""
    monkeypatch.setattr(delivery, "FIRST_PAUSE", 0.01)
    server = Server()

    class Model(Line):
        def on_train_batch_start(self, batch: Any, batch_idx: int) -> None:
            if batch_idx == 3:
                server.stop()
            if batch_idx == 8 and back:
                server.start()
            time.sleep(0.01)

    fit(Posts(server), model=Model())
    if back:
        server.stop()
    assert server.steps == list(range(STEPS if back else 3))
    lines = warnings_in(caplog)
    assert lines[0].startswith("Posts failed (URLError: ")
    assert len(lines) == (1 if back else 2)
    assert back or lines[1].startswith(f"Posts lacks {STEPS - 3} rows of this run.")


# -- a full disk ------------------------------------------------------------------------------------------------------

FULL = dedent("""
    import resource, signal, sys
    import torch
    import gpulayer.pytorch as L
    from gpulayer.pytorch.loggers import CSVLogger, delivery

    delivery.FIRST_PAUSE = delivery.LONGEST_PAUSE = 0.0
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)

    def room(size):
        resource.setrlimit(resource.RLIMIT_FSIZE, (size, resource.RLIM_INFINITY))

    class Model(L.LightningModule):
        def __init__(self):
            super().__init__()
            self.net = torch.nn.Linear(1, 1)

        def training_step(self, batch, batch_idx):
            if batch_idx == 20:
                room(400)
            if batch_idx == 60:
                self.log("late", 1.0)
            if batch_idx == 80 and "for a while" in sys.argv:
                room(resource.RLIM_INFINITY)
            self.log("loss", self.net(batch).sum())
            return self.net(batch).sum()

        def configure_optimizers(self):
            return torch.optim.SGD(self.parameters(), lr=0.1)

    loggers = [CSVLogger("logs", "a", version=flush, flush_logs_every_n_steps=flush) for flush in (1, 7)]
    trainer = L.Trainer(accelerator="cpu", logger=loggers, log_every_n_steps=1, enable_checkpointing=False)
    trainer.fit(Model(), [torch.ones(1, 1)] * 100)
    """)


def run_full(long: str, folder: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", FULL, long]
    done = subprocess.run(command, capture_output=True, text=True, cwd=folder, timeout=100)
    assert done.returncode == 0, done.stderr
    return done


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs limits on the size of files, as Linux has them")
def test_a_disk_that_is_full_for_a_while(tmp_path: Path) -> None:
    """metrics.csv has each row once and whole, in order; a limit on the size of files stands for the full disk."""
    done = run_full("for a while", tmp_path)
    assert done.stderr.count("CSVLogger failed (OSError: [Errno 27] File too large") == 2
    for folder in (Path("logs/a/version_1"), Path("logs/a/version_7")):
        with (folder / "metrics.csv").open(newline="") as file:
            rows = list(csv.DictReader(file, restval=""))
        assert [row["step"] for row in rows] == [str(step) for step in range(100)]
        assert [row["step"] for row in rows if row["late"]] == ["60"]
        assert all(row["loss"] for row in rows)
        assert [path.name for path in folder.iterdir()] == ["metrics.csv"]


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs limits on the size of files, as Linux has them")
def test_a_disk_that_stays_full(tmp_path: Path) -> None:
    """The rows that the files lack are counted, those in a logger's buffer among them; no traceback is printed."""
    done = run_full("for ever", tmp_path)
    lost = []
    for folder in (Path("logs/a/version_1"), Path("logs/a/version_7")):
        with (folder / "metrics.csv").open(newline="") as file:
            steps = [row["step"] for row in csv.DictReader(file)]
        assert steps == [str(step) for step in range(len(steps))]
        lost.append(100 - len(steps))
    buffered = 6
    assert [line.split(".")[0] for line in done.stderr.splitlines() if " rows" in line and "kept" not in line] == [
        f"CSVLogger lacks {lost[0]} rows of this run",
        f"CSVLogger lacks {lost[1] - buffered} rows of this run",
        f"CSVLogger took {buffered} rows that it could not save; it may lack them",
    ]
    assert "Traceback" not in done.stderr
    assert "after all" not in done.stderr


def test_a_csv_logger_of_ones_own_raises(tmp_path: Path) -> None:
    """Outside a run nobody stands between: the error arrives, as before."""
    logger = CSVLogger("logs", "a", version=0)
    logger.log_metrics({"loss": 0.5}, step=0)
    logger.finalize("success")
    Path("logs/a/version_0/metrics.csv").unlink()
    Path("logs/a/version_0/metrics.csv").mkdir()
    with pytest.raises(IsADirectoryError):
        logger.log_metrics({"loss": 0.25}, step=1)

"""Actions of the user's, used in ways that nobody planned: around calls, in threads, without an end, with odd names."""

from __future__ import annotations

import json
import multiprocessing
import threading
import time
from pathlib import Path
from typing import Any

import pytest
import torch

import gpulayer.pytorch as L
from gpulayer.fabric.utilities.exceptions import MisconfigurationException
from gpulayer.pytorch.profilers import AdvancedProfiler, PassThroughProfiler, Profiler, PyTorchProfiler, SimpleProfiler
from gpulayer.pytorch.profilers.report import actions, by_stage
from tests.pytorch.models import Line, loader, trainer

PAUSE = 0.02
KINDS = [SimpleProfiler, AdvancedProfiler]


@pytest.mark.parametrize("kind", KINDS)
def test_an_action_around_calls(kind: Any) -> None:
    profiler = kind()
    runner, model = trainer(profiler=profiler, max_epochs=1), Line()
    with profiler.profile("around"):
        runner.fit(model, loader())
        assert actions(profiler.timeline)["around"][1] == 1
        time.sleep(PAUSE)  # between the calls: in neither's report
        runner.test(model, loader(), verbose=False)
        assert "around" in profiler.summary()
        assert by_stage(profiler.timeline)["test"]
    assert profiler.timeline.stack == ()


@pytest.mark.parametrize("kind", [*KINDS, PyTorchProfiler])
def test_an_action_that_begins_before_a_call_or_ends_after_it(kind: Any, tmp_path: Path) -> None:
    class Begins(Line):
        def on_train_start(self) -> None:
            profiler.stop("before")
            profiler.start("after")

    profiler = kind(tmp_path)
    profiler.start("before")
    trainer(profiler=profiler, max_epochs=1).fit(Begins(), loader())
    profiler.stop("after")
    trainer(profiler=profiler, max_epochs=1).test(Line(), loader())


@pytest.mark.parametrize("kind", KINDS)
def test_actions_of_other_threads_take_no_time_from_the_parts(kind: Any) -> None:
    over = threading.Event()
    errors: list[BaseException] = []

    class Busy(Line):
        def training_step(self, batch: Any, batch_idx: int) -> Any:
            time.sleep(PAUSE)
            return super().training_step(batch, batch_idx)

    def work() -> None:
        try:
            while not over.is_set():
                with profiler.profile("thread"):
                    time.sleep(0.0001)
        except BaseException as error:
            errors.append(error)

    profiler = kind()
    threads = [threading.Thread(target=work) for _ in range(3)]
    begin = L.callbacks.LambdaCallback(
        on_train_start=lambda *_: [thread.start() for thread in threads],
        on_train_end=lambda *_: [over.set(), *(thread.join() for thread in threads)],  # type: ignore[func-returns-value]
    )
    try:
        trainer(profiler=profiler, max_epochs=1, callbacks=[begin]).fit(Busy(), loader(8))
    finally:
        over.set()
    assert errors == []
    assert profiler.timeline.stack == ()
    assert not any("thread" in stack for stack in profiler.timeline.spent)
    seconds, calls = actions(profiler.timeline)["thread"]
    assert calls > 10
    assert seconds > 0
    assert by_stage(profiler.timeline)["train"]["forward"] >= 8 * PAUSE


@pytest.mark.parametrize("kind", KINDS)
def test_actions_that_are_never_stopped_are_an_error_before_they_fill_the_memory(kind: Any) -> None:
    class Forgets(Line):
        def training_step(self, batch: Any, batch_idx: int) -> Any:
            profiler.start("forgotten")
            return super().training_step(batch, batch_idx)

    profiler = kind()
    with pytest.raises(MisconfigurationException, match="of them 'forgotten': a `stop` is missing"):
        trainer(profiler=profiler, max_epochs=-1).fit(Forgets(), loader(100, 1))


@pytest.mark.parametrize("profiler", [SimpleProfiler(), PassThroughProfiler(), PyTorchProfiler()])
def test_a_name_is_a_string(profiler: Profiler) -> None:
    with pytest.raises(MisconfigurationException, match=r"profile\(3\)"), profiler.profile(3):  # type: ignore[arg-type]
        pass


def test_no_time_is_lost_where_the_report_is_read_in_mid_run() -> None:
    profiler = SimpleProfiler()
    with profiler.profile("a"):
        profiler.summary()
        time.sleep(PAUSE)
        with profiler.profile("b"):
            pass
    assert actions(profiler.timeline)["a"][0] >= PAUSE


def test_any_name_gives_a_trace_that_can_be_read(tmp_path: Path) -> None:
    names = ['say "a"', "back\\slash", "two\nlines", "r\u00e9sum\u00e9", "tab\t", "\x00", "\ud800", "", "x" * 5_000]

    class Odd(Line):
        def training_step(self, batch: Any, batch_idx: int) -> Any:
            for name in names:
                with self.trainer.profiler.profile(name):
                    pass
            return super().training_step(batch, batch_idx)

    trainer(profiler=PyTorchProfiler(tmp_path), max_epochs=1).fit(Odd(), loader(8))
    (file,) = tmp_path.glob("*.pt.trace.json")
    found = {event.get("name") for event in json.loads(file.read_text())["traceEvents"]}
    assert {"say 'a'", "two?lines", "r?sum?", "tab?", "?", "", "x" * 5_000} <= found


def test_a_profiler_that_does_not_call_the_constructor_of_its_base(caplog: pytest.LogCaptureFixture) -> None:
    class Counts(Profiler):
        def __init__(self) -> None:
            self.count = 0

        def start(self, action_name: str) -> None:
            self.count += 1

        def stop(self, action_name: str) -> None: ...

        def summary(self) -> str:
            return f"{self.count} actions"

    profiler = Counts()
    trainer(profiler=profiler, max_epochs=1).fit(Line(), loader())
    assert profiler.count > 10
    assert f"{profiler.count} actions" in caplog.text


@pytest.mark.parametrize("accumulate", [1, 2])
def test_a_step_of_an_optimizer_with_a_closure_is_one_action(accumulate: int) -> None:
    class Steps(Line):
        def configure_optimizers(self) -> Any:
            return torch.optim.LBFGS(self.parameters(), lr=0.01, max_iter=3)

    profiler = SimpleProfiler()
    trainer(profiler=profiler, max_epochs=1, accumulate_grad_batches=accumulate).fit(Steps(), loader())
    calls = {name: count for name, (_, count) in actions(profiler.timeline).items()}
    (steps,) = [count for name, count in calls.items() if name.endswith(".optimizer_step")]
    assert steps == 4 / accumulate


def test_making_the_loaders_is_waiting_for_data() -> None:
    class Own(Line):
        def train_dataloader(self) -> Any:
            time.sleep(PAUSE)
            return loader()

    profiler = SimpleProfiler()
    trainer(profiler=profiler, max_epochs=3, reload_dataloaders_every_n_epochs=1).fit(Own())
    assert by_stage(profiler.timeline)["train"]["data"] >= 2 * PAUSE
    assert by_stage(profiler.timeline)["set-up, end"]["data"] >= PAUSE
    (calls,) = [count for name, (_, count) in actions(profiler.timeline).items() if name.endswith("train_dataloader")]
    assert calls == 3


def write_often(folder: Path, letter: str) -> None:
    class Long(Profiler):
        def start(self, action_name: str) -> None: ...

        def stop(self, action_name: str) -> None: ...

        def summary(self) -> str:
            return letter * 50_000

    profiler = Long(folder, "perf")
    for _ in range(20):
        profiler.describe()


def test_reports_of_several_processes_in_one_file_do_not_mix(tmp_path: Path) -> None:
    fork = multiprocessing.get_context("fork")
    processes = [fork.Process(target=write_often, args=(tmp_path, letter)) for letter in "ab"]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    lines = (tmp_path / "perf.txt").read_text().split()
    assert sorted(lines) == ["a" * 50_000] * 20 + ["b" * 50_000] * 20

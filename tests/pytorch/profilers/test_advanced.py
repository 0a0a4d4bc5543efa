"""AdvancedProfiler: the functions of each action."""

from __future__ import annotations

import os
import pstats
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import fsspec
import pytest

from gpulayer.fabric.utilities.exceptions import MisconfigurationException
from gpulayer.pytorch.profilers import AdvancedProfiler
from tests.pytorch.models import Line, Validated, loader, trainer

PAUSE = 0.01


def find_me() -> None:
    time.sleep(PAUSE)


def inner_work() -> None:
    time.sleep(PAUSE)


class Slow(Line):
    def training_step(self, batch: Any, batch_idx: int) -> Any:
        find_me()
        with self.trainer.profiler.profile("inner"):
            inner_work()
        find_me()
        return super().training_step(batch, batch_idx)


def test_functions_are_listed_under_their_action(tmp_path: Path) -> None:
    trainer(profiler=AdvancedProfiler(tmp_path, "perf"), max_epochs=1).fit(Slow(), loader())
    text = (tmp_path / "fit-perf-0.txt").read_text()
    assert text.startswith("Where the time of fit went")
    blocks = {block.split(":")[0]: block for block in text.split("\n\n") if "ncalls" in block}
    step = blocks["[Strategy]SingleDeviceStrategy.training_step"]
    (line,) = [line for line in step.splitlines() if "(find_me)" in line]
    assert line.split()[0] == "8"  # also those after the inner action
    assert float(line.split()[3]) >= 8 * PAUSE
    assert "(inner_work)" not in step
    assert "(inner_work)" in blocks["inner"]
    assert "[Strategy]SingleDeviceStrategy.backward" in blocks


def test_the_log_gets_the_most_expensive(caplog: pytest.LogCaptureFixture) -> None:
    trainer(profiler="advanced", max_epochs=1).fit(Slow(), loader())
    (text,) = [record.getMessage() for record in caplog.records if "ncalls" in record.getMessage()]
    blocks = [block for block in text.split("\n\n") if "ncalls" in block]
    # The first optimizer of a process imports much of torch, which may take longer than all steps.
    longest = next(block for block in blocks if not block.startswith("configure_optimizers"))
    assert longest.startswith("[Strategy]SingleDeviceStrategy.training_step")
    assert len(blocks) == 5
    assert all(len(block.splitlines()) <= 7 for block in blocks)
    assert "more actions" in text


@pytest.mark.parametrize(("restriction", "most"), [(3, 3), (0.5, None)])
def test_line_count_restriction(restriction: Any, most: int | None, tmp_path: Path) -> None:
    def lines(**arguments: Any) -> int:
        folder = tmp_path / str(len(list(tmp_path.iterdir())))
        trainer(profiler=AdvancedProfiler(folder, "perf", **arguments), max_epochs=1).fit(Slow(), loader())
        text = (folder / "fit-perf-0.txt").read_text()
        block = next(b for b in text.split("\n\n") if b.startswith("[Strategy]SingleDeviceStrategy.training_step"))
        return len(block.splitlines()) - 2

    count = lines(line_count_restriction=restriction)
    assert count == most if most else count == pytest.approx(lines() / 2, abs=1)


def test_dumped_stats_can_be_read(tmp_path: Path) -> None:
    trainer(profiler=AdvancedProfiler(tmp_path, dump_stats=True), max_epochs=1).fit(Slow(), loader())
    files = {file.name for file in tmp_path.iterdir()}
    name = "fit-[Strategy]SingleDeviceStrategy.training_step-0.prof"
    assert name in files
    assert all(file.endswith("-0.prof") for file in files)
    functions = {function for _, _, function in pstats.Stats(str(tmp_path / name)).stats}  # type: ignore[attr-defined]
    assert "find_me" in functions


def test_each_call_is_reported_alone(tmp_path: Path) -> None:
    runner = trainer(profiler=AdvancedProfiler(tmp_path, "perf"), max_epochs=1)
    model = Validated()
    runner.fit(model, loader(), loader())
    runner.validate(model, loader())
    text = (tmp_path / "validate-perf-0.txt").read_text()
    assert "validation_step" in text
    assert "training_step" not in text


def test_a_program_that_is_profiled_already() -> None:
    """Python 3.12 and later allow one profiler at a time; it says so before training. Before that, both go on."""
    program = (
        "from tests.pytorch.models import Line, loader, trainer\n"
        "trainer(profiler='advanced', max_epochs=1).fit(Line(), loader())\n"
    )
    root = Path(__file__).parents[3]
    done = subprocess.run(
        [sys.executable, "-c", f"import cProfile; cProfile.run({program!r}, 'all.prof')"],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(root), str(root / "src")])},
    )
    if sys.version_info >= (3, 12):
        assert "AdvancedProfiler cannot start" in done.stderr
    else:
        assert "Where the time of fit went" in done.stderr


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"line_count_restriction": 0}, "from 1"),
        ({"line_count_restriction": 1.5}, "up to 1.0"),
        ({"line_count_restriction": "all"}, "from 1"),
        ({"dump_stats": True}, "dirpath"),
    ],
)
def test_wrong_arguments(arguments: Any, words: str) -> None:
    with pytest.raises(MisconfigurationException, match=words):
        AdvancedProfiler(**arguments)


def test_dumped_stats_of_names_that_look_alike_and_of_long_ones(tmp_path: Path) -> None:
    profiler = AdvancedProfiler(tmp_path, dump_stats=True)
    for name in ("a b", "a/b", "x" * 1_000):
        with profiler.profile(name):
            inner_work()
    profiler.describe()
    assert sorted(file.name for file in tmp_path.iterdir()) == ["a_b-2.prof", "a_b.prof", f"{'x' * 150}.prof"]


def test_dumped_stats_go_to_urls(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    trainer(profiler=AdvancedProfiler("memory://stats", dump_stats=True), max_epochs=1).fit(Slow(), loader())
    files = fsspec.filesystem("memory").ls("/stats", detail=False)
    assert "/stats/fit-[Strategy]SingleDeviceStrategy.training_step-0.prof" in files
    assert list(tmp_path.iterdir()) == []


def test_functions_that_were_read_in_mid_run_are_counted_on(tmp_path: Path) -> None:
    class Asks(Slow):
        def on_train_batch_end(self, outputs: Any, batch: Any, batch_idx: int) -> None:
            assert self.trainer.profiler.summary()

    trainer(profiler=AdvancedProfiler(tmp_path, "perf"), max_epochs=1).fit(Asks(), loader())
    (line,) = [line for line in (tmp_path / "fit-perf-0.txt").read_text().splitlines() if "(find_me)" in line]
    assert line.split()[0] == "8"

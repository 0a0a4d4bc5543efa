"""Kills training runs at random moments with SIGKILL, starts them again, and compares what becomes of them.

Each kill with the start that follows is a round. In two of three the moment is chosen to be inside a save: a
file-system watcher tells when the temporary file of a checkpoint appears.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import random
import signal
import tempfile
import threading
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from watchdog.events import FileSystemEvent, FileSystemEventHandler
from watchdog.observers import Observer

from gpulayer.fabric.utilities.files import damage

LONGEST_RUN = 120.0  # seconds
ASIDE = "logs/run/metrics_before"  # the rows of processes that were killed before their first checkpoint


@dataclass
class Report:
    """What was found.

    Args:
        rounds: kills, each followed by a start.
        inside_a_save: kills that left the temporary file of a checkpoint behind.
        runs: runs that came to their end, each killed once or several times.
        unreadable: checkpoints that were damaged after a kill; "last" first of all.
        wrong_batches: batches that were not the very next one of the run's order.
        other_ends: runs that ended otherwise than one that was not killed: weights, optimizer, metrics, metrics.csv,
            best checkpoint, files.
        leftovers: files in the folders of runs at their end that an uninterrupted run does not leave.
    """

    rounds: int = 0
    inside_a_save: int = 0
    runs: int = 0
    kinds: Counter[str] = field(default_factory=Counter)
    unreadable: list[str] = field(default_factory=list)
    wrong_batches: list[str] = field(default_factory=list)
    other_ends: list[str] = field(default_factory=list)
    leftovers: list[str] = field(default_factory=list)

    @property
    def faults(self) -> list[str]:
        """All that is wrong."""
        return [*self.unreadable, *self.wrong_batches, *self.other_ends, *self.leftovers]


class Watcher(FileSystemEventHandler):
    """Counts the temporary files that appear in some folders, and says when the one that is waited for does."""

    def __init__(self, folders: list[Path]) -> None:
        self.condition = threading.Condition()
        self.seen = 0
        self.observer = Observer()
        for folder in folders:
            self.observer.schedule(self, str(folder))
        self.observer.start()

    def on_created(self, event: FileSystemEvent) -> None:
        if str(event.src_path).endswith(".part"):
            with self.condition:
                self.seen += 1
                self.condition.notify_all()

    def wait_for(self, number: int, process: Any) -> bool:
        """Wait for the `number`-th file; False if the process ends before."""
        with self.condition:
            while self.seen < number and process.is_alive():
                self.condition.wait(0.02)
            return self.seen >= number

    def close(self) -> None:
        self.observer.stop()
        self.observer.join()


class Runs:
    """Starts training runs from one process that has torch loaded, so that a start takes milliseconds."""

    def __init__(self, width: int) -> None:
        self.width = width
        self.context = multiprocessing.get_context("forkserver")
        self.context.set_forkserver_preload(["tests.crash.warm"])

    def start(self, kind: str, folder: Path) -> Any:
        """A process that trains in a folder."""
        process = self.context.Process(target=_train, args=(kind, str(folder), self.width))
        process.start()
        return process

    def reference(self, kind: str) -> Reference:
        """A run that nobody kills."""
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            folders = make_folders(folder)
            began, watcher = time.monotonic(), Watcher(folders)
            process = self.start(kind, folder)
            process.join(LONGEST_RUN)
            seconds = time.monotonic() - began
            watcher.close()
            if process.exitcode != 0:
                raise RuntimeError(f"The run {kind!r} that nobody kills ended with {process.exitcode}.")
            batches = [entry for entry in read_journal(folder) if entry["kind"] == "batch"]
            return Reference(
                json.loads((folder / "end.json").read_text()), batches, all_files(folder), seconds, watcher.seen
            )


@dataclass
class Reference:
    """How a run ends that nobody kills, its batches in order, its files, and how many seconds and
    saves it takes."""

    end: dict[str, Any]
    batches: list[dict[str, Any]]
    files: set[str]
    seconds: float
    saves: int


def _train(kind: str, folder: str, width: int) -> None:
    from tests.crash.runs import train  # here, in the process that has it loaded already

    multiprocessing.set_start_method(
        "fork", force=True
    )  # for workers: it is inherited, but this is an ordinary process
    train(kind, folder, width)


def kill_and_resume(rounds: int, seed: int, kinds: tuple[str, ...], width: int = 256) -> Report:
    """Kill runs `rounds` times.

    Args:
        rounds: how many kills.
        seed: of the moments.
        kinds: of runs, as in `runs.KINDS`; taken in turn.
        width: how large the model is.
    """
    report, rng, runs = Report(), random.Random(seed), Runs(width)
    references: dict[str, Reference] = {}
    while report.rounds < rounds:
        kind = kinds[report.runs % len(kinds)]
        if kind not in references:
            references[kind] = runs.reference(kind)
        with tempfile.TemporaryDirectory() as folder:
            one_run(kind, Path(folder), runs, references[kind], rng, report, rounds)
    return report


def one_run(
    kind: str, folder: Path, runs: Runs, expected: Reference, rng: random.Random, report: Report, rounds: int
) -> None:
    """One run from its first start to its end, killed up to three times on the way."""
    folders = make_folders(folder)
    kills = min(rng.randint(1, 3), rounds - report.rounds)
    while not (folder / "end.json").exists():
        watcher, process = Watcher(folders), runs.start(kind, folder)
        try:
            if kills and killed(process, watcher, report.rounds % 3 < 2, expected, rng):
                kills -= 1
                report.rounds += 1
                report.kinds[kind] += 1
                report.inside_a_save += any(file.name.endswith(".part") for one in folders for file in one.iterdir())
                report.unreadable += [f"{kind}: {fault}" for one in folders for fault in unreadable(one)]
                continue
            process.join(LONGEST_RUN)
            if process.exitcode != 0:
                report.other_ends.append(f"{kind}: a process ended with {process.exitcode}")
                return
        finally:
            process.kill()
            process.join()
            watcher.close()
    report.runs += 1
    report.wrong_batches += [f"{kind}: {fault}" for fault in wrong_batches(read_journal(folder), expected.batches)]
    end = json.loads((folder / "end.json").read_text())
    other = [name for name in expected.end if end[name] != expected.end[name]]
    report.other_ends += [f"{kind}: {name} is {end[name]!r}, not {expected.end[name]!r}" for name in other]
    left = sorted(name for name in all_files(folder) - expected.files if not name.startswith(ASIDE))
    report.leftovers += [f"{kind}: {name}" for name in left]


def killed(process: Any, watcher: Watcher, inside_a_save: bool, expected: Reference, rng: random.Random) -> bool:
    """Kill the process: inside one of its saves, or at any moment of its time; False if it ended before."""
    if inside_a_save:
        if not watcher.wait_for(rng.randint(1, expected.saves), process):
            return False
        time.sleep(rng.uniform(0, 0.003))
    else:
        process.join(rng.uniform(0, expected.seconds))
    if not process.is_alive():
        return False
    os.kill(process.pid, signal.SIGKILL)
    process.join()
    return True


def make_folders(folder: Path) -> list[Path]:
    """The folders of checkpoints in that of a run, which are watched from the start."""
    folders = [folder / name for name in ("best", "steps")]
    for one in folders:
        one.mkdir()
    return folders


def unreadable(checkpoints: Path) -> list[str]:
    """The checkpoints of a folder that are not whole, or not there although they were."""
    found = [(file.name, damage(str(file))) for file in sorted(checkpoints.glob("*.ckpt"))]
    return [f"{name} is damaged: {fault}" for name, fault in found if fault is not None]


def wrong_batches(journal: list[dict[str, Any]], expected: list[dict[str, Any]]) -> list[str]:
    """Where a process did not take the very next batch of the order of a run that nobody kills."""
    faults, at = [], 0
    for entry in journal:
        if entry["kind"] == "start":
            if entry["what"] > at:
                faults.append(f"a process began after batch {entry['what']}, but only {at} were done before")
            at = entry["what"]
            continue
        wanted = expected[at] if at < len(expected) else None
        if wanted is None or (entry["epoch"], entry["what"]) != (wanted["epoch"], wanted["what"]):
            faults.append(f"batch {at} was {entry}, not {wanted}")
        at += 1
    return faults


def read_journal(folder: Path) -> list[dict[str, Any]]:
    """What the processes of a run noted, in order."""
    return [json.loads(line) for line in (folder / "journal").read_text().splitlines()]


def all_files(folder: Path) -> set[str]:
    """The paths of all files under a folder."""
    return {str(file.relative_to(folder)) for file in folder.rglob("*") if not file.is_dir()}

"""What the benchmarks share: fresh processes in alternating rounds, facts about the machine, files of results.

Nothing here imports torch, so the process that starts the measurements stays small and idle.
"""

from __future__ import annotations

import argparse
import contextlib
import datetime
import importlib.metadata
import itertools
import json
import multiprocessing
import os
import platform
import random
import re
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from multiprocessing.connection import Connection

RESULTS = Path(__file__).parent / "results"
LIBRARIES = ("torch", "gpulayer", "lightning", "pytorch-ignite", "accelerate")

FRAMEWORKS = ("bare", "gpulayer", "lightning")

Measurement = dict[str, float]

# Every process measured runs this checkout's source, on one thread.
sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "src"))
os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [sys.path[0], os.environ.get("PYTHONPATH")]))
os.environ.update(OMP_NUM_THREADS="1", MKL_NUM_THREADS="1", PYTHONWARNINGS="ignore")


def measure(script: str, *arguments: str) -> Measurement:
    """Run one measurement in a fresh process, in an empty folder; the last line that it prints is its result."""
    command = [sys.executable, str(Path(script).resolve()), "--child", *arguments]
    with tempfile.TemporaryDirectory() as folder:
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise SystemExit(f"{' '.join(arguments)} failed:\n{done.stdout}{done.stderr}")
    return json.loads(done.stdout.splitlines()[-1])


def compare(
    name: str,
    child: Callable[[str], Measurement],
    report: Callable[[dict[str, list[Measurement]]], str],
    script: str,
    about: str,
    rounds: int,
    contestants: Sequence[str] = FRAMEWORKS,
) -> None:
    """The command line of a benchmark that takes one measurement in each process, for each contestant.

    Args:
        name: of the files of results.
        child: takes one measurement, for a contestant.
        report: draws the table of every contestant's measurements.
        script: its file.
        about: what it measures, a line for the help.
        rounds: how many, unless told otherwise.
        contestants: what is compared; of FRAMEWORKS the bare loop always takes part.
    """
    parser = argparse.ArgumentParser(description=about)
    option = "--frameworks" if contestants is FRAMEWORKS else "--contestants"
    parser.add_argument(
        option, dest="chosen", nargs="+", choices=contestants, default=list(contestants), metavar="NAME"
    )
    parser.add_argument("--rounds", type=int, default=rounds)
    parser.add_argument("--write", action="store_true", help="write the results into benchmarks/results")
    parser.add_argument("--child", metavar="NAME", help="take one measurement, print JSON")
    options = parser.parse_args()
    if options.child:
        print(json.dumps(child(options.child)))
        return
    chosen = frameworks(options.chosen) if contestants is FRAMEWORKS else options.chosen
    results = alternate(chosen, options.rounds, lambda one: measure(script, one))
    table_ = report(results)
    print(table_)
    if options.write:
        write(name, table_, {"rounds": options.rounds, "measurements": results})


class Clock:
    """A dataset of equal, ready-made batches that looks at the time, and lets the others have their turn.

    Args:
        batch: each of its batches.
        turns: how many are timed, after two that warm up.
        lead: steps of a turn that are not timed: they warm the caches again.
        timed: steps of a turn that are.
        pause: called between turns.
        now: the time in seconds.
    """

    WARM_UP = 2  # turns

    def __init__(
        self,
        batch: Any,
        turns: int,
        lead: int,
        timed: int,
        pause: Callable[[], object],
        now: Callable[[], float] = time.perf_counter,
    ) -> None:
        self.batch, self.lead, self.timed, self.pause, self.now = batch, lead, timed, pause, now
        self.turn = lead + timed
        self.warm_up = self.turn * self.WARM_UP
        self.length = self.warm_up + self.turn * turns + 10  # the last turn ends before the epoch does
        self.microseconds: list[float] = []  # a step, one number for each turn

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, i: int) -> Any:
        position = i % self.turn
        if position == 0:
            if i > self.warm_up:
                self.microseconds.append(1e6 * (self.now() - self.start) / self.timed)
            self.pause()
        elif position == self.lead:
            self.start = self.now()
        return self.batch


def take_turns(jobs: dict[str, Callable[..., Any]], title: str) -> dict[str, Any]:
    """Run the jobs in fresh processes, all but one of them asleep: when one calls `pause`, it is another's turn.

    A job is a picklable function that takes `pause`. The result holds what each job returned.
    """
    fresh = multiprocessing.get_context("spawn")
    results: dict[str, Any] = {}
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        pipes = {}
        for name, job in jobs.items():
            pipes[name], theirs = fresh.Pipe()
            cwd = Path(folder, name)
            cwd.mkdir()
            fresh.Process(target=_take_part, args=(job, theirs, cwd), daemon=True).start()
            theirs.close()
        order = random.Random(0)
        for turn in itertools.count():
            progress(f"{title}, turn {turn}")
            running = [name for name in jobs if name not in results]
            order.shuffle(running)  # nobody profits from always following the same one
            for name in running:
                if turn:
                    pipes[name].send("your turn")
                try:
                    done, answer = pipes[name].recv()
                except EOFError:
                    raise SystemExit(f"{name} failed:\n{Path(folder, name, 'output').read_text()}") from None
                if done:
                    results[name] = answer
            if len(results) == len(jobs):
                break
    progress()
    return {name: results[name] for name in jobs}


def _take_part(job: Callable[..., Any], pipe: Connection, folder: Path) -> None:
    os.chdir(folder)
    output = os.open("output", os.O_WRONLY | os.O_CREAT)
    os.dup2(output, 1)
    os.dup2(output, 2)

    def pause() -> None:
        pipe.send((False, None))
        pipe.recv()

    pipe.send((True, job(pause=pause)))


def alternate(
    contestants: Sequence[str], rounds: int, run: Callable[[str], Measurement]
) -> dict[str, list[Measurement]]:
    """A B C A B C ...: what the machine does meanwhile falls on all alike, and each round can be compared in pairs."""
    results: dict[str, list[Measurement]] = {name: [] for name in contestants}
    for i in range(rounds):
        for name in contestants:
            progress(f"round {i + 1} of {rounds}, {name}")
            results[name].append(run(name))
    progress()
    return results


def progress(text: str = "") -> None:
    """One line that replaces itself, where someone is watching."""
    if sys.stderr.isatty():
        print(f"\r{text:<60}", end="" if text else "\r", file=sys.stderr, flush=True)


def values(results: list[Measurement], key: str) -> list[float]:
    return [result[key] for result in results]


def median(results: list[Measurement], key: str) -> float:
    return statistics.median(values(results, key))


def above(results: list[Measurement], base: list[Measurement], key: str) -> float:
    """Median over the rounds of the difference to the base in the same round."""
    return statistics.median(a - b for a, b in zip(values(results, key), values(base, key), strict=True))


def machine() -> dict[str, Any]:
    """What a reader must know to judge a number: when, on what, with which versions."""
    return {
        "date": datetime.date.today().isoformat(),
        "commit": _commit(),
        "cpu": _cpu(),
        "cores": os.cpu_count(),
        "system": f"{platform.system()} {platform.machine()}",
        "python": platform.python_version(),
        **{name: version for name in LIBRARIES if (version := _version(name))},
    }


def frameworks(names: Sequence[str]) -> list[str]:
    """The bare loop first, as everything is compared with it."""
    return ["bare", *(name for name in names if name != "bare")]


def _version(distribution: str) -> str | None:
    with contextlib.suppress(importlib.metadata.PackageNotFoundError):
        return importlib.metadata.version(distribution)
    return None


def _cpu() -> str:
    with contextlib.suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or "unknown"


def _commit() -> str:
    """Short hash of the checkout, with a + if there are changes on top of it."""

    def git(*arguments: str) -> str:
        return subprocess.run(
            ["git", *arguments], cwd=Path(__file__).parent, capture_output=True, text=True, check=True
        ).stdout.strip()

    try:
        changes = git("status", "--porcelain", "--untracked-files=no", "--", "../src")
        return git("rev-parse", "--short", "HEAD") + ("+" if changes else "")
    except (OSError, subprocess.CalledProcessError):
        return "unknown"


def table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A markdown table: the first column to the left, numbers to the right, columns aligned for reading as text."""
    body = [list(header), *map(list, rows)]
    widths = [max(len(row[i]) for row in body) for i in range(len(header))]

    def line(cells: Sequence[str]) -> str:
        first, *others = (cell.ljust(width) for cell, width in zip(cells, widths, strict=True))
        return f"| {' | '.join([first, *(cell.rstrip().rjust(len(cell)) for cell in others)])} |"

    rule = ["-" * widths[0], *("-" * (width - 1) + ":" for width in widths[1:])]
    return "\n".join([line(body[0]), line(rule), *map(line, body[1:])])


def write(name: str, report: str, raw: dict[str, Any]) -> None:
    """`results/<date>-<name>.md` for people, `.json` with every number of every round for later questions.

    A second run on one day, after a change perhaps, is written beside the first.
    """
    facts = machine()
    RESULTS.mkdir(exist_ok=True)
    stems = (RESULTS / f"{facts['date']}-{name}{suffix}" for suffix in ["", *(f"-{i}" for i in range(2, 100))])
    stem = next(stem for stem in stems if not stem.with_suffix(".md").exists())
    listed = "\n".join(f"- {key}: {value}" for key, value in facts.items())
    stem.with_suffix(".md").write_text(f"# {name}\n\n{listed}\n\n{report}\n")
    numbers = json.loads(json.dumps({"machine": facts, **raw}), parse_float=lambda text: round(float(text), 3))
    lists_on_one_line = re.sub(r"\[[^][{}]*\]", lambda m: " ".join(m[0].split()), json.dumps(numbers, indent=1))
    stem.with_suffix(".json").write_text(lists_on_one_line + "\n")
    print(f"written to {os.path.relpath(stem)}.md and .json")

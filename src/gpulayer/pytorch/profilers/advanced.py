"""AdvancedProfiler: which functions of Python the time of each action goes to."""

from __future__ import annotations

import os
import re
from collections import Counter
from cProfile import Profile
from io import StringIO
from pstats import Stats
from tempfile import TemporaryDirectory
from threading import get_ident
from typing import Any

from gpulayer.fabric.utilities.exceptions import MisconfigurationException
from gpulayer.fabric.utilities.files import copy_file
from gpulayer.fabric.utilities.types import Path
from gpulayer.pytorch.profilers.profiler import Profiler
from gpulayer.pytorch.profilers.report import spoken, table_of_parts
from gpulayer.pytorch.profilers.timeline import Timeline

ON_SCREEN = 5  # actions, and functions of each
LONGEST_NAME = 150  # characters of an action's name in that of a file
LONG_PATH = re.compile(r"\S+([/\\][^/\\\s]+[/\\][^/\\\s]+:)")


class AdvancedProfiler(Profiler):
    """Python's own profiler (cProfile) on each action: the functions that it called, and their time.

    An action's functions are without those of the actions nested in it. cProfile slows Python code down, often by
    half, so compare times with one another rather than with those of other runs. The log gets the most expensive
    actions and functions; a file gets all.

    Args:
        dirpath: as in `Profiler`.
        filename: as in `Profiler`.
        line_count_restriction: how many functions of each action to write: a number, or a fraction of them up to 1.0.
        dump_stats: also write what was measured of each action, for `python -m pstats` or snakeviz, to
            `<dirpath>/<call>-<action>-<rank>.prof`.

    Raises:
        MisconfigurationException: an argument cannot be used; or, when a call begins, another profiler is at work.
        ValueError: in `stop`, for an action that was not started.
    """

    def __init__(
        self,
        dirpath: Path | None = None,
        filename: str | None = None,
        line_count_restriction: float = 1.0,
        dump_stats: bool = False,
    ) -> None:
        super().__init__(dirpath, filename)
        number = isinstance(line_count_restriction, (int, float)) and not isinstance(line_count_restriction, bool)
        if (
            not number
            or line_count_restriction <= 0
            or (isinstance(line_count_restriction, float) and line_count_restriction > 1)
        ):
            raise MisconfigurationException(
                f"`AdvancedProfiler(line_count_restriction={line_count_restriction!r})`: give a number of functions "
                "from 1 (an int), or a fraction of them up to 1.0 (a float)."
            )
        if dump_stats and dirpath is None:
            raise MisconfigurationException(
                "`AdvancedProfiler(dump_stats=True)` writes a file for each action: give their folder, `dirpath`."
            )
        self.line_count_restriction = line_count_restriction
        self.dump_stats = dump_stats
        self.timeline = Timeline()
        self.profiled_actions: dict[str, Profile] = {}
        self._stats: dict[str, Stats] = {}  # of the last call, most expensive action first

    def setup(self, stage: str, local_rank: int | None = None, log_dir: str | None = None) -> None:
        super().setup(stage, local_rank, log_dir)
        self._switch(False)  # of an action around the whole call
        try:
            probe = Profile()
            probe.enable()
            probe.disable()
        except ValueError as error:
            raise MisconfigurationException(
                f"The AdvancedProfiler cannot start ({error}): run the program without `python -m cProfile`, debugger "
                "or coverage, or use the SimpleProfiler."
            ) from error
        self.timeline, self.profiled_actions, self._stats = self.timeline.anew(), {}, {}
        self._switch(True)

    def start(self, action_name: str) -> None:
        if get_ident() != self.timeline.thread:  # whose functions are not measured
            self.timeline.start(action_name)
            return
        self._switch(False)
        try:
            self.timeline.start(action_name)
        finally:
            self._switch(True)

    def stop(self, action_name: str) -> None:
        if get_ident() != self.timeline.thread:
            self.timeline.stop(action_name)
            return
        self._switch(False)
        try:
            self.timeline.stop(action_name)
        finally:
            self._switch(True)

    def _switch(self, on: bool) -> None:
        """Begin or end measuring the functions of the innermost action."""
        if self.timeline.stack:
            name = self.timeline.stack[-1]
            if name not in self.profiled_actions:
                self.profiled_actions[name] = Profile()
            profile = self.profiled_actions[name]
            profile.enable() if on else profile.disable()

    # -- the report --------------------------------------------------------------------------------------------------

    def summary(self) -> str:
        return self._report(None, self.line_count_restriction)

    def on_screen(self) -> str:
        few = self.line_count_restriction
        return self._report(ON_SCREEN, min(few, ON_SCREEN) if isinstance(few, int) else ON_SCREEN)

    def describe(self) -> None:
        self._read()
        super().describe()
        if self.dump_stats:
            self._dump()

    def _dump(self) -> None:
        taken: Counter[str] = Counter()
        with TemporaryDirectory() as folder:
            local = os.path.join(folder, "stats")  # pstats writes to local files only
            for name, stats in self._stats.items():
                safe = re.sub(r"[^A-Za-z0-9\[\]._]", "_", name)[:LONGEST_NAME]
                taken[safe] += 1
                stats.dump_stats(local)
                number = f"-{taken[safe]}" if taken[safe] > 1 else ""
                copy_file(local, self._path(safe + number, extension=".prof"))

    def _read(self) -> None:
        """Take what was measured, which can be kept and pickled."""
        self.timeline.close()
        for name, profile in self.profiled_actions.items():
            stats = Stats(profile, stream=StringIO()) if profile.getstats() else None
            if stats is not None and name in self._stats:  # read before, in the midst of the call
                self._stats[name].add(stats)
            elif stats is not None:
                self._stats[name] = stats
        self.profiled_actions = {}
        self._stats = dict(sorted(self._stats.items(), key=lambda item: -item[1].total_tt))  # type: ignore[attr-defined]

    def _report(self, most: int | None, functions: float) -> str:
        self._read()
        if not self._stats:
            return ""
        blocks = [table_of_parts(self.timeline, self._stage or "the run")]
        blocks += [
            functions_of(name, stats, functions, short=most is not None)
            for name, stats in list(self._stats.items())[:most]
        ]
        if most is not None and len(self._stats) > most:
            blocks.append(
                f"(and {len(self._stats) - most} more actions: give the profiler a `filename`, and it writes all of "
                "them there)"
            )
        return "\n\n".join(blocks) + "\n"

    def __getstate__(self) -> dict[str, Any]:
        return {**super().__getstate__(), "profiled_actions": {}}


def functions_of(name: str, stats: Stats, most: float, short: bool) -> str:
    """The functions of one action, by the time within them; on a screen without the folders they are in."""
    text = StringIO()
    stats.stream = text  # type: ignore[attr-defined]
    stats.sort_stats("cumulative").print_stats(most)
    stats.stream = StringIO()  # type: ignore[attr-defined]
    total, calls = stats.total_tt, stats.total_calls  # type: ignore[attr-defined]
    lines = text.getvalue().splitlines()
    head = next(number for number, line in enumerate(lines) if line.lstrip().startswith("ncalls"))
    rows = [LONG_PATH.sub(r"...\1", line) if short else line for line in lines[head:] if line.strip()]
    return "\n".join([f"{name}: {spoken(total)}, {calls:,} function calls", *rows])

"""SimpleProfiler: where the time of a run goes, on one screen."""

from __future__ import annotations

from gpulayer.fabric.utilities.types import Path
from gpulayer.pytorch.profilers.profiler import Profiler
from gpulayer.pytorch.profilers.report import table_of_actions, table_of_parts
from gpulayer.pytorch.profilers.timeline import CudaClock, Timeline

ON_SCREEN = 10  # actions


class SimpleProfiler(Profiler):
    """Tells, at the end of each call, the share of every part of it, and the actions that took longest.

    Parts are waiting for data, moving it to the device, forward, backward, optimizer, hooks, logging and checkpoints.
    Each moment counts for one part, that of the innermost action under way, so shares add up to 100 %; "rest" is the
    loop itself. The list of actions below counts what is nested in an action for both.

    On CUDA times are those of the device, taken by events, and the host never waits. Elsewhere it is the host's clock.

    Args:
        dirpath: as in `Profiler`.
        filename: as in `Profiler`; the file has all actions.
        extended: tell how often each action was done, and its share.

    Raises:
        MisconfigurationException: an argument cannot be used.
        ValueError: in `stop`, for an action that was not started.
    """

    def __init__(self, dirpath: Path | None = None, filename: str | None = None, extended: bool = True) -> None:
        super().__init__(dirpath, filename)
        self.extended = extended
        self.timeline = Timeline()

    def setup(self, stage: str, local_rank: int | None = None, log_dir: str | None = None) -> None:
        super().setup(stage, local_rank, log_dir)
        device = None if self._trainer is None else self._trainer.strategy.root_device
        self.timeline = self.timeline.anew(CudaClock(device) if device is not None and device.type == "cuda" else None)

    def start(self, action_name: str) -> None:
        self.timeline.start(action_name)

    def stop(self, action_name: str) -> None:
        self.timeline.stop(action_name)

    def summary(self) -> str:
        return self._report(None)

    def on_screen(self) -> str:
        return self._report(ON_SCREEN)

    def _report(self, most: int | None) -> str:
        self.timeline.close()
        if not self.timeline.calls:
            return ""
        parts = table_of_parts(self.timeline, self._stage or "the run")
        return f"{parts}\n\n{table_of_actions(self.timeline, self.extended, most)}\n"

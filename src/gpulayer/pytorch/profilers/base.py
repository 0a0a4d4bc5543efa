"""PassThroughProfiler: measures nothing."""

from gpulayer.pytorch.profilers.profiler import Profiler


class PassThroughProfiler(Profiler):
    """What a Trainer has without `profiler=`: the run is not touched, and `profile("name")` does nothing."""

    def start(self, action_name: str) -> None:
        """Nothing."""

    def stop(self, action_name: str) -> None:
        """Nothing."""

    def describe(self) -> None:
        """Nothing."""

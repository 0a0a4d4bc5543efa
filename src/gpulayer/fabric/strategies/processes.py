"""Processes: the other processes of this machine, which run the same program, each with its own rank."""

from __future__ import annotations

import os
import subprocess
import sys
from contextlib import suppress
from time import monotonic

from gpulayer.fabric.environments import ClusterEnvironment
from gpulayer.fabric.utilities.exceptions import MisconfigurationException

FOLDER = os.getcwd()  # where the program was started; it may change its folder before it trains


class Processes:
    """Those that this process started, local rank 1 and up.

    Args:
        running: the processes, by their local rank.
    """

    def __init__(self, running: dict[int, subprocess.Popen[bytes]]) -> None:
        self.running = running

    @classmethod
    def start(cls, environment: ClusterEnvironment, count: int) -> Processes:
        """Run the program again, `count` - 1 times, and take rank 0 of this machine.

        Args:
            environment: this process's place.
            count: the processes of this machine.

        Raises:
            MisconfigurationException: the program cannot be run again, for someone types it.
        """
        command = command_of_program()
        place = {
            "MASTER_ADDR": environment.main_address,
            "MASTER_PORT": str(environment.main_port),
            "NODE_RANK": str(environment.node_rank()),
            "WORLD_SIZE": str(environment.world_size()),
        }
        running = {}
        for rank in range(1, count):
            running[rank] = subprocess.Popen(
                [*command, *hydra_arguments(rank)],
                # When rank 0 is gone, torch would write pages about its store.
                env={"TORCH_CPP_LOG_LEVEL": "ERROR", **os.environ, **place, "LOCAL_RANK": str(rank)},
                cwd=FOLDER,
                stdin=subprocess.DEVNULL,
            )
        os.environ.update(place, LOCAL_RANK="0")  # from now on this process is one of them
        return cls(running)

    def failed(self) -> dict[int, int]:
        """The exit codes, by local rank, of those that have ended, and not well."""
        return {rank: process.returncode for rank, process in self.running.items() if process.poll()}

    def end(self, at_once: bool, seconds: float = 10.0) -> None:
        """See all processes end.

        Args:
            at_once: ask them to, for the run failed. Otherwise they are about to.
            seconds: how long they may take, and take again once they are asked to.
        """
        if not at_once:
            self._wait(seconds)
        for process in self.running.values():
            if process.poll() is None:
                process.terminate()
        self._wait(seconds)
        for process in self.running.values():
            if process.poll() is None:
                process.kill()
                process.wait()

    def _wait(self, seconds: float) -> None:
        end = monotonic() + seconds
        for process in self.running.values():
            with suppress(subprocess.TimeoutExpired):
                process.wait(max(end - monotonic(), 0.0))


def command_of_program() -> list[str]:
    """The command line that started this program, as the interpreter got it, whatever `sys.argv` became.

    Raises:
        MisconfigurationException: there is none: a notebook, or an interactive interpreter.
    """
    main = sys.modules["__main__"]
    if not hasattr(main, "__file__") and "-c" not in sys.orig_argv:
        raise MisconfigurationException(
            "Several devices need several processes, each of which runs the program again, and what is typed into an "
            "interpreter or a notebook is no program: use `devices=1`, or put it into a file."
        )
    return [sys.executable, *sys.orig_argv[1:]]


def hydra_arguments(rank: int) -> list[str]:
    """What else a program of Hydra's is given: the folder of rank 0's job, where it writes no configuration again."""
    config = sys.modules.get("hydra.core.hydra_config")
    if config is None or not config.HydraConfig.initialized():
        return []
    hydra = config.HydraConfig.get()
    return [
        f"hydra.run.dir={hydra.runtime.output_dir!r}",
        f"hydra.job.name={hydra.job.name}_rank_{rank}",
        "hydra.output_subdir=null",
    ]

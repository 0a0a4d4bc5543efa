"""SLURM: which job this process is part of, and how to put the job back into the queue."""

import os
import re
import signal
import subprocess

from gpulayer.fabric.environments.environment import ClusterEnvironment

INTERACTIVE = ("bash", "interactive")  # the names of jobs that `srun --pty bash` and `salloc` start


class SLURMEnvironment(ClusterEnvironment):
    """A job of SLURM's.

    Args:
        auto_requeue: when SLURM sends `requeue_signal`, save a checkpoint and put the job back into the queue.
        requeue_signal: the signal that `sbatch --signal=SIGUSR1@90` asks for, here 90 seconds before the job must end.
            Default: SIGUSR1.
    """

    def __init__(self, auto_requeue: bool = True, requeue_signal: signal.Signals | None = None) -> None:
        self.auto_requeue = auto_requeue
        # None on Windows, which has no such signal, and no SLURM.
        self.requeue_signal = requeue_signal or getattr(signal, "SIGUSR1", None)

    @staticmethod
    def detect() -> bool:
        """Whether this process is part of a job, other than an interactive one."""
        return SLURMEnvironment.job_id() is not None

    @staticmethod
    def job_id() -> int | None:
        """The job's number; None outside SLURM and in an interactive job."""
        number = os.environ.get("SLURM_JOB_ID", "")
        return int(number) if number.isdigit() and SLURMEnvironment.job_name() not in INTERACTIVE else None

    @staticmethod
    def job_name() -> str | None:
        """The job's name; None outside SLURM."""
        return os.environ.get("SLURM_JOB_NAME")

    @staticmethod
    def restarts() -> int:
        """How often this job was put back into the queue before."""
        return int(os.environ.get("SLURM_RESTART_COUNT") or 0)

    @property
    def creates_processes_externally(self) -> bool:
        return True

    @property
    def main_address(self) -> str:
        if address := os.environ.get("MASTER_ADDR"):
            return address
        first = re.split(r",(?![^\[]*\])", os.environ.get("SLURM_NODELIST") or "127.0.0.1")[0].split(" ")[0]
        return re.sub(r"\[(\d+).*\]", r"\1", first)  # node[07-09,12] begins with node07

    @property
    def main_port(self) -> int:
        # The same in all processes of a job, and likely another in another job.
        return int(os.environ.get("MASTER_PORT") or 15000 + (self.job_id() or 0) % 10000)

    def world_size(self) -> int:
        return int(os.environ.get("SLURM_NTASKS") or 1)

    def set_world_size(self, size: int) -> None:
        pass

    def global_rank(self) -> int:
        return int(os.environ.get("SLURM_PROCID") or 0)

    def set_global_rank(self, rank: int) -> None:
        pass

    def local_rank(self) -> int:
        return int(os.environ.get("SLURM_LOCALID") or 0)

    def node_rank(self) -> int:
        return int(os.environ.get("SLURM_NODEID") or 0)

    @property
    def requeues(self) -> bool:
        """Whether this process is part of a job that is to be put back into the queue when it must go."""
        return self.auto_requeue and self.detect()

    def requeue(self) -> None:
        """Put the job, or this task of an array of jobs, back into the queue. SLURM then ends its processes.

        Raises:
            RuntimeError: SLURM refused, or its `scontrol` is not there.
        """
        array, task = os.environ.get("SLURM_ARRAY_JOB_ID"), os.environ.get("SLURM_ARRAY_TASK_ID")
        command = ["scontrol", "requeue", f"{array}_{task}" if array and task else str(self.job_id())]
        try:
            subprocess.run(command, check=True, capture_output=True, text=True)
        except (OSError, subprocess.CalledProcessError) as error:
            why = getattr(error, "stderr", "") or str(error)
            raise RuntimeError(f"`{' '.join(command)}` failed: {why.strip()}") from error

"""SLURM: which job this process is part of, its place in it, and how to put the job back into the queue."""

import os
import re
import signal
import subprocess

from gpulayer.fabric.environments.local import LightningEnvironment
from gpulayer.fabric.utilities.exceptions import InvalidValueError

INTERACTIVE = ("bash", "interactive")  # the names of jobs that `srun --pty bash` and `salloc` start


class SLURMEnvironment(LightningEnvironment):
    """A job of SLURM's. Places are those of the tasks that `srun` started.

    Where the job's script runs the program without srun there is one process, and the Trainer starts the others.

    Args:
        auto_requeue: when SLURM sends `requeue_signal`, save a checkpoint and put the job back into the queue.
        requeue_signal: the signal that `sbatch --signal=SIGUSR1@90` asks for, here 90 seconds before the job must end.
            Default: SIGUSR1.
    """

    def __init__(self, auto_requeue: bool = True, requeue_signal: signal.Signals | None = None) -> None:
        super().__init__()
        self.auto_requeue = auto_requeue
        # None on Windows, which has no such signal, and no SLURM.
        self.requeue_signal = requeue_signal or getattr(signal, "SIGUSR1", None)

    # -- the job ---------------------------------------------------------------------------------------------------

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

    # -- this process's place ----------------------------------------------------------------------------------------

    @property
    def creates_processes_externally(self) -> bool:
        return _by_srun() or super().creates_processes_externally

    @property
    def main_address(self) -> str:
        if not _by_srun() or "MASTER_ADDR" in os.environ:
            return super().main_address
        # Those of this srun, which may have left out the first ones of the job.
        nodes = os.environ.get("SLURM_STEP_NODELIST") or os.environ.get("SLURM_NODELIST")
        return self.resolve_root_node_address(nodes or "127.0.0.1")

    @property
    def main_port(self) -> int:
        if not _by_srun() or "MASTER_PORT" in os.environ:
            return super().main_port
        # The same in all processes of an srun, and likely another in another one, or another job.
        return 15000 + (int(os.environ["SLURM_JOB_ID"]) + int(os.environ["SLURM_STEP_ID"])) % 10000

    @staticmethod
    def resolve_root_node_address(nodes: str) -> str:
        """The first host of a list.

        Args:
            nodes: as in SLURM_NODELIST: "node[07-09,12],other3", "rack[1-2]node[1-4]", "host1 host2", addresses.
        """
        first = re.split(r"[, ](?![^\[]*\])", nodes.strip())[0]
        return re.sub(r"\[([^],-]+)[^]]*\]", r"\1", first)

    def world_size(self) -> int:
        return int(os.environ["SLURM_NTASKS"]) if _by_srun() else super().world_size()

    def global_rank(self) -> int:
        return int(os.environ["SLURM_PROCID"]) if _by_srun() else super().global_rank()

    def local_rank(self) -> int:
        return int(os.environ["SLURM_LOCALID"]) if _by_srun() else super().local_rank()

    def node_rank(self) -> int:
        return int(os.environ["SLURM_NODEID"]) if _by_srun() else super().node_rank()

    def local_world_size(self) -> int:
        return _tasks()[self.node_rank()] if _by_srun() else super().local_world_size()

    def validate_settings(self, num_devices: int, num_nodes: int) -> None:
        if not self.detect():
            return
        if not _by_srun():
            if num_nodes > 1 and "NODE_RANK" not in os.environ:
                raise InvalidValueError(
                    f"`num_nodes={num_nodes}`, but this program was not started by srun, so it runs on one node only: "
                    "write `srun python ...` in the job's script, with `--nodes` and `--ntasks-per-node`."
                )
            return
        tasks = _tasks()
        if len(set(tasks)) > 1:
            raise InvalidValueError(
                f"SLURM placed {tasks} tasks on the nodes, and each needs as many: use `--nodes` and "
                f"`--ntasks-per-node` in place of `--ntasks={sum(tasks)}`."
            )
        if num_devices != tasks[0]:
            raise InvalidValueError(
                f"`devices={num_devices}`, but SLURM started {tasks[0]} task(s) on each node: set "
                f"`devices={tasks[0]}` in the program, or `--ntasks-per-node={num_devices}` in the job."
            )
        if num_nodes != len(tasks):
            raise InvalidValueError(
                f"`num_nodes={num_nodes}`, but SLURM started tasks on {len(tasks)} node(s): set "
                f"`num_nodes={len(tasks)}` in the program, or `--nodes={num_nodes}` in the job."
            )

    # -- back into the queue -----------------------------------------------------------------------------------------

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


def _by_srun() -> bool:
    """Whether srun started this process; the variables of a job are there in its script, too."""
    return "SLURM_STEP_ID" in os.environ


def _tasks() -> list[int]:
    """How many tasks srun started on each node; SLURM writes "2(x3),1" for [2, 2, 2, 1]."""
    found = re.findall(r"(\d+)(?:\(x(\d+)\))?", os.environ["SLURM_STEP_TASKS_PER_NODE"])
    return [int(count) for count, times in found for _ in range(int(times or 1))]

"""The variables that launchers set, as they were seen in their processes or as they are documented."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from gpulayer.fabric.environments import ClusterEnvironment

TORCHRUN = {  # torchrun --nnodes=2 --nproc-per-node=2, the last process
    "RANK": "3", "WORLD_SIZE": "4", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "2", "GROUP_RANK": "1",
    "MASTER_ADDR": "node7", "MASTER_PORT": "29500", "TORCHELASTIC_RUN_ID": "none",
}  # fmt: skip
SBATCH = {  # the script of sbatch -J train --nodes=2 --ntasks-per-node=2
    "SLURM_JOB_ID": "123456", "SLURM_JOB_NAME": "train", "SLURM_NODELIST": "n[1-2]", "SLURM_NNODES": "2",
    "SLURM_NTASKS": "4", "SLURM_NTASKS_PER_NODE": "2", "SLURM_TASKS_PER_NODE": "2(x2)",
    "SLURM_PROCID": "0", "SLURM_LOCALID": "0", "SLURM_NODEID": "0",
}  # fmt: skip
SRUN = {  # the last process of an srun in it
    **SBATCH, "SLURM_STEP_ID": "0", "SLURM_STEP_NODELIST": "n[1-2]", "SLURM_STEP_TASKS_PER_NODE": "2(x2)",
    "SLURM_PROCID": "3", "SLURM_LOCALID": "1", "SLURM_NODEID": "1",
}  # fmt: skip
KUBEFLOW = {  # the second of three pods
    "MASTER_ADDR": "job-master-0", "MASTER_PORT": "23456", "WORLD_SIZE": "3", "RANK": "1",
}  # fmt: skip


def jsrun(folder: Path) -> dict[str, str]:
    """The last process of this host, which is the second of two, in a job of LSF's."""
    hosts = folder / "hosts"
    hosts.write_text(f"batch1\nother\nother\n{socket.gethostname()}\n{socket.gethostname()}\n")
    return {
        "LSB_JOBID": "1234567", "LSB_DJOB_RANKFILE": str(hosts),
        "JSM_NAMESPACE_SIZE": "4", "JSM_NAMESPACE_RANK": "3", "JSM_NAMESPACE_LOCAL_RANK": "1",
    }  # fmt: skip


def set_all(monkeypatch: pytest.MonkeyPatch, variables: dict[str, str]) -> None:
    for name, value in variables.items():
        monkeypatch.setenv(name, value)


def place(environment: ClusterEnvironment) -> dict[str, object]:
    return {
        "outside": environment.creates_processes_externally,
        "address": (environment.main_address, environment.main_port),
        "ranks": (environment.global_rank(), environment.local_rank(), environment.node_rank()),
        "size": environment.world_size(),
    }

"""Places as the launchers' variables tell them, and what users are told when their numbers differ."""

from __future__ import annotations

import importlib.util
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from gpulayer.fabric.environments import (
    ClusterEnvironment,
    KubeflowEnvironment,
    LightningEnvironment,
    LSFEnvironment,
    MPIEnvironment,
    SLURMEnvironment,
    TorchElasticEnvironment,
    detect_environment,
)
from gpulayer.fabric.utilities.exceptions import InvalidValueError
from tests.fabric.environments.variables import KUBEFLOW, SBATCH, SRUN, TORCHRUN, jsrun, place, set_all


def test_this_machine() -> None:
    local = LightningEnvironment()
    assert place(local) == {
        "outside": False, "address": ("127.0.0.1", local.main_port), "ranks": (0, 0, 0), "size": 1,
    }  # fmt: skip
    assert 1024 < local.main_port < 65536
    local.set_world_size(6)
    local.set_global_rank(5)
    assert (local.world_size(), local.global_rank()) == (6, 5)


def test_processes_that_the_user_starts(monkeypatch: pytest.MonkeyPatch) -> None:
    given = {"LOCAL_RANK": "1", "NODE_RANK": "2", "MASTER_ADDR": "node1", "MASTER_PORT": "1234", "WORLD_SIZE": "8"}
    set_all(monkeypatch, given)
    local = LightningEnvironment()
    assert local.creates_processes_externally
    assert (local.main_address, local.main_port, local.local_rank(), local.node_rank()) == ("node1", 1234, 1, 2)


def test_torchrun(monkeypatch: pytest.MonkeyPatch) -> None:
    set_all(monkeypatch, TORCHRUN)
    found = detect_environment()
    assert isinstance(found, TorchElasticEnvironment)
    assert place(found) == {"outside": True, "address": ("node7", 29500), "ranks": (3, 1, 1), "size": 4}
    found.set_world_size(9)
    found.set_global_rank(9)
    assert (found.world_size(), found.global_rank(), found.local_world_size()) == (4, 3, 2)
    found.validate_settings(2, 2)
    with pytest.raises(InvalidValueError, match="--nproc-per-node"):
        found.validate_settings(2, 1)


def test_kubeflow_is_never_guessed(monkeypatch: pytest.MonkeyPatch) -> None:
    set_all(monkeypatch, KUBEFLOW)
    assert type(detect_environment()) is LightningEnvironment
    given = KubeflowEnvironment()
    assert place(given) == {"outside": True, "address": ("job-master-0", 23456), "ranks": (1, 0, 1), "size": 3}
    assert given.local_world_size() == 1
    given.validate_settings(1, 3)
    for devices, nodes in ((2, 3), (1, 1), (3, 1)):
        with pytest.raises(InvalidValueError, match="use `devices=1, num_nodes=3`"):
            given.validate_settings(devices, nodes)


def test_lsf(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    set_all(monkeypatch, jsrun(tmp_path))
    found = detect_environment()
    assert isinstance(found, LSFEnvironment)
    assert place(found) == {"outside": True, "address": ("other", 10567), "ranks": (3, 1, 1), "size": 4}
    assert found.local_world_size() == 2
    found.validate_settings(2, 2)
    with pytest.raises(InvalidValueError, match="use `devices=2, num_nodes=2`"):
        found.validate_settings(4, 2)


@pytest.mark.parametrize("name", ["LSB_JOBID", "LSB_DJOB_RANKFILE", "JSM_NAMESPACE_RANK", "JSM_NAMESPACE_SIZE"])
def test_lsf_without_jsrun(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, name: str) -> None:
    set_all(monkeypatch, jsrun(tmp_path))
    monkeypatch.delenv(name)
    assert type(detect_environment()) is LightningEnvironment
    with pytest.raises(InvalidValueError, match=f"needs the variables {name}: .*jsrun"):
        LSFEnvironment()


@pytest.mark.parametrize("hosts", ["", "batch1\n", "batch1\nother\n"])
def test_lsf_on_another_host(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, hosts: str) -> None:
    set_all(monkeypatch, jsrun(tmp_path))
    (tmp_path / "hosts").write_text(hosts)
    with pytest.raises(InvalidValueError, match="and not this one"):
        LSFEnvironment()


def test_which_one_counts(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """torchrun in a job of SLURM's, SLURM above LSF, LSF above MPI."""
    order: list[tuple[dict[str, str], type[ClusterEnvironment]]] = [
        ({"OMPI_COMM_WORLD_SIZE": "4"}, MPIEnvironment),
        (jsrun(tmp_path), LSFEnvironment),
        (SRUN, SLURMEnvironment),
        (TORCHRUN, TorchElasticEnvironment),
    ]
    assert type(detect_environment()) is LightningEnvironment
    for variables, kind in order:
        set_all(monkeypatch, variables)
        assert kind.detect()
        if kind is not MPIEnvironment:  # making one would begin MPI in this process
            assert type(detect_environment()) is kind


def test_mpi_is_told_by_its_launcher(monkeypatch: pytest.MonkeyPatch) -> None:
    assert not MPIEnvironment.detect()
    monkeypatch.setenv("PMI_SIZE", "1")
    assert not MPIEnvironment.detect()
    monkeypatch.setenv("PMI_SIZE", "2")
    assert MPIEnvironment.detect()


@pytest.mark.skipif(importlib.util.find_spec("mpi4py") is not None, reason="mpi4py is installed")
def test_mpi_without_its_package(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each process would train alone, and all would write the same files."""
    monkeypatch.setenv("OMPI_COMM_WORLD_SIZE", "2")
    with pytest.raises(ModuleNotFoundError, match="pip install mpi4py"):
        detect_environment()
    monkeypatch.setenv("LOCAL_RANK", "1")  # the user's script told the place already
    assert type(detect_environment()) is LightningEnvironment


MPI_PROGRAM = """
import sys
from gpulayer.fabric.environments import *
from gpulayer.fabric.utilities.exceptions import InvalidValueError
found = detect_environment()
assert type(found) is MPIEnvironment
found.validate_settings(2, 1)
try:
    found.validate_settings(3, 1)
except InvalidValueError as error:
    assert "use `devices=2, num_nodes=1`" in str(error)
told = [
    found.main_address, found.main_port, found.world_size(), found.global_rank(), found.local_rank(),
    found.node_rank(), found.local_world_size(), found.creates_processes_externally,
]
sys.stdout.write(" ".join(map(str, told)) + "\\n")  # at once, or the processes' lines are mixed
"""


def test_real_mpi() -> None:
    pytest.importorskip("mpi4py")
    mpiexec = shutil.which("mpiexec")
    if mpiexec is None:
        pytest.skip("no mpiexec")
    command = [mpiexec, "-n", "2", sys.executable, "-c", MPI_PROGRAM]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    first, second = sorted((line.split() for line in done.stdout.splitlines()), key=lambda line: line[3])
    assert first[:2] == second[:2]
    assert (first[2:], second[2:]) == (["2", "0", "0", "0", "2", "True"], ["2", "1", "1", "0", "2", "True"])


def test_the_script_of_a_job_starts_its_own_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without srun there is one process, whatever number of tasks the job asked for."""
    set_all(monkeypatch, SBATCH)
    found = detect_environment()
    assert isinstance(found, SLURMEnvironment)
    assert place(found) == {
        "outside": False, "address": ("127.0.0.1", found.main_port), "ranks": (0, 0, 0), "size": 1,
    }  # fmt: skip
    found.validate_settings(4, 1)
    with pytest.raises(InvalidValueError, match="write `srun python"):
        found.validate_settings(4, 2)
    monkeypatch.setenv("LOCAL_RANK", "3")  # the Trainer did
    assert (found.creates_processes_externally, found.local_rank()) == (True, 3)

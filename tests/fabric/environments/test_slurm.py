"""SLURM's variables, as a real one sets them, and the real one, where it runs here."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from gpulayer.fabric.environments import LightningEnvironment, SLURMEnvironment, detect_environment
from gpulayer.fabric.utilities.exceptions import InvalidValueError
from tests.fabric.environments.variables import SRUN, place, set_all

ROOT = Path(__file__).parents[3]


def test_a_task_of_srun(monkeypatch: pytest.MonkeyPatch) -> None:
    set_all(monkeypatch, SRUN)
    found = detect_environment()
    assert isinstance(found, SLURMEnvironment)
    assert place(found) == {"outside": True, "address": ("n1", 18456), "ranks": (3, 1, 1), "size": 4}
    found.set_world_size(9)
    found.set_global_rank(9)
    assert (found.world_size(), found.global_rank(), found.local_world_size()) == (4, 3, 2)
    monkeypatch.setenv("MASTER_ADDR", "10.0.0.1")
    monkeypatch.setenv("MASTER_PORT", "1234")
    assert (found.main_address, found.main_port) == ("10.0.0.1", 1234)


def test_two_sruns_of_one_job(monkeypatch: pytest.MonkeyPatch) -> None:
    """The second one runs at the same time on other nodes of the job: it has rank 0 there, and a port of its own."""
    set_all(monkeypatch, {**SRUN, "SLURM_STEP_ID": "1", "SLURM_STEP_NODELIST": "n2", "SLURM_NODELIST": "n[1-4]"})
    assert (SLURMEnvironment().main_address, SLURMEnvironment().main_port) == ("n2", 18457)


@pytest.mark.parametrize(
    ("nodes", "first"),
    [("alpha,beta", "alpha"), ("alpha beta", "alpha"), ("host[5-7,9]", "host5"), ("host[05,07-09],other", "host05"),
     ("host7", "host7"), ("host-[1-2]-ib0", "host-1-ib0"), ("rack[1-2]node[3,5]", "rack1node3"),
     ("1.2.3.[100-110]", "1.2.3.100"), ("fe80::1", "fe80::1"), ("::ffff:[1-3]", "::ffff:1"), ("[fe80::1]", "fe80::1"),
     ("my-host,my-other", "my-host"), ("host[1, 3] other", "host1")],
)  # fmt: skip
def test_the_first_of_a_list_of_hosts(nodes: str, first: str) -> None:
    assert SLURMEnvironment.resolve_root_node_address(nodes) == first


@pytest.mark.parametrize(
    ("tasks", "devices", "nodes", "piece"),
    [("2(x2)", 1, 2, "set `devices=2` in the program, or `--ntasks-per-node=1` in the job"),
     ("2(x2)", 2, 1, "set `num_nodes=2` in the program, or `--nodes=1` in the job"),
     ("4", 4, 2, "set `num_nodes=1` in the program, or `--nodes=2` in the job"),
     ("3,1", 2, 2, "use `--nodes` and `--ntasks-per-node` in place of `--ntasks=4`"),
     ("2(x3),1", 2, 4, "SLURM placed [2, 2, 2, 1] tasks")],
)  # fmt: skip
def test_numbers_that_differ(monkeypatch: pytest.MonkeyPatch, tasks: str, devices: int, nodes: int, piece: str) -> None:
    set_all(monkeypatch, {**SRUN, "SLURM_STEP_TASKS_PER_NODE": tasks})
    with pytest.raises(InvalidValueError) as caught:
        SLURMEnvironment().validate_settings(devices, nodes)
    assert piece in str(caught.value)


@pytest.mark.parametrize(("tasks", "devices", "nodes"), [("2(x2)", 2, 2), ("4", 4, 1), ("1(x16)", 1, 16)])
def test_numbers_that_agree(monkeypatch: pytest.MonkeyPatch, tasks: str, devices: int, nodes: int) -> None:
    set_all(monkeypatch, {**SRUN, "SLURM_STEP_TASKS_PER_NODE": tasks})
    SLURMEnvironment().validate_settings(devices, nodes)


@pytest.mark.parametrize("name", ["bash", "interactive"])
def test_an_interactive_job_is_a_machine_like_others(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    set_all(monkeypatch, {**SRUN, "SLURM_JOB_NAME": name})
    found = detect_environment()
    assert type(found) is LightningEnvironment
    assert not found.creates_processes_externally
    SLURMEnvironment().validate_settings(7, 7)


def cluster(nodes: int) -> bool:
    """Whether there is a SLURM here with as many idle nodes."""
    if shutil.which("sinfo") is None:
        return False
    found = subprocess.run(["sinfo", "-h", "-t", "idle", "-o", "%D"], capture_output=True, text=True).stdout.strip()
    return found.isdigit() and int(found) >= nodes


PROGRAM = """
import torch.distributed as dist
from gpulayer.fabric.environments import SLURMEnvironment, detect_environment
found = detect_environment()
assert type(found) is SLURMEnvironment and found.creates_processes_externally
found.validate_settings(2, 2)
place = f"tcp://{found.main_address}:{found.main_port}"
dist.init_process_group("gloo", init_method=place, rank=found.global_rank(), world_size=found.world_size())
everyone = [None] * found.world_size()
dist.all_gather_object(everyone, (found.global_rank(), found.node_rank(), found.local_rank()))
dist.destroy_process_group()
if found.global_rank() == 0:
    print(sorted(everyone))
"""


@pytest.mark.skipif(not cluster(2), reason="no SLURM with two idle nodes")
@pytest.mark.parametrize("tasks", [("--ntasks-per-node=2",), ("-n4", "--cpus-per-task=2")])
def test_a_real_srun_on_two_nodes(tasks: tuple[str, ...]) -> None:
    """The processes find each other over the nodes' network, also where `--ntasks` alone says how many they are."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src"), "OMP_NUM_THREADS": "1"}
    command = ["srun", "-J", "train", "-N2", *tasks, sys.executable, "-c", PROGRAM]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    places = eval(done.stdout)
    assert [rank for rank, _, _ in places] == [0, 1, 2, 3]
    assert sorted((node, local) for _, node, local in places) == [(0, 0), (0, 1), (1, 0), (1, 1)]

"""The same variables say the same to Lightning's environments and to ours, and the same one is chosen."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

import pytest

import gpulayer.pytorch as L
from tests.fabric.environments.conftest import no_launcher  # noqa: F401
from tests.fabric.environments.variables import KUBEFLOW, SRUN, TORCHRUN, jsrun, place, set_all
from tests.parity.oracle import lightning, quiet

LISTS = [
    "alpha,beta", "alpha beta", "host[5-7,9]", "host[05,07-09]", "host7", "host-[1-2]-ib0", "1.2.3.[100-110]",
    "fe80::1", "::ffff:[1-3]",
]  # fmt: skip
# Lightning looks at SLURM_NTASKS_PER_NODE and SLURM_NNODES, which the fixture has, too.
CASES: dict[str, tuple[str, Any]] = {
    "alone": ("LightningEnvironment", {"MASTER_PORT": "4321"}),
    "by the user": ("LightningEnvironment", {"LOCAL_RANK": "1", "NODE_RANK": "2", "MASTER_PORT": "4321"}),
    "group rank": ("LightningEnvironment", {"GROUP_RANK": "3", "MASTER_PORT": "4321", "MASTER_ADDR": "h"}),
    "torchrun": ("TorchElasticEnvironment", TORCHRUN),
    "kubeflow": ("KubeflowEnvironment", KUBEFLOW),
    "srun": ("SLURMEnvironment", SRUN),
    "srun, interactive": ("SLURMEnvironment", {**SRUN, "SLURM_JOB_NAME": "bash"}),
    "srun, address": ("SLURMEnvironment", {**SRUN, "MASTER_ADDR": "h", "MASTER_PORT": "7"}),
    "jsrun": ("LSFEnvironment", jsrun),
}


@pytest.fixture(autouse=True)
def its_rank_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lightning's environments set the rank of the whole process, which later tests would find."""
    monkeypatch.setattr(
        importlib.import_module(f"{lightning().__name__}.utilities.rank_zero").rank_zero_only, "rank", 0
    )


def environments(library: str) -> Any:
    with quiet():
        return importlib.import_module(f"{library}.plugins.environments")


@pytest.mark.parametrize("case", CASES)
def test_places(case: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    name, variables = CASES[case]
    set_all(monkeypatch, variables(tmp_path) if callable(variables) else variables)
    ours, theirs = (getattr(environments(library), name) for library in ("gpulayer.pytorch", "lightning.pytorch"))
    found = place(ours())
    detected = ours.detect()
    # Theirs come last, for some of them set MASTER_ADDR and MASTER_PORT.
    monkeypatch.setenv("MASTER_ADDR", str(found["address"][0]))  # type: ignore[index]
    with quiet():
        assert place(theirs()) == found
        if name != "KubeflowEnvironment":  # theirs raises NotImplementedError
            assert theirs.detect() == detected


@pytest.mark.parametrize("nodes", LISTS)
def test_lists_of_hosts(nodes: str) -> None:
    ours, theirs = (
        environments(library).SLURMEnvironment.resolve_root_node_address
        for library in ("gpulayer.pytorch", "lightning.pytorch")
    )
    assert ours(nodes) == theirs(nodes)


@pytest.mark.parametrize(("devices", "nodes", "fits"), [(2, 2, True), (1, 2, False), (2, 1, False)])
@pytest.mark.parametrize(("name", "variables"), [("SLURMEnvironment", SRUN), ("TorchElasticEnvironment", TORCHRUN)])
def test_numbers_that_differ_are_refused(
    monkeypatch: pytest.MonkeyPatch, name: str, variables: dict[str, str], devices: int, nodes: int, fits: bool
) -> None:
    set_all(monkeypatch, variables)
    for library in ("gpulayer.pytorch", "lightning.pytorch"):
        with quiet():
            environment = getattr(environments(library), name)()
        if fits:
            environment.validate_settings(devices, nodes)
        else:
            with pytest.raises(ValueError, match=r"devices|nodes"):
                environment.validate_settings(devices, nodes)


@pytest.mark.parametrize("case", [*CASES, "torchrun in srun", "srun and jsrun"])
def test_the_trainer_chooses_the_same(case: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Of two processes, whose Trainers are made but not started."""
    if case == "torchrun in srun":
        variables = {**SRUN, **TORCHRUN}
    elif case == "srun and jsrun":
        variables = {**SRUN, **jsrun(tmp_path)}
    else:
        given = CASES[case][1]
        variables = given(tmp_path) if callable(given) else given
    set_all(monkeypatch, variables)
    monkeypatch.setattr(L.utilities.rank_zero.rank_zero_only, "rank", 0)
    arguments: dict[str, Any] = {"accelerator": "cpu", "devices": 2, "num_nodes": 2, "logger": False}
    found = type(L.Trainer(**arguments, enable_checkpointing=False).strategy.cluster_environment).__name__
    with quiet():
        theirs: Any = lightning().Trainer(**arguments, enable_checkpointing=False).strategy
    assert type(theirs.cluster_environment).__name__ == found

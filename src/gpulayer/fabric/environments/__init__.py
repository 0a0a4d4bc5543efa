"""Where processes run: what starts them and tells each its place."""

from gpulayer.fabric.environments.environment import ClusterEnvironment
from gpulayer.fabric.environments.kubeflow import KubeflowEnvironment
from gpulayer.fabric.environments.local import LightningEnvironment
from gpulayer.fabric.environments.lsf import LSFEnvironment
from gpulayer.fabric.environments.mpi import MPIEnvironment
from gpulayer.fabric.environments.slurm import SLURMEnvironment
from gpulayer.fabric.environments.torchelastic import TorchElasticEnvironment

__all__ = [
    "ClusterEnvironment",
    "KubeflowEnvironment",
    "LSFEnvironment",
    "LightningEnvironment",
    "MPIEnvironment",
    "SLURMEnvironment",
    "TorchElasticEnvironment",
    "detect_environment",
]


def detect_environment() -> ClusterEnvironment:
    """What started this process."""
    for kind in (TorchElasticEnvironment, SLURMEnvironment, LSFEnvironment, MPIEnvironment):
        if kind.detect():
            return kind()
    return LightningEnvironment()

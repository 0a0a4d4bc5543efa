"""Where processes run: what starts them and tells each its place."""

from gpulayer.fabric.environments.environment import ClusterEnvironment
from gpulayer.fabric.environments.local import LightningEnvironment
from gpulayer.fabric.environments.slurm import SLURMEnvironment
from gpulayer.fabric.environments.torchelastic import TorchElasticEnvironment

__all__ = [
    "ClusterEnvironment",
    "LightningEnvironment",
    "SLURMEnvironment",
    "TorchElasticEnvironment",
    "detect_environment",
]


def detect_environment() -> ClusterEnvironment:
    """What started this process."""
    for kind in (TorchElasticEnvironment, SLURMEnvironment):
        if kind.detect():
            return kind()
    return LightningEnvironment()

"""SLURM, at the path where code written for Lightning imports it."""

from gpulayer.fabric.environments.slurm import SLURMEnvironment

__all__ = ["SLURMEnvironment"]

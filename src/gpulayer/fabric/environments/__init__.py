"""Where processes run: what starts them and tells each its place."""

from gpulayer.fabric.environments.slurm import SLURMEnvironment

__all__ = ["SLURMEnvironment"]

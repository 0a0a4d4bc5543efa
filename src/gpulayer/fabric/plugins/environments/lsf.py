"""LSF, at the path where code written for Lightning imports it."""

from gpulayer.fabric.environments.lsf import LSFEnvironment

__all__ = ["LSFEnvironment"]

"""The interface of environments, at the path where code written for Lightning imports it."""

from gpulayer.fabric.environments.environment import ClusterEnvironment

__all__ = ["ClusterEnvironment"]

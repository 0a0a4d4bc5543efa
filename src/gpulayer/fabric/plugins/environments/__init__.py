"""Environments, at the path where code written for Lightning imports them."""

from gpulayer.fabric.environments import SLURMEnvironment

__all__ = ["SLURMEnvironment"]

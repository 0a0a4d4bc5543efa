"""The local environment, at the path where code written for Lightning imports it."""

from gpulayer.fabric.environments.local import LightningEnvironment

__all__ = ["LightningEnvironment"]

"""torchrun's environment, at the path where code written for Lightning imports it."""

from gpulayer.fabric.environments.torchelastic import TorchElasticEnvironment

__all__ = ["TorchElasticEnvironment"]

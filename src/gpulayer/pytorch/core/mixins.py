"""Hyperparameters, at the path where code written for Lightning imports them."""

from gpulayer.pytorch.core.hparams import HyperparametersMixin

__all__ = ["HyperparametersMixin"]

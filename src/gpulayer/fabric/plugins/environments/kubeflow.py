"""Kubeflow, at the path where code written for Lightning imports it."""

from gpulayer.fabric.environments.kubeflow import KubeflowEnvironment

__all__ = ["KubeflowEnvironment"]

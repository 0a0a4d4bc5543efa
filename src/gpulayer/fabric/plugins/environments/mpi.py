"""MPI, at the path where code written for Lightning imports it."""

from gpulayer.fabric.environments.mpi import MPIEnvironment

__all__ = ["MPIEnvironment"]

"""MPI: processes that `mpirun` or `mpiexec` started."""

import os
import socket
from importlib.util import find_spec

from gpulayer.fabric.environments.environment import ClusterEnvironment
from gpulayer.fabric.environments.local import free_port
from gpulayer.fabric.utilities.exceptions import InvalidValueError

# How many processes there are, as told by Open MPI; MPICH, Intel MPI and Cray MPICH; MVAPICH.
SIZES = ("OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "MV2_COMM_WORLD_SIZE")


class MPIEnvironment(ClusterEnvironment):
    """Places from MPI itself, through the package mpi4py.

    MASTER_ADDR and MASTER_PORT, where they are set, are taken in place of rank 0's host and a free port of it. All
    processes have to make this object, for they exchange their hosts in it.

    Raises:
        ModuleNotFoundError: mpi4py is not installed.
    """

    def __init__(self) -> None:
        try:
            from mpi4py import MPI
        except ModuleNotFoundError as error:
            raise ModuleNotFoundError(
                "MPI started these processes, and mpi4py tells each its place: `pip install mpi4py`. If each is to "
                "train on its own, give the Trainer `plugins=[LightningEnvironment()]`."
            ) from error
        world = MPI.COMM_WORLD
        self._rank: int = world.Get_rank()
        self._size: int = world.Get_size()
        self._hosts: list[str] = world.allgather(socket.gethostname())  # of each rank
        port = os.environ.get("MASTER_PORT") or (free_port() if self._rank == 0 else None)
        self._port = int(world.bcast(port))

    @property
    def creates_processes_externally(self) -> bool:
        return True

    @property
    def main_address(self) -> str:
        return os.environ.get("MASTER_ADDR") or self._hosts[0]

    @property
    def main_port(self) -> int:
        return self._port

    @staticmethod
    def detect() -> bool:
        """Whether mpirun started several processes, and they did not get their places in another way."""
        several = any(int(os.environ.get(name) or 1) > 1 for name in SIZES)
        return several and (find_spec("mpi4py") is not None or "LOCAL_RANK" not in os.environ)

    def world_size(self) -> int:
        return self._size

    def set_world_size(self, size: int) -> None:
        pass

    def global_rank(self) -> int:
        return self._rank

    def set_global_rank(self, rank: int) -> None:
        pass

    def local_rank(self) -> int:
        return self._hosts[: self._rank].count(self._hosts[self._rank])

    def node_rank(self) -> int:
        return list(dict.fromkeys(self._hosts)).index(self._hosts[self._rank])

    def local_world_size(self) -> int:
        return self._hosts.count(self._hosts[self._rank])

    def validate_settings(self, num_devices: int, num_nodes: int) -> None:
        nodes = len(set(self._hosts))
        if (num_devices, num_nodes) != (self.local_world_size(), nodes):
            raise InvalidValueError(
                f"`devices={num_devices}, num_nodes={num_nodes}`, but MPI started {self._size} processes on {nodes} "
                f"host(s), {self.local_world_size()} of them here: use `devices={self.local_world_size()}, "
                f"num_nodes={nodes}`, or change mpirun's `-n`. Each host needs as many."
            )

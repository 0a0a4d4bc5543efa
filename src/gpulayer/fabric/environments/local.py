"""This machine, or machines on which the user starts the program once each: the Trainer starts the other processes."""

import os
import socket

from gpulayer.fabric.environments.environment import ClusterEnvironment


class LightningEnvironment(ClusterEnvironment):
    """Places from the variables LOCAL_RANK, NODE_RANK, MASTER_ADDR and MASTER_PORT.

    Without LOCAL_RANK this process is the first of its machine, and starts the others.
    """

    def __init__(self) -> None:
        self._world_size = 1
        self._global_rank = 0
        self._port: int | None = None

    @property
    def creates_processes_externally(self) -> bool:
        return "LOCAL_RANK" in os.environ

    @property
    def main_address(self) -> str:
        return os.environ.get("MASTER_ADDR", "127.0.0.1")

    @property
    def main_port(self) -> int:
        if self._port is None:
            self._port = int(os.environ.get("MASTER_PORT") or free_port())
        return self._port

    @staticmethod
    def detect() -> bool:
        return True

    def world_size(self) -> int:
        return self._world_size

    def set_world_size(self, size: int) -> None:
        self._world_size = size

    def global_rank(self) -> int:
        return self._global_rank

    def set_global_rank(self, rank: int) -> None:
        self._global_rank = rank

    def local_rank(self) -> int:
        return int(os.environ.get("LOCAL_RANK", 0))

    def node_rank(self) -> int:
        return int(os.environ.get("NODE_RANK") or os.environ.get("GROUP_RANK") or 0)


def free_port() -> int:
    """A port of this machine that nothing listens on."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as found:
        found.bind(("127.0.0.1", 0))
        port: int = found.getsockname()[1]
        return port

"""What starts the processes of a run, and tells each of them its place."""

import os
from abc import ABC, abstractmethod


class ClusterEnvironment(ABC):
    """One way in which processes are started; outsiders can write their own."""

    @property
    @abstractmethod
    def creates_processes_externally(self) -> bool:
        """Whether all processes are there already, or this one has to start the others."""

    @property
    @abstractmethod
    def main_address(self) -> str:
        """The host of rank 0."""

    @property
    @abstractmethod
    def main_port(self) -> int:
        """The port of rank 0."""

    @staticmethod
    @abstractmethod
    def detect() -> bool:
        """Whether this process was started in this way."""

    @abstractmethod
    def world_size(self) -> int:
        """How many processes there are."""

    @abstractmethod
    def set_world_size(self, size: int) -> None:
        """Take the number of processes, unless it is known from outside."""

    @abstractmethod
    def global_rank(self) -> int:
        """This process's number among all."""

    @abstractmethod
    def set_global_rank(self, rank: int) -> None:
        """Take this process's number, unless it is known from outside."""

    @abstractmethod
    def local_rank(self) -> int:
        """This process's number on its machine."""

    @abstractmethod
    def node_rank(self) -> int:
        """The number of its machine."""

    def local_world_size(self) -> int:
        """How many processes this machine has."""
        return int(os.environ.get("LOCAL_WORLD_SIZE") or self.world_size())

    def validate_settings(self, num_devices: int, num_nodes: int) -> None:
        """Compare the Trainer's arguments with what was started.

        Raises:
            InvalidValueError: they differ.
        """

    def teardown(self) -> None:
        """Clean up."""

"""Kubeflow: a PyTorchJob, each pod of which runs one process."""

import os

from gpulayer.fabric.environments.environment import ClusterEnvironment
from gpulayer.fabric.utilities.exceptions import InvalidValueError


class KubeflowEnvironment(ClusterEnvironment):
    """Places from MASTER_ADDR, MASTER_PORT, WORLD_SIZE and RANK, which the operator sets in each pod.

    Many things set these variables, so this environment has to be given: `plugins=[KubeflowEnvironment()]`. A job that
    runs torchrun in its pods does not need it.
    """

    @property
    def creates_processes_externally(self) -> bool:
        return True

    @property
    def main_address(self) -> str:
        return os.environ["MASTER_ADDR"]

    @property
    def main_port(self) -> int:
        return int(os.environ["MASTER_PORT"])

    @staticmethod
    def detect() -> bool:
        """Never: nothing tells its pods from those of other jobs."""
        return False

    def world_size(self) -> int:
        return int(os.environ["WORLD_SIZE"])

    def set_world_size(self, size: int) -> None:
        pass

    def global_rank(self) -> int:
        return int(os.environ["RANK"])

    def set_global_rank(self, rank: int) -> None:
        pass

    def local_rank(self) -> int:
        return 0

    def node_rank(self) -> int:
        return self.global_rank()

    def local_world_size(self) -> int:
        return 1

    def validate_settings(self, num_devices: int, num_nodes: int) -> None:
        if num_devices != 1 or num_nodes != self.world_size():
            raise InvalidValueError(
                f"`devices={num_devices}, num_nodes={num_nodes}`, but Kubeflow started {self.world_size()} pods of one "
                f"process each: use `devices=1, num_nodes={self.world_size()}`. For several processes in a pod let the "
                "job run torchrun, and leave KubeflowEnvironment out."
            )

"""torchrun, and whatever else sets the variables that it sets."""

import os

from gpulayer.fabric.environments.environment import ClusterEnvironment
from gpulayer.fabric.utilities.exceptions import InvalidValueError


class TorchElasticEnvironment(ClusterEnvironment):
    """Places from RANK, WORLD_SIZE, LOCAL_RANK, GROUP_RANK, MASTER_ADDR and MASTER_PORT."""

    @property
    def creates_processes_externally(self) -> bool:
        return True

    @property
    def main_address(self) -> str:
        return os.environ.get("MASTER_ADDR", "127.0.0.1")

    @property
    def main_port(self) -> int:
        return int(os.environ.get("MASTER_PORT", 12910))

    @staticmethod
    def detect() -> bool:
        return {"RANK", "WORLD_SIZE", "GROUP_RANK", "LOCAL_RANK", "LOCAL_WORLD_SIZE"} <= os.environ.keys()

    def world_size(self) -> int:
        return int(os.environ["WORLD_SIZE"])

    def set_world_size(self, size: int) -> None:
        pass

    def global_rank(self) -> int:
        return int(os.environ["RANK"])

    def set_global_rank(self, rank: int) -> None:
        pass

    def local_rank(self) -> int:
        return int(os.environ["LOCAL_RANK"])

    def node_rank(self) -> int:
        return int(os.environ.get("GROUP_RANK", 0))

    def validate_settings(self, num_devices: int, num_nodes: int) -> None:
        if num_devices * num_nodes != self.world_size():
            raise InvalidValueError(
                f"`devices={num_devices}, num_nodes={num_nodes}` are {num_devices * num_nodes} processes, but torchrun "
                f"started {self.world_size()}: give the Trainer the same numbers as torchrun's --nproc-per-node and "
                "--nnodes, or leave `devices` and `num_nodes` out."
            )

"""Apple's GPUs."""

from typing import Any

import torch

from gpulayer.fabric.accelerators.accelerator import Accelerator
from gpulayer.fabric.accelerators.indexed import read_indices
from gpulayer.fabric.registry import Registry


class MPSAccelerator(Accelerator):
    """The GPU of an Apple machine; there is one."""

    @staticmethod
    def is_available() -> bool:
        return torch.backends.mps.is_available()

    @staticmethod
    def auto_device_count() -> int:
        return 1

    @staticmethod
    def parse_devices(devices: int | str | list[int]) -> list[int]:
        return read_indices(devices, 1, "MPS")

    @staticmethod
    def get_parallel_devices(devices: list[int]) -> list[torch.device]:
        return [torch.device("mps", index) for index in devices]

    @staticmethod
    def name() -> str:
        return "mps"

    @classmethod
    def register_accelerators(cls, accelerator_registry: Registry) -> None:
        accelerator_registry.register("mps", cls, description="the GPU of an Apple machine")

    def teardown(self) -> None:
        torch.mps.empty_cache()

    def get_device_stats(self, device: torch.device) -> dict[str, Any]:
        return {
            "mps.current_allocated_memory": torch.mps.current_allocated_memory(),
            "mps.driver_allocated_memory": torch.mps.driver_allocated_memory(),
        }

"""NVIDIA's and AMD's GPUs, through torch.cuda."""

from typing import Any

import torch

from gpulayer.fabric.accelerators.accelerator import Accelerator
from gpulayer.fabric.accelerators.indexed import read_indices


class CUDAAccelerator(Accelerator):
    """A GPU seen by torch.cuda."""

    name = "cuda"

    @staticmethod
    def is_available() -> bool:
        return torch.cuda.is_available()

    @staticmethod
    def auto_device_count() -> int:
        return torch.cuda.device_count()

    @staticmethod
    def parse_devices(devices: int | str | list[int]) -> list[int]:
        return read_indices(devices, torch.cuda.device_count(), "CUDA")

    @staticmethod
    def get_parallel_devices(devices: list[int]) -> list[torch.device]:
        return [torch.device("cuda", index) for index in devices]

    def setup_device(self, device: torch.device) -> None:
        torch.cuda.set_device(device)

    def teardown(self) -> None:
        torch.cuda.empty_cache()

    def get_device_stats(self, device: torch.device) -> dict[str, Any]:
        return torch.cuda.memory_stats(device)

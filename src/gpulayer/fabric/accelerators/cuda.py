"""NVIDIA's and AMD's GPUs, through torch.cuda."""

from functools import cached_property, partial
from typing import Any

import torch

from gpulayer.fabric.accelerators.accelerator import Accelerator
from gpulayer.fabric.accelerators.indexed import read_indices
from gpulayer.fabric.utilities.device_stats import Sampler, gpu_sensors


class CUDAAccelerator(Accelerator):
    """A GPU seen by torch.cuda."""

    name = "cuda"

    @cached_property  # not in an __init__, which a subclass might not call
    def _sensors(self) -> dict[torch.device, Sampler]:
        return {}

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
        for sampler in self._sensors.values():
            sampler.stop()
        self._sensors.clear()
        torch.cuda.empty_cache()

    def get_device_stats(self, device: torch.device) -> dict[str, Any]:
        """The allocator's counts of now, and the newest reading of the sensors, up to a second old."""
        if device not in self._sensors:
            self._sensors[device] = Sampler(partial(gpu_sensors, device))
        return torch.cuda.memory_stats(device) | self._sensors[device].newest

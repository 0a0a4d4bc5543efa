"""The host's processor."""

from typing import Any

import torch

from gpulayer.fabric.accelerators.accelerator import Accelerator
from gpulayer.fabric.registry import Registry
from gpulayer.fabric.utilities.device_stats import host_stats
from gpulayer.fabric.utilities.exceptions import MisconfigurationException


class CPUAccelerator(Accelerator):
    """Runs on the host; `devices` counts processes."""

    @staticmethod
    def is_available() -> bool:
        return True

    @staticmethod
    def auto_device_count() -> int:
        return 1

    @staticmethod
    def parse_devices(devices: int | str | list[int]) -> int:
        count = int(devices) if isinstance(devices, str) and devices.strip().isdigit() else devices
        if isinstance(count, bool) or not isinstance(count, int) or count < 1:
            raise MisconfigurationException(
                f"`devices={devices!r}` with the CPU: give a number of processes of at least 1, such as `devices=1`."
            )
        return count

    @staticmethod
    def get_parallel_devices(devices: int) -> list[torch.device]:
        return [torch.device("cpu")] * devices

    @staticmethod
    def name() -> str:
        return "cpu"

    @classmethod
    def register_accelerators(cls, accelerator_registry: Registry) -> None:
        accelerator_registry.register("cpu", cls, description="the host's processor")

    def get_device_stats(self, device: torch.device) -> dict[str, Any]:
        return host_stats()

"""What the library needs to know of a kind of device; outsiders can write their own."""

from abc import ABC, abstractmethod
from typing import Any

import torch

from gpulayer.fabric.registry import Registry


class Accelerator(ABC):
    """One kind of device.

    A subclass says how a user's `devices` argument reads, how many devices there are, and whether any is here.
    """

    @staticmethod
    @abstractmethod
    def is_available() -> bool:
        """Whether this machine has such a device."""

    @staticmethod
    @abstractmethod
    def auto_device_count() -> int:
        """How many devices `devices="auto"` means."""

    @staticmethod
    @abstractmethod
    def parse_devices(devices: int | str | list[int]) -> Any:
        """The user's `devices` (after "auto") as a count or a list of indices.

        Raises:
            MisconfigurationException: there are no such devices.
        """

    @staticmethod
    @abstractmethod
    def get_parallel_devices(devices: Any) -> list[torch.device]:
        """The devices that `parse_devices` named."""

    @staticmethod
    @abstractmethod
    def name() -> str:
        """What users call it, such as "cuda"."""

    @classmethod
    def register_accelerators(cls, accelerator_registry: Registry) -> None:
        """Add the names under which `Trainer(accelerator=...)` finds this class."""

    def setup_device(self, device: torch.device) -> None:
        """Make `device` this process's current one."""

    def teardown(self) -> None:
        """Free what the run held on the device."""

    def get_device_stats(self, device: torch.device) -> dict[str, Any]:
        """Memory and load of the device, by name; DeviceStatsMonitor logs them, so it should not take long."""
        return {}

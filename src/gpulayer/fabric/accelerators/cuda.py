"""NVIDIA's and AMD's GPUs, through torch.cuda."""

from functools import cached_property, partial
from typing import Any

import torch

from gpulayer.fabric.accelerators.accelerator import Accelerator
from gpulayer.fabric.accelerators.indexed import read_indices
from gpulayer.fabric.registry import Registry
from gpulayer.fabric.utilities.device_stats import Sampler, gpu_sensors
from gpulayer.fabric.utilities.exceptions import InvalidValueError


class CUDAAccelerator(Accelerator):
    """A GPU seen by torch.cuda."""

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

    @staticmethod
    def name() -> str:
        return "cuda"

    @classmethod
    def register_accelerators(cls, accelerator_registry: Registry) -> None:
        accelerator_registry.register("cuda", cls, description="GPUs that torch.cuda sees")

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


def find_usable_cuda_devices(num_devices: int = -1) -> list[int]:
    """The first GPUs on which a tensor can be put, for machines whose GPUs take one process each.

    Two processes that ask at the same time may get the same ones.

    Args:
        num_devices: how many; -1 for all that can be used.

    Returns:
        Their indices, to be given as `devices`.

    Raises:
        InvalidValueError: torch sees fewer GPUs than that.
        RuntimeError: fewer than that can be used.
    """
    if num_devices == 0:
        return []
    visible = torch.cuda.device_count()
    if num_devices > visible or num_devices < -1 or visible == 0:
        raise InvalidValueError(f"`num_devices={num_devices}`, but torch sees {visible} CUDA device(s) here.")
    usable: list[int] = []
    for index in range(visible):
        try:
            torch.zeros((), device=torch.device("cuda", index))
        except RuntimeError:  # another process has it for itself
            continue
        usable.append(index)
        if len(usable) == num_devices:
            break
    if len(usable) < num_devices:
        raise RuntimeError(
            f"`num_devices={num_devices}`, but of the {visible} CUDA device(s) here only {usable} can be used now; "
            "other processes have the others."
        )
    return usable

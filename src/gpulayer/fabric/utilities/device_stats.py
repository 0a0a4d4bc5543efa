"""How busy the machine is: the processor by psutil, a GPU's sensors by its driver."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from functools import cache
from time import monotonic, sleep

import torch

from gpulayer.fabric.utilities.rank_zero import rank_zero_debug, rank_zero_info

SHORTEST = 0.1  # seconds; a load over less is noise, says psutil's documentation


class HostStats:
    """Reads the load and the memory of this machine.

    Making one takes 0.1 s, over which the first load is measured.

    Raises:
        ModuleNotFoundError: psutil is not installed.
    """

    def __init__(self) -> None:
        try:
            import psutil
        except ModuleNotFoundError:
            raise ModuleNotFoundError(
                "The load and the memory of this machine are read by psutil, which is not installed: pip install psutil"
            ) from None
        self._psutil = psutil
        self._process = psutil.Process()
        psutil.cpu_percent()  # from here on the load is measured
        sleep(SHORTEST)
        self._newest = self._read()
        self._read_at = monotonic()

    def newest(self) -> dict[str, float]:
        """A reading, which takes 0.1 to 0.3 ms, or the one before if it is less than 0.1 s old.

        Returns:
            `cpu_percent`, the load of all cores since the reading before; `cpu_vm_percent`; `cpu_vm_used`, memory in
            use, in bytes; `cpu_swap_percent`; `cpu_process_rss`, this process's memory in bytes.
        """
        now = monotonic()
        if now - self._read_at >= SHORTEST:
            self._newest, self._read_at = self._read(), now
        return self._newest

    def _read(self) -> dict[str, float]:
        memory = self._psutil.virtual_memory()
        return {
            "cpu_percent": self._psutil.cpu_percent(),
            "cpu_vm_percent": memory.percent,
            "cpu_vm_used": float(memory.used),
            "cpu_swap_percent": self._psutil.swap_memory().percent,
            "cpu_process_rss": float(self._process.memory_info().rss),
        }


@cache
def _host(process: int) -> HostStats:
    """One for all of a process, because load is measured from one reading to the next; a forked one needs its own."""
    return HostStats()


def host_stats() -> dict[str, float]:
    """What `HostStats.newest` returns, as a copy.

    Raises:
        ModuleNotFoundError: psutil is not installed.
    """
    return dict(_host(os.getpid()).newest())


def gpu_sensors(device: torch.device) -> dict[str, float]:
    """What the driver of a CUDA device says, which takes milliseconds.

    Returns:
        `utilization.gpu` (percent of the time in which a kernel ran), `temperature.gpu` (degrees Celsius), `power.draw`
        (watts), which are nvidia-smi's names. A sensor that the GPU lacks is left out.
    """
    sensors: dict[str, Callable[[], float]] = {
        "utilization.gpu": lambda: torch.cuda.utilization(device),
        "temperature.gpu": lambda: torch.cuda.temperature(device),
        "power.draw": lambda: torch.cuda.power_draw(device) / 1000,  # torch gives milliwatts
    }
    readings: dict[str, float] = {}
    for name, read in sensors.items():
        try:
            readings[name] = float(read())
        except ModuleNotFoundError:
            rank_zero_info(
                "A GPU's utilisation, temperature and power are read by nvidia-ml-py, which is not installed, so they "
                "are left out: pip install nvidia-ml-py"
            )
            break
        except Exception as error:  # a sensor must not end a training, and NVML's errors are classes of that package
            rank_zero_debug("%s of %s cannot be read: %s", name, device, error)
    return readings


class Sampler:
    """Reads in a thread, again and again, what is too slow for the loop to wait for.

    Args:
        read: gives a reading; if the first is empty, there will be no others.
        seconds: from one reading to the next.
    """

    def __init__(self, read: Callable[[], dict[str, float]], seconds: float = 1.0) -> None:
        self.newest = read()
        self._read, self._seconds = read, seconds
        self._stopped = threading.Event()
        if self.newest:
            threading.Thread(target=self._run, name="gpulayer-sampler", daemon=True).start()

    def _run(self) -> None:
        while not self._stopped.wait(self._seconds):
            self.newest = self._read()

    def stop(self) -> None:
        """Begin no further reading."""
        self._stopped.set()

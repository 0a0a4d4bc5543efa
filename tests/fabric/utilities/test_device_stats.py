"""Readings of the machine, by the real psutil, and of a GPU that is not here."""

from __future__ import annotations

import builtins
import logging
import threading
import time
from typing import Any

import pytest
import torch

from gpulayer.fabric.accelerators import CPUAccelerator, CUDAAccelerator
from gpulayer.fabric.utilities import device_stats
from gpulayer.fabric.utilities.device_stats import HostStats, Sampler, gpu_sensors, host_stats

CPU = torch.device("cpu")


def test_the_host() -> None:
    stats = host_stats()
    assert set(stats) == {"cpu_percent", "cpu_vm_percent", "cpu_vm_used", "cpu_swap_percent", "cpu_process_rss"}
    assert 0 < stats["cpu_vm_percent"] <= 100
    assert 10e6 < stats["cpu_process_rss"] < stats["cpu_vm_used"] * 10
    assert CPUAccelerator().get_device_stats(CPU).keys() == stats.keys()


def test_readings_are_a_tenth_of_a_second_apart() -> None:
    """Over a millisecond, the load is 0 or 100 by chance."""
    host = HostStats()
    first = host.newest()
    assert host.newest() is first
    deadline = time.monotonic() + 0.15
    while time.monotonic() < deadline:  # keep a core busy
        pass
    second = host.newest()
    assert second is not first
    assert second["cpu_percent"] > 0


def without(monkeypatch: pytest.MonkeyPatch, package: str) -> None:
    """Make a package's import fail."""
    original = builtins.__import__

    def importing(name: str, *args: Any, **kwargs: Any) -> Any:
        if name == package:
            raise ModuleNotFoundError(f"No module named {package!r}", name=package)
        return original(name, *args, **kwargs)

    monkeypatch.setattr(builtins, "__import__", importing)


def test_psutil_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    without(monkeypatch, "psutil")
    with pytest.raises(ModuleNotFoundError, match="pip install psutil"):
        HostStats()


def test_a_gpu_without_a_driver_has_no_sensors() -> None:
    """The real nvidia-ml-py, or none, on a machine without a GPU: nothing is raised."""
    if torch.cuda.is_available():
        pytest.skip("here is a GPU")
    assert gpu_sensors(torch.device("cuda", 0)) == {}


def test_a_sensor_that_a_gpu_lacks_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    def lacking(device: torch.device) -> int:
        raise RuntimeError("Not Supported")

    monkeypatch.setattr(torch.cuda, "utilization", lambda device: 97)
    monkeypatch.setattr(torch.cuda, "temperature", lacking)
    monkeypatch.setattr(torch.cuda, "power_draw", lambda device: 412_500)
    assert gpu_sensors(torch.device("cuda", 0)) == {"utilization.gpu": 97.0, "power.draw": 412.5}


def test_nvidia_ml_py_is_missing(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    def missing(device: torch.device) -> int:
        raise ModuleNotFoundError("nvidia-ml-py does not seem to be installed or it can't be imported.")

    for name in ("utilization", "temperature", "power_draw"):
        monkeypatch.setattr(torch.cuda, name, missing)
    with caplog.at_level(logging.INFO, logger="gpulayer"):
        assert gpu_sensors(torch.device("cuda", 0)) == {}
    assert [record.message for record in caplog.records if "pip install nvidia-ml-py" in record.message]
    assert len(caplog.records) == 1


def test_a_cuda_device_never_waits_for_its_sensors(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first reading is taken at once, in set-up; those that follow in a thread, however long they take."""
    readings: list[str] = []

    def slow(device: torch.device) -> dict[str, float]:
        readings.append(threading.current_thread().name)
        time.sleep(0.05)
        return {"power.draw": float(len(readings))}

    monkeypatch.setattr("gpulayer.fabric.accelerators.cuda.gpu_sensors", slow)
    monkeypatch.setattr(device_stats.Sampler.__init__, "__defaults__", (0.01,))
    monkeypatch.setattr(torch.cuda, "memory_stats", lambda device: {"allocated_bytes.all.current": 7})
    accelerator, device = CUDAAccelerator(), torch.device("cuda", 0)
    assert accelerator.get_device_stats(device) == {"allocated_bytes.all.current": 7, "power.draw": 1.0}
    began = time.perf_counter()
    for _ in range(100):
        accelerator.get_device_stats(device)
    assert time.perf_counter() - began < 0.05
    deadline = time.monotonic() + 5
    while accelerator.get_device_stats(device)["power.draw"] < 3 and time.monotonic() < deadline:
        time.sleep(0.01)
    assert accelerator.get_device_stats(device)["power.draw"] >= 3
    assert readings[0] == threading.current_thread().name
    assert set(readings[1:]) == {"gpulayer-sampler"}
    accelerator.teardown()
    time.sleep(0.1)
    after = len(readings)
    time.sleep(0.1)
    assert len(readings) == after


def test_a_sampler_without_a_first_reading_starts_no_thread() -> None:
    before = threading.active_count()
    assert Sampler(dict).newest == {}
    assert threading.active_count() == before

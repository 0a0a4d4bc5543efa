"""DeviceStatsMonitor: what reaches the loggers, read by the real psutil."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import gpulayer.pytorch as L
from gpulayer.fabric.utilities import device_stats
from gpulayer.fabric.utilities.exceptions import MisconfigurationException
from gpulayer.pytorch.accelerators import Accelerator
from gpulayer.pytorch.callbacks import DeviceStatsMonitor
from tests.fabric.utilities.test_device_stats import without
from tests.pytorch.callbacks.test_throughput_monitor import Rows
from tests.pytorch.models import Line, Validated, loader, trainer

HOST = ["cpu_percent", "cpu_process_rss", "cpu_swap_percent", "cpu_vm_percent", "cpu_vm_used"]


class Outsider(Accelerator):
    """Somebody's own device, which computes where the host does."""

    @staticmethod
    def name() -> str:
        return "outsider"

    @staticmethod
    def is_available() -> bool:
        return True

    @staticmethod
    def auto_device_count() -> int:
        return 1

    @staticmethod
    def parse_devices(devices: Any) -> int:
        return 1

    @staticmethod
    def get_parallel_devices(devices: Any) -> list[torch.device]:
        return [torch.device("cpu")]

    def get_device_stats(self, device: torch.device) -> dict[str, Any]:
        return {"temperature": 21, "device": float(device.type == "cpu")}


def names(rows: Rows) -> list[tuple[int, str, list[str]]]:
    """Step, hook and names of each row."""
    found = []
    for step, metrics in rows.rows:
        hooks = {name.partition("/")[0] for name in metrics}
        assert len(hooks) == 1
        values = sorted(name.partition("/")[2] for name in metrics)
        found.append((step, hooks.pop().removeprefix("DeviceStatsMonitor."), values))
    return found


def fitted(callback: DeviceStatsMonitor, *loaders: Any, module: L.Module | None = None, **arguments: Any) -> Rows:
    rows = Rows()
    given = {"logger": rows, "max_epochs": 1, "log_every_n_steps": 2, "callbacks": [callback], **arguments}
    trainer(**given).fit(module or DoesNotLog(), *(loaders or (loader(4),)))
    return rows


class DoesNotLog(Line):
    def training_step(self, batch: Any, batch_idx: int) -> Any:
        return self.loss(batch)


class DoesNotLogButValidates(DoesNotLog):
    def validation_step(self, batch: Any, batch_idx: int) -> None:
        pass


def test_before_and_after_the_batches_of_log_points() -> None:
    assert names(fitted(DeviceStatsMonitor())) == [
        (1, "on_train_batch_start", HOST),
        (1, "on_train_batch_end", HOST),
        (3, "on_train_batch_start", HOST),
        (3, "on_train_batch_end", HOST),
    ]


def test_values() -> None:
    rows = fitted(DeviceStatsMonitor()).rows
    assert all(value >= 0 for _, metrics in rows for value in metrics.values())
    assert rows[0][1]["DeviceStatsMonitor.on_train_batch_start/cpu_process_rss"] > 10e6


def test_accumulated_batches_once_a_step() -> None:
    rows = names(fitted(DeviceStatsMonitor(), loader(5), accumulate_grad_batches=2, log_every_n_steps=1))
    assert [(step, hook) for step, hook, _ in rows] == [
        (step, hook) for step in range(3) for hook in ("on_train_batch_start", "on_train_batch_end")
    ]


def test_in_validation() -> None:
    """With the step that training is at; not in the sanity check."""
    module = DoesNotLogButValidates()
    rows = fitted(DeviceStatsMonitor(), loader(4), loader(3), module=module, num_sanity_val_steps=2)
    assert [(step, hook) for step, hook, _ in names(rows)][4:] == [
        (3, "on_validation_batch_start"),
        (3, "on_validation_batch_end"),
    ]


@pytest.mark.parametrize(("call", "stage"), [("validate", "validation"), ("test", "test")])
def test_evaluations(call: str, stage: str) -> None:
    class Silent(DoesNotLogButValidates):
        def test_step(self, batch: Any, batch_idx: int) -> None:
            pass

    rows = Rows()
    used = trainer(logger=rows, log_every_n_steps=2, callbacks=[DeviceStatsMonitor()])
    getattr(used, call)(Silent(), loader(5))
    assert [(step, hook) for step, hook, _ in names(rows)] == 2 * [
        (0, f"on_{stage}_batch_start"),
        (0, f"on_{stage}_batch_end"),
    ]


def test_predict_writes_nothing_and_needs_no_logger() -> None:
    trainer(callbacks=[DeviceStatsMonitor()]).predict(Line(), loader())


def test_without_those_of_the_cpu() -> None:
    assert fitted(DeviceStatsMonitor(cpu_stats=False)).rows == []


@pytest.mark.parametrize(
    ("cpu_stats", "expected"),
    [
        (None, ["device", "temperature"]),
        (False, ["device", "temperature"]),
        (True, sorted([*HOST, "device", "temperature"])),
    ],
)
def test_an_accelerator_from_outside(cpu_stats: bool | None, expected: list[str]) -> None:
    rows = fitted(DeviceStatsMonitor(cpu_stats), accelerator=Outsider())
    assert [found for _, _, found in names(rows)] == 4 * [expected]
    assert rows.rows[0][1]["DeviceStatsMonitor.on_train_batch_start/temperature"] == 21


def test_it_needs_a_logger() -> None:
    for call in ("fit", "validate", "test"):
        with pytest.raises(MisconfigurationException, match=r"DeviceStatsMonitor writes to loggers.*logger=False"):
            getattr(trainer(callbacks=[DeviceStatsMonitor()]), call)(Validated(), loader())
    trainer(callbacks=[DeviceStatsMonitor()], fast_dev_run=True).fit(Line(), loader())


def test_psutil_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Before training; whoever does not ask for the CPU's is not bothered."""
    device_stats._host.cache_clear()  # forget the psutil that was found before
    without(monkeypatch, "psutil")
    for asked, accelerator in ((None, "cpu"), (True, Outsider())):
        with pytest.raises(ModuleNotFoundError, match="pip install psutil"):
            fitted(DeviceStatsMonitor(asked), accelerator=accelerator)
    assert len(fitted(DeviceStatsMonitor(), accelerator=Outsider()).rows) == 4
    assert fitted(DeviceStatsMonitor(False)).rows == []


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_on_a_gpu() -> None:
    found = names(fitted(DeviceStatsMonitor(), accelerator="cuda"))[0][2]
    assert "allocated_bytes.all.current" in found
    assert "cpu_percent" not in found

"""An accelerator of somebody else's, by its name, from the Trainer's argument to the last batch."""

from __future__ import annotations

import csv
from collections.abc import Iterator
from typing import Any

import pytest
import torch

import gpulayer.pytorch as L
from gpulayer.fabric.accelerators.cuda import find_usable_cuda_devices
from gpulayer.fabric.resolve import resolve_accelerator
from gpulayer.fabric.utilities.exceptions import MisconfigurationException
from gpulayer.pytorch.accelerators import Accelerator, AcceleratorRegistry, CPUAccelerator, CUDAAccelerator
from gpulayer.pytorch.callbacks import DeviceStatsMonitor
from gpulayer.pytorch.demos.boring_classes import BoringModel
from gpulayer.pytorch.loggers import CSVLogger


class Board(Accelerator):
    """A board with two devices, which are the CPU."""

    here = True

    def __init__(self, speed: int = 1) -> None:
        self.speed = speed
        self.calls: list[str] = []

    def setup_device(self, device: torch.device) -> None:
        self.calls.append(f"setup_device {device}")

    def teardown(self) -> None:
        self.calls.append("teardown")

    def get_device_stats(self, device: torch.device) -> dict[str, Any]:
        return {"heat": 40.0 + self.speed}

    @staticmethod
    def parse_devices(devices: Any) -> list[int]:
        return list(range(devices)) if isinstance(devices, int) else devices

    @staticmethod
    def get_parallel_devices(devices: list[int]) -> list[torch.device]:
        return [torch.device("cpu", index) for index in devices]

    @staticmethod
    def auto_device_count() -> int:
        return 1

    @staticmethod
    def is_available() -> bool:
        return Board.here

    @staticmethod
    def name() -> str:
        return "board"

    @classmethod
    def register_accelerators(cls, accelerator_registry: Any) -> None:
        accelerator_registry.register("board", cls, description="a board", speed=2)


@pytest.fixture(autouse=True)
def registered() -> Iterator[None]:
    Board.register_accelerators(AcceleratorRegistry)
    yield
    AcceleratorRegistry.remove("board")


def test_a_run_on_it(tmp_path: Any) -> None:
    logger = CSVLogger(tmp_path)
    trainer = L.Trainer(
        accelerator="board", max_steps=3, logger=logger, log_every_n_steps=1, callbacks=[DeviceStatsMonitor()],
        enable_checkpointing=False,
    )  # fmt: skip
    assert isinstance(trainer.accelerator, Board)
    model = BoringModel()
    trainer.fit(model)
    assert trainer.global_step == 3
    assert trainer.accelerator.speed == 2
    assert trainer.accelerator.calls == ["setup_device cpu:0", "teardown"]
    with open(tmp_path / "lightning_logs" / "version_0" / "metrics.csv") as file:
        heats = [
            value for row in csv.DictReader(file) for name, value in row.items() if name.endswith("heat") and value
        ]
    assert heats
    assert {float(heat) for heat in heats} == {42.0}


def test_where_its_device_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Board, "here", False)
    with pytest.raises(MisconfigurationException, match="`accelerator='board'`, but there is no such device here"):
        L.Trainer(accelerator="board")


def test_a_name_that_nobody_registered() -> None:
    with pytest.raises(MisconfigurationException, match=r"did you mean 'board'.*'cpu', 'cuda', 'mps', 'board'"):
        resolve_accelerator("bord")


def test_names_are_called_as_in_lightning() -> None:
    assert [CPUAccelerator.name(), CPUAccelerator().name(), CUDAAccelerator.name()] == ["cpu", "cpu", "cuda"]


def test_usable_gpus_that_are_not_there() -> None:
    there = torch.cuda.device_count()
    assert find_usable_cuda_devices(0) == []
    for wrong in (there + 1, -2):
        with pytest.raises(MisconfigurationException, match=f"num_devices={wrong}.*torch sees {there}"):
            find_usable_cuda_devices(wrong)


@pytest.mark.skipif(torch.cuda.is_available(), reason="needs to have no GPU")
def test_all_usable_gpus_where_there_are_none() -> None:
    with pytest.raises(ValueError, match="num_devices=-1"):  # the class of Lightning's error
        find_usable_cuda_devices()


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_usable_gpus() -> None:
    assert find_usable_cuda_devices(1) == [0]
    assert find_usable_cuda_devices() == list(range(torch.cuda.device_count()))

"""Throughput, and what chips can do."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from gpulayer.fabric.utilities.throughput import Throughput, get_available_flops, measure_flops, peak_flops

A100 = "NVIDIA A100-SXM4-80GB"


def squares(count: int, **arguments: float | str) -> Throughput:
    """The i-th update comes at i^2 seconds, with 2 samples of 10 items and 6 operations each."""
    throughput = Throughput(**arguments)  # type: ignore[arg-type]
    for i in range(1, count + 1):
        throughput.update(time=float(i * i), batches=i, samples=2 * i, lengths=20 * i, flops=12)
    return throughput


def test_nothing_before_the_first_update() -> None:
    assert Throughput().compute() == {}


def test_totals_until_the_window_is_full() -> None:
    assert squares(3, window_size=4).compute() == {"time": 9.0, "batches": 3, "samples": 6, "lengths": 60}


def test_rates_are_those_of_the_window() -> None:
    """Of six updates the newest three: 4 s to 6 s squared are 20 s, for two batches."""
    assert squares(6, window_size=3).compute() == {
        "time": 36.0,
        "batches": 6,
        "samples": 12,
        "lengths": 120,
        "device/batches_per_sec": 2 / 20,
        "device/samples_per_sec": 4 / 20,
        "device/items_per_sec": 40 / 20,
        "device/flops_per_sec": 24 / 20,
    }


def test_several_devices_and_a_peak() -> None:
    rates = squares(3, window_size=3, world_size=4, available_flops=6.0, separator="|").compute()
    assert rates["device|samples_per_sec"] == 4 / 8
    assert rates["samples_per_sec"] == 4 * 4 / 8
    assert rates["flops_per_sec"] == 4 * rates["device|flops_per_sec"] == 4 * 24 / 8
    assert rates["device|mfu"] == 24 / 8 / 6
    assert "mfu" not in rates


def test_reset() -> None:
    throughput = squares(3, window_size=3)
    throughput.reset()
    assert throughput.compute() == {}
    throughput.update(time=1.0, batches=1, samples=1)
    assert throughput.compute() == {"time": 1.0, "batches": 1, "samples": 1}


def test_a_rate_needs_its_numbers_at_both_ends_of_the_window() -> None:
    throughput = Throughput(window_size=2)
    throughput.update(time=1.0, batches=1, samples=1, lengths=5)
    throughput.update(time=2.0, batches=2, samples=2, lengths=5, flops=3)
    assert "device/items_per_sec" in throughput.compute()
    assert "device/flops_per_sec" not in throughput.compute()
    throughput.update(time=3.0, batches=3, samples=3, flops=3)
    assert "device/items_per_sec" not in throughput.compute()
    assert throughput.compute()["device/flops_per_sec"] == 3


@pytest.mark.parametrize(
    ("wrong", "told"),
    [
        ({"time": 1.0}, "`time=1.0` after 1.0"),
        ({"time": 0.5}, "`time=0.5` after 1.0"),
        ({"batches": 2}, "`batches=2` after 2"),
        ({"samples": 3}, "`samples=3` after 4"),
        ({"lengths": 3}, "`lengths=3` after 8"),
        ({"batches": 20}, "`samples=6` with `batches=20`"),
    ],
)
def test_totals_grow(wrong: dict[str, int], told: str) -> None:
    throughput = Throughput()
    throughput.update(time=1.0, batches=2, samples=4, lengths=8)
    with pytest.raises(ValueError, match=told):
        throughput.update(**({"time": 2.0, "batches": 3, "samples": 6, "lengths": 12} | wrong))  # type: ignore[arg-type]
    assert throughput.compute()["batches"] == 2


@pytest.mark.parametrize("wrong", [{"available_flops": 0}, {"world_size": 0}, {"window_size": 1}])
def test_arguments(wrong: dict[str, int]) -> None:
    with pytest.raises(ValueError, match="{}={}".format(*next(iter(wrong.items())))):
        Throughput(**wrong)


@pytest.mark.parametrize("device", ["meta", "cpu"])
def test_operations_of_a_layer(device: str) -> None:
    """A product of (3, 8) and (8, 4) takes 2 * 3 * 8 * 4; the backward pass one more for the weights."""
    with torch.device(device):
        model, x = nn.Linear(8, 4), torch.randn(3, 8)
    assert measure_flops(model, lambda: model(x)) == 192
    assert measure_flops(model, lambda: model(x), torch.Tensor.sum) == 2 * 192


def test_gradients_stay_as_they_were() -> None:
    model = nn.Linear(2, 1)
    model.bias.grad = torch.ones(1)
    measure_flops(model, lambda: model(torch.ones(1, 2)), torch.Tensor.sum)
    assert model.weight.grad is None
    assert model.bias.grad.tolist() == [1.0]


@pytest.mark.parametrize(
    ("chip", "dtype", "teraflops"),
    [
        ("NVIDIA B200", torch.bfloat16, 2250),
        ("NVIDIA H200", torch.float16, 989.4),
        ("NVIDIA H100 80GB HBM3", torch.bfloat16, 989.4),
        ("NVIDIA H100 PCIe", torch.bfloat16, 756),
        ("NVIDIA H100 NVL", torch.bfloat16, 835.5),
        ("NVIDIA H100 80GB HBM3", torch.float8_e4m3fn, 1978.9),
        (A100, torch.bfloat16, 312),
        (A100, torch.float32, 19.5),
        (A100, "tfloat32", 156),
        (A100, "int8", 624),
        ("NVIDIA L40S", torch.bfloat16, 362.05),
        ("NVIDIA L4", torch.bfloat16, 121),
        ("NVIDIA GeForce RTX 4090", torch.bfloat16, 165.2),
        ("NVIDIA A10G", torch.float16, 70),
        ("Tesla T4", torch.float16, 65),
        ("Tesla T4", "tfloat32", 8.1),
        ("Tesla V100-SXM2-16GB", torch.float16, 125),
        ("Tesla V100-PCIE-32GB", torch.float16, 112),
        ("Tesla V100S-PCIE-32GB", torch.float16, 130),
        ("Tesla V100-SXM2-16GB", torch.bfloat16, None),
        ("Tesla T4", torch.float64, None),
        ("NVIDIA GeForce RTX 4090 Laptop GPU", torch.bfloat16, None),
        ("NVIDIA GeForce RTX 4090 D", torch.bfloat16, None),
        ("NVIDIA A100-SXM4-40GB MIG 1g.5gb", torch.bfloat16, None),
        ("NVIDIA H20", torch.bfloat16, None),
        ("AMD Instinct MI300X", torch.bfloat16, None),
        (A100, "complex64", None),
    ],
)
def test_peaks(chip: str, dtype: torch.dtype | str, teraflops: float | None) -> None:
    expected = None if teraflops is None else round(teraflops * 1e12)
    assert peak_flops(chip, dtype) == expected


def test_float32_counts_as_tensorfloat32_where_that_is_allowed() -> None:
    before = torch.get_float32_matmul_precision()
    try:
        torch.set_float32_matmul_precision("high")
        assert peak_flops(A100, torch.float32) == round(156e12)
        assert peak_flops("Tesla V100-SXM2-16GB", torch.float32) == round(15.7e12)
    finally:
        torch.set_float32_matmul_precision(before)


def test_a_cpu_has_no_known_peak() -> None:
    assert get_available_flops(torch.device("cpu"), torch.float32) is None


def test_an_unknown_gpu_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "NVIDIA Z9")
    with pytest.warns(UserWarning, match=r"peak of 'NVIDIA Z9' for torch.float16 is not known.*available_flops="):
        assert get_available_flops(torch.device("cuda"), torch.float16) is None

"""Throughput: batches, samples, items and floating-point operations a second, and how much of a chip they use."""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from gpulayer.fabric.utilities.rank_zero import rank_zero_warn


class _Update(NamedTuple):
    """The totals at one call of `Throughput.update`; only the operations are those since the call before."""

    time: float
    batches: int
    samples: int
    lengths: int | None
    flops: float | None


class Throughput:
    """Turns growing totals into rates over the newest updates.

    `compute` gives, once `window_size` updates are there, `device/batches_per_sec`, `device/samples_per_sec`, with
    lengths `device/items_per_sec`, with operations `device/flops_per_sec`, and with the chip's peak `device/mfu`: the
    model-FLOPs utilisation, operations done over operations possible (Chowdhery et al. 2022, PaLM, appendix B). With
    several devices the rates of all together come without `device/`. `time`, `batches`, `samples` and `lengths` are the
    totals so far.

    Example:
        throughput = Throughput(window_size=10)
        began = time.perf_counter()
        for i, batch in enumerate(loader, 1):
            work(batch)
            throughput.update(time=time.perf_counter() - began, batches=i, samples=i * batch_size)
        print(throughput.compute())

    A GPU works on after the call that started it returns: synchronise before reading the clock.

    Args:
        available_flops: the peak of one device, in operations a second; without it there is no `mfu`.
        world_size: the number of devices. All are taken to be alike and equally busy.
        window_size: the number of updates that a rate is taken over, 2 or more.
        separator: stands between `device` and the name of a rate.

    Raises:
        ValueError: an argument is below what makes sense.
    """

    def __init__(
        self,
        available_flops: float | None = None,
        world_size: int = 1,
        window_size: int = 100,
        separator: str = "/",
    ) -> None:
        if available_flops is not None and not available_flops > 0:
            raise ValueError(f"`available_flops={available_flops!r}`: give a number above 0, or None.")
        if world_size < 1:
            raise ValueError(f"`world_size={world_size!r}`: give the number of devices, at least 1.")
        if window_size < 2:
            raise ValueError(f"`window_size={window_size!r}`: a rate is taken between two updates, so give at least 2.")
        self.available_flops = available_flops
        self.world_size = world_size
        self.separator = separator
        self._updates: deque[_Update] = deque(maxlen=window_size)

    def update(
        self, *, time: float, batches: int, samples: int, lengths: int | None = None, flops: float | None = None
    ) -> None:
        """Note how far this device is.

        Args:
            time: seconds since the start; more than in the update before.
            batches: batches since the start; more than in the update before.
            samples: samples since the start, at least as many as batches.
            lengths: items, such as tokens, since the start.
            flops: operations since the update before, for example `measure_flops` times the batches.

        Raises:
            ValueError: a total became less, time or batches did not grow, or there are fewer samples than batches.
        """
        update = _Update(time, batches, samples, lengths, flops)
        before = self._updates[-1] if self._updates else None
        for name in ("time", "batches", "samples", "lengths"):
            new, old = getattr(update, name), getattr(before, name, None)
            if new is None:
                continue
            if new < (old or 0) or (new == old and name in ("time", "batches")):
                raise ValueError(f"`{name}={new!r}` after {old or 0!r}: it counts from the start, so it must grow.")
        if samples < batches:
            raise ValueError(f"`samples={samples!r}` with `batches={batches!r}`: a batch has one sample or more.")
        self._updates.append(update)

    def compute(self) -> dict[str, int | float]:
        """The totals, and the rates once the window is full; nothing before the first update."""
        if not self._updates:
            return {}
        first, last = self._updates[0], self._updates[-1]
        metrics: dict[str, int | float] = {"time": last.time, "batches": last.batches, "samples": last.samples}
        if last.lengths is not None:
            metrics["lengths"] = last.lengths
        if len(self._updates) < (self._updates.maxlen or 0):
            return metrics
        elapsed = last.time - first.time
        rates: dict[str, float] = {
            "batches_per_sec": (last.batches - first.batches) / elapsed,
            "samples_per_sec": (last.samples - first.samples) / elapsed,
        }
        if first.lengths is not None and last.lengths is not None:
            rates["items_per_sec"] = (last.lengths - first.lengths) / elapsed
        flops = [update.flops for update in self._updates if update.flops is not None]
        if len(flops) == len(self._updates):  # those of the first update were done before the window
            rates["flops_per_sec"] = sum(flops[1:]) / elapsed
        for name, rate in rates.items():
            metrics[f"device{self.separator}{name}"] = rate
            if self.world_size > 1:
                metrics[name] = rate * self.world_size
        if "flops_per_sec" in rates and self.available_flops is not None:
            metrics[f"device{self.separator}mfu"] = rates["flops_per_sec"] / self.available_flops
        return metrics

    def reset(self) -> None:
        """Forget all updates."""
        self._updates.clear()


def measure_flops(
    model: nn.Module, forward_fn: Callable[[], Tensor], loss_fn: Callable[[Tensor], Tensor] | None = None
) -> int:
    """Count the floating-point operations of a forward pass, and with `loss_fn` of the backward pass, too.

    torch's `FlopCounterMode` counts matrix products, convolutions and attention; a multiplication and an addition are
    two operations. On the meta device nothing is computed and no memory used:

        with torch.device("meta"):
            model, x = MyModel(), torch.randn(2, 32)
        flops = measure_flops(model, lambda: model(x), torch.Tensor.sum)

    Args:
        model: the model; its gradients are left as they were.
        forward_fn: runs the model and returns its output.
        loss_fn: makes a loss of that output.
    """
    gradients = {parameter: parameter.grad for parameter in model.parameters()}
    for parameter in gradients:
        parameter.grad = None
    counter = FlopCounterMode(display=False)
    try:
        with counter:
            if loss_fn is None:
                forward_fn()
            else:
                loss_fn(forward_fn()).backward()
    finally:
        for parameter, gradient in gradients.items():
            parameter.grad = gradient
    return int(counter.get_total_flops())


# -- what chips can do -------------------------------------------------------------------------------------------------


class _Peak(NamedTuple):
    """Operations a second at most, in 10^12, dense and added up in float32; None where the chip has no such units."""

    float64: float | None
    float32: float
    tfloat32: float | None
    bfloat16: float | None
    float16: float
    float8: float | None
    int8: float | None


# By the words of the name that the driver gives the device; the first row whose words all occur in it counts. From
# NVIDIA's publications, without the factor 2 of structured sparsity that they often print; float64 on tensor cores
# where the chip has such. RTX 4090, RTX 3090: "Ada GPU Architecture" and "Ampere GA102 GPU Architecture", appendix A.
# H100 (SXM), H200, GH200: "H100 Tensor Core GPU Architecture". GB200, B200: data sheets of GB200 NVL72 and HGX B200.
# The others: the data sheet of that name; A10G: AWS's page on G5 instances. Not checked against the sheets themselves:
# H200 NVL, H100 NVL, A30, RTX A6000, A10G, RTX 3090.
_PEAKS = {
    "gb200": _Peak(40, 80, 1250, 2500, 2500, 5000, 5000),
    "b200": _Peak(37, 75, 1100, 2250, 2250, 4500, 4500),
    "h200 nvl": _Peak(60, 60, 417.5, 835.5, 835.5, 1670.5, 1670.5),
    "h200": _Peak(66.9, 66.9, 494.7, 989.4, 989.4, 1978.9, 1978.9),
    "gh200": _Peak(66.9, 66.9, 494.7, 989.4, 989.4, 1978.9, 1978.9),
    "h100 nvl": _Peak(60, 60, 417.5, 835.5, 835.5, 1670.5, 1670.5),
    "h100 pcie": _Peak(51.2, 51.2, 378, 756, 756, 1513, 1513),
    "h100": _Peak(66.9, 66.9, 494.7, 989.4, 989.4, 1978.9, 1978.9),
    "l40s": _Peak(None, 91.6, 183, 362.05, 362.05, 733, 733),
    "l40": _Peak(None, 90.5, 90.5, 181.05, 181.05, 362, 362),
    "l4": _Peak(None, 30.3, 60, 121, 121, 242.5, 242.5),
    "rtx 4090": _Peak(None, 82.6, 82.6, 165.2, 165.2, 330.3, 660.6),
    "a100": _Peak(19.5, 19.5, 156, 312, 312, None, 624),
    "a30": _Peak(10.3, 10.3, 82, 165, 165, None, 330),
    "a40": _Peak(None, 37.4, 74.8, 149.7, 149.7, None, 299.3),
    "a10": _Peak(None, 31.2, 62.5, 125, 125, None, 250),
    "a10g": _Peak(None, 35, 35, 70, 70, None, 140),
    "rtx a6000": _Peak(None, 38.7, 77.4, 154.8, 154.8, None, 309.7),
    "rtx 3090": _Peak(None, 35.6, 35.6, 71, 71, None, 284),
    "t4": _Peak(None, 8.1, None, None, 65, None, 130),
    "v100s": _Peak(8.2, 16.4, None, None, 130, None, None),
    "v100 pcie": _Peak(7, 14, None, None, 112, None, None),
    "v100": _Peak(7.8, 15.7, None, None, 125, None, None),
}
_OTHER_CHIPS = {"laptop", "max", "mig", "d", "ti"}  # in names of chips, and slices of chips, that are not the one named


def get_available_flops(device: torch.device, dtype: torch.dtype | str) -> int | None:
    """The operations a second that a device can do at most, in large matrix products; None if that is not known.

    Known are NVIDIA's data-centre GPUs since V100 and some of its GeForce ones; of another GPU a warning names what is
    missing. float32 counts as TensorFloat-32 where `torch.set_float32_matmul_precision` allows that.

    Args:
        device: the device.
        dtype: the numbers that are multiplied: a dtype or its name, "tfloat32" for TensorFloat-32.
    """
    if device.type != "cuda":
        return None
    name = torch.cuda.get_device_name(device)
    peak = peak_flops(name, dtype)
    if peak is None:
        rank_zero_warn(
            f"The peak of {name!r} for {dtype} is not known here, so there is no `mfu`: give it as `available_flops=`, "
            "in operations a second."
        )
    return peak


def peak_flops(chip: str, dtype: torch.dtype | str) -> int | None:
    """As `get_available_flops`, for a chip by name, such as "NVIDIA H100 80GB HBM3"."""
    kind = str(dtype).removeprefix("torch.")
    if kind == "float32" and torch.get_float32_matmul_precision() != "highest":
        kind = "tfloat32"
    kind = "float8" if kind.startswith("float8") else kind
    words = set(re.split(r"[^a-z0-9]+", chip.lower()))
    if words & _OTHER_CHIPS:
        return None
    peaks = next((peaks for key, peaks in _PEAKS.items() if set(key.split()) <= words), None)
    teraflops = getattr(peaks, kind, None) or (peaks.float32 if peaks is not None and kind == "tfloat32" else None)
    return None if teraflops is None else round(teraflops * 1e12)

"""Strings to objects: the only place that reads "auto", "gpu", "bf16-mixed" and the like."""

from difflib import get_close_matches
from typing import Any

import torch

from gpulayer.fabric.accelerators import (
    Accelerator,
    AcceleratorRegistry,
    CPUAccelerator,
    CUDAAccelerator,
    MPSAccelerator,
)
from gpulayer.fabric.checkpoint.io import CheckpointIO
from gpulayer.fabric.environments import ClusterEnvironment, detect_environment
from gpulayer.fabric.precision import DoublePrecision, HalfPrecision, MixedPrecision, Precision
from gpulayer.fabric.strategies import SingleDeviceStrategy, Strategy, StrategyRegistry
from gpulayer.fabric.utilities.exceptions import MisconfigurationException

# What users write, and the one name that the library uses for it.
_PRECISIONS = {
    "64": "64-true",
    "64-true": "64-true",
    "32": "32-true",
    "32-true": "32-true",
    "16": "16-mixed",
    "fp16": "16-mixed",
    "16-mixed": "16-mixed",
    "16-true": "16-true",
    "bf16": "bf16-mixed",
    "bf16-mixed": "bf16-mixed",
    "bf16-true": "bf16-true",
}
_TRANSFORMER_ENGINE = ("transformer-engine", "transformer-engine-float16")


def resolve_accelerator(accelerator: str | Accelerator) -> Accelerator:
    """The accelerator that `accelerator` names.

    Raises:
        MisconfigurationException: an unknown name, or a device that this machine does not have.
    """
    if isinstance(accelerator, Accelerator):
        return accelerator
    if not isinstance(accelerator, str):
        raise MisconfigurationException(
            f"`accelerator={accelerator!r}`: give a name such as 'auto', 'cpu' or 'gpu', or an Accelerator."
        )
    gpus: list[type[Accelerator]] = [kind for kind in (CUDAAccelerator, MPSAccelerator) if kind.is_available()]
    if accelerator == "auto":
        return gpus[0]() if gpus else CPUAccelerator()
    if accelerator == "gpu":
        if not gpus:
            raise MisconfigurationException(
                "`accelerator='gpu'`, but torch sees no GPU here. Use `accelerator='auto'` to take what there is, or "
                f"check the driver and the torch build (this one is {torch.__version__})."
            )
        return gpus[0]()
    if accelerator not in AcceleratorRegistry:
        known = ["auto", "gpu", *AcceleratorRegistry]
        raise MisconfigurationException(
            f"`accelerator={accelerator!r}` is unknown{_did_you_mean(accelerator, known)}: choose one of "
            f"{', '.join(map(repr, known))}, register it in the AcceleratorRegistry, or pass an Accelerator."
        )
    found: Accelerator = AcceleratorRegistry.get(accelerator)
    if not found.is_available():
        raise MisconfigurationException(
            f"`accelerator={accelerator!r}`, but there is no such device here. Use `accelerator='auto'` to take "
            "what there is."
        )
    return found


def resolve_precision(precision: Any, device_type: str) -> Precision:
    """The precision that `precision` names: 32, "bf16", "16-mixed", "64-true" ...

    Raises:
        MisconfigurationException: an unknown name.
    """
    if isinstance(precision, Precision):
        return precision
    text = "32-true" if precision is None else str(precision)
    if text in _TRANSFORMER_ENGINE:
        raise MisconfigurationException(
            f"`precision={precision!r}` computes in 8 bits on NVIDIA's Hopper and later GPUs with the package "
            "transformer-engine; it is not available in this version: use 'bf16-mixed'."
        )
    name = _PRECISIONS.get(text)
    if name is None:
        raise MisconfigurationException(
            f"`precision={precision!r}` is not available: choose one of {', '.join(map(repr, _PRECISIONS))}."
        )
    if name.endswith("-mixed"):
        return MixedPrecision(name, device_type)
    if name == "64-true":
        return DoublePrecision()
    return Precision() if name == "32-true" else HalfPrecision(name)


def resolve_strategy(
    strategy: str | Strategy,
    accelerator: str | Accelerator,
    devices: int | str | list[int],
    num_nodes: int,
    precision: Any,
    plugins: Any,
) -> Strategy:
    """One strategy, ready to use, from the Trainer's or Fabric's arguments.

    Raises:
        MisconfigurationException: an argument that cannot be had here, with what can.
    """
    given_precision, checkpoint_io, environment = _sort_plugins(plugins)
    if given_precision is not None and precision is not None:
        raise MisconfigurationException(
            f"`precision={precision!r}` and a Precision in `plugins` were both given: give one of them."
        )
    if isinstance(num_nodes, bool) or not isinstance(num_nodes, int) or num_nodes < 1:
        raise MisconfigurationException(f"`num_nodes={num_nodes!r}`: give the number of machines, at least 1.")
    if isinstance(strategy, Strategy) and strategy.accelerator is not None:
        _agrees(strategy, accelerator, devices, num_nodes)
    own = strategy.accelerator if isinstance(strategy, Strategy) else None
    kind = own or resolve_accelerator(accelerator)
    environment = environment or detect_environment()
    if isinstance(strategy, SingleDeviceStrategy):
        chosen = [strategy.root_device]
    else:
        if devices == "auto" and environment.creates_processes_externally and environment.world_size() > 1:
            devices, num_nodes = _started(environment)
        count = kind.auto_device_count() if devices == "auto" else devices
        chosen = kind.get_parallel_devices(kind.parse_devices(count))
    if isinstance(strategy, str) and strategy == "auto":
        strategy = "single_device" if len(chosen) == num_nodes == 1 else "ddp"
    resolved = strategy if isinstance(strategy, Strategy) else _named(strategy, chosen)
    if given_precision is not None or precision is not None or not isinstance(strategy, Strategy):
        resolved.precision = given_precision or resolve_precision(precision, chosen[0].type)
    if checkpoint_io is not None:
        resolved.checkpoint_io = checkpoint_io
    resolved.take_place(kind, chosen, num_nodes, environment)
    return resolved


def _named(name: Any, devices: list[torch.device]) -> Strategy:
    """The strategy that a name stands for."""
    if name == "single_device":
        if len(devices) != 1:
            raise MisconfigurationException(
                f"`strategy='single_device'` with {len(devices)} devices: use `devices=1`, or `strategy='ddp'`."
            )
        return SingleDeviceStrategy(devices[0])
    if not isinstance(name, str) or name not in StrategyRegistry:
        known = ["auto", "single_device", *StrategyRegistry]
        raise MisconfigurationException(
            f"`strategy={name!r}` is unknown{_did_you_mean(str(name), known)}: choose one of "
            f"{', '.join(map(repr, known))}, register it in the StrategyRegistry, or pass a Strategy."
        )
    strategy: Strategy = StrategyRegistry.get(name)
    return strategy


def _started(environment: ClusterEnvironment) -> tuple[Any, int]:
    """The devices of this machine and the number of machines, from how many processes were started from outside."""
    here = environment.local_world_size()
    return here, environment.world_size() // here


def _agrees(strategy: Strategy, accelerator: str | Accelerator, devices: int | str | list[int], num_nodes: int) -> None:
    """Raise if the accelerator or the devices contradict a strategy that the user made."""
    own = type(strategy).__name__
    if accelerator != "auto" and type(resolve_accelerator(accelerator)) is not type(strategy.accelerator):
        raise MisconfigurationException(
            f"`accelerator={accelerator!r}`, but the {own} in `strategy` runs on {strategy.accelerator.name()!r}: "
            "leave one out."
        )
    if isinstance(strategy, SingleDeviceStrategy) and devices not in ("auto", 1, "1", [strategy.root_device.index]):
        raise MisconfigurationException(
            f"`devices={devices!r}`, but the {own} in `strategy` has its own device: leave one out."
        )
    if isinstance(strategy, SingleDeviceStrategy) and num_nodes != 1:
        raise MisconfigurationException(f"`num_nodes={num_nodes}`, but the {own} in `strategy` is of one device.")


def _sort_plugins(plugins: Any) -> tuple[Precision | None, CheckpointIO | None, ClusterEnvironment | None]:
    """What of `plugins` is a precision, what a checkpoint IO, and what the environment; left out, that is detected."""
    precision: Precision | None = None
    checkpoint_io: CheckpointIO | None = None
    environment: ClusterEnvironment | None = None
    for plugin in plugins if isinstance(plugins, (list, tuple)) else [] if plugins is None else [plugins]:
        if isinstance(plugin, Precision):
            precision = plugin
        elif isinstance(plugin, CheckpointIO):
            checkpoint_io = plugin
        elif isinstance(plugin, ClusterEnvironment):
            environment = plugin
        else:
            raise MisconfigurationException(
                f"`plugins` holds a {type(plugin).__name__}; it takes a Precision, a CheckpointIO and a "
                "ClusterEnvironment."
            )
    return precision, checkpoint_io, environment


def _did_you_mean(given: str, known: list[str]) -> str:
    near = get_close_matches(given, known, n=1)
    return f" (did you mean {near[0]!r}?)" if near else ""

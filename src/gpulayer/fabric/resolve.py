"""Strings to objects: the only place that reads "auto", "gpu", "bf16-mixed" and the like."""

from difflib import get_close_matches
from typing import Any

import torch

from gpulayer.fabric.accelerators import Accelerator, CPUAccelerator, CUDAAccelerator, MPSAccelerator
from gpulayer.fabric.checkpoint.io import CheckpointIO
from gpulayer.fabric.environments import SLURMEnvironment
from gpulayer.fabric.precision import DoublePrecision, HalfPrecision, MixedPrecision, Precision
from gpulayer.fabric.strategies import SingleDeviceStrategy, Strategy
from gpulayer.fabric.utilities.exceptions import MisconfigurationException

_ACCELERATORS: dict[str, type[Accelerator]] = {
    "cpu": CPUAccelerator,
    "cuda": CUDAAccelerator,
    "mps": MPSAccelerator,
}

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
    if accelerator not in _ACCELERATORS:
        raise MisconfigurationException(
            f"`accelerator={accelerator!r}` is unknown: choose 'auto', 'gpu', {', '.join(map(repr, _ACCELERATORS))}"
            f"{_did_you_mean(accelerator, ['auto', 'gpu', *_ACCELERATORS])}, or pass an Accelerator."
        )
    kind = _ACCELERATORS[accelerator]
    if not kind.is_available():
        raise MisconfigurationException(
            f"`accelerator={accelerator!r}`, but torch sees no such device here. Use `accelerator='auto'` to take "
            "what there is."
        )
    return kind()


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
    if num_nodes != 1:
        raise MisconfigurationException(
            f"`num_nodes={num_nodes}`: this version trains on one machine; use `num_nodes=1`."
        )
    given_precision, checkpoint_io, environment = _sort_plugins(plugins)
    if given_precision is not None and precision is not None:
        raise MisconfigurationException(
            f"`precision={precision!r}` and a Precision in `plugins` were both given: give one of them."
        )
    if isinstance(strategy, Strategy):
        _agrees(strategy, accelerator, devices)
        if given_precision is not None or precision is not None:
            strategy.precision = given_precision or resolve_precision(precision, strategy.root_device.type)
        if checkpoint_io is not None:
            strategy.checkpoint_io = checkpoint_io
        strategy.cluster_environment = environment
        return strategy
    if strategy not in ("auto", "single_device"):
        raise MisconfigurationException(
            f"`strategy={strategy!r}` is not available in this version, which trains on one device: "
            "use 'auto' or 'single_device'."
        )
    kind = resolve_accelerator(accelerator)
    chosen = kind.get_parallel_devices(kind.parse_devices(1 if devices == "auto" else devices))
    if len(chosen) != 1:
        raise MisconfigurationException(
            f"`devices={devices!r}` is {len(chosen)} devices; this version trains on one: use `devices=1`."
        )
    formats = given_precision or resolve_precision(precision, chosen[0].type)
    resolved = SingleDeviceStrategy(chosen[0], kind, formats, checkpoint_io)
    resolved.cluster_environment = environment
    return resolved


def _agrees(strategy: Strategy, accelerator: str | Accelerator, devices: int | str | list[int]) -> None:
    """Raise if the accelerator or the devices contradict a strategy that the user made."""
    own = type(strategy).__name__
    if accelerator != "auto" and type(resolve_accelerator(accelerator)) is not type(strategy.accelerator):
        raise MisconfigurationException(
            f"`accelerator={accelerator!r}`, but the {own} in `strategy` runs on {strategy.accelerator.name!r}: "
            "leave one out."
        )
    if devices not in ("auto", 1, "1") and devices != [strategy.root_device.index]:
        raise MisconfigurationException(
            f"`devices={devices!r}`, but the {own} in `strategy` has its own device: leave one out."
        )


def _sort_plugins(plugins: Any) -> tuple[Precision | None, CheckpointIO | None, SLURMEnvironment | None]:
    """What of `plugins` is a precision, what a checkpoint IO, and what the environment; left out, that is detected."""
    precision: Precision | None = None
    checkpoint_io: CheckpointIO | None = None
    environment = SLURMEnvironment() if SLURMEnvironment.detect() else None
    for plugin in plugins if isinstance(plugins, (list, tuple)) else [] if plugins is None else [plugins]:
        if isinstance(plugin, Precision):
            precision = plugin
        elif isinstance(plugin, CheckpointIO):
            checkpoint_io = plugin
        elif isinstance(plugin, SLURMEnvironment):
            environment = plugin
        else:
            raise MisconfigurationException(
                f"`plugins` holds a {type(plugin).__name__}; it takes a Precision, a CheckpointIO and a "
                "SLURMEnvironment."
            )
    return precision, checkpoint_io, environment


def _did_you_mean(given: str, known: list[str]) -> str:
    near = get_close_matches(given, known, n=1)
    return f" (did you mean {near[0]!r}?)" if near else ""

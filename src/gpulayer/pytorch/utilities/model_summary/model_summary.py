"""Summary of a model: its layers with their parameters, shapes and FLOPs, and the totals."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import fields, is_dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy
from torch.utils.flop_counter import FlopCounterMode, sdpa_flop_count

from gpulayer.fabric.utilities.exceptions import MisconfigurationException
from gpulayer.fabric.utilities.rank_zero import rank_zero_warn
from gpulayer.fabric.utilities.seed import isolate_rng
from gpulayer.pytorch.core.module import Module
from gpulayer.pytorch.utilities.model_summary.table import (
    Columns,
    draw,
    get_formatted_model_size,
    get_human_readable_count,
    totals,
)

__all__ = [
    "UNKNOWN_SIZE",
    "LayerSummary",
    "ModelSummary",
    "get_formatted_model_size",
    "get_human_readable_count",
    "parse_batch_shape",
    "summarize",
]

UNKNOWN_SIZE = "?"
NOT_APPLICABLE = "n/a"
LEFTOVER_PARAMS_NAME = "other params"
LAZY = "lazy"


class LayerSummary:
    """One layer: its type, mode and parameters, and the shapes of its first call from now on.

    Args:
        module: the layer. TorchScript layers take no hooks, so their shapes stay unknown.
    """

    def __init__(self, module: nn.Module) -> None:
        self.module = module
        self.training = module.training
        self.in_size: Any = UNKNOWN_SIZE
        self.out_size: Any = UNKNOWN_SIZE
        self._hook = None
        if not isinstance(module, torch.jit.ScriptModule):
            self._hook = module.register_forward_hook(self._see_call, with_kwargs=True)

    def _see_call(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> None:
        keywords = [size for size in map(parse_batch_shape, kwargs.values()) if size != UNKNOWN_SIZE]
        sizes = [*map(parse_batch_shape, args), *keywords]
        self.in_size = sizes[0] if len(sizes) == 1 else sizes
        self.out_size = parse_batch_shape(output)
        self.detach_hook()

    def detach_hook(self) -> None:
        """Watch no further calls."""
        if self._hook is not None:
            self._hook.remove()
            self._hook = None

    @property
    def layer_type(self) -> str:
        """The name of its class."""
        return type(self.module).__name__

    @property
    def num_parameters(self) -> int:
        """How many parameters it and the modules in it have, each counted once; those without a shape not at all."""
        return sum(parameter.numel() for parameter in self.module.parameters() if not is_lazy(parameter))

    @property
    def is_lazy(self) -> bool:
        """Whether it has parameters that get their shape in the first forward pass."""
        return any(map(is_lazy, self.module.parameters()))


class ModelSummary:
    """The layers of a model and the totals; `str(summary)` is a table.

    If the model has an `example_input_array`, it is run through the model once, so that shapes and FLOPs are known: in
    evaluation mode, without gradients, in the precision of the model's Trainer. The modes of all modules, the buffers
    and the random state are afterwards what they were.

    Args:
        model: the model.
        max_depth: how deep into nested modules layers are listed; -1: all of them, 0: none.

    Raises:
        MisconfigurationException: `max_depth` is below -1 or no whole number, or the model fails on its example.
    """

    def __init__(self, model: Module, max_depth: int = 1) -> None:
        check_depth(max_depth, "ModelSummary")
        self._model: Module = getattr(model, "_orig_mod", model)  # of a model from `torch.compile`
        self._max_depth = max_depth
        self._flops: dict[nn.Module, dict[Any, int]] | None = None  # None: there was no forward pass
        self._layers = self.summarize()
        if any(map(is_lazy, self._model.parameters())):
            rank_zero_warn(
                "The model summary leaves out parameters that have no shape before the first forward pass: set "
                "`self.example_input_array` in `__init__`, or run a batch through the model before."
            )

    def summarize(self) -> dict[str, LayerSummary]:
        """Look at the layers, and run the example through them if there is one."""
        layers = {name: LayerSummary(module) for name, module in self.named_modules}
        try:
            if self._model.example_input_array is not None:
                self._flops = run_example(self._model)
        finally:
            for layer in layers.values():
                layer.detach_hook()
        return layers

    # -- layers ------------------------------------------------------------------------------------------------------

    @property
    def named_modules(self) -> list[tuple[str, nn.Module]]:
        """The layers down to `max_depth`; a module that is used at two places is listed at the first."""
        if self._max_depth == 1:
            return list(self._model.named_children())
        return [
            (name, module)
            for name, module in self._model.named_modules()
            if name and (self._max_depth == -1 or name.count(".") < self._max_depth)
        ]

    @property
    def layer_names(self) -> list[str]:
        """Where the layers are in the model, such as "encoder.0"."""
        return list(self._layers)

    @property
    def layer_types(self) -> list[str]:
        """Their classes."""
        return [layer.layer_type for layer in self._layers.values()]

    @property
    def in_sizes(self) -> list[Any]:
        """The shapes that their first call took; "?" where there was none."""
        return [layer.in_size for layer in self._layers.values()]

    @property
    def out_sizes(self) -> list[Any]:
        """The shapes that their first call returned; "?" where there was none."""
        return [layer.out_size for layer in self._layers.values()]

    @property
    def param_nums(self) -> list[int]:
        """How many parameters each has, those of the modules in it included."""
        return [layer.num_parameters for layer in self._layers.values()]

    @property
    def training_modes(self) -> list[bool]:
        """Whether each is in training mode."""
        return [layer.training for layer in self._layers.values()]

    @property
    def flop_counts(self) -> dict[str, dict[Any, int]]:
        """The floating-point operations of each in the forward pass, all its calls together, by kind of operation, as
        torch's FlopCounterMode counts them: matrix products, convolutions and attention; an addition is one, a
        multiplication another."""
        flops = self._flops or {}
        return {name: flops.get(layer.module, {}) for name, layer in self._layers.items()}

    # -- totals ------------------------------------------------------------------------------------------------------

    @property
    def total_parameters(self) -> int:
        """How many parameters the model has; one that is used at two places counts once."""
        return sum(parameter.numel() for parameter in self._known_parameters())

    @property
    def trainable_parameters(self) -> int:
        """How many of them require gradients."""
        return sum(parameter.numel() for parameter in self._known_parameters() if parameter.requires_grad)

    @property
    def total_layer_params(self) -> int:
        """How many of them belong to layers; the others are attributes of the model itself."""
        in_layers = {id(parameter) for child in self._model.children() for parameter in child.parameters()}
        return sum(parameter.numel() for parameter in self._known_parameters() if id(parameter) in in_layers)

    @property
    def model_size(self) -> float:
        """Size of the parameters in megabytes (10^6 bytes), each in its own number format."""
        return sum(parameter.numel() * parameter.element_size() for parameter in self._known_parameters()) / 1e6

    @property
    def total_training_modes(self) -> dict[str, int]:
        """How many modules, at any depth, are in "train" and how many in "eval" mode."""
        modes = [module.training for module in self._model.modules()][1:]
        return {"train": sum(modes), "eval": len(modes) - sum(modes)}

    @property
    def total_flops(self) -> int:
        """Floating-point operations of the whole forward pass; 0 if there was none."""
        return sum((self._flops or {}).get(self._model, {}).values())

    def _known_parameters(self) -> Iterator[nn.Parameter]:
        return (parameter for parameter in self._model.parameters() if not is_lazy(parameter))

    # -- as a table --------------------------------------------------------------------------------------------------

    def columns(self) -> Columns:
        """The table: each column's header and cells. FLOPs and shapes are there if there was a forward pass."""
        layers = self._layers.values()
        columns = [
            (" ", [str(row) for row in range(len(layers))]),
            ("Name", self.layer_names),
            ("Type", self.layer_types),
            ("Params", [self._count(layer) for layer in layers]),
            ("Mode", ["train" if layer.training else "eval" for layer in layers]),
        ]
        if self._flops is not None:
            columns += [
                ("FLOPs", [get_human_readable_count(sum(counts.values())) for counts in self.flop_counts.values()]),
                ("In sizes", [str(size).replace("'", "") for size in self.in_sizes]),
                ("Out sizes", [str(size).replace("'", "") for size in self.out_sizes]),
            ]
        others = self.total_parameters - self.total_layer_params
        if others and self._max_depth:
            of_others = {" ": " ", "Name": LEFTOVER_PARAMS_NAME, "Params": get_human_readable_count(others)}
            for header, cells in columns:
                cells.append(of_others.get(header, NOT_APPLICABLE))
        return columns if columns[0][1] else []

    @staticmethod
    def _count(layer: LayerSummary) -> str:
        known = layer.num_parameters
        if not layer.is_lazy:
            return get_human_readable_count(known)
        return f"{get_human_readable_count(known).strip()} + {LAZY}" if known else LAZY

    def __str__(self) -> str:
        return draw(
            self.columns(),
            totals(
                self.total_parameters,
                self.trainable_parameters,
                self.model_size,
                self.total_training_modes,
                self.total_flops,
            ),
        )

    __repr__ = __str__


def summarize(lightning_module: Module, max_depth: int = 1) -> ModelSummary:
    """The summary of a model; arguments and errors as of `ModelSummary`."""
    return ModelSummary(lightning_module, max_depth)


def check_depth(max_depth: Any, owner: str) -> None:
    """Raise unless it is a number of levels from -1.

    Raises:
        MisconfigurationException: it is not.
    """
    if isinstance(max_depth, bool) or not isinstance(max_depth, int) or max_depth < -1:
        raise MisconfigurationException(
            f"`{owner}(max_depth={max_depth!r})`: give a number of levels, -1 for all, or 0 for no layers."
        )


def parse_batch_shape(batch: Any) -> Any:
    """The shapes in a batch: a list for a tensor, lists and dicts of them for containers, "?" for anything else."""
    if isinstance(batch, Tensor) and batch.is_nested:
        return UNKNOWN_SIZE
    if hasattr(batch, "shape"):
        return list(batch.shape)
    if isinstance(batch, (list, tuple)):
        return [parse_batch_shape(item) for item in batch]
    if isinstance(batch, Mapping):
        return {name: parse_batch_shape(item) for name, item in batch.items()}
    if is_dataclass(batch) and not isinstance(batch, type):
        return {field.name: parse_batch_shape(getattr(batch, field.name)) for field in fields(batch)}
    return UNKNOWN_SIZE


def run_example(model: Module) -> dict[nn.Module, dict[Any, int]]:
    """Run a model's `example_input_array` through it, as a batch: its hooks for the transfer to the device are called.

    Returns:
        For each module that computed something, the floating-point operations by kind.

    Raises:
        MisconfigurationException: the model fails on it.
    """
    device = next((parameter.device for parameter in model.parameters()), model.device)
    # torch counts attention on a GPU, but not where it runs on a CPU.
    attention = {torch.ops.aten._scaled_dot_product_flash_attention_for_cpu: count_attention}
    counter, context = FlopCounterMode(display=False, custom_mapping=attention), None
    with as_it_was(model):
        try:
            example = model.example_input_array
            if model._trainer is not None:
                precision = model._trainer.strategy.precision
                example, context = precision.convert_input(example), precision.forward_context()
            example = model.on_before_batch_transfer(example, 0)
            example = model.transfer_batch_to_device(example, device, 0)
            example = model.on_after_batch_transfer(example, 0)
            with context or nullcontext(), counter:
                if isinstance(example, Mapping):
                    model(**example)
                elif isinstance(example, (list, tuple)):
                    model(*example)
                else:
                    model(example)
        except Exception as error:
            raise MisconfigurationException(
                f"`{type(model).__name__}.forward` failed on its `example_input_array`, which the model summary runs "
                f"to learn the shapes: {type(error).__name__}: {error}. Correct the example, or leave it out."
            ) from error
    # The counter knows a module by its place in the model, and one at several places by one of them.
    counts, root = counter.get_flop_counts(), type(model).__name__
    places = model.named_modules(remove_duplicate=False)
    named = [(module, f"{root}.{place}" if place else "Global") for place, module in places]
    return {module: counts[name] for module, name in named if name in counts}


def count_attention(query: list[int], key: list[int], value: list[int], *_: Any, **__: Any) -> int:
    """Floating-point operations of attention between tensors of these shapes."""
    flops: int = sdpa_flop_count(query, key, value)
    return flops


@contextmanager
def as_it_was(model: nn.Module) -> Iterator[None]:
    """A block in evaluation mode and without gradients that leaves modes, buffers and random states as they were."""
    modes = [(module, module.training) for module in model.modules()]
    buffers = [
        (module, name, buffer, buffer._version, buffer.clone())
        for module in model.modules()
        for name, buffer in module._buffers.items()
        if buffer is not None and not is_lazy(buffer)
    ]
    # torch's fused transformer layers call no submodules, so that their shapes and FLOPs would not be seen.
    fused = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    # Compiled parts run as they are written: no time goes into code that is thrown away, and hooks see every call.
    may_be_compiled = "torch._dynamo" in sys.modules  # which importing takes a second or more
    eager = torch.compiler.set_stance("force_eager") if may_be_compiled else nullcontext()
    try:
        with isolate_rng(), torch.no_grad(), eager, warnings.catch_warnings():
            warnings.filterwarnings("ignore", ".*torch.compile.* when there are global hooks")  # the counter's own
            model.eval()
            yield
    finally:
        torch.backends.mha.set_fastpath_enabled(fused)
        for module, training in modes:
            module.training = training
        with torch.no_grad():
            for module, name, buffer, version, before in buffers:
                module._buffers[name] = buffer if buffer._version == version else buffer.copy_(before)

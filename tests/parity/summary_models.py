"""A dozen models that a summary has to read, each for any library's LightningModule."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from types import ModuleType
from typing import Any

import torch
from torch import Tensor, nn


class Block(nn.Module):
    """A residual block with a short cut."""

    def __init__(self, channels: int, out: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(channels, out, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(out)
        self.conv2 = nn.Conv2d(out, out, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(out)
        self.shortcut = nn.Conv2d(channels, out, 1, stride, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        y = self.bn2(self.conv2(torch.relu(self.bn1(self.conv1(x)))))
        return torch.relu(y + self.shortcut(x))


class Attention(nn.Module):
    """Attention written by hand."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.qkv = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)

    def forward(self, x: Tensor, scale: Tensor) -> tuple[Tensor, Tensor]:
        query, key, value = self.qkv(x).chunk(3, -1)
        weights = (query @ key.transpose(-1, -2) * scale).softmax(-1)
        return self.out(weights @ value), weights


class Repeated(nn.Module):
    """One layer, three times."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(6, 6)
        self.unused = nn.Linear(6, 6)

    def forward(self, x: Tensor) -> Tensor:
        for _ in range(3):
            x = self.layer(x)
        return x


class Pair(nn.Module):
    """Two inputs, nested outputs."""

    def __init__(self) -> None:
        super().__init__()
        self.left, self.right = nn.Linear(3, 4), nn.Linear(5, 4)

    def forward(self, left: Tensor, right: Tensor) -> tuple[Tensor, list[Tensor]]:
        a, b = self.left(left), self.right(right)
        return a, [b, a + b]


Parts = dict[str, nn.Module | nn.Parameter]
Forward = Callable[[Any, Any], Any]


def net(module: nn.Module) -> Parts:
    return {"net": module}


def resnet() -> Parts:
    return {
        "stem": nn.Conv2d(3, 8, 7, 2, 3, bias=False),
        "layer1": nn.Sequential(Block(8, 8, 1), Block(8, 8, 1)),
        "layer2": nn.Sequential(Block(8, 16, 2), Block(16, 16, 1)),
        "head": nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(16, 10)),
    }


def frozen() -> Parts:
    backbone = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Dropout(0.5)).eval().requires_grad_(False)
    return {"backbone": backbone, "head": nn.Linear(8, 2)}


def tied() -> Parts:
    embedding, head = nn.Embedding(11, 6), nn.Linear(6, 11, bias=False)
    head.weight = embedding.weight
    return {"embedding": embedding, "head": head}


def scripted() -> Parts:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        return {"first": torch.jit.script(nn.Linear(4, 4)), "last": nn.Linear(4, 2)}


def in_turn(self: Any, x: Any) -> Any:
    for child in self.children():
        x = child(x)
    return x


def pair(self: Any, left: Tensor, right: Tensor) -> Any:
    return self.net(left, right)


def with_scale(self: Any, x: Tensor) -> Any:
    return self.net(self.norm(x), scale=torch.tensor(0.5))


# name: what it is made of, its example, its forward pass
MODELS: dict[str, tuple[Callable[[], Parts], Callable[[], Any], Callable[..., Any]]] = {
    "perceptron": (
        lambda: net(nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.BatchNorm1d(8), nn.Dropout(), nn.Linear(8, 2))),
        lambda: torch.randn(3, 4),
        in_turn,
    ),
    "resnet": (resnet, lambda: torch.randn(2, 3, 16, 16), in_turn),
    "attention": (
        lambda: {"norm": nn.LayerNorm(6), "net": Attention(6)},
        lambda: (torch.randn(2, 5, 6),),
        with_scale,
    ),
    "lstm": (lambda: net(nn.LSTM(4, 5, num_layers=2, batch_first=True)), lambda: torch.randn(2, 3, 4), in_turn),
    "frozen": (frozen, lambda: torch.randn(3, 4), in_turn),
    "tied": (tied, lambda: torch.zeros(2, 3, dtype=torch.long), in_turn),
    "repeated": (lambda: net(Repeated()), lambda: torch.randn(3, 6), in_turn),
    "two_inputs": (lambda: net(Pair()), lambda: (torch.randn(2, 3), torch.randn(2, 5)), pair),
    "keywords": (lambda: net(Pair()), lambda: {"left": torch.randn(2, 3), "right": torch.randn(2, 5)}, pair),
    "lazy": (
        lambda: net(nn.Sequential(nn.LazyConv1d(4, 3), nn.LazyBatchNorm1d(), nn.Flatten(), nn.LazyLinear(2))),
        lambda: torch.randn(2, 3, 8),
        in_turn,
    ),
    "scripted": (scripted, lambda: torch.randn(3, 4), in_turn),
    "own_parameter": (
        lambda: {"net": nn.Linear(4, 4), "scale": nn.Parameter(torch.ones(4))},
        lambda: torch.randn(3, 4),
        in_turn,
    ),
    "unrolled": (
        lambda: {"layers": nn.ModuleList([nn.Linear(4, 4) for _ in range(3)]), "by_name": nn.ModuleDict()},
        lambda: torch.randn(3, 4),
        lambda self, x: self.layers[1](self.layers[0](x)),
    ),
    "without_parameters": (lambda: net(nn.ReLU()), lambda: torch.randn(2, 2), in_turn),
}


def build(library: ModuleType, name: str, with_example: bool = True) -> Any:
    """One of the models, as a LightningModule of the library."""
    parts, example, forward = MODELS[name]

    class Model(library.LightningModule):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            super().__init__()
            for part, value in parts().items():
                setattr(self, part, value)
            self.example_input_array = example() if with_example else None

        def forward(self, *args: Any, **kwargs: Any) -> Any:
            return forward(self, *args, **kwargs)

    torch.manual_seed(0)
    return Model()

"""Which checkpoint is best. NaN never is: it counts as the worst score that there is."""

from __future__ import annotations

from torch import Tensor, tensor


def worst_score(mode: str) -> Tensor:
    """What no score is worse than; `mode` is "min" or "max"."""
    return tensor(float("inf") if mode == "min" else float("-inf"))


def as_score(value: Tensor, mode: str) -> Tensor:
    """A metric's value as a score."""
    return worst_score(mode) if bool(value.isnan()) else value


def is_better(score: Tensor, than: Tensor, mode: str) -> bool:
    """Whether a score is; an equal one is not."""
    return bool(score < than) if mode == "min" else bool(score > than)


def best_of(scores: dict[str, Tensor], mode: str) -> str:
    """The path with the best score; the first of equal ones."""
    return (min if mode == "min" else max)(scores, key=lambda path: float(scores[path]))


def worst_of(scores: dict[str, Tensor], mode: str) -> str:
    """The path with the worst score; the first of equal ones."""
    return (max if mode == "min" else min)(scores, key=lambda path: float(scores[path]))

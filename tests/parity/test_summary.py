"""A summary counts and measures what Lightning's does."""

from __future__ import annotations

import importlib
import random
from contextlib import nullcontext
from typing import Any

import pytest

from tests.parity.oracle import GPULAYER, LIGHTNING, quiet
from tests.parity.summary_models import MODELS, build

PROPERTIES = """
    layer_names layer_types in_sizes out_sizes param_nums training_modes total_parameters trainable_parameters
    total_training_modes flop_counts total_flops
""".split()
DEPTHS = [0, 1, 2, -1]


def summary(library: str, name: str, max_depth: int, with_example: bool = True) -> Any:
    L = importlib.import_module(library)
    module = importlib.import_module(f"{library}.utilities.model_summary.model_summary")
    return module.summarize(build(L, name, with_example), max_depth)


@pytest.mark.parametrize("with_example", [True, False])
@pytest.mark.parametrize("name", MODELS)
def test_layers_and_totals(name: str, with_example: bool) -> None:
    for depth in DEPTHS:
        with quiet() if name == "lazy" else nullcontext():  # both warn of parameters without a shape
            theirs, ours = (summary(library, name, depth, with_example) for library in (LIGHTNING, GPULAYER))
            for what in PROPERTIES:
                assert getattr(ours, what) == getattr(theirs, what), f"{what} at depth {depth}"
            assert ours.model_size == pytest.approx(theirs.model_size)
            if depth == 1 and name != "tied":
                assert ours.total_layer_params == theirs.total_layer_params


def test_what_lightning_shows_is_shown() -> None:
    """The data that an overridden `summarize` gets: the same columns and cells."""
    for name in ("perceptron", "own_parameter", "frozen"):
        theirs, ours = (summary(library, name, 1) for library in (LIGHTNING, GPULAYER))
        assert ours.columns() == theirs._get_summary_data()


def test_what_own_parameters_of_the_model_count() -> None:
    """Below the first level Lightning counts nested layers twice, and then no other parameters are left."""
    assert "other params" in dict(summary(GPULAYER, "own_parameter", -1).columns())["Name"]
    shared = summary(GPULAYER, "tied", 1)
    assert (shared.total_parameters, shared.total_layer_params) == (66, 66)
    assert summary(LIGHTNING, "tied", 1).total_layer_params == 132


def test_counts_and_sizes_in_words() -> None:
    theirs, ours = (importlib.import_module(f"{library}.utilities.model_summary") for library in (LIGHTNING, GPULAYER))
    drawn = random.Random(0)
    numbers = [0, 1, 999, 1000, 99_949, 99_950, 10**15, *(int(10 ** drawn.uniform(0, 16)) for _ in range(2000))]
    for number in numbers:
        assert ours.get_human_readable_count(number) == theirs.get_human_readable_count(number)
        assert ours.get_formatted_model_size(number / 1e6) == theirs.get_formatted_model_size(number / 1e6)

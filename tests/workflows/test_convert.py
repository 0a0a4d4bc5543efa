"""Workflow "from PyTorch to Lightning", and the quick start."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest
import torch
from torch.utils.data import DataLoader

from gpulayer.fabric.utilities.exceptions import MisconfigurationException
from tests.workflows.guide import Autoencoder, accuracy, block, dataset, digits, execute

QUICK_START = "Quick start: convert PyTorch to Lightning"
ON_GPUS = ", accelerator='gpu', devices=2"
HAS_GPU = torch.cuda.is_available() or torch.backends.mps.is_available()


def test_quick_start_trains() -> None:
    """The dataset is scikit-learn's digits at 28 * 28; two GPUs are left out, for this runs on any one device."""
    code = block(QUICK_START)
    assert code.count(ON_GPUS) == 1
    names = execute(code.replace(ON_GPUS, ""), train_dataset=dataset(0, 1500))
    assert names["trainer"].global_step == 10 * 47
    assert accuracy(names["model"].model, 1500, 1797) > 0.85
    with Path("runs/LitModel/version_0/metrics.csv").open() as file:
        losses = [float(row["train_loss"]) for row in csv.DictReader(file)]
    assert len(losses) == 9  # every 50 of 470 steps
    assert losses[-1] < losses[0] / 3


def test_quick_start_as_documented_names_what_is_missing() -> None:
    """`accelerator='gpu', devices=2`: without a GPU the error says so; with one, that it is one device."""
    with pytest.raises(MisconfigurationException, match="one: use `devices=1`|has 1:" if HAS_GPU else "sees no GPU"):
        execute(block(QUICK_START), train_dataset=dataset(0, 64))


def trained_by_hand(device: str) -> torch.nn.Module:
    """The guide's own PyTorch loop, on `device` instead of 'cuda'."""
    torch.manual_seed(1)
    code = block("Workflow 1: original PyTorch code")
    assert code.count("'cuda'") == 2
    names = execute(
        code.replace("'cuda'", repr(device)),
        MyModel=Autoencoder,
        max_epochs=10,
        train_loader=DataLoader(digits()[0][:128], batch_size=32, shuffle=True),
    )
    return names["model"]


def converted(code: str) -> torch.nn.Module:
    """The guide's Lightning version of the same."""
    torch.manual_seed(1)
    names = execute(
        code + "\nmodel = trainer.lightning_module\n",  # the guide keeps no name for it
        MyModel=Autoencoder,
        train_loader=DataLoader(digits()[0][:128], batch_size=32, shuffle=True),
    )
    return names["model"].model


def assert_same_weights(ours: torch.nn.Module, by_hand: torch.nn.Module) -> None:
    for name, weights in by_hand.state_dict().items():
        assert torch.equal(ours.state_dict()[name].cpu(), weights.cpu()), name


def test_the_converted_model_learns_the_very_same_weights() -> None:
    """MyModel is a small autoencoder of digits; for any device 'cuda' is 'cpu', and accelerator='gpu' is 'cpu'."""
    code = block("Workflow 1: Lightning version")
    assert code.count("accelerator='gpu'") == 1
    assert_same_weights(converted(code.replace("accelerator='gpu'", "accelerator='cpu'")), trained_by_hand("cpu"))


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU")
def test_the_converted_model_learns_the_very_same_weights_on_a_gpu() -> None:
    """As documented, but for MyModel."""
    assert_same_weights(converted(block("Workflow 1: Lightning version")), trained_by_hand("cuda"))


@pytest.mark.skipif(HAS_GPU, reason="needs a machine without a GPU")
def test_a_missing_gpu_is_named() -> None:
    """`accelerator='gpu'` as documented; the error says what to write instead."""
    with pytest.raises(MisconfigurationException, match=r"sees no GPU here\. Use `accelerator='auto'`"):
        converted(block("Workflow 1: Lightning version"))

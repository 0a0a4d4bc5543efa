"""Importing costs what is needed and no more; seen from a fresh interpreter."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

OPTIONAL = [
    "tensorboard",
    "torchmetrics",
    "rich",
    "sklearn",
    "lightning",
    "pytorch_lightning",
    "lightning_utilities",
    "jsonargparse",
    "omegaconf",
    "hydra",
    "wandb",
    "mlflow",
    "comet_ml",
    "matplotlib",
    "pandas",
    "scipy",
    "deepspeed",
    "ray",
    "torchvision",
    "torch.utils.tensorboard",
    "torch.testing",
    "torch._dynamo",
]


def loaded_after(statement: str) -> list[str]:
    """Names in sys.modules after a statement."""
    script = f"{statement}\nimport sys, json\nprint(json.dumps(sorted(sys.modules)))"
    done = subprocess.run([sys.executable, "-W", "error", "-c", script], capture_output=True, text=True, check=True)
    return list(json.loads(done.stdout.splitlines()[-1]))


def found(names: list[str], loaded: list[str]) -> list[str]:
    return [name for name in names if name in loaded or any(module.startswith(f"{name}.") for module in loaded)]


@pytest.fixture(scope="module")
def plain_torch() -> list[str]:
    return loaded_after("import torch")


def test_gpulayer_imports_no_torch() -> None:
    """`gpulayer launch` and `gpulayer --help` answer at once."""
    loaded = loaded_after("import gpulayer; gpulayer.__version__; dir(gpulayer)")
    assert "gpulayer" in loaded
    assert found(["torch", "numpy", "yaml", "fsspec", "gpulayer.pytorch", "gpulayer.fabric"], loaded) == []


def test_pytorch_imports_no_optional_package(plain_torch: list[str]) -> None:
    """But for what `import torch` brings itself."""
    loaded = loaded_after("import gpulayer.pytorch as L; L.Trainer, L.Module")
    assert found(OPTIONAL, loaded) == found(OPTIONAL, plain_torch)


def test_names_of_the_root_are_those_of_pytorch() -> None:
    script = (
        "import gpulayer, gpulayer.pytorch as L; assert gpulayer.Trainer is L.Trainer and gpulayer.Module is L.Module"
    )
    assert "torch" in loaded_after(script)


def test_parts_are_there_without_an_import_of_their_own() -> None:
    """As on Lightning: `L.strategies.SingleDeviceStrategy` after `import gpulayer.pytorch as L`."""
    parts = "accelerators callbacks core loggers loops plugins strategies trainer utilities".split()
    helpers = "combined_loader exceptions model_summary rank_zero seed types warnings".split()
    names = ", ".join([*(f"L.{part}" for part in parts), *(f"L.utilities.{helper}" for helper in helpers)])
    loaded_after(f"import gpulayer.pytorch as L; {names}")
    loaded_after("import gpulayer.pytorch as L\nassert not hasattr(L, 'missing')")

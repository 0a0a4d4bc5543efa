"""GPUlayer: one Trainer for PyTorch, from a laptop to many machines.

Code written for PyTorch Lightning moves by changing one import::

    import gpulayer.pytorch as L

Names are looked up when they are first used, so that `import gpulayer` costs nothing and needs no torch.
"""

from importlib import import_module
from typing import Any

__version__ = "0.8.0"

_HOMES = {
    "Trainer": "gpulayer.pytorch",
    "Module": "gpulayer.pytorch",
    "LightningModule": "gpulayer.pytorch",
    "DataModule": "gpulayer.pytorch",
    "LightningDataModule": "gpulayer.pytorch",
    "Callback": "gpulayer.pytorch",
    "seed_everything": "gpulayer.pytorch",
    "pytorch": "gpulayer.pytorch",
    "fabric": "gpulayer.fabric",
}

__all__ = [
    "Callback",
    "DataModule",
    "LightningDataModule",
    "LightningModule",
    "Module",
    "Trainer",
    "__version__",
    "seed_everything",
]


def __getattr__(name: str) -> Any:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module 'gpulayer' has no attribute {name!r}")
    module = import_module(home)
    return module if home.endswith(f".{name}") else getattr(module, name)


def __dir__() -> list[str]:
    return sorted({*__all__, *_HOMES})

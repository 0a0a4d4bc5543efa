"""Write checkpoints with the pytorch-lightning that can be imported: `python make.py NAME`. See README.md."""

from __future__ import annotations

import collections
import collections.abc
import importlib.machinery
import importlib.metadata
import os
import shutil
import sys
import types
import warnings
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock

import numpy as np
import torch
import tqdm.auto  # noqa: F401  # old versions import tqdm alone and use this
from packaging.requirements import Requirement
from packaging.version import Version
from torch.utils.data import DataLoader, TensorDataset

HERE = Path(__file__).parent
NOT_THERE = "wandb comet_ml neptune test_tube torchvision torchtext horovod apex deepspeed hydra hivemind onnxruntime"
MLFLOW = "mlflow mlflow.entities mlflow.tracking mlflow.tracking.context mlflow.tracking.context.registry"


def put_back() -> None:
    """What old versions use of Python, NumPy, setuptools and torch, and what is gone since."""
    warnings.simplefilter("ignore")
    for name in ("Mapping", "MutableMapping", "Iterable", "Sequence", "Callable", "Sized"):
        setattr(collections, name, getattr(collections.abc, name))
    for name, value in {"Inf": np.inf, "NAN": np.nan, "NaN": np.nan, "float": float, "int": int}.items():
        setattr(np, name, value)
    torch.optim.lr_scheduler._LRScheduler = torch.optim.lr_scheduler.LRScheduler
    for name in NOT_THERE.split():
        sys.modules[name] = None  # type: ignore[assignment]
    for name in f"{MLFLOW} mlflow.utils mlflow.utils.mlflow_tags".split():
        sys.modules[name] = MagicMock(__spec__=importlib.machinery.ModuleSpec(name, None))
    sys.modules["pkg_resources"] = package_resources()


def package_resources() -> Any:
    """The few functions of setuptools' pkg_resources that are asked for."""
    module: Any = types.ModuleType("pkg_resources")
    module.DistributionNotFound = type("DistributionNotFound", (Exception,), {})
    module.VersionConflict = type("VersionConflict", (Exception,), {})

    def get_distribution(name: str) -> Any:
        try:
            return types.SimpleNamespace(version=importlib.metadata.version(name))
        except importlib.metadata.PackageNotFoundError:
            raise module.DistributionNotFound(name) from None

    def require(*texts: str) -> None:
        for requirement in map(Requirement, texts):
            if get_distribution(requirement.name).version not in requirement.specifier:
                raise module.VersionConflict(str(requirement))

    module.get_distribution, module.require, module.parse_version = get_distribution, require, Version
    module.declare_namespace = lambda name: None
    return module


def loader(seed: int) -> DataLoader[Any]:
    rows = torch.randn(16, 3, generator=torch.Generator().manual_seed(seed))
    return DataLoader(TensorDataset(rows, rows.sum(1, keepdim=True)), batch_size=4)


def main(name: str) -> None:
    put_back()
    import pytorch_lightning as pl
    from pytorch_lightning.callbacks import Callback, EarlyStopping, ModelCheckpoint

    version = Version(pl.__version__)
    logs = version >= Version("1.0")

    class Net(pl.LightningModule):  # type: ignore[misc, name-defined]
        def __init__(self, rate: float = 0.1, name: str = "line") -> None:
            super().__init__()
            if hasattr(self, "save_hyperparameters"):
                self.save_hyperparameters()
            else:
                self.hparams = {"rate": rate, "name": name}
            self.net = torch.nn.Linear(3, 1)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.net(x)

        def loss(self, batch: Any) -> torch.Tensor:
            return torch.nn.functional.mse_loss(self(batch[0]), batch[1])

        def training_step(self, batch: Any, batch_idx: int) -> Any:
            return {"loss": self.loss(batch)}

        def validation_step(self, batch: Any, batch_idx: int) -> Any:
            loss = self.loss(batch)
            if logs:
                self.log("val_loss", loss)
            return {"val_loss": loss}

        if not logs:

            def validation_epoch_end(self, outputs: Any) -> Any:
                mean = torch.stack([output["val_loss"] for output in outputs]).mean()
                return {"val_loss": mean, "log": {"val_loss": mean}}

        def configure_optimizers(self) -> Any:
            optimizer = torch.optim.Adam(self.parameters(), lr=0.1)
            return [optimizer], [torch.optim.lr_scheduler.StepLR(optimizer, 1, gamma=0.5)]

    class Saver(Callback):  # type: ignore[misc]
        seen = 0

        def on_train_batch_end(self, trainer: Any, *arguments: Any, **keywords: Any) -> None:
            self.seen += 1
            if self.seen == 6:
                trainer.save_checkpoint(str(HERE / f"{name}-mid.ckpt"))

        if version < Version("0.8"):
            on_batch_end = on_train_batch_end

    kept = Path("kept")
    arguments: dict[str, Any] = {"max_epochs": 3, "num_sanity_val_steps": 0, "logger": False}
    stopper = EarlyStopping("val_loss", patience=7)
    if logs:
        saver = ModelCheckpoint(dirpath=str(kept), filename="{epoch}", monitor="val_loss", save_top_k=-1)
        arguments["callbacks"] = [Saver(), stopper, saver]
        if version >= Version("1.3"):
            from pytorch_lightning.callbacks import Timer

            arguments["callbacks"].append(Timer(duration={"hours": 1}))
    else:
        saver = ModelCheckpoint(filepath=f"{kept}/{{epoch}}", monitor="val_loss", save_top_k=-1)
        arguments |= {"checkpoint_callback": saver, "early_stop_callback": stopper, "callbacks": [Saver()]}
    if version >= Version("1.5"):
        arguments |= {"enable_progress_bar": False, "enable_model_summary": False}
    else:
        arguments |= {"progress_bar_refresh_rate": 0, "weights_summary": None}
    if version >= Version("1.7"):
        arguments |= {"accelerator": "cpu", "devices": 1}
    torch.manual_seed(0)
    net = Net(rate=0.5)
    trainer = pl.Trainer(**arguments)
    trainer.fit(net, loader(1), loader(2))
    os.replace(min(kept.iterdir()), HERE / f"{name}-end.ckpt")
    shutil.rmtree(kept)
    print(version, trainer.global_step, {key: value.tolist() for key, value in net.state_dict().items()})


if __name__ == "__main__":
    main(sys.argv[1])

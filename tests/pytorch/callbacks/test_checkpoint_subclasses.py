"""What subclasses of ModelCheckpoint, and others who use it, call and override."""

from __future__ import annotations

import os
from math import nan
from pathlib import Path
from typing import Any

import torch
import yaml

import gpulayer.pytorch as L
from gpulayer.pytorch.callbacks import ModelCheckpoint
from tests.pytorch.callbacks.saved import epochs, files, read, run


def test_to_yaml() -> None:
    saver = ModelCheckpoint("saved", "{epoch}", "score", save_top_k=2)
    run([3, 1, 2], saver)
    saver.to_yaml()
    saver.to_yaml(Path("elsewhere.yaml"))
    expected = {str(Path(f"saved/epoch={epoch}.ckpt").absolute()): score for epoch, score in ((1, 1.0), (2, 2.0))}
    for file in ("saved/best_k_models.yaml", "elsewhere.yaml"):
        assert yaml.safe_load(Path(file).read_text()) == expected


def test_what_subclasses_ask() -> None:
    saver = ModelCheckpoint("saved", "{epoch}", "score", save_top_k=2, mode="max", every_n_epochs=1)
    used = run([1, 3, 2], saver)
    assert saver.every_n_epochs == 1
    assert saver.file_exists("saved/epoch=1.ckpt", used)
    assert not saver.file_exists("saved/epoch=0.ckpt", used)
    assert [saver.check_monitor_top_k(used, torch.tensor(score)) for score in (1.0, 2.0, 2.5, nan)] == [
        False,
        False,
        True,
        False,
    ]
    assert not saver.check_monitor_top_k(used)
    assert not ModelCheckpoint(monitor="score", save_top_k=0).check_monitor_top_k(used, torch.tensor(1.0))
    assert saver.state_key == (
        "ModelCheckpoint{'monitor': 'score', 'mode': 'max', 'every_n_train_steps': 0, 'every_n_epochs': 1, "
        "'train_time_interval': None}"
    )


def test_a_subclass_that_writes_something_else() -> None:
    """As those do that save in the format of another library: the last file is written by it, too."""

    class Plain(ModelCheckpoint):
        FILE_EXTENSION = ".pt"

        def _save_checkpoint(self, trainer: L.Trainer, filepath: str) -> None:
            Path(filepath).parent.mkdir(exist_ok=True)
            torch.save(trainer.lightning_module.state_dict(), filepath)

    run([2, 3, 1], Plain("saved", "{epoch}", "score", save_last=True))
    assert files() == ["epoch=2.pt", "last.pt"]
    assert all(set(read(f"saved/{name}")) == {"net.weight", "net.bias"} for name in files())


def test_a_subclass_that_chooses_its_own_moments() -> None:
    """With the parts that a save is made of."""

    class AtStart(ModelCheckpoint):
        def on_train_epoch_start(self, trainer: L.Trainer, pl_module: L.Module) -> None:
            if not self._should_skip_saving_checkpoint(trainer):
                candidates = self._monitor_candidates(trainer)
                self._save_topk_checkpoint(trainer, candidates)
                self._save_last_checkpoint(trainer, candidates)

        def on_train_epoch_end(self, trainer: L.Trainer, pl_module: L.Module) -> None:
            """Not here."""

    saver = AtStart("saved", "{epoch}", "score", save_last=True)
    run([2, 1, 3], saver)
    assert files() == ["epoch=2.ckpt", "last.ckpt"]  # at the start of epoch 2 the score is that of epoch 1
    assert float(saver.best_model_score or 0) == 1


def test_a_subclass_with_names_of_its_own() -> None:
    """One that knows nothing of versions does not hang."""

    class Named(ModelCheckpoint):
        def format_checkpoint_name(self, metrics: dict[str, Any], *arguments: Any, **others: Any) -> str:
            return os.path.join(self.dirpath or "", "always.ckpt")

    run([2, 1, 3], Named("saved", save_top_k=-1))
    assert epochs() == [2]

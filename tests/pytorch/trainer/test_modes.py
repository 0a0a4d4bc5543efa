"""detect_anomaly, deterministic, benchmark, inference_mode and fast_dev_run."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import gpulayer.pytorch as L
from gpulayer.pytorch.callbacks import EarlyStopping, ModelCheckpoint
from gpulayer.pytorch.loggers.logger import DummyLogger
from tests.pytorch.models import Line, Validated, loader, trainer

# -- detect_anomaly ---------------------------------------------------------------------------------------------------


class Looks(Validated):
    """Notes whether anomalies are looked for, in each step."""

    def __init__(self) -> None:
        super().__init__()
        self.looked: set[bool] = set()

    def loss(self, batch: Any) -> Tensor:
        self.looked.add(torch.is_anomaly_enabled())
        return super().loss(batch)


@pytest.mark.filterwarnings("ignore:Anomaly Detection has been enabled")
@pytest.mark.parametrize("detect", [False, True])
def test_anomalies_are_looked_for_in_every_call(detect: bool) -> None:
    model, used = Looks(), trainer(detect_anomaly=detect)
    used.fit(model, loader(), loader())
    used.validate(model, loader())
    used.test(model, loader())
    assert model.looked == {detect}
    assert not torch.is_anomaly_enabled()


class Spoils(Line):
    """Its backward pass makes NaN in one operation."""

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        return torch.sqrt(self.loss(batch) * 0) * 0


@pytest.mark.filterwarnings("ignore:Anomaly Detection has been enabled", "ignore:Error detected in SqrtBackward0")
def test_an_operation_that_makes_nan_is_named() -> None:
    with pytest.raises(RuntimeError, match="'SqrtBackward0' returned nan"):
        trainer(detect_anomaly=True).fit(Spoils(), loader())
    assert not torch.is_anomaly_enabled()
    used = trainer()
    used.fit(Spoils(), loader())  # nobody looks
    assert used.global_step == 4


# -- deterministic and benchmark --------------------------------------------------------------------------------------


@pytest.fixture
def global_settings(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """torch's settings, which are those of the whole process, are put back."""
    enabled = torch.are_deterministic_algorithms_enabled()
    warn_only = torch.is_deterministic_algorithms_warn_only_enabled()
    benchmark = torch.backends.cudnn.benchmark
    monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", "")
    monkeypatch.delenv("CUBLAS_WORKSPACE_CONFIG")
    yield
    torch.use_deterministic_algorithms(enabled, warn_only=warn_only)
    torch.backends.cudnn.benchmark = benchmark


def settings() -> tuple[bool, bool]:
    return torch.are_deterministic_algorithms_enabled(), torch.is_deterministic_algorithms_warn_only_enabled()


class Scatters(Line):
    """Uses an operation that torch has no repeatable form of."""

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        x, _ = batch
        index = torch.zeros(x.shape, dtype=torch.int64)
        return self(torch.zeros(1, 4).put_(index[:, :1] * 0, x[:, :1] * 0 + 1)).mean()


@pytest.mark.usefixtures("global_settings")
@pytest.mark.parametrize(
    ("deterministic", "found"), [(True, (True, False)), ("warn", (True, True)), (False, (False, False))]
)
def test_deterministic(deterministic: Any, found: tuple[bool, bool]) -> None:
    torch.use_deterministic_algorithms(not found[0])
    used = trainer(deterministic=deterministic)
    assert settings() == found
    used.fit(Line(), loader())
    assert settings() == found
    assert ("CUBLAS_WORKSPACE_CONFIG" in os.environ) == found[0]


@pytest.mark.usefixtures("global_settings")
def test_an_operation_that_cannot_be_repeated() -> None:
    with pytest.raises(RuntimeError, match="does not have a deterministic implementation"):
        trainer(deterministic=True).fit(Scatters(), loader(1))
    with pytest.warns(UserWarning, match="does not have a deterministic implementation"):
        trainer(deterministic="warn").fit(Scatters(), loader(1))
    trainer(deterministic=False).fit(Scatters(), loader(1))


@pytest.mark.usefixtures("global_settings")
def test_left_out_the_users_settings_stay() -> None:
    for enabled in (True, False):
        torch.use_deterministic_algorithms(enabled)
        torch.backends.cudnn.benchmark = enabled
        trainer()
        assert settings() == (enabled, False)
        assert torch.backends.cudnn.benchmark is enabled
    os.environ["CUBLAS_WORKSPACE_CONFIG"] = ":16:8"
    trainer(deterministic=True)
    assert os.environ["CUBLAS_WORKSPACE_CONFIG"] == ":16:8"


@pytest.mark.usefixtures("global_settings")
@pytest.mark.parametrize("benchmark", [True, False])
def test_benchmark(benchmark: bool) -> None:
    torch.backends.cudnn.benchmark = not benchmark
    assert trainer(benchmark=benchmark).benchmark is benchmark
    assert torch.backends.cudnn.benchmark is benchmark


# -- inference_mode ---------------------------------------------------------------------------------------------------


class Modes(Validated):
    def __init__(self) -> None:
        super().__init__()
        self.modes: set[tuple[bool, bool]] = set()

    def forward(self, x: Tensor) -> Tensor:
        self.modes.add((torch.is_inference_mode_enabled(), torch.is_grad_enabled()))
        return super().forward(x)


CALLS: dict[str, Callable[[L.Trainer, Modes], Any]] = {
    "validate": lambda used, model: used.validate(model, loader()),
    "test": lambda used, model: used.test(model, loader()),
    "predict": lambda used, model: used.predict(model, loader()),
}


@pytest.mark.parametrize("inference", [True, False])
@pytest.mark.parametrize("call", CALLS)
def test_inference_mode(call: str, inference: bool) -> None:
    model = Modes()
    CALLS[call](trainer(inference_mode=inference), model)
    assert model.modes == {(inference, False)}


def test_a_validation_within_training_has_ordinary_tensors() -> None:
    model = Modes()
    trainer(num_sanity_val_steps=1).fit(model, loader(), loader())
    assert model.modes == {(False, False), (False, True)}


def test_gradients_within_an_evaluation() -> None:
    """Without inference mode a step may switch them on, as for an attack on the inputs."""

    class Attacks(Line):
        def test_step(self, batch: Any, batch_idx: int) -> None:
            with torch.enable_grad():
                x = batch[0].clone().requires_grad_()
                (gradient,) = torch.autograd.grad(self(x).sum(), x)
            sizes.append(float(gradient.abs().sum()))

    sizes: list[float] = []
    trainer(inference_mode=False).test(Attacks(), loader())
    assert len(sizes) == 4
    assert min(sizes) > 0


# -- fast_dev_run -----------------------------------------------------------------------------------------------------


class Counts(Validated):
    """Counts its steps."""

    def __init__(self) -> None:
        super().__init__()
        self.steps: list[str] = []

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        self.steps.append("train")
        return super().training_step(batch, batch_idx)

    def validation_step(self, batch: Any, batch_idx: int) -> Any:
        self.steps.append("validate")
        return super().validation_step(batch, batch_idx)

    def configure_optimizers(self) -> Any:
        optimizer = super().configure_optimizers()
        return [optimizer], [torch.optim.lr_scheduler.StepLR(optimizer, 1)]


OVERRULED: dict[str, Any] = {
    "max_epochs": 5, "max_steps": 50, "min_epochs": 3, "min_steps": 20, "limit_train_batches": 0.5,
    "limit_val_batches": 7, "val_check_interval": 3, "check_val_every_n_epoch": 2, "num_sanity_val_steps": 2,
}  # fmt: skip


@pytest.mark.parametrize("arguments", [{}, OVERRULED, {"accumulate_grad_batches": 4}], ids=["alone", "many", "more"])
@pytest.mark.parametrize("batches", [True, 1, 2])
def test_fast_dev_run_tries_each_stage(batches: Any, arguments: dict[str, Any]) -> None:
    """So many batches of training and of validation, whatever else was given; no sanity check."""
    model, used = Counts(), trainer(fast_dev_run=batches, **arguments)
    used.fit(model, loader(8), loader(8))
    assert model.steps == ["train"] * int(batches) + ["validate"] * int(batches)
    assert (used.current_epoch, used.max_epochs) == (1, 1)
    assert used.global_step == (1 if "accumulate_grad_batches" in arguments else int(batches))
    assert used.num_val_batches == [int(batches)]
    assert used.lr_scheduler_configs[0].scheduler.last_epoch == 1
    assert "val_loss" in used.callback_metrics


def test_fast_dev_run_takes_what_there_is() -> None:
    model, used = Counts(), trainer(fast_dev_run=5)
    used.fit(model, loader(2), [loader(1), loader(3)][:1])
    assert model.steps == ["train", "train", "validate"]


def test_fast_dev_run_saves_nothing_and_stops_for_nothing(fresh_folder: Path) -> None:
    """Callbacks that would need metrics or files are left in place, and do nothing."""
    saver, stopper = ModelCheckpoint("saved", monitor="nothing", save_top_k=2), EarlyStopping("nothing")
    used = L.Trainer(accelerator="cpu", fast_dev_run=True, callbacks=[saver, stopper], logger=True)
    model = Counts()
    used.fit(model, loader(), loader())
    assert [type(logger) for logger in used.loggers] == [DummyLogger]
    assert (saver.best_model_path, stopper.wait_count) == ("", 0)
    with pytest.warns(UserWarning, match="`fast_dev_run` saves no checkpoints: the current weights are used"):
        used.test(model, loader(), ckpt_path="best")
    assert set(used.validate(None, loader())) == {"val_loss"}
    assert list(fresh_folder.iterdir()) == []

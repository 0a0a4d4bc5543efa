"""Values that cannot be used: what was given, and what to give, is said before anything runs."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import numpy as np
import pytest
import torch

import gpulayer.pytorch as L
from gpulayer.fabric.accelerators import CPUAccelerator
from gpulayer.fabric.utilities.exceptions import MisconfigurationException
from gpulayer.pytorch.callbacks import EarlyStopping, ModelCheckpoint, Timer
from gpulayer.pytorch.strategies import SingleDeviceStrategy
from tests.pytorch.models import Line, Validated, loader, trainer


def fails(action: Callable[[], Any], *pieces: str, kind: type[Exception] = MisconfigurationException) -> None:
    """Assert that `action` raises `kind` with a message that has all the pieces."""
    with pytest.raises(kind) as caught:
        action()
    for piece in pieces:
        assert piece in str(caught.value)


# -- Trainer ----------------------------------------------------------------------------------------------------------

WRONG: list[tuple[dict[str, Any], tuple[str, ...]]] = [
    ({"accelerator": 5}, ("`accelerator=5`", "'auto'")),
    ({"accelerator": None}, ("`accelerator=None`", "'auto'")),
    ({"accelerator": ["cpu"]}, ("`accelerator=['cpu']`", "'auto'")),
    ({"accelerator": CPUAccelerator}, ("accelerator=<class", "an Accelerator")),
    ({"strategy": 5}, ("`strategy=5`", "'auto'")),
    ({"strategy": SingleDeviceStrategy}, ("strategy=<class",)),
    ({"max_time": {"hour": 1}}, ("`Trainer(max_time={'hour': 1})`", "'DD:HH:MM:SS'", "{'hours': 12}")),
    ({"max_time": {}}, ("`Trainer(max_time={})`", "{'hours': 12}")),
    ({"max_time": {"hours": "one"}}, ("max_time", "'one'", "{'hours': 12}")),
    ({"max_time": timedelta(-1)}, ("max_time=datetime.timedelta(days=-1)", "'DD:HH:MM:SS'")),
    ({"max_time": {"hours": -1}}, ("max_time", "'DD:HH:MM:SS'")),
    ({"max_time": 60}, ("`Trainer(max_time=60)`", "'DD:HH:MM:SS'")),
    ({"max_time": "00:00:99"}, ("`Trainer(max_time='00:00:99')`", "'DD:HH:MM:SS'")),
    ({"val_check_interval": timedelta(-1)}, ("val_check_interval=datetime.timedelta(days=-1)",)),
    ({"val_check_interval": {"minute": 1}}, ("`Trainer(val_check_interval={'minute': 1})`", "{'hours': 12}")),
    ({"default_root_dir": 5}, ("`default_root_dir=5`", "a path")),
    ({"default_root_dir": ["here"]}, ("`default_root_dir=['here']`", "a path")),
    ({"benchmark": "x"}, ("`Trainer(benchmark='x')`", "True or False")),
    ({"deterministic": "x"}, ("`Trainer(deterministic='x')`", "True, False or 'warn'")),
    ({"enable_checkpointing": "x"}, ("`Trainer(enable_checkpointing='x')`", "True or False")),
    ({"enable_checkpointing": 1}, ("`Trainer(enable_checkpointing=1)`", "True or False")),
    ({"inference_mode": "x"}, ("`Trainer(inference_mode='x')`", "True or False")),
    ({"detect_anomaly": "x"}, ("`Trainer(detect_anomaly='x')`", "True or False")),
    ({"barebones": "x"}, ("`Trainer(barebones='x')`", "True or False")),
    ({"enable_progress_bar": "x"}, ("`Trainer(enable_progress_bar='x')`", "True or False")),
    ({"enable_model_summary": "x"}, ("`Trainer(enable_model_summary='x')`", "True or False")),
    ({"gradient_clip_val": float("nan")}, ("`Trainer(gradient_clip_val=nan)`", "a number from 0")),
    ({"gradient_clip_val": True}, ("`Trainer(gradient_clip_val=True)`", "a number from 0")),
    ({"limit_train_batches": float("nan")}, ("`Trainer(limit_train_batches=nan)`", "fraction")),
    ({"overfit_batches": -1}, ("`Trainer(overfit_batches=-1)`", "fraction")),
    ({"overfit_batches": 1.5}, ("`Trainer(overfit_batches=1.5)`", "fraction")),
    ({"overfit_batches": True}, ("`Trainer(overfit_batches=True)`", "fraction")),
    ({"fast_dev_run": "x"}, ("`Trainer(fast_dev_run='x')`", "True")),
]


@pytest.mark.parametrize(("arguments", "pieces"), WRONG, ids=str)
def test_arguments_of_the_trainer(arguments: dict[str, Any], pieces: tuple[str, ...]) -> None:
    fails(lambda: L.Trainer(**arguments), *pieces)


@pytest.mark.parametrize(
    ("arguments", "pieces"),
    [
        ({"accelerator": "cpu", "devices": 2}, ("devices=2", "leave one out")),
        ({"plugins": [5]}, ("`plugins`",)),
    ],
)
def test_arguments_beside_a_strategy_of_ones_own(arguments: dict[str, Any], pieces: tuple[str, ...]) -> None:
    fails(lambda: L.Trainer(strategy=SingleDeviceStrategy("cpu", CPUAccelerator()), **arguments), *pieces)


def test_a_precision_beside_a_strategy_of_ones_own_is_used() -> None:
    class Looks(Line):
        def training_step(self, batch: Any, batch_idx: int) -> Any:
            dtypes.add(self(batch[0]).dtype)
            return super().training_step(batch, batch_idx)

    dtypes: set[torch.dtype] = set()
    used = trainer(strategy=SingleDeviceStrategy("cpu", CPUAccelerator()), precision="bf16-mixed")
    used.fit(Looks(), loader())
    assert used.precision == "bf16-mixed"
    assert dtypes == {torch.bfloat16}


@pytest.mark.parametrize(
    ("argument", "hint"),
    [
        ("model_registry", "model registries come with a later version"),
        ("resume_from_checkpoint", "pass `ckpt_path=` to `trainer.fit`"),
        ("gpus", "use `accelerator='gpu', devices=...`"),
        ("auto_lr_find", "the tuner comes with a later version"),
        ("weights_save_path", "`default_root_dir`, or `ModelCheckpoint(dirpath=...)`"),
        ("checkpoint_callback", "use `enable_checkpointing`"),
        ("progress_bar_refresh_rate", "use `enable_progress_bar`"),
        ("max_epoch", "did you mean `max_epochs`?"),
    ],
)
def test_an_unknown_argument_gets_a_hint(argument: str, hint: str) -> None:
    fails(lambda: L.Trainer(**{argument: 1}), f"Trainer has no argument `{argument}`", hint, kind=TypeError)


# -- the four calls ---------------------------------------------------------------------------------------------------

CALLS: dict[str, Callable[[Any], Any]] = {
    "fit": lambda path: trainer().fit(Line(), loader(), ckpt_path=path),
    "validate": lambda path: trainer().validate(Validated(), loader(), ckpt_path=path),
    "test": lambda path: trainer().test(Line(), loader(), ckpt_path=path),
    "predict": lambda path: trainer().predict(Line(), loader(), ckpt_path=path),
}


@pytest.mark.parametrize("path", [5, True, ["model.ckpt"]])
@pytest.mark.parametrize("call", CALLS)
def test_a_checkpoint_that_is_no_path(call: str, path: Any) -> None:
    fails(lambda: CALLS[call](path), f"`ckpt_path={path!r}`", "a path")


class Manual(Line):
    def __init__(self) -> None:
        super().__init__()
        self.automatic_optimization = False

    def training_step(self, batch: Any, batch_idx: int) -> None:
        optimizer = self.optimizers()
        optimizer.zero_grad()
        self.manual_backward(self.loss(batch))
        optimizer.step()


@pytest.mark.parametrize("value", [1.0, 1, True, 0.5])
def test_manual_optimization_does_not_clip(value: Any) -> None:
    """Also 1.0, which equals the harmless `accumulate_grad_batches=1`."""
    if value is True:
        fails(lambda: trainer(gradient_clip_val=value), "gradient_clip_val=True")
    else:
        fails(
            lambda: trainer(gradient_clip_val=value).fit(Manual(), loader()),
            f"gradient_clip_val={value!r}",
            "automatic optimization only",
            "`self.clip_gradients`",
        )


@pytest.mark.parametrize("harmless", [{"accumulate_grad_batches": 1}, {"gradient_clip_val": 0}, {}])
def test_manual_optimization_with_settings_that_do_nothing(harmless: dict[str, Any]) -> None:
    used = trainer(**harmless)
    used.fit(Manual(), loader())
    assert used.global_step == 4


# -- callbacks --------------------------------------------------------------------------------------------------------

MAKERS: list[tuple[Callable[..., Any], dict[str, Any], tuple[str, ...]]] = [
    (ModelCheckpoint, {"dirpath": 5}, ("`ModelCheckpoint(dirpath=5)`", "a folder")),
    (ModelCheckpoint, {"every_n_train_steps": "a"}, ("ModelCheckpoint(every_n_train_steps=", "a number from 0")),
    (ModelCheckpoint, {"every_n_train_steps": 1.5}, ("ModelCheckpoint(every_n_train_steps=1.5)", "a number from 0")),
    (ModelCheckpoint, {"every_n_epochs": 1.5}, ("ModelCheckpoint(every_n_epochs=1.5)", "a number from 0")),
    (ModelCheckpoint, {"every_n_epochs": True}, ("ModelCheckpoint(every_n_epochs=True)", "a number from 0")),
    (ModelCheckpoint, {"train_time_interval": 5}, ("ModelCheckpoint(train_time_interval=5)", "a timedelta")),
    (ModelCheckpoint, {"train_time_interval": timedelta(-1)}, ("train_time_interval",)),
    (ModelCheckpoint, {"monitor": 5}, ("`ModelCheckpoint(monitor=5)`", "the name of a logged metric")),
    (ModelCheckpoint, {"filename": "{"}, ("`ModelCheckpoint(filename='{')`", "names of metrics in braces")),
    (ModelCheckpoint, {"filename": "}"}, ("`ModelCheckpoint(filename='}')`", "names of metrics in braces")),
    (ModelCheckpoint, {"filename": "{val_loss:zz}"}, ("filename='{val_loss:zz}'", "names of metrics in braces")),
    (ModelCheckpoint, {"filename": 5}, ("filename=5", "names of metrics in braces")),
    (ModelCheckpoint, {"save_top_k": 1.5}, ("`ModelCheckpoint(save_top_k=1.5)`", "how many to keep")),
    (ModelCheckpoint, {"save_last": "yes"}, ("`ModelCheckpoint(save_last='yes')`", "True, False or 'link'")),
    (ModelCheckpoint, {"mode": 5}, ("`ModelCheckpoint(mode=5)`", "'min' or 'max'")),
    (EarlyStopping, {"monitor": "loss", "min_delta": "a"}, ("`EarlyStopping(min_delta='a')`", "a number")),
    (EarlyStopping, {"monitor": "loss", "stopping_threshold": "a"}, ("(stopping_threshold='a')`", "a number")),
    (EarlyStopping, {"monitor": "loss", "divergence_threshold": "a"}, ("(divergence_threshold='a')`", "a number")),
    (EarlyStopping, {"monitor": 5}, ("`EarlyStopping(monitor=5)`", "the name of a logged metric")),
    (EarlyStopping, {"monitor": "loss", "patience": 1.5}, ("`EarlyStopping(patience=1.5)`", "a number of checks")),
    (Timer, {"duration": 60}, ("60", "'DD:HH:MM:SS'")),
    (Timer, {"duration": {"hour": 1}}, ("'hour'", "{'hours': 12}")),
]


@pytest.mark.parametrize(
    ("make", "arguments", "pieces"), MAKERS, ids=lambda value: getattr(value, "__name__", str(value))
)
def test_arguments_of_callbacks(make: Callable[..., Any], arguments: dict[str, Any], pieces: tuple[str, ...]) -> None:
    fails(lambda: make(**arguments), *pieces)


@pytest.mark.parametrize("filename", ["{epoch}-{step}", "{epoch:02d}-{val/loss:.2f}", "{a:5.1f}", "{{x}}", "plain", ""])
def test_templates_that_are_fine(filename: str) -> None:
    ModelCheckpoint(filename=filename)


# -- self.log ---------------------------------------------------------------------------------------------------------

LOGS: dict[str, tuple[Callable[[Line], None], tuple[str, ...]]] = {
    "complex": (lambda model: model.log("m", 1j), ("`self.log('m', ...)`", "complex")),
    "complex tensor": (lambda model: model.log("m", torch.tensor(1j)), ("`self.log('m', ...)`", "complex")),
    "list": (lambda model: model.log_dict([1]), ("`self.log_dict` takes a dict", "[1]")),  # type: ignore[arg-type]
    "word": (lambda model: model.log_dict("m"), ("`self.log_dict` takes a dict", "'m'")),  # type: ignore[arg-type]
    "batch_size -1": (lambda model: model.log("m", 1.0, batch_size=-1), ("batch_size=-1", "zero or above")),
    "batch_size 'a'": (
        lambda model: model.log("m", 1.0, batch_size="a"),  # type: ignore[arg-type]
        ("batch_size='a'", "zero or above"),
    ),
    "batch_size in a dict": (
        lambda model: model.log_dict({"m": 1.0}, batch_size=-2),
        ("batch_size=-2", "zero or above"),
    ),
    "name": (lambda model: model.log(5, 1.0), ("takes a name", "5")),  # type: ignore[arg-type]
    "reduce_fx": (lambda model: model.log("m", 1.0, reduce_fx="median"), ("reduce_fx='median'", "'mean'")),
    "nothing": (lambda model: model.log("m", None), ("`self.log('m', ...)`", "None")),
}


@pytest.mark.parametrize("name", LOGS)
def test_logging_what_is_no_metric(name: str) -> None:
    class Logs(Line):
        def training_step(self, batch: Any, batch_idx: int) -> Any:
            LOGS[name][0](self)
            return self.loss(batch)

    fails(lambda: trainer().fit(Logs(), loader()), *LOGS[name][1])


@pytest.mark.parametrize("size", [3, 3.0, np.int64(3), np.float32(3), torch.tensor(3), torch.tensor(3.0)], ids=repr)
def test_numbers_that_are_a_batch_size(size: Any) -> None:
    """What a count comes as: `len(x)`, `x.shape[0]` of NumPy, `mask.sum()`."""

    class Logs(Line):
        def training_step(self, batch: Any, batch_idx: int) -> Any:
            self.log("m", float(batch_idx), on_step=False, on_epoch=True, batch_size=size if batch_idx == 0 else 1)
            return self.loss(batch)

    used = trainer()
    used.fit(Logs(), loader(2))
    assert float(used.callback_metrics["m"]) == 0.25

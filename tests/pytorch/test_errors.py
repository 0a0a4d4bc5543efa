"""Bad input: the error says what was given, what is allowed and what to do, and nothing was trained before it."""

from __future__ import annotations

import pickle
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from textwrap import dedent
from typing import Any

import pytest
import torch
from torch.optim import SGD
from torch.optim.lr_scheduler import ReduceLROnPlateau, StepLR

import gpulayer.pytorch as L
from gpulayer.fabric.utilities.exceptions import MisconfigurationException
from gpulayer.pytorch.callbacks import EarlyStopping, LearningRateMonitor, ModelCheckpoint, Timer
from tests.pytorch.models import Line, Validated, loader, same, stream, trainer, weights


def fails(action: Callable[[], Any], *pieces: str, kind: type[Exception] = MisconfigurationException) -> None:
    """`action` raises an error whose message holds all of `pieces`."""
    with pytest.raises(kind) as caught:
        action()
    for piece in pieces:
        assert piece in str(caught.value)


def fit_fails(model: L.Module, *pieces: str, data: Any = None, val: Any = None, **arguments: Any) -> None:
    """`fit` raises such an error, before the optimizer's first step."""
    before, used = weights(model), trainer(**arguments)
    fails(lambda: used.fit(model, loader() if data is None else data, val), *pieces)
    assert used.global_step == 0
    assert same(before, weights(model))


# -- the module -------------------------------------------------------------------------------------------------------


def test_no_training_step() -> None:
    class Untrainable(L.Module):
        configure_optimizers = Line.configure_optimizers

    fit_fails(Untrainable(), "Untrainable.training_step", "def training_step(self, batch, batch_idx)", "return loss")


def test_no_configure_optimizers() -> None:
    class Unoptimized(L.Module):
        training_step = Line.training_step

    fit_fails(Unoptimized(), "Unoptimized.configure_optimizers", "return torch.optim.Adam(self.parameters())")


@pytest.mark.parametrize("thing", [torch.nn.Linear(1, 1), Line, "model"], ids=["nn.Module", "a class", "text"])
def test_no_module(thing: Any) -> None:
    fails(lambda: trainer().fit(thing, loader()), "`trainer.fit` takes", "LightningModule", "got", kind=TypeError)


def test_no_training_data() -> None:
    fails(
        lambda: trainer().fit(Line()),
        "`trainer.fit` has no data",
        "train_dataloaders=",
        "datamodule=",
        "Line.train_dataloader",
    )


def test_training_data_that_is_no_loader() -> None:
    fit_fails(Line(), "the training loader is a int", "DataLoader or another iterable", data=3)


def test_loaders_and_a_datamodule() -> None:
    data = L.DataModule.from_datasets(train_dataset=loader().dataset)
    fails(lambda: trainer().fit(Line(), loader(), datamodule=data), "both given", "give one of them")
    fails(lambda: trainer().fit(Line(), None, loader(), datamodule=data), "both given", "give one of them")


@pytest.mark.parametrize("call", ["validate", "test"])
def test_no_step_to_evaluate_with(call: str) -> None:
    class Blind(L.Module):
        pass

    step = {"validate": "validation_step", "test": "test_step"}[call]
    fails(lambda: getattr(trainer(), call)(Blind(), loader()), f"Blind.{step}", f"def {step}(self, batch, batch_idx)")


@pytest.mark.parametrize("call", ["validate", "test", "predict"])
def test_no_data_to_evaluate(call: str) -> None:
    method = {"validate": "val_dataloader", "test": "test_dataloader", "predict": "predict_dataloader"}[call]
    fails(
        lambda: getattr(trainer(), call)(Validated()),
        f"`trainer.{call}` has no data",
        "dataloaders=",
        f"Validated.{method}",
    )


@pytest.mark.parametrize("call", ["validate", "test", "predict"])
def test_no_module_was_ever_given(call: str) -> None:
    fails(lambda: getattr(trainer(), call)(), f"`trainer.{call}()` without a model", "pass one", kind=TypeError)


def test_a_step_that_wants_more_than_there_is() -> None:
    class Greedy(Line):
        def training_step(self, batch: Any, batch_idx: int, dataloader_idx: int, more: Any) -> Any:
            return self.loss(batch)

    fit_fails(Greedy(), "`training_step` takes batch, batch_idx, dataloader_idx, more", "called with batch, batch_idx")


def test_several_loaders_for_a_step_that_knows_of_one() -> None:
    fails(
        lambda: trainer().validate(Validated(), [loader(), loader()]),
        "There are 2 loaders",
        "def validation_step(self, batch, batch_idx, dataloader_idx)",
    )


# -- configure_optimizers ---------------------------------------------------------------------------------------------


def configured(make: Callable[[SGD], Any], base: type[Line] = Line) -> Line:
    """A model whose `configure_optimizers` returns what `make` makes of an optimizer."""

    class Configured(base):  # type: ignore[misc,valid-type]
        def configure_optimizers(self) -> Any:
            return make(SGD(self.parameters(), lr=0.1))

    return Configured()


class Forgetful:
    """A scheduler of the user's own that has no state to save."""

    def __init__(self, optimizer: SGD) -> None:
        self.optimizer = optimizer

    def step(self) -> None:
        pass


FORMS = ("`configure_optimizers` returned", "Return an optimizer", "'lr_scheduler'", "two lists")

NONSENSE: dict[str, tuple[Callable[[SGD], Any], tuple[str, ...]]] = {
    "text": (lambda o: "adam", (*FORMS, "'adam'")),
    "a number": (lambda o: 3, (*FORMS, "3")),
    "nothing in a list": (lambda o: [], FORMS),
    "an optimizer and a scheduler in a tuple": (lambda o: (o, StepLR(o, 1)), FORMS),
    "a dict without an optimizer": (lambda o: {"optim": o}, FORMS),
    "the name of an optimizer": (lambda o: {"optimizer": "adam"}, (*FORMS, "'adam'")),
    "text among optimizers": (lambda o: ([o, "adam"], []), (*FORMS, "'adam'")),
    "text as a scheduler": (lambda o: ([o], ["cosine"]), ("'cosine'", "a scheduler has a `step` method")),
    "a scheduler that a checkpoint could not keep": (
        lambda o: ([o], [Forgetful(o)]),
        ("Forgetful", "`state_dict`", "`load_state_dict`"),
    ),
    "a scheduler's dict without one": (lambda o: ([o], [{"interval": "step"}]), ("no 'scheduler'", "'interval'")),
    "an unknown interval": (
        lambda o: {"optimizer": o, "lr_scheduler": {"scheduler": StepLR(o, 1), "interval": "batch"}},
        ("'interval' is 'batch'", "'epoch' or 'step'"),
    ),
    "a frequency of zero": (
        lambda o: {"optimizer": o, "lr_scheduler": {"scheduler": StepLR(o, 1), "frequency": 0}},
        ("'frequency' is 0", "whole number from 1"),
    ),
    "a plateau without a monitor": (
        lambda o: {"optimizer": o, "lr_scheduler": ReduceLROnPlateau(o)},
        ("ReduceLROnPlateau watches a metric", "'monitor': 'name_of_the_metric'"),
    ),
    "two optimizers": (
        lambda o: [o, SGD(o.param_groups[0]["params"], lr=1.0)],
        ("returned 2 optimizers", "self.automatic_optimization = False"),
    ),
    "a scheduler of another optimizer": (
        lambda o: ([o], [StepLR(SGD(o.param_groups[0]["params"], lr=1.0), 1)]),
        ("StepLR of an optimizer that it did not return", "return that optimizer too"),
    ),
}


@pytest.mark.parametrize("case", NONSENSE)
def test_configure_optimizers_returns_nonsense(case: str) -> None:
    make, pieces = NONSENSE[case]
    fit_fails(configured(make), *pieces)


def test_a_misspelt_key_of_a_schedulers_dict_is_warned_of() -> None:
    model = configured(lambda o: {"optimizer": o, "lr_scheduler": {"scheduler": StepLR(o, 1), "intervall": "step"}})
    with pytest.warns(UserWarning, match="did you mean 'interval'"):
        trainer().fit(model, loader())


# -- monitors ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", [EarlyStopping, ModelCheckpoint])
def test_a_monitor_that_was_never_logged(kind: type[L.Callback]) -> None:
    """The message names the metrics there are."""
    monitor = kind(monitor="val_los")
    fails(
        lambda: trainer(callbacks=[monitor]).fit(Validated(), loader(), loader()),
        f"`{kind.__name__}(monitor='val_los')`",
        "['train_loss', 'val_loss']",
        "self.log('val_los', ...)",
    )


def test_a_scheduler_whose_monitor_was_never_logged() -> None:
    model = configured(
        lambda o: {"optimizer": o, "lr_scheduler": ReduceLROnPlateau(o), "monitor": "val_los"}, Validated
    )
    fails(
        lambda: trainer().fit(model, loader(), loader()),
        "ReduceLROnPlateau watches 'val_los'",
        "['train_loss', 'val_loss']",
        "self.log('val_los', ...)",
    )


def test_a_monitor_where_nothing_was_logged() -> None:
    class Silent(Line):
        def training_step(self, batch: Any, batch_idx: int) -> Any:
            return self.loss(batch)

    fails(lambda: trainer(callbacks=[EarlyStopping("loss")]).fit(Silent(), loader()), "there are none")


def test_a_monitor_that_need_not_be_there() -> None:
    """strict=False warns and goes on."""
    with pytest.warns(UserWarning, match="no such metric was logged"):
        trainer(callbacks=[EarlyStopping("val_los", strict=False)]).fit(Line(), loader())


# -- fractions of a loader without a length ---------------------------------------------------------------------------


def test_a_fraction_of_a_training_loader_without_length() -> None:
    fit_fails(
        Line(),
        "`Trainer(limit_train_batches=0.5)` is a fraction",
        "the training loader has no length",
        "limit_train_batches=100",
        "`__len__`",
        data=stream(),
        limit_train_batches=0.5,
    )


def test_a_fraction_of_a_validation_loader_without_length() -> None:
    fit_fails(
        Validated(),
        "`Trainer(limit_val_batches=0.5)` is a fraction",
        "the validation loader has no length",
        val=stream(),
        limit_val_batches=0.5,
    )


@pytest.mark.parametrize(("call", "stage"), [("validate", "val"), ("test", "test"), ("predict", "predict")])
def test_a_fraction_of_a_loader_without_length_alone(call: str, stage: str) -> None:
    argument = f"limit_{stage}_batches"
    fails(
        lambda: getattr(trainer(**{argument: 0.5}), call)(Validated(), stream()),
        f"`Trainer({argument}=0.5)` is a fraction",
        "has no length",
        f"{argument}=100",
    )


def test_a_fractional_interval_in_a_loader_without_length() -> None:
    fit_fails(
        Validated(),
        "`Trainer(val_check_interval=0.5)` is a fraction",
        "has no length",
        "val_check_interval=100",
        data=stream(),
        val=loader(),
        val_check_interval=0.5,
    )


def test_a_fraction_that_is_less_than_a_batch() -> None:
    fit_fails(Line(), "4 batches is less than one", "limit_train_batches=1", "at least 0.25", limit_train_batches=0.1)


def test_an_interval_longer_than_the_epoch() -> None:
    fit_fails(
        Validated(),
        "`Trainer(val_check_interval=5)`",
        "an epoch has 4 batches",
        "check_val_every_n_epoch=None",
        val=loader(),
        val_check_interval=5,
    )


# -- what training_step returns ---------------------------------------------------------------------------------------

RETURNED: dict[str, tuple[Callable[[torch.Tensor], Any], str]] = {
    "dots": (lambda loss: ..., "returned Ellipsis"),
    "text": (lambda loss: "loss", "returned 'loss'"),
    "a float": (lambda loss: 0.5, "returned 0.5"),
    "a list": (lambda loss: [loss], "returned [tensor("),
    "a tuple": (lambda loss: (loss, 1), "returned (tensor("),
    "a dict without loss": (lambda loss: {"los": loss, "n": 1}, "returned a dict with ['los', 'n']"),
    "a dict whose loss is a number": (lambda loss: {"loss": 0.5}, "returned a dict with ['loss']"),
}


@pytest.mark.parametrize("case", RETURNED)
def test_training_step_returns_nonsense(case: str) -> None:
    answer, piece = RETURNED[case]

    class Odd(Line):
        def training_step(self, batch: Any, batch_idx: int) -> Any:
            return answer(self.loss(batch))

    fit_fails(Odd(), f"`training_step` {piece}", "Return the loss as a tensor, a dict with it under 'loss', or None")


# -- self.log ---------------------------------------------------------------------------------------------------------


class Logs(Line):
    """Calls `self.log` as told, in `training_step`."""

    def __init__(self, *calls: tuple[tuple[Any, ...], dict[str, Any]]) -> None:
        super().__init__()
        self.calls = calls

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        for arguments, keywords in self.calls:
            self.log(*arguments, **keywords)
        return self.loss(batch)


LOGGED: dict[str, tuple[tuple[Any, ...], dict[str, Any], tuple[str, ...]]] = {
    "text": (("m", "high"), {}, ("self.log('m', ...)", "'high' of type str", "a number, a scalar tensor or")),
    "nothing": (("m", None), {}, ("self.log('m', ...)", "NoneType", "a number, a scalar tensor or")),
    "a list": (("m", [1.0, 2.0]), {}, ("[1.0, 2.0] of type list", "a number, a scalar tensor or")),
    "a dict": (("m", {"a": 1.0}), {}, ("of type dict", "a number, a scalar tensor or")),
    "a complex number": (("m", 1j), {}, ("1j of type complex", "a number, a scalar tensor or")),
    "a vector": (("m", torch.ones(3)), {}, ("tensor of shape (3,)", "log its mean")),
    "an empty tensor": (("m", torch.ones(0)), {}, ("tensor of shape (0,)", "one number")),
    "a name that is none": ((3, 1.0), {}, ("a name as its first argument", "got 3")),
    "an unknown reduction": (
        ("m", 1.0),
        {"reduce_fx": "median"},
        ("reduce_fx='median'", "'mean', 'sum', 'min', 'max' or a function"),
    ),
}


@pytest.mark.parametrize("case", LOGGED)
def test_logging_nonsense(case: str) -> None:
    arguments, keywords, pieces = LOGGED[case]
    fit_fails(Logs((arguments, keywords)), *pieces)


@pytest.mark.parametrize("later", ["high", torch.ones(3), None])
def test_logging_nonsense_under_a_good_name(later: Any) -> None:
    """A name that was logged well before is looked at all the same."""
    fit_fails(Logs((("m", 1.0), {}), (("m", later), {})), "`self.log('m', ...)` got")


@pytest.mark.parametrize(
    ("before", "now"),
    [
        ({"prog_bar": True}, {}),
        ({"reduce_fx": "max"}, {"reduce_fx": "min"}),
        ({"on_step": True, "on_epoch": True}, {"on_step": True, "on_epoch": False}),
        ({"logger": False}, {"logger": True}),
    ],
)
def test_one_name_with_two_settings(before: dict[str, Any], now: dict[str, Any]) -> None:
    """The message shows what differs, now and before."""
    defaults = {"prog_bar": False, "reduce_fx": "mean", "on_step": None, "on_epoch": None, "logger": None}
    changed = [
        f"{name}={(defaults | now)[name]!r} (before: {(defaults | before)[name]!r})"
        for name in defaults
        if (defaults | now)[name] != (defaults | before)[name]
    ]
    assert len(changed) == 1
    fit_fails(
        Logs((("m", 1.0), before), (("m", 2.0), now)),
        "`self.log('m', ...)`",
        "in `training_step`",
        changed[0],
        "two names, or the same settings",
    )


def test_log_dict_names_the_value_that_is_wrong() -> None:
    class LogsDict(Line):
        def training_step(self, batch: Any, batch_idx: int) -> Any:
            self.log_dict({"good": 1.0, "bad": "high"})

    fit_fails(LogsDict(), "`self.log('bad', ...)` got 'high' of type str")


@pytest.mark.parametrize("hook", ["on_fit_start", "configure_optimizers", "on_train_end", "predict_step"])
def test_logging_where_there_is_nothing_to_log_to(hook: str) -> None:
    def method(self: Line, *arguments: Any) -> Any:
        self.log("m", 1.0)

    model = type("Misplaced", (Line,), {hook: method})()
    used = trainer()

    def action() -> None:
        if hook == "predict_step":
            used.predict(model, loader())
        else:
            used.fit(model, loader())

    fails(action, "`self.log('m', ...)` cannot be called", "log in `training_step`")


@pytest.mark.parametrize(
    ("hook", "keywords", "pieces"),
    [
        ("on_train_epoch_end", {"on_step": True}, ("on_step=True", "no step there", "use on_epoch=True")),
        ("on_validation_epoch_end", {"on_epoch": False}, ("on_epoch=False", "only an epoch's value")),
    ],
)
def test_logging_a_steps_value_between_steps(hook: str, keywords: dict[str, Any], pieces: tuple[str, ...]) -> None:
    def method(self: Line) -> None:
        self.log("m", 1.0, **keywords)

    model = type("Misplaced", (Validated,), {hook: method})()
    fails(lambda: trainer().fit(model, loader(), loader()), f"in `{hook}`", *pieces)


def test_a_batch_whose_size_cannot_be_seen() -> None:
    class Words(Line):
        def training_step(self, batch: Any, batch_idx: int) -> Any:
            self.log("m", 1.0, on_epoch=True)

    fit_fails(Words(), "no tensor in the batch, a list", "self.log(..., batch_size=...)", data=[["a", "b"], ["c"]])


# -- Trainer's arguments ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("argument", "nearest"),
    [
        ("max_epoch", "max_epochs"),
        ("accumulate_grad_batch", "accumulate_grad_batches"),
        ("check_val_every_n_epochs", "check_val_every_n_epoch"),
        ("callback", "callbacks"),
        ("grad_clip_val", "gradient_clip_val"),
        ("limit_validation_batches", "limit_val_batches"),
    ],
)
def test_an_unknown_argument_gets_the_nearest_name(argument: str, nearest: str) -> None:
    fails(
        lambda: L.Trainer(**{argument: 1}),
        f"Trainer has no argument `{argument}`",
        f"did you mean `{nearest}`?",
        kind=TypeError,
    )


def test_an_unknown_argument_like_none_gets_all_names() -> None:
    fails(lambda: L.Trainer(zzz=1), "no argument `zzz`", "max_epochs, min_epochs", kind=TypeError)


def test_arguments_are_keywords() -> None:
    with pytest.raises(TypeError, match="positional"):
        L.Trainer("cpu")  # type: ignore[misc]


BAD_VALUES = [
    *[(f"limit_{stage}_batches", value) for stage in ("train", "val", "test", "predict") for value in (-1, -0.5)],
    *[("limit_train_batches", value) for value in (1.5, True, "all")],
    *[("max_epochs", value) for value in (-2, 1.5, "ten", True)],
    *[("max_steps", value) for value in (-2, 0.5, None)],
    *[("min_epochs", value) for value in (-1, 1.5)],
    ("min_steps", -1),
    *[("accumulate_grad_batches", value) for value in (0, -1, 1.5, None)],
    *[("val_check_interval", value) for value in (0, -1, 0.0, 1.5, "half")],
    ("check_val_every_n_epoch", 0),
    *[("num_sanity_val_steps", value) for value in (-2, 0.5)],
    ("log_every_n_steps", -1),
    ("reload_dataloaders_every_n_epochs", -1),
    *[("gradient_clip_val", value) for value in (-1, -0.5, "1")],
    ("gradient_clip_algorithm", "max"),
    ("fast_dev_run", -1),
    ("fast_dev_run", 0.5),
]


@pytest.mark.parametrize(("argument", "value"), BAD_VALUES)
def test_a_value_out_of_range(argument: str, value: Any) -> None:
    """The message shows the argument as it was written, and what to give."""
    with pytest.raises(MisconfigurationException, match=r"give|choose") as caught:
        L.Trainer(**{argument: value})
    assert f"`Trainer({argument}={value!r})`" in str(caught.value)


@pytest.mark.parametrize(
    ("arguments", "pieces"),
    [
        ({"devices": 0, "accelerator": "cpu"}, ("`devices=0`", "at least 1")),
        ({"devices": "two", "accelerator": "cpu"}, ("`devices='two'`", "at least 1")),
        ({"devices": 2, "accelerator": "cpu", "strategy": "single_device"}, ("2 devices", "use `devices=1`")),
        ({"num_nodes": 0}, ("`num_nodes=0`", "at least 1")),
        ({"accelerator": "cpuu"}, ("`accelerator='cpuu'`", "did you mean 'cpu'", "'auto'")),
        ({"strategy": "ddpp"}, ("`strategy='ddpp'`", "'auto'")),
        ({"precision": "8bit"}, ("`precision='8bit'`", "'bf16-mixed'")),
        ({"max_time": "5 minutes"}, ("max_time", "'5 minutes'", "'DD:HH:MM:SS'", "{'hours': 12}")),
        ({"max_time": {"minute": 5}}, ("max_time", "'minute'", "'DD:HH:MM:SS'", "{'hours': 12}")),
        ({"callbacks": [3]}, ("`Trainer(callbacks=...)` holds 3", "subclasses of")),
        ({"callbacks": [EarlyStopping]}, ("holds the class EarlyStopping", "give an object of it")),
        ({"logger": "tensorboard"}, ("`Trainer(logger='tensorboard')`", "True for metrics.csv")),
        ({"plugins": [3]}, ("`plugins` holds a int", "Precision")),
        (
            {"enable_checkpointing": False, "callbacks": [ModelCheckpoint()]},
            ("`Trainer(enable_checkpointing=False)`", "ModelCheckpoint", "leave one out"),
        ),
        ({"check_val_every_n_epoch": None}, ("check_val_every_n_epoch=None", "`val_check_interval`", "such as 100")),
        (
            {"check_val_every_n_epoch": None, "val_check_interval": 0.5},
            ("val_check_interval=0.5", "number of batches (an int)"),
        ),
    ],
)
def test_other_arguments_of_the_trainer(arguments: dict[str, Any], pieces: tuple[str, ...]) -> None:
    fails(lambda: L.Trainer(**arguments), *pieces)


@pytest.mark.parametrize(
    ("make", "pieces"),
    [
        (lambda: EarlyStopping("loss", mode="auto"), ("EarlyStopping(mode='auto')", "'min' or 'max'")),
        (lambda: EarlyStopping("loss", patience=-1), ("patience=-1", "from 0")),
        (lambda: ModelCheckpoint(mode="best"), ("ModelCheckpoint(mode='best')", "'min' or 'max'")),
        (lambda: ModelCheckpoint(save_top_k=-2), ("save_top_k=-2", "-1 for all, or 0 for none")),
        (lambda: ModelCheckpoint(save_top_k=3), ("save_top_k=3", "needs `monitor=`")),
        (
            lambda: ModelCheckpoint(every_n_train_steps=2, every_n_epochs=1),
            ("every_n_train_steps and every_n_epochs", "a ModelCheckpoint for each"),
        ),
        (lambda: ModelCheckpoint(every_n_epochs=-1), ("every_n_epochs=-1", "from 0")),
        (lambda: LearningRateMonitor(logging_interval="batch"), ("'batch'", "'step', 'epoch' or None")),
        (lambda: Timer("1h"), ("'1h'", "'DD:HH:MM:SS'")),
        (lambda: Timer(interval="batch"), ("Timer(interval='batch')", "'step' or 'epoch'")),
    ],
)
def test_arguments_of_callbacks(make: Callable[[], Any], pieces: tuple[str, ...]) -> None:
    fails(make, *pieces)


def test_two_callbacks_whose_state_would_get_mixed_up() -> None:
    with pytest.raises(MisconfigurationException, match="Two callbacks have the state key") as caught:
        trainer(callbacks=[EarlyStopping("train_loss"), EarlyStopping("train_loss")])
    assert "`state_key`" in str(caught.value)


def test_a_learning_rate_monitor_without_a_logger() -> None:
    fit_fails(Line(), "LearningRateMonitor writes to loggers", "logger=False", callbacks=[LearningRateMonitor()])


def test_manual_optimization_with_automatic_settings() -> None:
    class Manual(Line):
        def __init__(self) -> None:
            super().__init__()
            self.automatic_optimization = False

    fit_fails(Manual(), "gradient_clip_val=0.5", "automatic optimization only", gradient_clip_val=0.5)
    fit_fails(Manual(), "accumulate_grad_batches=2", "automatic optimization only", accumulate_grad_batches=2)


# -- files that are no checkpoints ------------------------------------------------------------------------------------


def write_checkpoint() -> Path:
    """A checkpoint of one epoch."""
    used = trainer()
    used.fit(Line(), loader())
    used.save_checkpoint("good.ckpt")
    return Path("good.ckpt")


def text_file() -> Path:
    Path("notes.ckpt").write_text("not a checkpoint at all\n")
    return Path("notes.ckpt")


def empty_file() -> Path:
    Path("empty.ckpt").touch()
    return Path("empty.ckpt")


def truncated() -> Path:
    content = write_checkpoint().read_bytes()
    Path("truncated.ckpt").write_bytes(content[: len(content) // 2])
    return Path("truncated.ckpt")


def damaged() -> Path:
    """Its first half is right, its directory is there, and what lies between is zeros."""
    content = bytearray(write_checkpoint().read_bytes())
    content[64 : len(content) // 2] = bytes(len(content) // 2 - 64)
    Path("damaged.ckpt").write_bytes(content)
    return Path("damaged.ckpt")


def pickled_list() -> Path:
    Path("list.ckpt").write_bytes(pickle.dumps([1, 2, 3]))
    return Path("list.ckpt")


def saved_list() -> Path:
    torch.save([1, 2, 3], "list.pt")
    return Path("list.pt")


def weights_without_a_checkpoint() -> Path:
    torch.save(Line().state_dict(), "weights.pt")
    return Path("weights.pt")


def folder() -> Path:
    Path("checkpoints").mkdir()
    return Path("checkpoints")


NO_CHECKPOINTS: dict[Callable[[], Path], tuple[str, ...]] = {
    text_file: ("no checkpoint, or a damaged one", "`trainer.save_checkpoint` or ModelCheckpoint wrote"),
    empty_file: ("no checkpoint, or a damaged one", "`trainer.save_checkpoint` or ModelCheckpoint wrote"),
    truncated: ("no checkpoint, or a damaged one", "`trainer.save_checkpoint` or ModelCheckpoint wrote"),
    damaged: ("no checkpoint, or a damaged one", "`trainer.save_checkpoint` or ModelCheckpoint wrote"),
    pickled_list: ("`trainer.save_checkpoint` or ModelCheckpoint wrote",),
    saved_list: ("holds a list", "`trainer.save_checkpoint` or ModelCheckpoint wrote"),
    weights_without_a_checkpoint: ("the bare weights of a module", "`model.load_state_dict(torch.load(path))`"),
    folder: ("is a folder", "the path of a checkpoint file"),
}
READERS: dict[str, Callable[[Path], Any]] = {
    "fit": lambda path: trainer().fit(Line(), loader(), ckpt_path=path),
    "test": lambda path: trainer().test(Line(), loader(), ckpt_path=path),
    "load_from_checkpoint": lambda path: Line.load_from_checkpoint(path),
}


@pytest.mark.parametrize("reader", READERS)
@pytest.mark.parametrize("make", NO_CHECKPOINTS, ids=lambda make: make.__name__)
def test_a_file_that_is_no_checkpoint(make: Callable[[], Path], reader: str) -> None:
    path = make()
    fails(lambda: READERS[reader](path), str(path), *NO_CHECKPOINTS[make])


@pytest.mark.parametrize("reader", READERS)
def test_a_missing_file(reader: str) -> None:
    fails(
        lambda: READERS[reader](Path("nowhere.ckpt")),
        "There is no checkpoint at 'nowhere.ckpt'",
        kind=FileNotFoundError,
    )


def test_the_best_checkpoint_when_there_is_none() -> None:
    fails(
        lambda: trainer().test(Line(), loader(), ckpt_path="best"),
        "`ckpt_path='best'`",
        "no checkpoint was saved",
        "ModelCheckpoint",
    )


def test_going_on_from_weights_alone() -> None:
    used = trainer()
    used.fit(Line(), loader())
    used.save_checkpoint("weights.ckpt", weights_only=True)
    fails(
        lambda: trainer().fit(Line(), loader(), ckpt_path="weights.ckpt"),
        "'weights.ckpt'",
        "weights only",
        "`load_from_checkpoint`",
    )


def test_going_on_from_further_than_the_run_is_to_go() -> None:
    used = trainer(max_epochs=3)
    used.fit(Line(), loader())
    used.save_checkpoint("three.ckpt")
    fails(
        lambda: trainer(max_epochs=2).fit(Line(), loader(), ckpt_path="three.ckpt"),
        "'three.ckpt'",
        "3",
        "max_epochs=2",
    )


def test_loading_into_a_model_that_is_there() -> None:
    """A class method makes a new model; called on a model, its answer is easily dropped."""
    path, model = write_checkpoint(), Line()
    fails(lambda: model.load_from_checkpoint(path), "Line.load_from_checkpoint", "class", kind=TypeError)


def test_going_on_with_other_optimizers() -> None:
    path = write_checkpoint()
    model = configured(lambda o: ([o], [StepLR(o, 1)]))
    fails(
        lambda: trainer(max_epochs=2).fit(model, loader(), ckpt_path=path),
        "0 schedulers",
        "`configure_optimizers` returned 1",
    )


class Unknown:
    """A class that no checkpoint may make without being asked."""


def test_a_checkpoint_that_holds_more_than_plain_data() -> None:
    """It is not loaded until the user allows it, and the class is named."""

    class Keeps(Line):
        def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
            checkpoint["extra"] = Unknown()

    used = trainer()
    used.fit(Keeps(), loader())
    with pytest.warns(UserWarning, match=r"more than plain data: `checkpoint\['extra'\]`, of .*Unknown"):
        used.save_checkpoint("extra.ckpt")
    fails(lambda: Keeps.load_from_checkpoint("extra.ckpt"), "'extra.ckpt'", "Unknown", "pass `weights_only=False`")
    Keeps.load_from_checkpoint("extra.ckpt", weights_only=False)


# -- errors of the user's own code ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "place", ["training_step", "validation_step", "on_train_batch_end", "on_train_epoch_end", "configure_optimizers"]
)
def test_an_error_of_the_user_is_not_wrapped(place: str) -> None:
    """The very exception arrives, and the user's line is its last frame."""
    error = KeyError("the user's own")

    def method(self: Line, *arguments: Any) -> Any:
        raise error

    model = type("Broken", (Validated,), {place: method})()
    with pytest.raises(KeyError) as caught:
        trainer().fit(model, loader(), loader())
    assert caught.value is error
    assert caught.value.__cause__ is None
    assert caught.value.__context__ is None
    assert caught.traceback[-1].name == "method"


def test_a_script_with_an_error_ends_with_the_users_line(tmp_path: Path) -> None:
    """From a shell: exit code 1, and the last lines on the screen are the user's."""
    script = tmp_path / "train.py"
    script.write_text(
        dedent("""\
        import torch
        import gpulayer.pytorch as L

        def reach(values):
            return values["missing"]

        class Model(L.LightningModule):
            def __init__(self):
                super().__init__()
                self.net = torch.nn.Linear(1, 1)

            def training_step(self, batch, batch_idx):
                return reach({"present": 1})

            def configure_optimizers(self):
                return torch.optim.SGD(self.parameters(), lr=0.1)

        L.Trainer(max_epochs=1, accelerator="cpu").fit(Model(), [torch.ones(1, 1)])
        """)
    )
    done = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, cwd=tmp_path, timeout=100)
    assert done.returncode == 1
    shown = [line for line in done.stderr.splitlines() if not set(line) <= set(" ^~")]
    assert shown[-1] == "KeyError: 'missing'"
    assert shown[-2].strip() == 'return values["missing"]'
    assert shown[-3].strip() == f'File "{script}", line 5, in reach'
    assert shown[-5].strip() == f'File "{script}", line 13, in training_step'
    assert done.stderr.count("Traceback (most recent call last)") == 1

"""A checkpoint of either library goes on in the other, whenever it was written.

Lightning goes on with the right batch in mid-epoch only where the loader itself knows its place, and loses what the
batch still owed: from our files it does no worse than from its own. We go on from both as if nothing had happened.
"""

from __future__ import annotations

import subprocess
import sys
import warnings
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch

import gpulayer.pytorch
from tests.parity import exchange
from tests.parity.exchange import STATEFUL, TORCHDATA, End, Setting
from tests.parity.oracle import GPULAYER, LIGHTNING, equal, lightning, quiet

BATCH, EPOCH, VALIDATED = "on_train_batch_end", "on_train_epoch_end", "on_validation_end"
STARTS, VALIDATES, DONE = "on_train_batch_start", "on_validation_start", "on_train_end"

BY_EPOCH, BY_STEP = ("step", {"interval": "epoch"}), ("step", {"interval": "step"})
PLATEAU = ("plateau", {"monitor": "val_loss"})
TWICE = {"val_check_interval": 2}
PLATEAU_BY_STEP = ("plateau", {"monitor": "val_loss", "interval": "step", "frequency": 2})
SETTINGS = {
    "adam": Setting(),
    "momentum": Setting(optimizer="sgd", scheduler=BY_EPOCH),
    "stateful": Setting(scheduler=BY_STEP, loader=STATEFUL),
    "torchdata": Setting(scheduler=BY_EPOCH, loader=TORCHDATA),
    "validation": Setting(validates=True, loader=STATEFUL),
    "validation_twice": Setting(validates=True, loader=STATEFUL, trainer=TWICE),
    "plateau": Setting(scheduler=PLATEAU, validates=True, loader=STATEFUL, epochs=3),
    "plateau_by_step": Setting(scheduler=PLATEAU_BY_STEP, validates=True, loader=STATEFUL, trainer=TWICE),
    "accumulation": Setting(loader=STATEFUL, scheduler=BY_STEP, trainer={"accumulate_grad_batches": 2}),
    "manual": Setting(manual=True, loader=STATEFUL),
    "bfloat16": Setting(loader=STATEFUL, trainer={"precision": "bf16-mixed"}),
}
MOMENTS = {
    "begin_of_a_batch": (STARTS, 3),
    "begin_of_the_last_batch": (STARTS, 4),
    "batch": (BATCH, 2),
    "third_batch": (BATCH, 3),
    "last_batch": (BATCH, 4),
    "before_validation": (VALIDATES, 1),
    "after_validation": (VALIDATED, 1),
    "epoch": (EPOCH, 1),
    "end": (DONE, 1),
}
IN_ALL = ("stateful", "validation_twice", "plateau", "plateau_by_step", "accumulation")  # the others in a few
CASES = [
    (name, moment)
    for name, setting in SETTINGS.items()
    for moment in MOMENTS
    if (setting.validates or "validation" not in moment)
    and (name in IN_ALL or moment in ("batch", "last_batch", "epoch"))
]


@pytest.fixture(autouse=True)
def no_noise() -> Iterator[None]:
    """Warnings of Lightning's, and ours that say what its files lack; those have tests of their own below."""
    lightning()
    with quiet(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


@cache
def whole(name: str) -> End:
    """The run that was not cut off; both libraries' is the same."""
    return exchange.run(GPULAYER, Path("unused"), SETTINGS[name])


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str, str, str], Path]:
    """The folder with the checkpoint that a library wrote."""

    @cache
    def write(library: str, name: str, moment: str) -> Path:
        folder = tmp_path_factory.mktemp("saved")
        exchange.run(library, folder, SETTINGS[name], MOMENTS[moment])
        return folder

    return write


def gone_on(reader: str, name: str, folder: Path) -> End | Exception:
    """The end of a run of `reader` that goes on from the checkpoint in a folder."""
    try:
        return exchange.run(reader, folder, SETTINGS[name], ckpt_path=folder / "saved.ckpt")
    except Exception as error:
        return error


def right(end: End | Exception, name: str) -> bool:
    """Whether the weights are those of the run that was not cut off, bit for bit."""
    return isinstance(end, End) and equal(end.weights, whole(name).weights)


# Where Lightning goes wrong with files of its own, too.
BEYOND_LIGHTNING = {
    *((name, moment) for name, moment in CASES if moment.startswith("begin")),  # leaves out the batch that was begun
    *((name, "batch") for name in ("adam", "momentum")),  # begins the loader anew, unless that knows its place
    *(("plateau", moment) for moment in MOMENTS if moment != "end"),  # leaves out the scheduler's next move
    *(("plateau_by_step", moment) for moment in ("batch", "last_batch", "before_validation", "after_validation")),
    ("accumulation", "third_batch"),  # loses the gradients
}


def lacks_its_metric(name: str, moment: str) -> bool:
    """Whether the scheduler's move that is due needs a metric, which a file of Lightning's does not hold."""
    return (name.startswith("plateau") and moment == "after_validation") or (name == "plateau" and moment == "epoch")


@pytest.mark.parametrize(("name", "moment"), CASES)
def test_we_go_on_from_a_file_of_lightnings(name: str, moment: str, saved: Callable[[str, str, str], Path]) -> None:
    """With the very next batch, to the same weights, though its counters lag (its issues 18060, 19367, 19815)."""
    end = gone_on(GPULAYER, name, saved(LIGHTNING, name, moment))
    assert isinstance(end, End), end
    expected = whole(name)
    assert end.seen == expected.seen[len(expected.seen) - len(end.seen) :]
    assert end.counts == expected.counts
    if lacks_its_metric(name, moment):
        return
    if name == "accumulation" and moment in ("third_batch", "begin_of_the_last_batch"):
        return  # it does not hold the gradients of the batches before
    assert equal(end.weights, expected.weights)
    assert equal(end.optimizers, expected.optimizers)
    assert equal(end.schedulers, expected.schedulers)


@pytest.mark.parametrize(("name", "moment"), CASES)
def test_lightning_goes_on_from_our_file(name: str, moment: str, saved: Callable[[str, str, str], Path]) -> None:
    """As if nothing had happened, but where it does not manage that with a file of its own either."""
    ours = gone_on(LIGHTNING, name, saved(GPULAYER, name, moment))
    assert right(ours, name) == ((name, moment) not in BEYOND_LIGHTNING)
    if (name, moment) in BEYOND_LIGHTNING:
        own = gone_on(LIGHTNING, name, saved(LIGHTNING, name, moment))
        assert not right(own, name)
        assert isinstance(ours, End) or isinstance(own, Exception)
    else:
        assert isinstance(ours, End)
        assert ours.counts == whole(name).counts


def scaled(L: ModuleType) -> dict[str, Any]:
    """float16 with its scaler on the CPU; Lightning takes it only as an object."""
    if L is gpulayer.pytorch:
        return {"precision": "16-mixed"}
    from lightning.pytorch.plugins import MixedPrecision

    return {"plugins": [MixedPrecision("16-mixed", "cpu", torch.amp.GradScaler("cpu", init_scale=2.0**16))]}


@pytest.mark.parametrize(("writer", "reader"), [(LIGHTNING, GPULAYER), (GPULAYER, LIGHTNING)])
def test_the_scaler_of_float16(writer: str, reader: str, tmp_path: Path) -> None:
    setting = Setting(loader=STATEFUL, plugins=scaled)
    expected = exchange.run(LIGHTNING, tmp_path, setting)
    exchange.run(writer, tmp_path, setting, (BATCH, 2))
    state = torch.load(tmp_path / "saved.ckpt", weights_only=True)["MixedPrecision"]
    assert state["scale"] < 2**16  # the first steps overflowed
    end = exchange.run(reader, tmp_path, setting, ckpt_path=tmp_path / "saved.ckpt")
    assert equal(end.weights, expected.weights)


# -- callbacks ---------------------------------------------------------------------------------------------------------


def callbacks_of(L: ModuleType, folder: Path) -> list[Any]:
    import importlib

    made = importlib.import_module(f"{L.__name__}.callbacks")

    class Counts(L.Callback):  # type: ignore[misc, name-defined]
        def __init__(self, what: str) -> None:
            self.what, self.count = what, 0

        @property
        def state_key(self) -> str:
            return f"Counts[{self.what}]"

        def on_train_batch_end(self, *arguments: Any) -> None:
            self.count += 1

        def state_dict(self) -> dict[str, Any]:
            return {"count": self.count}

        def load_state_dict(self, state_dict: dict[str, Any]) -> None:
            self.count = state_dict["count"]

    return [
        made.EarlyStopping("val_loss", patience=5),
        made.EarlyStopping("loss", patience=4, check_on_train_epoch_end=True),
        made.ModelCheckpoint(folder / "best", filename="{epoch}", monitor="val_loss", save_top_k=2),
        made.ModelCheckpoint(folder / "all", filename="{step}", every_n_train_steps=3, save_top_k=-1),
        made.Timer({"hours": 1}),
        Counts("one"),
        Counts("other"),
    ]


def states_of(callbacks: list[Any]) -> list[dict[str, Any]]:
    """Without what each library says in its own words, and the seconds."""
    states = [dict(callback.state_dict()) for callback in callbacks]
    for state in states:
        state.pop("stopping_reason_message", None)
        state.pop("time_elapsed", None)
        for name, value in state.items():
            if isinstance(value, torch.Tensor):  # the two keep metrics in 32 and in 64 bits
                state[name] = round(float(value), 5)
        if "best_k_models" in state:
            state["best_k_models"] = {path: round(float(score), 5) for path, score in state["best_k_models"].items()}
    return states


@pytest.mark.parametrize(("writer", "reader"), [(LIGHTNING, GPULAYER), (GPULAYER, LIGHTNING)])
@pytest.mark.parametrize("moment", [(BATCH, 2), (EPOCH, 2)], ids=["mid_epoch", "epoch"])
def test_states_of_callbacks(writer: str, reader: str, moment: tuple[str, int], tmp_path: Path) -> None:
    """Several of one class, each with its own; nothing is missing, and they end as in the run that was not cut off."""
    setting = Setting(validates=True, loader=STATEFUL, epochs=3)
    libraries = {LIGHTNING: lightning(), GPULAYER: gpulayer.pytorch}

    def run(library: str, folder: Path, **arguments: Any) -> tuple[End, list[dict[str, Any]]]:
        callbacks = callbacks_of(libraries[library], folder)
        end = exchange.run(library, folder, setting, callbacks=callbacks, **arguments)
        return end, states_of(callbacks)

    end, states = run(reader, tmp_path / "whole")
    run(writer, tmp_path, moment=moment)
    for file in (tmp_path / "best").glob("*"):
        if moment[0] == BATCH:
            file.unlink()
    other, found = run(reader, tmp_path, ckpt_path=tmp_path / "saved.ckpt")
    assert equal(other.weights, end.weights)
    for expected, state in zip(states, found, strict=True):
        expected = {name: moved(value, tmp_path / "whole", tmp_path) for name, value in expected.items()}
        if "best_k_models" in state:  # the file of a moment counts under the name that it has
            state, expected = ({"best": one["best_model_score"]} for one in (state, expected))
        assert state == expected


def moved(value: Any, old: Path, new: Path) -> Any:
    if isinstance(value, dict):
        return {moved(key, old, new): moved(entry, old, new) for key, entry in value.items()}
    return value.replace(str(old), str(new)) if isinstance(value, str) else value


# -- what loads where --------------------------------------------------------------------------------------------------


def test_torch_alone_loads_our_file(tmp_path: Path) -> None:
    """All that we write is plain: a process that never heard of this library loads it by torch's defaults."""
    setting = Setting(validates=True, loader=TORCHDATA, trainer={"accumulate_grad_batches": 2}, scheduler=PLATEAU)
    callbacks = callbacks_of(gpulayer.pytorch, tmp_path)
    exchange.run(GPULAYER, tmp_path, setting, (BATCH, 7), callbacks=callbacks)
    code = (
        "import sys, torch; c = torch.load(sys.argv[1], weights_only=True); "
        "assert not any('gpulayer' in name or 'lightning' in name for name in sys.modules); print(sorted(c))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path / "saved.ckpt")], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "'gpulayer'" in done.stdout


def hyperparameters(kind: str) -> dict[str, Any]:
    from argparse import Namespace

    if kind == "omegaconf":
        omegaconf = pytest.importorskip("omegaconf")
        return {"conf": omegaconf.OmegaConf.create({"width": 3, "parts": {"rate": 0.5, "names": ["a", "b"]}})}
    values = {
        "plain": {"width": 3, "name": "x", "rates": [0.1, 0.2], "shape": (1, 2), "on": True, "none": None},
        "nested": {"width": 3, "parts": {"rate": 0.5, "more": {"names": ["a", "b"]}}},
        "namespace": {"conf": Namespace(width=3, rate=0.5)},
    }
    return values[kind]


def net_of(L: ModuleType, kind: str) -> Any:
    one_object = kind in ("namespace", "omegaconf")

    class One(L.LightningModule):  # type: ignore[misc, name-defined]
        def __init__(self, conf: Any) -> None:
            super().__init__()
            self.save_hyperparameters(conf)
            self.net = torch.nn.Linear(FEATURES, conf.width)

    class Several(L.LightningModule):  # type: ignore[misc, name-defined]
        def __init__(self, width: int, **more: Any) -> None:
            super().__init__()
            self.save_hyperparameters()
            self.net = torch.nn.Linear(FEATURES, width)

    class Trains(One if one_object else Several):  # type: ignore[misc, valid-type]
        def training_step(self, batch: Any, batch_idx: int) -> Any:
            return self.net(batch[0]).mean()

        def configure_optimizers(self) -> Any:
            return torch.optim.SGD(self.parameters(), lr=0.1)

    return Trains


FEATURES = exchange.FEATURES


@pytest.mark.parametrize(("writer", "reader"), [(LIGHTNING, GPULAYER), (GPULAYER, LIGHTNING)])
@pytest.mark.parametrize("kind", ["plain", "nested", "namespace", "omegaconf"])
@pytest.mark.parametrize("weights_only", [False, True], ids=["whole", "weights"])
def test_load_from_checkpoint(writer: str, reader: str, kind: str, weights_only: bool, tmp_path: Path) -> None:
    """The same hyperparameters and weights, also from a file of weights only."""
    libraries = {LIGHTNING: lightning(), GPULAYER: gpulayer.pytorch}
    L, given = libraries[writer], hyperparameters(kind)
    module = net_of(L, kind)(**given)
    trainer = L.Trainer(max_epochs=1, accelerator="cpu", logger=False, enable_checkpointing=False, barebones=False)
    trainer.fit(module, exchange.training_loader(exchange.PLAIN))
    trainer.save_checkpoint(tmp_path / "net.ckpt", weights_only=weights_only)
    pickled = kind == "omegaconf" and reader == LIGHTNING  # which it loads from no file by its defaults
    more = {"weights_only": False} if pickled else {}
    loaded = net_of(libraries[reader], kind).load_from_checkpoint(tmp_path / "net.ckpt", **more)
    assert equal(dict(loaded.state_dict()), dict(module.state_dict()))
    assert dict(loaded.hparams) == dict(module.hparams)


# -- what we say of files that lack something --------------------------------------------------------------------------


def told(setting: Setting, moment: tuple[str, int], folder: Path, loader: Any = None) -> list[str]:
    exchange.run(LIGHTNING, folder, setting, moment)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        exchange.run(GPULAYER, folder, setting, ckpt_path=folder / "saved.ckpt")
    return [str(one.message) for one in caught]


def test_gradients_that_a_file_lacks_are_named(tmp_path: Path) -> None:
    messages = told(Setting(trainer={"accumulate_grad_batches": 2}), (BATCH, 3), tmp_path)
    assert any("in the middle of an accumulated step" in message for message in messages)


def test_an_order_that_a_file_lacks_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def shuffled(kind: str) -> Any:
        return torch.utils.data.DataLoader(exchange.dataset(), batch_size=exchange.SIZE, shuffle=True)

    monkeypatch.setattr(exchange, "training_loader", shuffled)
    assert any("shuffled anew" in message for message in told(Setting(), (BATCH, 2), tmp_path))
    assert not any("shuffled anew" in message for message in told(Setting(), (EPOCH, 1), tmp_path / "epoch"))


def test_a_move_that_lacks_its_metric_is_left_out(tmp_path: Path) -> None:
    messages = told(SETTINGS["plateau"], (EPOCH, 1), tmp_path)
    assert any("ReduceLROnPlateau watches 'val_loss', which was not logged" in message for message in messages)

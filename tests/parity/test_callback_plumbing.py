"""Which callbacks a Trainer has and in which order, and what becomes of their states: as in Lightning."""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import lightning.pytorch.callbacks as lightnings
import pytest

import gpulayer.pytorch as gpulayer
from gpulayer.fabric.utilities.exceptions import MisconfigurationException
from tests.parity.oracle import GPULAYER, LIGHTNING, outcome_of
from tests.parity.recorder import Lab, Outcome, loader

BARS = {
    "TQDMProgressBar": "a bar",
    "RichProgressBar": "a bar",
    "ModelSummary": "a table",
    "RichModelSummary": "a table",
}


def names(trainer: Any) -> list[str]:
    """The classes; which bar and which table are the default ones, the libraries do not agree on."""
    return [BARS.get(type(one).__name__, type(one).__name__) for one in trainer.callbacks]


def both(scenario: Callable[[ModuleType, Path], Outcome], folder: Path) -> tuple[Outcome, Outcome]:
    return outcome_of(LIGHTNING, scenario, folder / "theirs"), outcome_of(GPULAYER, scenario, folder / "ours")


# -- order -------------------------------------------------------------------------------------------------------------

ORDERS: dict[str, tuple[list[Any], dict[str, Any]]] = {
    "nothing": ([], {"enable_checkpointing": False}),
    "defaults": ([], {}),
    "everything_by_arguments": (
        [],
        {"enable_progress_bar": True, "enable_model_summary": True, "max_time": "00:01:00:00"},
    ),
    "given_and_everything": (
        [("Callback",), ("EarlyStopping", "x")],
        {"enable_progress_bar": True, "enable_model_summary": True, "max_time": {"hours": 1}},
    ),
    "savers_among_others": (
        [("ModelCheckpoint",), ("EarlyStopping", "x"), ("OnExceptionCheckpoint", "."), ("Callback",)],
        {"enable_model_summary": True},
    ),
    "two_savers": ([("ModelCheckpoint", ".", "a"), ("Callback",), ("ModelCheckpoint", ".", "b", "x")], {}),
    "a_bar_and_a_table_given": (
        [("ModelSummary",), ("TQDMProgressBar",), ("Timer", "00:01:00:00")],
        {"enable_progress_bar": True, "enable_model_summary": True, "max_time": "00:02:00:00"},
    ),
    "finders_first": (
        [("EarlyStopping", "x"), ("LearningRateFinder",), ("ModelCheckpoint",), ("BatchSizeFinder",)],
        {"enable_progress_bar": True},
    ),
    "only_a_saver_of_exceptions": ([("OnExceptionCheckpoint", "."), ("Callback",)], {}),
    "several_of_a_class": ([("EarlyStopping", "x"), ("Callback",), ("EarlyStopping", "y")], {}),
}


@pytest.mark.filterwarnings("ignore:`Trainer\\(max_time=...\\)` is ignored")
@pytest.mark.parametrize("name", ORDERS)
def test_order(name: str, tmp_path: Path) -> None:
    given, arguments = ORDERS[name]

    def scenario(L: ModuleType, folder: Path) -> Outcome:
        lab = Lab(L, folder)
        callbacks = [getattr(lab.callbacks, kind)(*values) for kind, *values in given]
        used = lab.trainer(callbacks=callbacks, **({"enable_checkpointing": True} | arguments))
        return Outcome(notes={"names": names(used)})

    theirs, ours = both(scenario, tmp_path)
    assert ours.notes == theirs.notes


# -- configure_callbacks -----------------------------------------------------------------------------------------------

BROUGHT: dict[str, tuple[list[Any], Any]] = {
    "one": ([], ("LambdaCallback",)),
    "several": ([], [("LambdaCallback",), ("EarlyStopping", "train_loss")]),
    "same_class": ([("EarlyStopping", "x"), ("LambdaCallback",)], [("EarlyStopping", "train_loss")]),
    "all_of_a_class": ([("EarlyStopping", "x"), ("EarlyStopping", "y")], [("EarlyStopping", "train_loss")]),
    "subclass": ([("EarlyStopping", "x"), ("LambdaCallback",)], [("Stopper", "train_loss")]),
    "superclass": ([("Stopper", "train_loss", 0.5)], [("EarlyStopping", "train_loss")]),
    "saver_in_place_of_the_default": ([], [("ModelCheckpoint", None, "mine"), ("LambdaCallback",)]),
    "other_saver": ([], [("OnExceptionCheckpoint", ".")]),
    "nothing": ([("LambdaCallback",)], []),
    "none": ([("LambdaCallback",)], None),
}


@pytest.mark.parametrize("name", BROUGHT)
def test_callbacks_of_the_module(name: str, tmp_path: Path) -> None:
    """In each of the four calls; which of them stay, by what they watch, and the order."""
    given, brought = BROUGHT[name]

    def scenario(L: ModuleType, folder: Path) -> Outcome:
        lab = Lab(L, folder)
        kinds = {"Stopper": type("Stopper", (lab.callbacks.EarlyStopping,), {})}

        def make(entry: Any) -> Any:
            kind, *values = entry
            return (kinds.get(kind) or getattr(lab.callbacks, kind))(*values)

        class Net(lab.Net):
            def training_step(self, batch: Any, batch_idx: int) -> Any:
                loss = super().training_step(batch, batch_idx)
                self.log("train_loss", loss["loss"] if isinstance(loss, dict) else loss)
                return loss

            def configure_callbacks(self) -> Any:
                super().configure_callbacks()
                return [make(one) for one in brought] if isinstance(brought, list) else brought and make(brought)

        module = Net()
        used = lab.trainer(callbacks=[make(one) for one in given], enable_checkpointing=True, max_epochs=1)
        found = []
        used.fit(module, loader(2))
        for call in (None, used.validate, used.test):
            if call is not None:
                call(module, loader(1), verbose=False)
            found.append([(type(one).__name__, getattr(one, "monitor", None)) for one in used.callbacks])
        return Outcome(events=lab.journal.events, notes={"found": found})

    theirs, ours = both(scenario, tmp_path)
    assert ours.notes == theirs.notes
    assert ours.events.count("module.configure_callbacks") == theirs.events.count("module.configure_callbacks") == 3


# -- states and joining ------------------------------------------------------------------------------------------------


def counter(lab: Lab, who: str) -> Any:
    """A recorded callback with a state of its own."""

    class Counts(lab.callback_class(who)):
        batches = 0

        def on_train_batch_end(self, *args: Any) -> None:
            super().on_train_batch_end(*args)
            self.batches += 1

        def state_dict(self) -> dict[str, Any]:
            super().state_dict()
            return {"batches": self.batches}

        def load_state_dict(self, state_dict: dict[str, Any]) -> None:
            super().load_state_dict(state_dict)
            self.batches = state_dict["batches"]

    return Counts()


@pytest.mark.parametrize("moment", ["callback", "given"])
def test_a_callback_that_a_callback_adds_in_setup(moment: str, tmp_path: Path) -> None:
    """All of its hooks in the same order, in a run and in the one that goes on with it; or as if it had been given."""

    def scenario(L: ModuleType, folder: Path) -> Outcome:
        lab, found = Lab(L, folder), []
        for epochs in (1, 2):
            added = counter(lab, "added")

            class Adds(lab.callback_class("first")):
                def setup(self, trainer: Any, pl_module: Any, stage: str) -> None:
                    super().setup(trainer, pl_module, stage)
                    if moment == "callback":
                        trainer.callbacks.append(added)  # noqa: B023

            used = lab.trainer(callbacks=[Adds()] + [added] * (moment == "given"), max_epochs=epochs)
            used.fit(lab.Net(), loader(3), ckpt_path=folder / "saved.ckpt" if epochs == 2 else None)
            used.save_checkpoint(folder / "saved.ckpt")
            found.append((added.batches, [type(one).__name__ for one in used.callbacks]))
        return lab.outcome(used, used.lightning_module, found=found)

    theirs, ours = both(scenario, tmp_path)
    assert ours.notes == theirs.notes
    assert ours.events == theirs.events


def test_lightning_takes_the_states_that_we_keep(tmp_path: Path) -> None:
    """A callback that was away for an epoch of ours goes on in Lightning, where its state would be lost."""

    def run(library: str, epochs: int, with_it: bool) -> int:
        def scenario(L: ModuleType, folder: Path) -> Outcome:
            lab = Lab(L, folder)
            one = counter(lab, "one")
            used = lab.trainer(callbacks=[one, counter(lab, "two")] if with_it else [], max_epochs=epochs)
            path = tmp_path / "saved.ckpt"
            used.fit(lab.Net(), loader(3), ckpt_path=path if path.exists() else None)
            used.save_checkpoint(path)
            return Outcome(notes={"batches": one.batches})

        return int(outcome_of(library, scenario, tmp_path).notes["batches"])

    assert run(LIGHTNING, 1, True) == 3
    run(GPULAYER, 2, False)
    assert run(GPULAYER, 3, True) == 6
    run(GPULAYER, 4, False)
    assert run(LIGHTNING, 5, True) == 9
    run(LIGHTNING, 6, False)
    assert run(GPULAYER, 7, True) == 3


# -- mistakes, and the class itself ------------------------------------------------------------------------------------


@pytest.mark.parametrize("library", [LIGHTNING, GPULAYER])
@pytest.mark.parametrize("kind", ["EarlyStopping", "ModelCheckpoint", "own"])
def test_two_with_one_key_are_refused_when_the_trainer_is_made(library: str, kind: str, tmp_path: Path) -> None:
    def scenario(L: ModuleType, folder: Path) -> Outcome:
        lab = Lab(L, folder)
        make = {
            "EarlyStopping": lambda: lab.callbacks.EarlyStopping("x"),
            "ModelCheckpoint": lambda: lab.callbacks.ModelCheckpoint(folder),
            "own": lambda: counter(lab, "who"),
        }[kind]
        lab.trainer(callbacks=[make(), make()], enable_checkpointing=True)
        return Outcome()

    with pytest.raises((RuntimeError, MisconfigurationException), match=r"state.key|stateful"):
        outcome_of(library, scenario, tmp_path)


class Stranger(lightnings.Callback):
    """Written for Lightning."""


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (
            lambda: lightnings.EarlyStopping("x"),
            "holds EarlyStopping of Lightning: import EarlyStopping from `gpulayer.pytorch.callbacks`, not from "
            "`lightning.pytorch.callbacks`.",
        ),
        (lambda: [lightnings.ModelSummary], "holds ModelSummary of Lightning: import ModelSummary from"),
        (
            lambda: [Stranger()],
            f"holds Stranger of Lightning, whose class (of the module {__name__!r}) extends Lightning's own: import "
            "Callback from `gpulayer.pytorch.callbacks`, not from `lightning.pytorch.callbacks`.",
        ),
    ],
    ids=["early_stopping", "class", "own"],
)
def test_callbacks_of_lightning(make: Any, words: str) -> None:
    """The error says which import to change."""
    with pytest.raises(MisconfigurationException) as caught:
        gpulayer.Trainer(callbacks=make())
    assert words in str(caught.value)

    class Net(gpulayer.LightningModule):
        def configure_callbacks(self) -> Any:
            return make()

        def training_step(self, batch: Any, batch_idx: int) -> None: ...

        def configure_optimizers(self) -> None: ...

    with pytest.raises(MisconfigurationException) as caught:
        gpulayer.Trainer(accelerator="cpu", logger=False, enable_checkpointing=False).fit(Net(), loader(1))
    assert words in str(caught.value)


def test_the_class_has_the_same_methods() -> None:
    ours, theirs = (importlib.import_module(f"{L}.callbacks").Callback for L in (GPULAYER, LIGHTNING))
    for name, method in vars(theirs).items():
        if inspect.isfunction(method) and (not name.startswith("_") or name == "_generate_state_key"):
            expected, found = (list(inspect.signature(getattr(one, name)).parameters) for one in (theirs, ours))
            assert found == expected or name == "_generate_state_key", name
    one, other = type("Mine", (ours,), {})(), type("Mine", (theirs,), {})()
    assert one.state_key == other.state_key
    settings = {"text": "a", "number": 1.5, "nothing": None, "list": [1, "b"]}
    assert one._generate_state_key(**settings) == other._generate_state_key(**settings)
    assert one.state_dict() == other.state_dict() == {}

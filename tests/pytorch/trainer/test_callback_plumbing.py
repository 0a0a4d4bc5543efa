"""Which callbacks a run has: those that the Trainer is given, that the module brings, that join; and their states."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import Any

import pytest
import torch

import gpulayer.pytorch as L
from gpulayer.fabric.utilities.exceptions import MisconfigurationException
from gpulayer.pytorch.callbacks import (
    EarlyStopping,
    LambdaCallback,
    ModelCheckpoint,
    ModelSummary,
    OnExceptionCheckpoint,
    ProgressBar,
    RichProgressBar,
    TQDMProgressBar,
)
from tests.pytorch.models import Line, Validated, loader, trainer

GONE = "The checkpoint holds the state of callbacks that this Trainer lacks"


class Counter(L.Callback):
    """Counts batches, under a name; notes what is done to it."""

    def __init__(self, name: str = "counter") -> None:
        self.name, self.batches = name, 0
        self.seen: list[str] = []

    @property
    def state_key(self) -> str:
        return self._generate_state_key(name=self.name)

    def setup(self, trainer: Any, pl_module: Any, stage: str) -> None:
        self.seen.append(f"setup {stage}")

    def teardown(self, trainer: Any, pl_module: Any, stage: str) -> None:
        self.seen.append(f"teardown {stage}")

    def on_load_checkpoint(self, trainer: Any, pl_module: Any, checkpoint: dict[str, Any]) -> None:
        self.seen.append("on_load_checkpoint")

    def on_train_batch_end(self, *args: Any) -> None:
        self.batches += 1

    def state_dict(self) -> dict[str, Any]:
        return {"batches": self.batches}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.seen.append("load_state_dict")
        self.batches = state_dict["batches"]


class Brings(Validated):
    """Its `configure_callbacks` returns what it was given."""

    def __init__(self, brought: Any) -> None:
        super().__init__()
        self.brought = brought

    def configure_callbacks(self) -> Any:
        return self.brought() if callable(self.brought) else self.brought


def states(path: str) -> dict[str, Any]:
    found: dict[str, Any] = torch.load(path)["callbacks"]
    return found


# -- Trainer(callbacks=...) --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("several", [list, tuple, iter], ids=["list", "tuple", "iterator"])
def test_several_callbacks_in_any_form(several: Any) -> None:
    given = [Counter("one"), Counter("two")]
    assert L.Trainer(callbacks=several(given), enable_checkpointing=False).callbacks == given


def test_one_callback_and_none() -> None:
    one = Counter()
    assert L.Trainer(callbacks=one, enable_checkpointing=False).callbacks == [one]
    assert L.Trainer(callbacks=None, enable_checkpointing=False).callbacks == []
    assert L.Trainer(callbacks=[], enable_checkpointing=False).callbacks == []


def test_a_list_that_was_given_is_not_changed() -> None:
    given = [Counter()]
    L.Trainer(callbacks=given, enable_model_summary=True)
    assert len(given) == 1


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ([Counter], "holds the class Counter: give an object of it, `Counter(...)`"),
        (Counter, "holds the class Counter"),
        ([Counter(), 3], "holds 3, of int: give objects of subclasses of `gpulayer.pytorch.Callback`"),
        ("early_stopping", "holds 'early_stopping', of str"),
        ([[Counter()]], r"of list: give objects"),
        ([None], "holds None, of NoneType"),
        ({"stop": Counter()}, "holds 'stop', of str"),
    ],
    ids=["class", "class_alone", "number", "text", "list_in_list", "none_in_list", "dict"],
)
def test_what_is_no_callback(given: Any, words: str) -> None:
    with pytest.raises(MisconfigurationException) as caught:
        L.Trainer(callbacks=given)
    assert str(caught.value).startswith("`Trainer(callbacks=...)` holds")
    assert words in str(caught.value)


def test_what_is_no_callback_of_a_module() -> None:
    for brought, words in (([EarlyStopping], "the class EarlyStopping"), (3, "3, of int")):
        with pytest.raises(MisconfigurationException) as caught:
            trainer().fit(Brings(brought), loader(), loader())
        assert str(caught.value).startswith(f"What `Brings.configure_callbacks` returned holds {words}")


class First(L.Callback):
    comes_first = True


def test_order() -> None:
    """As given, but those first that want to be, and savers last; what arguments ask for comes after what was given."""
    saver, rescuer, first, counter = ModelCheckpoint("saved"), OnExceptionCheckpoint("saved"), First(), Counter()
    used = L.Trainer(
        callbacks=[saver, counter, rescuer, first],
        max_time="00:01:00:00",
        enable_progress_bar=True,
        enable_model_summary=True,
    )
    assert used.callbacks[:2] == [first, counter]
    assert used.callbacks[-2:] == [saver, rescuer]
    assert [type(one).__name__ for one in used.callbacks[2:-2]] == ["Timer", "TQDMProgressBar", "ModelSummary"]


# -- several of one class ----------------------------------------------------------------------------------------------


def test_each_of_several_has_its_own_state() -> None:
    saver = ModelCheckpoint("saved", save_last=True)
    trainer(max_epochs=1, callbacks=[Counter("one"), Counter("two"), saver]).fit(Line(), loader(4))
    kept = states("saved/last.ckpt")
    assert kept["Counter{'name': 'one'}"] == kept["Counter{'name': 'two'}"] == {"batches": 4}
    checkpoint = torch.load("saved/last.ckpt")
    checkpoint["callbacks"]["Counter{'name': 'two'}"]["batches"] = 100
    torch.save(checkpoint, "changed.ckpt")
    two, one = Counter("two"), Counter("one")  # in another order
    trainer(max_epochs=2, callbacks=[two, one, ModelCheckpoint("saved")]).fit(
        Line(), loader(4), ckpt_path="changed.ckpt"
    )
    assert (one.batches, two.batches) == (8, 104)


@pytest.mark.parametrize("make", [Counter, lambda: EarlyStopping("x"), ModelCheckpoint], ids=["own", "stop", "save"])
def test_two_with_one_key(make: Any) -> None:
    """Told when the Trainer is made; of those that a module brings, before anything is set up."""
    with pytest.raises(MisconfigurationException, match="Two callbacks have the state key") as caught:
        L.Trainer(callbacks=[make(), make()])
    for words in (type(make()).__name__, "Remove one", "`state_key`"):
        assert words in str(caught.value)
    witness = Counter("witness")
    with pytest.raises(MisconfigurationException, match="Two callbacks have the state key"):
        trainer(callbacks=[witness]).fit(Brings([make(), make()]), loader(), loader())
    assert witness.seen == []


def test_two_without_state_may_share_a_key() -> None:
    used = trainer(callbacks=[LambdaCallback(), LambdaCallback()])
    used.fit(Line(), loader(1))


# -- configure_callbacks -----------------------------------------------------------------------------------------------


class Patient(EarlyStopping):
    """A subclass of the user's."""


def test_a_callback_of_the_module_replaces_those_of_its_class(caplog: pytest.LogCaptureFixture) -> None:
    """All of them, and those of the classes that it extends, but none of a class that extends its own."""
    caplog.set_level(logging.INFO, logger="gpulayer")
    brought = Patient("val_loss")
    own = [EarlyStopping("a"), Counter(), EarlyStopping("b"), Patient("c")]
    used = trainer(callbacks=own, max_epochs=1)
    used.fit(Brings([brought]), loader(), loader())
    assert used.callbacks == [own[1], brought]
    assert "`Brings.configure_callbacks` replaces callbacks of the Trainer: EarlyStopping, Patient." in caplog.text
    caplog.clear()
    used = trainer(callbacks=[Patient("val_loss", min_delta=0.5)], max_epochs=1)
    used.fit(Brings(EarlyStopping("train_loss")), loader(), loader())
    assert [type(one) for one in used.callbacks] == [Patient, EarlyStopping]
    assert "replaces" not in caplog.text


def test_a_plain_callback_is_replaced_by_none() -> None:
    used = trainer(callbacks=[L.Callback()])
    used.fit(Brings([Counter()]), loader(), loader())
    assert [type(one) for one in used.callbacks] == [L.Callback, Counter]


@pytest.mark.parametrize(
    "form", [lambda one: one, lambda one: [one], lambda one: (one,), lambda one: iter([one])], ids=range(4)
)
def test_forms_that_configure_callbacks_may_return(form: Any) -> None:
    one = Counter()
    used = trainer()
    used.fit(Brings(form(one)), loader(), loader())
    assert used.callbacks == [one]
    assert one.batches == 4


@pytest.mark.parametrize("nothing", [None, [], ()], ids=["none", "list", "tuple"])
def test_configure_callbacks_may_return_nothing(nothing: Any) -> None:
    own = Counter()
    used = trainer(callbacks=[own])
    used.fit(Brings(nothing), loader(), loader())
    assert used.callbacks == [own]


def test_savers_of_the_module_come_last_too() -> None:
    saver, counter = ModelCheckpoint("saved"), Counter()
    used = L.Trainer(max_epochs=1, logger=False, callbacks=[EarlyStopping("val_loss")])
    used.fit(Brings([saver, counter]), loader(), loader())
    assert [type(one) for one in used.callbacks] == [EarlyStopping, Counter, ModelCheckpoint]
    assert used.checkpoint_callback is saver  # in place of the default one
    assert saver.best_model_path


def test_there_is_one_progress_bar() -> None:
    used = L.Trainer(max_epochs=1, logger=False, enable_checkpointing=False, enable_progress_bar=True)
    used.fit(Brings([RichProgressBar()]), loader(), loader())
    assert [type(one) for one in used.callbacks if isinstance(one, ProgressBar)] == [RichProgressBar]


def test_asked_for_in_every_call_and_what_they_replaced_comes_back() -> None:
    """A module without callbacks is trained with the Trainer's own, in their places."""
    calls: list[str] = []

    def make() -> list[L.Callback]:
        calls.append(model.trainer.state.fn.value)
        return [EarlyStopping("val_loss"), Counter()]

    own = [EarlyStopping("train_loss"), ModelSummary(), Counter("own")]
    model, used = Brings(make), trainer(callbacks=own)
    used.fit(model, loader(), loader())
    used.validate(model, loader(), verbose=False)
    used.test(model, loader(), verbose=False)
    used.predict(model, loader())
    assert calls == ["fit", "validate", "test", "predict"]
    assert [type(one) for one in used.callbacks] == [ModelSummary, EarlyStopping, Counter]
    used.fit(Validated(), loader(), loader())
    assert used.callbacks == own
    used.fit(model, loader(), loader())
    used.callbacks = [late := Counter("late")]  # the user's word is the last
    used.validate(Validated(), loader(), verbose=False)
    assert used.callbacks == [late]


def test_the_best_checkpoint_is_known_after_any_evaluation() -> None:
    """Whose module brings the saver anew each time."""
    model = Brings(lambda: [ModelCheckpoint("saved", monitor="val_loss", save_top_k=1)])
    used = L.Trainer(max_epochs=2, logger=False)
    used.fit(model, loader(), loader())
    best = used.checkpoint_callback.best_model_path
    used.validate(model, loader(), verbose=False)
    used.test(model, loader(), ckpt_path="best", verbose=False)
    assert used.ckpt_path == used.checkpoint_callback.best_model_path == best


# -- states of callbacks that are gone ---------------------------------------------------------------------------------


def save(*callbacks: L.Callback, epochs: int, ckpt_path: str | None = None) -> L.Trainer:
    saver = ModelCheckpoint("saved", save_last=True, every_n_train_steps=1)
    used = trainer(max_epochs=epochs, callbacks=[*callbacks, saver])
    used.fit(Line(), loader(4), ckpt_path=ckpt_path)
    return used


def test_the_state_of_a_callback_that_is_gone_is_kept() -> None:
    """Told once, by name; when the callback comes back in a later run it goes on with it."""
    save(Counter("a"), Counter("b"), epochs=1)
    with pytest.warns(UserWarning, match=GONE) as told:
        second = save(Counter("b"), epochs=2, ckpt_path="saved/last.ckpt")
    assert len(told) == 1
    assert "[\"Counter{'name': 'a'}\"]" in str(told[0].message)
    assert "saved again in the checkpoints of this run" in str(told[0].message)
    kept = states("saved/last.ckpt")
    assert kept["Counter{'name': 'a'}"] == {"batches": 4}
    assert kept["Counter{'name': 'b'}"] == {"batches": 8}
    second.save_checkpoint("by_hand.ckpt")
    by_hand = states("by_hand.ckpt")
    assert all(by_hand[Counter(name).state_key] == kept[Counter(name).state_key] for name in "ab")
    with pytest.warns(UserWarning, match=GONE):
        save(epochs=3, ckpt_path="saved/last.ckpt")
    back = Counter("a")
    with pytest.warns(UserWarning, match="'b'"):
        save(back, epochs=4, ckpt_path="saved/last.ckpt")
    assert back.batches == 8
    assert states("saved/last.ckpt")["Counter{'name': 'a'}"] == {"batches": 8}


def test_a_saver_with_other_settings_is_gone_too() -> None:
    trainer(callbacks=[ModelCheckpoint("saved", save_last=True)]).fit(Line(), loader())
    other = ModelCheckpoint("saved", every_n_epochs=2)
    with pytest.warns(UserWarning, match=GONE):
        trainer(max_epochs=2, callbacks=[other]).fit(Line(), loader(), ckpt_path="saved/last.ckpt")
    kept = states(other.best_model_path)
    assert len(kept) == 2
    assert states("saved/last.ckpt").items() <= kept.items()


def test_a_file_of_weights_keeps_no_states() -> None:
    save(Counter("a"), epochs=1)
    with pytest.warns(UserWarning, match=GONE):
        used = save(epochs=2, ckpt_path="saved/last.ckpt")
    used.save_checkpoint("weights.ckpt", weights_only=True)
    assert "callbacks" not in torch.load("weights.ckpt")


@pytest.mark.parametrize("call", ["validate", "test", "predict"])
def test_an_evaluation_keeps_nothing(call: str) -> None:
    """It tells, but what a later `save_checkpoint` writes is of the training before."""
    save(Counter("a"), epochs=1)
    present, saver = Counter("b"), ModelCheckpoint("other", save_last=True)
    used = trainer(callbacks=[present, saver])
    model = Validated()
    used.fit(model, loader(2), loader())
    arguments = {} if call == "predict" else {"verbose": False}
    with pytest.warns(UserWarning, match=f"{GONE}.*It is not used; add them"):
        getattr(used, call)(model, loader(), ckpt_path="saved/last.ckpt", **arguments)
    used.save_checkpoint("after.ckpt")
    assert set(states("after.ckpt")) == {present.state_key, saver.state_key}


def test_a_callback_that_is_there_again_in_a_second_fit_of_the_trainer() -> None:
    save(Counter("a"), epochs=1)
    with pytest.warns(UserWarning, match=GONE):
        used = save(epochs=2, ckpt_path="saved/last.ckpt")
    used.callbacks.append(back := Counter("a"))
    used.fit_loop.max_epochs = 3
    used.fit(Line(), loader(4))
    assert back.batches == 8
    assert states("saved/last.ckpt")[back.state_key] == {"batches": 8}


def test_the_state_under_the_bare_name_of_the_class() -> None:
    """As before Lightning 1.5, and of a class that has got a key since; it moves to the new key."""
    save(Counter("a"), epochs=1)
    checkpoint = torch.load("saved/last.ckpt")
    checkpoint["callbacks"]["Counter"] = checkpoint["callbacks"].pop("Counter{'name': 'a'}")
    torch.save(checkpoint, "old.ckpt")
    found = Counter("a")
    save(found, epochs=2, ckpt_path="old.ckpt")
    assert found.batches == 8
    assert "Counter" not in states("saved/last.ckpt")


# -- callbacks that are added and removed ------------------------------------------------------------------------------


class Adds(Line):
    """Adds a callback in one moment of every run."""

    def __init__(self, moment: str, added: L.Callback) -> None:
        super().__init__()
        self.moment, self.added = moment, added

    def add(self, moment: str) -> None:
        if moment == self.moment and self.added not in self.trainer.callbacks:
            self.trainer.callbacks.append(self.added)

    def setup(self, stage: str) -> None:
        self.add("setup")

    def configure_model(self) -> None:
        self.add("configure_model")

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        self.add("on_load_checkpoint")

    def configure_optimizers(self) -> Any:
        self.add("configure_optimizers")
        return super().configure_optimizers()

    def on_fit_start(self) -> None:
        self.add("on_fit_start")

    def on_train_epoch_start(self) -> None:
        self.add("on_train_epoch_start")


class AddsByCallback(L.Callback):
    def __init__(self, added: L.Callback) -> None:
        self.added = added

    def setup(self, trainer: Any, pl_module: Any, stage: str) -> None:
        trainer.callbacks.append(self.added)


EARLY = ["setup", "configure_model", "configure_optimizers"]


@pytest.mark.parametrize("moment", [*EARLY, "on_fit_start"])
def test_a_callback_that_joins_while_the_run_begins(moment: str) -> None:
    """It is set up like the others until `on_fit_start`, runs, and has its state again in a resumed run."""
    first, again, later = Counter("added"), Counter("added"), ["setup fit"] * (moment in EARLY)
    saver = ModelCheckpoint("saved", save_last=True)
    used = trainer(max_epochs=1, callbacks=[saver])
    used.fit(Adds(moment, first), loader(4))
    assert (first.batches, first.seen) == (4, [*later, "teardown fit"])
    assert used.callbacks == [first, saver]  # which saves what it did
    assert states("saved/last.ckpt")[first.state_key] == {"batches": 4}
    trainer(max_epochs=2, callbacks=[ModelCheckpoint("saved", save_last=True)]).fit(
        Adds(moment, again), loader(4), ckpt_path="saved/last.ckpt"
    )
    assert again.batches == 8
    assert again.seen == [*later, "on_load_checkpoint", "load_state_dict", "teardown fit"]


def test_a_callback_that_joins_when_the_checkpoint_is_loaded() -> None:
    save(Counter("added"), epochs=1)
    again = Counter("added")
    trainer(max_epochs=2, callbacks=[ModelCheckpoint("saved", every_n_train_steps=1)]).fit(
        Adds("on_load_checkpoint", again), loader(4), ckpt_path="saved/last.ckpt"
    )
    assert again.seen == ["setup fit", "on_load_checkpoint", "load_state_dict", "teardown fit"]
    assert again.batches == 8


def test_a_callback_that_joins_within_training_has_its_state_again() -> None:
    """Though it is set up in neither."""
    saver = {"save_last": True, "every_n_train_steps": 1}
    trainer(max_epochs=2, callbacks=[ModelCheckpoint("saved", **saver)]).fit(
        Adds("on_train_epoch_start", Counter("added")), loader(4)
    )
    assert states("saved/last.ckpt")["Counter{'name': 'added'}"] == {"batches": 8}
    again = Counter("added")
    with pytest.warns(UserWarning, match=GONE):
        trainer(max_epochs=4, callbacks=[ModelCheckpoint("saved", **saver)]).fit(
            Adds("on_train_epoch_start", again), loader(4), ckpt_path="saved/last.ckpt"
        )
    assert again.batches == 16
    assert states("saved/last.ckpt")["Counter{'name': 'added'}"] == {"batches": 16}


def test_a_callback_that_a_callback_adds() -> None:
    first = Counter("added")
    saver = ModelCheckpoint("saved", save_last=True)
    trainer(max_epochs=1, callbacks=[AddsByCallback(first), saver]).fit(Line(), loader(4))
    assert first.seen == ["setup fit", "teardown fit"]
    again = Counter("added")
    trainer(max_epochs=2, callbacks=[AddsByCallback(again), ModelCheckpoint("saved", save_last=True)]).fit(
        Line(), loader(4), ckpt_path="saved/last.ckpt"
    )
    assert again.batches == 8


def test_a_saver_that_joins_saves() -> None:
    for number, moment in enumerate([*EARLY, "on_fit_start"]):
        saver = ModelCheckpoint(f"saved{number}")
        trainer(max_epochs=1).fit(Adds(moment, saver), loader(4))
        assert torch.load(saver.best_model_path)["global_step"] == 4


def test_the_same_key_twice_by_adding() -> None:
    """As in a `setup` that adds a callback in every run without looking: before training."""

    class Careless(Line):
        def setup(self, stage: str) -> None:
            self.trainer.callbacks.append(Counter())

    used, model = trainer(max_epochs=1), Careless()
    used.fit(model, loader())
    used.test(model, loader(), verbose=False)  # where nothing is saved
    with pytest.raises(MisconfigurationException, match="must look whether they are in"):
        used.fit(model, loader())


@pytest.mark.parametrize("moment", ["on_fit_start", "on_train_epoch_start"])
def test_the_same_key_twice_by_a_later_hook(moment: str) -> None:
    """An error before training; training that has begun is not broken off."""

    def add(module: L.Module) -> None:
        module.trainer.callbacks += [Counter(), Counter()]

    model, used = type("Careless", (Line,), {moment: add})(), trainer(max_epochs=2)
    if moment == "on_fit_start":
        with pytest.raises(MisconfigurationException, match="Two callbacks have the state key"):
            used.fit(model, loader())
        assert used.global_step == 0
    else:
        used.fit(model, loader(2))
        assert used.global_step == 4


class Removes(Counter):
    """Removes some callbacks, or itself, in its `setup`."""

    def __init__(self, *removed: L.Callback) -> None:
        super().__init__("removes")
        self.removed = removed or (self,)

    def setup(self, trainer: Any, pl_module: Any, stage: str) -> None:
        super().setup(trainer, pl_module, stage)
        for one in self.removed:
            trainer.callbacks.remove(one)


def test_a_callback_that_removes_itself() -> None:
    """Each of the others is set up, once."""
    before, removes, after = Counter("before"), Removes(), Counter("after")
    used = trainer(max_epochs=1, callbacks=[before, removes, after])
    used.fit(Line(), loader(4))
    assert used.callbacks == [before, after]
    assert before.seen == after.seen == ["setup fit", "teardown fit"]
    assert (removes.seen, removes.batches, before.batches) == (["setup fit"], 0, 4)


def test_a_callback_that_removes_others() -> None:
    """One that comes after it is not set up any more; its state in a checkpoint is kept, as of any that is gone."""
    save(Counter("after"), epochs=1)
    before, after = Counter("before"), Counter("after")
    with pytest.warns(UserWarning, match=GONE):
        save(before, Removes(before, after), after, epochs=2, ckpt_path="saved/last.ckpt")
    assert (before.seen, after.seen) == (["setup fit"], [])
    assert states("saved/last.ckpt")[after.state_key] == {"batches": 4}


@dataclass
class Valued(L.Callback):
    """Callbacks that compare equal, and cannot be hashed."""

    value: int
    calls: int = 0

    def setup(self, trainer: Any, pl_module: Any, stage: str) -> None:
        self.calls += 1


def test_callbacks_that_are_equal_are_still_two() -> None:
    one, two = Valued(1), Valued(1)
    trainer(callbacks=[one, two]).fit(Line(), loader(1))
    assert (one.calls, two.calls) == (1, 1)


# -- what the hooks of saving and loading see --------------------------------------------------------------------------


class Watcher(L.Callback):
    """Notes the order of the hooks around a checkpoint, and what it holds then."""

    def __init__(self) -> None:
        self.seen: list[Any] = []

    def state_dict(self) -> dict[str, Any]:
        self.seen.append("state_dict")
        return {"of": "state_dict"}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.seen.append(("load_state_dict", dict(state_dict)))
        state_dict.clear()

    def on_save_checkpoint(self, trainer: Any, pl_module: Any, checkpoint: dict[str, Any]) -> None:
        self.seen.append(("on_save_checkpoint", checkpoint["callbacks"][self.state_key]))
        checkpoint["mine"] = 1

    def on_load_checkpoint(self, trainer: Any, pl_module: Any, checkpoint: dict[str, Any]) -> None:
        self.seen.append(("on_load_checkpoint", checkpoint["mine"], checkpoint["callbacks"][self.state_key]))


@pytest.fixture
def watched() -> L.Trainer:
    watcher = Watcher()
    used = trainer(max_epochs=1, callbacks=[watcher])
    used.fit(Line(), loader())
    used.save_checkpoint("watched.ckpt")
    assert watcher.seen == ["state_dict", ("on_save_checkpoint", {"of": "state_dict"})]
    return used


@pytest.mark.parametrize("call", ["fit", "test"])
def test_hooks_around_a_checkpoint(watched: L.Trainer, call: str) -> None:
    watcher = Watcher()
    used = trainer(max_epochs=2, callbacks=[watcher])
    getattr(used, call)(Line(), loader(), ckpt_path="watched.ckpt")
    state = {"of": "state_dict"}
    assert watcher.seen == [("on_load_checkpoint", 1, state), ("load_state_dict", state)]


def test_keys() -> None:
    assert L.Callback().state_key == "Callback"
    assert Watcher().state_key == "Watcher"
    assert Counter("a").state_key == "Counter{'name': 'a'}"
    assert Counter("a")._generate_state_key(b=1, c=None) == "Counter{'b': 1, 'c': None}"
    assert isinstance(TQDMProgressBar().state_key, str)

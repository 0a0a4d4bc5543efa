"""Callbacks that are added in a `setup` hook."""

from __future__ import annotations

from typing import Any

import gpulayer.pytorch as L
from tests.pytorch.models import Line, loader, trainer


class Late(L.Callback):
    """Notes what is called of it."""

    def __init__(self) -> None:
        self.calls: list[str] = []

    def setup(self, trainer: Any, pl_module: Any, stage: str) -> None:
        self.calls.append(f"setup {stage}")

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        self.calls.append("train start")

    def teardown(self, trainer: Any, pl_module: Any, stage: str) -> None:
        self.calls.append(f"teardown {stage}")


class Adds(L.Callback):
    """Adds another callback when it is set up."""

    def __init__(self, late: L.Callback) -> None:
        self.late = late

    def setup(self, trainer: Any, pl_module: Any, stage: str) -> None:
        trainer.callbacks.append(self.late)


def test_a_callback_added_in_setup_is_set_up() -> None:
    first, second = Late(), Late()
    used = trainer(callbacks=[Adds(first), Adds(second)])
    used.fit(Line(), loader())
    assert first.calls == second.calls == ["setup fit", "train start", "teardown fit"]


def test_one_that_a_datamodule_adds_in_its_setup() -> None:
    class Data(L.DataModule):
        def setup(self, stage: str) -> None:
            self.trainer.callbacks.append(late)

        def train_dataloader(self) -> Any:
            return loader()

    late = Late()
    trainer().fit(Line(), datamodule=Data())
    assert late.calls == ["setup fit", "train start", "teardown fit"]


def test_one_that_a_module_adds_in_its_setup() -> None:
    """The module's comes last, and what it adds is set up all the same."""

    class Brings(Line):
        def setup(self, stage: str) -> None:
            self.trainer.callbacks.append(late)

    late = Late()
    trainer().fit(Brings(), loader())
    assert late.calls == ["setup fit", "train start", "teardown fit"]

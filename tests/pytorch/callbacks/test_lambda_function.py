"""LambdaCallback: functions as hooks."""

from __future__ import annotations

import inspect
from typing import Any

import pytest

from gpulayer.fabric.utilities.exceptions import MisconfigurationException
from gpulayer.pytorch.callbacks import Callback, LambdaCallback
from gpulayer.pytorch.core.hooks import overridden
from tests.pytorch.models import Line, Validated, loader, trainer

HOOKS = list(inspect.signature(LambdaCallback.__init__).parameters)[1:]


def test_every_hook_of_a_callback_can_be_given() -> None:
    own = {name for name in vars(Callback) if name.startswith("on_") or name in ("setup", "teardown")}
    assert set(HOOKS) == own


def test_functions_are_called_with_what_a_hook_is_given() -> None:
    """All that come up in a fit, a test and a prediction, with their arguments; the rest when they come up."""
    seen: dict[str, Any] = {}

    def noting(name: str) -> Any:
        return lambda *args, **kwargs: seen.setdefault(name, (args, kwargs))

    callback = LambdaCallback(**{name: noting(name) for name in HOOKS})
    used, module = trainer(max_epochs=1, num_sanity_val_steps=1, callbacks=[callback]), Validated()
    used.fit(module, loader(), loader())
    used.save_checkpoint("one.ckpt")
    used.test(module, loader(), ckpt_path="one.ckpt", verbose=False)
    used.predict(module, loader())
    assert set(seen) == set(HOOKS) - {"on_exception"}
    assert all(args[:2] == (used, module) for args, _ in seen.values())
    assert seen["setup"][1] == {"stage": "fit"}
    assert seen["on_train_batch_end"][0][4] == 0
    with pytest.raises(TypeError):
        used.fit(module, loader(), [3])
    assert isinstance(seen["on_exception"][0][2], TypeError)


def test_a_hook_that_is_not_given_costs_nothing() -> None:
    callback = LambdaCallback(on_train_end=lambda trainer, module: None)
    assert [name for name in HOOKS if overridden(name, callback, Callback)] == ["on_train_end"]


def test_several_and_by_place() -> None:
    """As in `LambdaCallback(before, after)`."""
    seen: list[str] = []
    callbacks = [
        LambdaCallback(
            lambda *_, stage: seen.append(f"before {stage}"), lambda *_, stage: seen.append(f"after {stage}")
        ),
        LambdaCallback(on_train_epoch_end=lambda trainer, _: seen.append(f"epoch {trainer.current_epoch}")),
    ]
    trainer(max_epochs=2, callbacks=callbacks).fit(Line(), loader())
    assert seen == ["before fit", "epoch 0", "epoch 1", "after fit"]


def test_mistakes() -> None:
    with pytest.raises(MisconfigurationException, match=r"LambdaCallback\(on_fit_end='print'\)`: give a function"):
        LambdaCallback(on_fit_end="print")  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="on_epoch_end"):
        LambdaCallback(on_epoch_end=print)  # type: ignore[call-arg]

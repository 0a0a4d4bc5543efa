"""Module: copies, pickles, what it knows of its Trainer, and evaluation modes."""

from __future__ import annotations

import pickle
from copy import copy, deepcopy
from typing import Any

import pytest
import torch
from torch import nn

import gpulayer.pytorch as L
from tests.pytorch.models import FEATURES, Line, Validated, loader, same, trainer, weights


class Copies(L.Callback):
    """Copies and pickles the module while it trains."""

    def __init__(self) -> None:
        self.copies: list[Line] = []

    def on_train_batch_end(self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        if batch_idx == 1:
            self.before = weights(pl_module)
            self.copies = [deepcopy(pl_module), pickle.loads(pickle.dumps(pl_module)), copy(pl_module)]
            assert pl_module.trainer is trainer


def test_copies_of_a_module_that_trains() -> None:
    """A copy has the weights of that moment, drags no Trainer along, and can be trained on."""
    copies = Copies()
    model = Line()
    trainer(callbacks=[copies]).fit(model, loader())
    for one in copies.copies[:2]:
        assert same(weights(one), copies.before)
        assert one._trainer is None
        with pytest.raises(RuntimeError, match="not attached to a Trainer"):
            _ = one.trainer
    assert not same(weights(model), copies.before)
    again = trainer()
    again.fit(copies.copies[0], loader())
    assert again.global_step == 4


def test_a_trained_module_can_be_pickled_whole() -> None:
    """`torch.save(model)`, as people do it."""
    model = Line()
    trainer(logger=None).fit(model, loader())
    torch.save(model, "model.pt")
    loaded = torch.load("model.pt", weights_only=False)
    assert same(weights(loaded), weights(model))
    assert torch.equal(loaded(torch.ones(1, FEATURES)), model(torch.ones(1, FEATURES)))


def test_state_dict_is_that_of_the_layers() -> None:
    assert list(Line().state_dict()) == ["net.weight", "net.bias"]


def test_without_a_trainer() -> None:
    """A module is a plain nn.Module, and says so where it needs more."""
    model = Line()
    assert model(torch.ones(2, FEATURES)).shape == (2, 1)
    assert (model.current_epoch, model.global_step, model.global_rank, model.logger, model.loggers) == (
        0,
        0,
        0,
        None,
        [],
    )
    with pytest.raises(RuntimeError, match=r"pass it to `trainer\.fit` first"):
        _ = model.trainer
    with pytest.raises(RuntimeError, match="only during a Trainer's run"):
        model.optimizers()
    with pytest.warns(UserWarning, match=r"`self\.log\('m', \.\.\.\)` outside a Trainer's run is ignored"):
        model.log("m", 1.0)
    with pytest.warns(UserWarning, match=r"`self\.log_dict\(\['m'\]\)` outside a Trainer's run is ignored"):
        model.log_dict({"m": 1.0})


def test_a_forgotten_super_init_is_explained_by_torch() -> None:
    class Forgets(L.Module):
        def __init__(self) -> None:
            self.net = nn.Linear(1, 1)

    with pytest.raises(AttributeError, match=r"before Module\.__init__\(\) call"):
        Forgets()


def test_device_and_dtype() -> None:
    model = Line()
    assert (model.device, model.dtype, model.on_gpu) == (torch.device("cpu"), torch.float32, False)
    model.double()
    assert model.dtype == torch.float64
    model.to("meta")
    assert model.device.type == "meta"


def test_freezing() -> None:
    model = Line()
    model.freeze()
    assert not model.training
    assert not any(parameter.requires_grad for parameter in model.parameters())
    model.unfreeze()
    assert model.training
    assert all(parameter.requires_grad for parameter in model.parameters())


# -- evaluation mode --------------------------------------------------------------------------------------------------


class Mixed(Validated):
    """A frozen part that stays in evaluation mode, as in fine-tuning, and a part that trains."""

    def __init__(self) -> None:
        super().__init__()
        self.frozen = nn.Sequential(nn.BatchNorm1d(FEATURES), nn.Dropout(0.5))
        self.frozen.eval()
        self.frozen[1].train()  # and of that one child in training mode
        self.modes: dict[str, set[tuple[bool, ...]]] = {}

    def note(self, moment: str) -> None:
        modes = tuple(child.training for child in (self, self.net, self.frozen, *self.frozen))
        self.modes.setdefault(moment, set()).add(modes)

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        self.note("train")
        return super().training_step(batch, batch_idx)

    def validation_step(self, batch: Any, batch_idx: int) -> Any:
        self.note("evaluate")
        assert not torch.is_grad_enabled()
        return super().validation_step(batch, batch_idx)

    def test_step(self, batch: Any, batch_idx: int) -> Any:
        self.note("evaluate")
        return super().test_step(batch, batch_idx)

    def predict_step(self, batch: Any, batch_idx: int) -> Any:
        self.note("evaluate")
        return super().predict_step(batch, batch_idx)


AS_MADE = (True, True, False, False, True)


def test_each_part_is_put_back_into_its_own_mode() -> None:
    """Validations in the epoch, at its end and before it all leave the modes as they were."""
    model = Mixed()
    trainer(max_epochs=2, num_sanity_val_steps=2, val_check_interval=0.5).fit(model, loader(), loader())
    assert model.modes == {"train": {AS_MADE}, "evaluate": {(False,) * 5}}


@pytest.mark.parametrize("call", ["validate", "test", "predict"])
def test_each_part_is_put_back_after_an_evaluation_alone(call: str) -> None:
    model = Mixed()
    getattr(trainer(), call)(model, loader())
    model.note("after")
    assert model.modes == {"evaluate": {(False,) * 5}, "after": {AS_MADE}}


def test_a_model_in_evaluation_mode_stays_there() -> None:
    model = Mixed()
    model.eval()
    trainer().validate(model, loader())
    model.note("after")
    assert model.modes["after"] == {(False,) * 5}


def test_a_change_of_mode_in_training_lasts_over_validation() -> None:
    class Changes(Mixed):
        def on_train_start(self) -> None:
            self.net.eval()

    model = Changes()
    trainer(max_epochs=2).fit(model, loader(), loader())
    assert model.modes["train"] == {(True, False, False, False, True)}


def test_own_ways_into_and_out_of_evaluation_mode() -> None:
    class Own(Mixed):
        def on_validation_model_eval(self) -> None:
            self.net.eval()

        def on_validation_model_train(self) -> None:
            self.net.train()

    model = Own()
    trainer(max_epochs=2).fit(model, loader(), loader())
    assert model.modes == {"train": {AS_MADE}, "evaluate": {(True, False, False, False, True)}}

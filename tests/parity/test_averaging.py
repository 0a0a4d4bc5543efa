"""Averages of the weights beside Lightning's: equal to its rounding, and a file of either goes on in the other."""

from __future__ import annotations

import importlib
import warnings
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from tests.parity import exchange
from tests.parity.exchange import STATEFUL, Setting
from tests.parity.oracle import GPULAYER, LIGHTNING, equal, lightning, quiet

SETTING = Setting(loader=STATEFUL, validates=True, epochs=3, scheduler=("step", {"interval": "epoch"}))
BATCH, EPOCH, VALIDATED = "on_train_batch_end", "on_train_epoch_end", "on_validation_end"
MOMENTS = {"early": (BATCH, 1), "mid_epoch": (BATCH, 6), "validation": (VALIDATED, 2), "epoch": (EPOCH, 2)}

MADE: dict[str, tuple[str, dict[str, Any]]] = {
    "mean": ("WeightAveraging", {}),
    "ema": ("EMAWeightAveraging", {"decay": 0.8}),
    "every_third": ("EMAWeightAveraging", {"decay": 0.8, "update_every_n_steps": 3}),
    "late": ("EMAWeightAveraging", {"decay": 0.8, "update_starting_at_step": 5}),
    "by_epoch": ("EMAWeightAveraging", {"decay": 0.8, "update_every_n_steps": 0, "update_starting_at_epoch": 1}),
    "stochastic": ("StochasticWeightAveraging", {"swa_lrs": 0.01, "swa_epoch_start": 2, "annealing_epochs": 2}),
}


@pytest.fixture(autouse=True)
def no_noise() -> Iterator[None]:
    lightning()
    with quiet(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def run(library: str, folder: Path, name: str, **arguments: Any) -> exchange.End:
    kind, settings = MADE[name]
    callback = getattr(importlib.import_module(f"{library}.callbacks"), kind)(**settings)
    return exchange.run(library, folder, SETTING, callbacks=[callback], **arguments)


@cache
def whole(library: str, name: str) -> exchange.End:
    """The run that was not cut off."""
    return run(library, Path("unused"), name)


def close(one: dict[str, Any], other: dict[str, Any], tolerance: float = 2e-7) -> bool:
    return one.keys() == other.keys() and all(
        torch.allclose(one[name].double(), other[name].double(), rtol=tolerance, atol=tolerance) for name in one
    )


@pytest.mark.parametrize("name", MADE)
def test_the_same_end(name: str) -> None:
    expected, found = whole(LIGHTNING, name), whole(GPULAYER, name)
    assert close(found.weights, expected.weights)
    assert equal(found.optimizers, expected.optimizers)
    assert found.counts == expected.counts


@pytest.mark.parametrize("moment", MOMENTS)
@pytest.mark.parametrize("name", MADE)
def test_the_same_checkpoint(name: str, moment: str, tmp_path: Path) -> None:
    """Names, sizes, formats and, to Lightning's rounding, values."""
    saved = []
    for library in (LIGHTNING, GPULAYER):
        run(library, tmp_path / library, name, moment=MOMENTS[moment])
        saved.append(torch.load(tmp_path / library / "saved.ckpt", weights_only=True))
    theirs, ours = saved
    assert set(theirs) - set(ours) == set()
    begun = name == "stochastic" or int(ours["averaging_state"]["n_averaged"]) > 0
    for key in ("state_dict", "current_model_state"):
        if key in theirs:
            assert list(theirs[key]) == list(ours[key])
            if begun or key != "state_dict":  # before, Lightning has the weights from before training there
                assert close(theirs[key], ours[key])
    if name == "stochastic":
        key = "StochasticWeightAveraging"
        one, other = theirs["callbacks"][key], ours["callbacks"][key]
        assert set(other) - set(one) == {"transferred"}
        assert (one["n_averaged"], one["latest_update_epoch"]) == (other["n_averaged"], other["latest_update_epoch"])
        assert list(one["average_model_state"]) == list(other["average_model_state"])
        if one["n_averaged"]:
            assert close(one["average_model_state"], other["average_model_state"])
    else:
        assert equal(theirs["averaging_state"], ours["averaging_state"])
        assert theirs["callbacks"][MADE[name][0]] == ours["callbacks"][MADE[name][0]]


@pytest.mark.parametrize(("writer", "reader"), [(LIGHTNING, GPULAYER), (GPULAYER, LIGHTNING)])
@pytest.mark.parametrize("moment", MOMENTS)
@pytest.mark.parametrize("name", MADE)
def test_a_file_of_either_goes_on_in_the_other(
    name: str, moment: str, writer: str, reader: str, tmp_path: Path
) -> None:
    run(writer, tmp_path, name, moment=MOMENTS[moment])
    end = run(reader, tmp_path, name, ckpt_path=tmp_path / "saved.ckpt")
    assert close(end.weights, whole(reader, name).weights)


# -- where Lightning is wrong ------------------------------------------------------------------------------------------


def fit(library: str, callback: tuple[str, dict[str, Any]], *others: Any) -> Any:
    L = importlib.import_module(library)

    class Net(L.LightningModule):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.net = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 1))
            self.register_buffer("positions", torch.arange(1000))
            self.validated: list[torch.Tensor] = []

        def training_step(self, batch: Any, batch_idx: int) -> Any:
            return nn.functional.mse_loss(self.net(batch[0]), batch[1])

        def validation_step(self, batch: Any, batch_idx: int) -> None:
            self.validated.append(self.net[0].weight.detach().clone())

        def configure_optimizers(self) -> Any:
            return torch.optim.SGD(self.parameters(), lr=0.01)

    torch.manual_seed(3)
    net = Net()
    made = getattr(importlib.import_module(f"{library}.callbacks"), callback[0])(**callback[1])
    trainer = L.Trainer(
        accelerator="cpu",
        devices=1,
        max_epochs=2,
        callbacks=[made, *others],
        enable_checkpointing=False,
        num_sanity_val_steps=0,
        enable_progress_bar=False,
        enable_model_summary=False,
        logger=False,
    )
    data = torch.utils.data.DataLoader(exchange.dataset(4), batch_size=2)
    trainer.fit(net, data, data)
    return trainer, net


def test_positions_are_not_averaged() -> None:
    """In Lightning 0.9 * 30 + 0.1 * 30 in 32 bits, cut to an integer, may be 29, and so on at each update."""
    _, theirs = fit(LIGHTNING, ("EMAWeightAveraging", {"decay": 0.9}))
    _, ours = fit(GPULAYER, ("EMAWeightAveraging", {"decay": 0.9}))
    assert not torch.equal(theirs.positions, torch.arange(1000))
    assert torch.equal(ours.positions, torch.arange(1000))


def test_a_start_at_an_epoch_is_one() -> None:
    """In Lightning it adds updates at the ends of epochs to those of the steps, which come from the first on."""
    callback = ("EMAWeightAveraging", {"decay": 0.5, "update_starting_at_epoch": 1})
    plain = fit(GPULAYER, ("EMAWeightAveraging", {"decay": 0.5, "update_starting_at_step": 4}))[1]
    assert torch.equal(fit(GPULAYER, callback)[1].net[0].weight, plain.net[0].weight)
    assert not torch.allclose(fit(LIGHTNING, callback)[1].net[0].weight, plain.net[0].weight, atol=1e-6)


@pytest.mark.parametrize(("library", "averaged"), [(LIGHTNING, False), (GPULAYER, True)])
def test_weights_only_are_the_averages(library: str, averaged: bool, tmp_path: Path) -> None:
    """Lightning saves the trained weights there, which are not those that it validated."""

    class Saves(importlib.import_module(library).Callback):  # type: ignore[misc]
        def on_validation_end(self, trainer: Any, pl_module: Any) -> None:
            trainer.save_checkpoint(tmp_path / "saved.ckpt", weights_only=True)

    _, net = fit(library, ("EMAWeightAveraging", {"decay": 0.5}), Saves())
    weight = torch.load(tmp_path / "saved.ckpt", weights_only=True)["state_dict"]["net.0.weight"]
    assert torch.equal(weight, net.validated[-1]) == averaged


def test_batch_norm_after_stochastic_averaging() -> None:
    """Lightning counts an epoch and a step more for it, in which it validates the average."""
    callback = ("StochasticWeightAveraging", {"swa_lrs": 0.01, "swa_epoch_start": 1})
    (their_trainer, theirs), (our_trainer, ours) = fit(LIGHTNING, callback), fit(GPULAYER, callback)
    state = {name: value for name, value in ours.state_dict().items() if name != "positions"}
    assert close(state, {name: theirs.state_dict()[name] for name in state})
    assert (their_trainer.current_epoch, their_trainer.global_step) == (3, 9)
    assert (our_trainer.current_epoch, our_trainer.global_step) == (2, 8)
    assert torch.allclose(ours.validated[-1], theirs.validated[-1], atol=1e-7)
    assert torch.equal(ours.validated[-1], ours.net[0].weight)

"""Averages of weights that are pruned meanwhile: zero where these are, in validation, in files, at the end, resumed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import gpulayer.pytorch as L
from gpulayer.fabric.utilities.exceptions import MisconfigurationException
from gpulayer.pytorch.callbacks import (
    EMAWeightAveraging,
    ModelCheckpoint,
    ModelPruning,
    StochasticWeightAveraging,
    WeightAveraging,
)
from tests.pytorch.models import FEATURES, Validated, loader, same, trainer, weights

pytestmark = pytest.mark.filterwarnings("ignore:The checkpoint holds the state of callbacks")

AVERAGES: dict[str, Callable[[], Any]] = {
    "ema": lambda: EMAWeightAveraging(decay=0.5),
    "mean": lambda: WeightAveraging(),
    "ema from the second epoch on": lambda: EMAWeightAveraging(decay=0.5, update_starting_at_epoch=1),
    "stochastic": lambda: StochasticWeightAveraging(0.01, 2),
}
BATCHES, EPOCHS = 3, 3


class Net(Validated):
    """Notes its first layer after each step, and in validations."""

    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(FEATURES, 5), nn.BatchNorm1d(5), nn.Dropout(0.2), nn.Linear(5, 1))  # type: ignore[assignment]
        self.trained: list[tuple[Tensor, Tensor]] = []
        self.validated: list[Tensor] = []

    def on_train_batch_end(self, *_: Any) -> None:
        layer: Any = self.net[0]  # type: ignore[index]
        weight = getattr(layer, "weight_orig", layer.weight).detach().clone()
        self.trained.append((weight, getattr(layer, "weight_mask", torch.ones_like(weight)).clone()))

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        super().validation_step(batch, batch_idx)
        self.validated.append(self.net[0].weight.detach().clone())  # type: ignore[index, union-attr]

    def configure_optimizers(self) -> Any:
        return torch.optim.AdamW(self.parameters(), lr=0.02)


def fit(
    name: str,
    path: str | None = None,
    averages_first: bool = True,
    saves: bool = False,
    model: Net | None = None,
    **arguments: Any,
) -> Net:
    L.seed_everything(1, verbose=False)
    model = model or Net()
    if path is not None:
        L.seed_everything(99, verbose=False)
    pruning = ModelPruning("l1_unstructured", **{"amount": 0.3, "use_lottery_ticket_hypothesis": False} | arguments)
    callbacks: list[Any] = [AVERAGES[name](), pruning]
    if not averages_first:
        callbacks.reverse()
    if saves:
        callbacks.append(ModelCheckpoint("saved", "{step}", every_n_train_steps=1, save_top_k=-1))
    used = trainer(max_epochs=EPOCHS, callbacks=callbacks, enable_checkpointing=saves)
    used.fit(model, loader(BATCHES, 4, shuffle=True), loader(1, 4), ckpt_path=path)
    return model


@pytest.mark.parametrize("averages_first", [True, False])
def test_the_average_is_that_computed_by_hand(averages_first: bool) -> None:
    """In either order: with Lightning what is saved and what stays is not pruned, or not averaged, as it comes."""
    model = fit("ema", averages_first=averages_first)
    average = model.trained[0][0].double()
    for epoch in range(EPOCHS):
        for weight, _ in model.trained[max(epoch * BATCHES, 1) : (epoch + 1) * BATCHES]:
            average = 0.5 * average + 0.5 * weight.double()
        mask = model.trained[(epoch + 1) * BATCHES - 1][1]  # validation comes before the pruning of its epoch
        assert torch.allclose(model.validated[epoch].double(), average * mask, atol=1e-7)
    end = model.net[0].weight  # type: ignore[index, union-attr]
    kept = end != 0
    assert 0 < (mask * ~kept).sum() < kept.numel()  # pruned once more
    assert torch.allclose(end.double(), average * kept, atol=1e-7)
    model.trainer.save_checkpoint("end.ckpt")
    saved = torch.load("end.ckpt", weights_only=True)
    assert torch.equal(saved["state_dict"]["net.0.weight"], end)
    assert torch.equal(saved["current_model_state"]["net.0.weight"][kept], model.trained[-1][0][kept])


@pytest.mark.parametrize(
    "arguments",
    [
        {},
        {"make_pruning_permanent": False},
        {"use_lottery_ticket_hypothesis": True},
        {"prune_on_train_epoch_end": False},
    ],
)
@pytest.mark.parametrize("name", AVERAGES)
def test_a_resumed_run_ends_as_one_that_was_not_cut_off(name: str, arguments: dict[str, Any]) -> None:
    whole = fit(name, saves=True, **arguments)
    files = [f"saved/step={step}.ckpt" for step in (2, 3, 8)]
    for file in files:
        resumed = fit(name, file, **arguments)
        assert same(weights(resumed), weights(whole)), file
        states = [one.trainer.optimizers[0].state_dict() for one in (resumed, whole)]
        assert repr(states[0]) == repr(states[1]), file


@pytest.mark.parametrize("permanent", [True, False])
def test_a_module_that_is_pruned_takes_its_files(permanent: bool) -> None:
    """The same object again: its parameters have other names now than in the file, or than when averaging began."""
    model = fit("ema", saves=True, make_pruning_permanent=permanent)
    end = weights(model)
    assert ("net.0.weight_orig" in end) is not permanent
    resumed = weights(fit("ema", "saved/step=4.ckpt", model=model, make_pruning_permanent=permanent))
    assert same(resumed, end)


def test_a_module_that_was_pruned_before() -> None:
    """Its masks are no buffers to average."""
    model = fit("ema", make_pruning_permanent=False, amount=0.1)
    before = model.net[0].weight_mask.clone()  # type: ignore[index, union-attr, operator]
    fit("ema", model=model, make_pruning_permanent=False, amount=0.1)
    after = model.net[0].weight_mask  # type: ignore[index, union-attr]
    assert set(after.unique().tolist()) == {0, 1}  # type: ignore[operator]
    assert bool((after <= before).all())


def test_weights_that_a_validation_would_put_back() -> None:
    with pytest.raises(MisconfigurationException, match="prunes while a validation uses the averages of `EMAWeight"):
        fit("ema", prune_on_train_epoch_end=False, use_lottery_ticket_hypothesis=True)

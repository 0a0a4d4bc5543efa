"""BaseFinetuning and BackboneFinetuning: what is frozen, in which group it is later, also after a resume."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import gpulayer.pytorch as L
from gpulayer.fabric.utilities.exceptions import MisconfigurationException
from gpulayer.pytorch.callbacks import BackboneFinetuning, BaseFinetuning, ModelCheckpoint, ModelPruning
from tests.pytorch.models import FEATURES, Line, loader, same, trainer, weights

pytestmark = pytest.mark.filterwarnings("ignore:The checkpoint holds the state of callbacks")

Seen = list[tuple[int, list[tuple[int, float]], list[str]]]


class Transfer(Line):
    """A backbone with BatchNorm and dropout, and a head; notes before each batch what is trained, and how fast."""

    def __init__(self, everything: bool = False) -> None:
        super().__init__()
        self.everything = everything
        self.backbone = nn.Sequential(nn.Linear(FEATURES, 6), nn.BatchNorm1d(6), nn.Dropout(0.2), nn.Linear(6, 3))
        self.head = nn.Linear(3, 1)
        self.net = nn.Sequential(self.backbone, self.head)
        self.seen: Seen = []

    def on_train_batch_start(self, batch: Any, batch_idx: int) -> None:
        groups = [(len(group["params"]), group["lr"]) for group in self.trainer.optimizers[0].param_groups]
        trained = [name for name, value in self.named_parameters() if value.requires_grad]
        self.seen.append((self.trainer.global_step, groups, trained))

    def configure_optimizers(self) -> Any:
        trained = [value for value in self.parameters() if value.requires_grad or self.everything]
        optimizer = torch.optim.AdamW(trained, lr=0.02)
        return [optimizer], [torch.optim.lr_scheduler.StepLR(optimizer, 2)]


class Gradually(BaseFinetuning):
    """The backbone's parts one after another, the last first."""

    def freeze_before_training(self, pl_module: Any) -> None:
        self.freeze(pl_module.backbone, train_bn=False)

    def finetune_function(self, pl_module: Any, epoch: int, optimizer: Any) -> None:
        part = {1: pl_module.backbone[3], 2: pl_module.backbone[1], 3: pl_module.backbone[0]}.get(epoch)
        if part is not None:
            self.unfreeze_and_add_param_group(part, optimizer, lr=0.01 / epoch)


def fit(callback: BaseFinetuning, path: str | None = None, saves: bool = False, **arguments: Any) -> Transfer:
    L.seed_everything(1 if path is None else 99, verbose=False)
    model = Transfer()
    savers = [ModelCheckpoint("saved", "{step}", every_n_train_steps=1, save_top_k=-1)] if saves else []
    settings = {"max_epochs": 5, "callbacks": [callback, *savers], "enable_checkpointing": saves, **arguments}
    trainer(**settings).fit(model, loader(3, shuffle=True), ckpt_path=path)
    return model


def optimizer_state(model: Transfer) -> Any:
    return model.trainer.optimizers[0].state_dict()


@pytest.mark.parametrize(
    "make",
    [
        Gradually,
        lambda: BackboneFinetuning(1),
        lambda: BackboneFinetuning(2, lambda epoch: 1.5, train_bn=False),
    ],
)
def test_a_resumed_run_ends_as_one_that_was_not_cut_off(make: Any) -> None:
    """In mid-epoch, at an epoch's end, before and after each unfreezing: groups, what is trained, weights bit for bit.

    Lightning freezes again what was unfrozen (its issue 21901).
    """
    whole = fit(make(), saves=True)
    assert len({len(trained) for _, _, trained in whole.seen}) > 1
    for step in range(1, 15):
        resumed = fit(make(), f"saved/step={step}.ckpt")
        assert resumed.seen == whole.seen[step:], step
        assert same(weights(resumed), weights(whole)), step
        assert repr(optimizer_state(resumed)) == repr(optimizer_state(whole)), step


@pytest.mark.parametrize("first", [True, False])
def test_with_pruning(first: bool) -> None:
    """Which renames parameters."""

    def both() -> list[L.Callback]:
        pruning = ModelPruning("l1_unstructured", amount=0.2, use_lottery_ticket_hypothesis=False)
        return [pruning, Gradually()] if first else [Gradually(), pruning]

    saver = ModelCheckpoint("saved", "{step}", every_n_train_steps=1, save_top_k=-1)
    whole = fit(Gradually(), callbacks=[*both(), saver], enable_checkpointing=True)
    for step in (2, 4, 6, 8, 12):
        resumed = fit(Gradually(), f"saved/step={step}.ckpt", callbacks=both())
        assert same(weights(resumed), weights(whole)), step


def test_cut_off_by_an_error_before_the_first_batch_of_an_epoch() -> None:
    """What that epoch unfreezes is unfrozen once."""

    class Breaks(L.Callback):
        def on_train_batch_start(self, trainer: L.Trainer, *_: Any) -> None:
            if trainer.global_step == 6:
                trainer.save_checkpoint("broken.ckpt")
                raise ValueError("broken")

    whole = fit(BackboneFinetuning(1))
    with pytest.raises(ValueError, match="broken"):
        fit(BackboneFinetuning(1), callbacks=[BackboneFinetuning(1), Breaks()])
    assert fit(BackboneFinetuning(1), "broken.ckpt").seen == whole.seen[6:]


def test_statistics_of_batchnorm_stand_still_while_it_is_frozen() -> None:
    model = fit(Gradually(), max_epochs=2)
    assert not model.backbone[1].track_running_stats
    assert torch.equal(model.backbone[1].running_mean, torch.zeros(6))
    model = fit(Gradually(), max_epochs=3)
    assert model.backbone[1].track_running_stats
    assert model.backbone[1].running_mean.abs().sum() > 0


def test_a_fit_that_begins_after_the_epoch_unfreezes_at_once() -> None:
    """Lightning never would, and would raise the head's learning rate in its place."""
    fit(BackboneFinetuning(9), saves=True, max_epochs=2)
    path = "saved/step=6.ckpt"
    state = torch.load(path, weights_only=False)
    state["callbacks"] = {}
    torch.save(state, path)
    resumed = fit(BackboneFinetuning(1, backbone_initial_lr=0.5, should_align=False), path, max_epochs=4)
    assert [groups for _, groups, _ in resumed.seen[::3]] == [
        [(4, pytest.approx(0.002)), (4, 0.5)],
        [(4, pytest.approx(0.002)), (4, 1.0)],
    ]


def test_testing_and_validating_freeze_nothing() -> None:
    model = fit(BackboneFinetuning(0), max_epochs=1)
    model.trainer.save_checkpoint("end.ckpt")
    trained = [value.requires_grad for value in model.parameters()]
    model.trainer.test(model, loader(1), ckpt_path="end.ckpt")
    assert [value.requires_grad for value in model.parameters()] == trained == [True] * 8


def test_what_a_test_loaded_is_no_matter_of_the_next_fit() -> None:
    first = fit(BackboneFinetuning(0), max_epochs=1)
    first.trainer.save_checkpoint("end.ckpt")
    callback, model = BackboneFinetuning(2), Transfer()
    used = trainer(max_epochs=1, callbacks=[callback])
    used.test(model, loader(1), ckpt_path="end.ckpt")
    used.fit(model, loader(1))
    assert model.seen[0][1] == [(4, 0.02)]


def test_the_lines_say_both_rates(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "gpulayer")
    fit(BackboneFinetuning(1, verbose=True, rounding=3), max_epochs=3)
    lines = [line for line in caplog.messages if line.startswith("BackboneFinetuning")]
    assert lines == [
        "BackboneFinetuning: in epoch 1 the backbone's learning rate is 0.002, that of the rest 0.02.",
        "BackboneFinetuning: in epoch 2 the backbone's learning rate is 0.002, that of the rest 0.002.",
    ]


def test_an_optimizer_of_everything_warns_and_keeps_its_rate() -> None:
    """Lightning goes on to multiply the learning rate of the whole model."""
    model = Transfer(everything=True)
    with pytest.warns(UserWarning, match=r"4 of 4 parameters that are unfrozen are in a group of the AdamW already"):
        trainer(max_epochs=2, callbacks=[BackboneFinetuning(0, should_align=False)]).fit(model, loader(2))
    assert [groups for _, groups, _ in model.seen] == [[(8, 0.02)]] * 4


# -- helpers -----------------------------------------------------------------------------------------------------------


class Own(nn.Module):
    """Has a parameter of its own beside a child."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(1))
        self.inner = nn.Linear(2, 2)


def test_modules_are_flattened_however_they_are_nested() -> None:
    one, two, own, norm = nn.Linear(1, 1), nn.Tanh(), Own(), nn.BatchNorm1d(1)
    modules = [nn.Sequential(one, two), [own, (norm, [one])]]
    assert BaseFinetuning.flatten_modules(modules) == [one, two, own, own.inner, norm]
    assert BaseFinetuning.flatten_modules(nn.ModuleDict({"a": one, "b": nn.ModuleList([own])})) == [
        one,
        own,
        own.inner,
    ]
    assert BaseFinetuning.flatten_modules(part for part in (one, two)) == [one, two]
    assert BaseFinetuning.flatten_modules(nn.ParameterList([own.scale]))


def test_freezing_and_unfreezing() -> None:
    norm, own = nn.BatchNorm1d(2), Own()
    modules = nn.Sequential(own, norm)
    BaseFinetuning.freeze(modules)
    assert list(BaseFinetuning.filter_params(modules)) == list(norm.parameters())
    assert list(BaseFinetuning.filter_params(modules, train_bn=False)) == []
    assert list(BaseFinetuning.filter_params(modules, requires_grad=False)) == list(own.parameters())
    assert norm.track_running_stats
    BaseFinetuning.freeze(modules, train_bn=False)
    assert list(BaseFinetuning.filter_params(modules)) == []
    assert not norm.track_running_stats
    BaseFinetuning.make_trainable([own, [norm]])
    assert len(list(BaseFinetuning.filter_params(modules))) == 5
    assert norm.track_running_stats
    BaseFinetuning.freeze_module(own)
    assert not own.scale.requires_grad
    assert own.inner.weight.requires_grad


def test_a_group_of_its_own() -> None:
    head, part = nn.Linear(2, 2), nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2))
    BaseFinetuning.freeze(part, train_bn=False)
    optimizer = torch.optim.SGD(head.parameters(), lr=0.5)
    BaseFinetuning.unfreeze_and_add_param_group(part[0], optimizer)
    BaseFinetuning.unfreeze_and_add_param_group(part[1], optimizer, lr=0.3, train_bn=False)
    assert not part[1].weight.requires_grad  # and it gathers no statistics: Lightning's begins to
    assert not part[1].track_running_stats
    BaseFinetuning.unfreeze_and_add_param_group(part[1], optimizer, initial_denom_lr=5)
    assert [(len(group["params"]), group["lr"]) for group in optimizer.param_groups] == [(2, 0.5), (2, 0.05), (2, 0.1)]


def test_parameters_are_told_apart_by_what_they_are() -> None:
    """Lightning compares values, and leaves out a second bias of zeros."""
    held, other = nn.Parameter(torch.zeros(3)), nn.Parameter(torch.zeros(3))
    optimizer = torch.optim.SGD([held], lr=0.1)
    with pytest.warns(UserWarning, match="1 of 2 parameters"):
        (left,) = BaseFinetuning.filter_on_optimizer(optimizer, [held, other])
    assert left is other


def test_shared_weights_come_once() -> None:
    one, two = nn.Linear(2, 2), nn.Linear(2, 2)
    two.weight = one.weight
    optimizer = torch.optim.SGD([nn.Parameter(torch.zeros(1))], lr=0.1)
    BaseFinetuning.freeze([one, two])
    BaseFinetuning.unfreeze_and_add_param_group((part for part in (one, two, one)), optimizer)
    assert len(optimizer.param_groups[1]["params"]) == 3


# -- errors ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"unfreeze_backbone_at_epoch": -1}, "whole number from 0"),
        ({"unfreeze_backbone_at_epoch": 1.5}, "whole number from 0"),
        ({"rounding": "3"}, "whole number from 0"),
        ({"backbone_initial_lr": 0.0}, "number above 0"),
        ({"backbone_initial_ratio_lr": None}, "number above 0"),
        ({"initial_denom_lr": float("nan")}, "number above 0"),
        ({"backbone_initial_lr": float("inf")}, "number above 0"),
        ({"train_bn": "no"}, "train_bn='no'.*True or False"),
        ({"lambda_func": 2.0}, "function of the epoch's number"),
    ],
)
def test_bad_values(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(MisconfigurationException, match=message):
        BackboneFinetuning(**arguments)


def test_a_module_without_a_backbone() -> None:
    with pytest.raises(MisconfigurationException, match=r"`Line\.backbone`, which is no `nn\.Module`"):
        trainer(max_epochs=1, callbacks=[BackboneFinetuning()]).fit(Line(), loader(1))


def test_what_must_be_overridden() -> None:
    class Half(BaseFinetuning):
        def freeze_before_training(self, pl_module: Any) -> None: ...

    for callback, name in ((BaseFinetuning(), "freeze_before_training"), (Half(), "finetune_function")):
        with pytest.raises(NotImplementedError, match=f"must override `{name}"):
            trainer(max_epochs=1, callbacks=[callback]).fit(Line(), loader(1))


def test_a_checkpoint_of_another_module() -> None:
    fit(Gradually(), saves=True, max_epochs=2)
    path = str(next(Path("saved").glob("*step=6*")))
    state = torch.load(path, weights_only=False)
    state["callbacks"]["Gradually"]["internal_optimizer_metadata"][0][1]["params"] = ["gone.weight"]
    torch.save(state, path)
    with pytest.raises(MisconfigurationException, match=r"parameters that the module lacks: \['gone.weight'\]"):
        fit(Gradually(), path)

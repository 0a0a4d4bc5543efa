"""ModelPruning: what is set to zero, what checkpoints hold, and that a resumed run prunes on where it was."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils import prune

import gpulayer.pytorch as L
from gpulayer.fabric.utilities.exceptions import MisconfigurationException
from gpulayer.pytorch.callbacks import ModelCheckpoint, ModelPruning
from tests.pytorch.models import FEATURES, Line, Validated, loader, same, trainer, weights

pytestmark = pytest.mark.filterwarnings("ignore:The checkpoint holds the state of callbacks")


class Net(Validated):
    """Two layers."""

    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(FEATURES, 5), nn.Tanh(), nn.Linear(5, 1))  # type: ignore[assignment]

    def configure_optimizers(self) -> Any:
        return torch.optim.AdamW(self.parameters(), lr=0.02)


def fit(
    path: str | None = None,
    saves: str = "",
    model: Net | None = None,
    callbacks: Sequence[Any] = (),
    **arguments: Any,
) -> Net:
    """Four epochs of three batches, with a ModelPruning of these arguments; it saves each step or each epoch."""
    L.seed_everything(1 if path is None else 99, verbose=False)
    model = model or Net()
    epochs = arguments.pop("max_epochs", 4)
    used = list(callbacks) or [ModelPruning(**{"pruning_fn": "l1_unstructured", "amount": 0.3} | arguments)]
    every = {"every_n_train_steps": 1} if saves == "step" else {"every_n_epochs": 1}
    keepers = [ModelCheckpoint("saved", "{step}", save_top_k=-1, **every)] if saves else []  # type: ignore[arg-type]
    user = trainer(max_epochs=epochs, callbacks=used + keepers, enable_checkpointing=bool(saves))
    user.fit(model, loader(3, shuffle=True), loader(1), ckpt_path=path)
    return model


def zeros(model: Net) -> int:
    return sum(int((value == 0).sum()) for value in model.parameters())


SETTINGS: dict[str, dict[str, Any]] = {
    "global": {},
    "lottery": {"use_lottery_ticket_hypothesis": lambda epoch: epoch % 2 == 1},
    "resampled": {"resample_parameters": True},
    "no lottery": {"use_lottery_ticket_hypothesis": False},
    "each, at random": {"pruning_fn": "random_unstructured", "use_global_unstructured": False},
    "channels": {
        "pruning_fn": "ln_structured",
        "use_global_unstructured": False,
        "pruning_dim": 1,
        "pruning_norm": 2,
        "parameter_names": ["weight"],
        "use_lottery_ticket_hypothesis": False,
    },
    "kept apart": {"make_pruning_permanent": False, "use_lottery_ticket_hypothesis": False},
    "kept apart, lottery": {"make_pruning_permanent": False},
    "after validation": {"prune_on_train_epoch_end": False},
}


@pytest.mark.parametrize("name", SETTINGS)
def test_a_resumed_run_ends_as_one_that_was_not_cut_off(name: str) -> None:
    """Weights, masks, what lies below them and the optimizer, bit for bit, from each step."""
    whole = fit(saves="step", **SETTINGS[name])
    for step in range(1, 13):
        resumed = fit(f"saved/step={step}.ckpt", **SETTINGS[name])
        assert same(weights(resumed), weights(whole)), step
        states = [one.trainer.optimizers[0].state_dict() for one in (resumed, whole)]
        assert repr(states[0]) == repr(states[1]), step


def test_a_run_goes_on_after_its_end() -> None:
    """From a file that was written when the pruning had been made permanent."""
    whole = fit(max_epochs=4, use_lottery_ticket_hypothesis=False)
    half = fit(max_epochs=2, use_lottery_ticket_hypothesis=False)
    half.trainer.save_checkpoint("end.ckpt")
    assert same(weights(fit("end.ckpt", use_lottery_ticket_hypothesis=False)), weights(whole))


def test_the_same_module_is_resumed_in_the_same_process() -> None:
    """Its parameters are in the order in which it was made, so that the optimizer's state fits: not with Lightning."""
    arguments = {"parameter_names": ["weight"]}
    model = fit(saves="step", **arguments)
    end = weights(model)
    assert list(end) == ["net.0.weight", "net.0.bias", "net.2.weight", "net.2.bias"]
    assert same(weights(fit("saved/step=4.ckpt", model=model, **arguments)), end)


def test_an_interrupted_module_takes_any_of_its_files() -> None:
    class Breaks(L.Callback):
        def on_train_batch_end(self, trainer: L.Trainer, *_: Any) -> None:
            if trainer.global_step == 8:
                raise ValueError("broken")

    arguments: dict[str, Any] = {"use_lottery_ticket_hypothesis": False, "amount": 0.3}
    whole = fit(saves="step", **arguments)
    for permanent in (True, False):
        pruning = ModelPruning("l1_unstructured", make_pruning_permanent=permanent, **arguments)
        model = Net()
        with pytest.raises(ValueError, match="broken"):
            fit(model=model, callbacks=[pruning, Breaks()])
        assert "net.0.weight_orig" in model.state_dict()
        used = trainer(callbacks=[pruning])
        used.test(model, loader(1), ckpt_path="saved/step=12.ckpt")
        saved = torch.load("saved/step=12.ckpt", weights_only=True)["state_dict"]
        assert torch.equal(model.net[0].weight, saved["net.0.weight"])  # type: ignore[index]
        resumed = fit("saved/step=4.ckpt", model=model, callbacks=[pruning])
        if permanent:
            assert same(weights(resumed), weights(whole))
        else:
            pruning.make_pruning_permanent(resumed)
            assert zeros(resumed) == zeros(whole)


def test_checkpoints_hold_ordinary_weights() -> None:
    """Those of weights only, too, which Lightning forgets; they load without the callback."""
    model = fit(saves="epoch", use_lottery_ticket_hypothesis=False)
    counts = []
    for step in (3, 6, 9, 12):
        loaded = Net.load_from_checkpoint(f"saved/step={step}.ckpt")
        counts.append(zeros(loaded))
    assert counts == [9, 16, 20, 23]  # 0.3 of what is left of 31
    assert zeros(model) == 23

    class Saves(L.Callback):
        def on_train_batch_end(self, trainer: L.Trainer, *_: Any) -> None:
            trainer.save_checkpoint("weights.ckpt", weights_only=True)

    fit(callbacks=[ModelPruning("l1_unstructured", amount=0.3), Saves()])
    assert zeros(Net.load_from_checkpoint("weights.ckpt")) == 20
    assert "callbacks" not in torch.load("weights.ckpt", weights_only=True)


def test_pruning_goes_on_after_a_save() -> None:
    """What is made permanent is the file, not the module."""
    seen = []

    class Looks(L.Callback):
        def on_train_batch_end(self, trainer: L.Trainer, pl_module: L.Module, *_: Any) -> None:
            trainer.save_checkpoint("now.ckpt")
            seen.append(sorted(pl_module.state_dict()))

    fit(callbacks=[ModelPruning("l1_unstructured", parameter_names=["bias"]), Looks()], max_epochs=2)
    assert seen[-1] == [
        *("net.0.bias_mask", "net.0.bias_orig", "net.0.weight", "net.2.bias_mask", "net.2.bias_orig", "net.2.weight")
    ]


def test_buffers_whose_names_end_in_mask_are_left_alone() -> None:
    """Lightning fails to save them."""

    class Masked(Net):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("attention_mask", torch.ones(2))

    model = fit(saves="epoch", model=Masked(), max_epochs=1)
    assert same(weights(Masked.load_from_checkpoint("saved/step=3.ckpt")), weights(model))


def test_kept_apart() -> None:
    """Both the file and the module keep the weights and their masks; the callback loads them."""
    model = fit(saves="epoch", make_pruning_permanent=False, use_lottery_ticket_hypothesis=False)
    names = {"net.0.weight_orig", "net.0.weight_mask", "net.0.bias_orig", "net.0.bias_mask"}
    assert names < set(model.state_dict())
    assert names < set(torch.load("saved/step=12.ckpt", weights_only=True)["state_dict"])
    fresh = Net()
    callback = ModelPruning("l1_unstructured", make_pruning_permanent=False)
    trainer(callbacks=[callback]).test(fresh, loader(1), ckpt_path="saved/step=12.ckpt")
    assert zeros(fresh) == 23
    assert torch.equal(fresh.net[0].weight, model.net[0].weight)  # type: ignore[index]
    with pytest.raises(RuntimeError, match="missing in the file"):
        trainer().test(Net(), loader(1), ckpt_path="saved/step=12.ckpt")
    assert not fresh._load_state_dict_pre_hooks


class Watches(L.Callback):
    """Notes the first layer's weights after each epoch's pruning."""

    def __init__(self) -> None:
        self.seen: list[tuple[Tensor, Tensor]] = []

    def on_train_epoch_end(self, trainer: L.Trainer, pl_module: Any) -> None:
        layer = pl_module.net[0]
        self.seen.append((layer.weight_orig.detach().clone(), layer.weight_mask.clone()))


def test_the_winning_ticket_begins_where_training_began() -> None:
    """After each pruning; Lightning's, on the CPU, after the first only."""
    model, watch = Net(), Watches()
    first = model.net[0].weight.detach().clone()  # type: ignore[index]
    fit(model=model, callbacks=[ModelPruning("l1_unstructured", amount=0.3), watch])
    assert [int(mask.sum()) for _, mask in watch.seen] == sorted((int(m.sum()) for _, m in watch.seen), reverse=True)
    for original, _ in watch.seen:
        assert torch.equal(original, first)


def test_resampling_draws_new_values_each_time() -> None:
    model, watch = Net(), Watches()
    first = model.net[0].weight.detach().clone()  # type: ignore[index]
    fit(model=model, callbacks=[ModelPruning("l1_unstructured", resample_parameters=True), watch])
    drawn = [first] + [original for original, _ in watch.seen]
    assert len({tuple(one.flatten().tolist()) for one in drawn}) == 5


def test_nothing_is_pruned_outside_of_training() -> None:
    """Nor in a sanity check; Lightning prunes in `validate`, too."""
    model = Net()
    callback = ModelPruning("l1_unstructured", prune_on_train_epoch_end=False, use_lottery_ticket_hypothesis=False)
    used = trainer(max_epochs=1, callbacks=[callback], num_sanity_val_steps=2)
    used.validate(model, loader(1))
    assert zeros(model) == 0
    used.fit(model, loader(3), loader(1))
    assert zeros(model) == 16  # half of 31


def test_the_lines(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "gpulayer")
    lines = []
    for verbose in (0, 1, 2):
        caplog.clear()
        fit(verbose=verbose, amount=0.5, max_epochs=2, parameter_names=["weight"])
        lines.append([line for line in caplog.messages if line.startswith("ModelPruning")])
    assert lines[0] == []
    assert lines[1] == [
        "ModelPruning: L1Unstructured with amount=0.5, all parameters: 0 (0.00%) of 25 were pruned, now 12 (48.00%).",
        "ModelPruning: L1Unstructured with amount=0.5, all parameters: 12 (48.00%) of 25 were pruned, now 18 (72.00%).",
    ]
    assert len(lines[2]) == 6
    assert lines[2][1].startswith("ModelPruning: L1Unstructured with amount=0.5, net.0.weight: 0 (0.00%) of 20 were ")


def test_a_class_prunes_each_parameter_as_well() -> None:
    """Lightning takes classes with `use_global_unstructured=True` only."""
    model = fit(pruning_fn=prune.RandomUnstructured, use_global_unstructured=False, amount=1, max_epochs=2,
                use_lottery_ticket_hypothesis=False, parameter_names=["weight"])  # fmt: skip
    assert [int((layer.weight == 0).sum()) for layer in (model.net[0], model.net[2])] == [2, 2]  # type: ignore[index]


def test_several_of_them() -> None:
    """Each prunes its own part; their state is that of the parameters."""

    def both() -> list[ModelPruning]:
        return [
            ModelPruning("l1_unstructured", parameter_names=["weight"], use_lottery_ticket_hypothesis=False),
            ModelPruning("l1_unstructured", parameter_names=["bias"], amount=1),
        ]

    whole = fit(callbacks=both(), saves="step")
    assert same(weights(fit("saved/step=5.ckpt", callbacks=both())), weights(whole))


def test_a_subclass_leaves_parameters_out() -> None:
    class Some(ModelPruning):
        def filter_parameters_to_prune(self, parameters_to_prune: Any = ()) -> Any:
            return [(module, name) for module, name in parameters_to_prune if module.out_features == 5]

    model = fit(callbacks=[Some("l1_unstructured", amount=1.0)], max_epochs=1)
    assert zeros(model) == 25
    assert not (model.net[0].weight != 0).any()  # type: ignore[index]


def test_layers_that_configure_model_makes() -> None:
    """Lightning looks for parameters before."""

    class Late(Net):
        def __init__(self) -> None:
            super().__init__()
            del self.net

        def configure_model(self) -> None:
            self.net = nn.Sequential(nn.Linear(FEATURES, 5), nn.Tanh(), nn.Linear(5, 1))  # type: ignore[assignment]

    assert zeros(fit(model=Late(), max_epochs=1, amount=0.5)) == 16


def test_nothing_given_is_everything() -> None:
    assert same(weights(fit(parameters_to_prune=None, parameter_names=None)), weights(fit()))


def test_amounts_of_an_epoch() -> None:
    asked = []

    def amount(epoch: int) -> float | int:
        asked.append(epoch)
        return (0, 0.5, 2, 0.0)[epoch]

    assert zeros(fit(amount=amount, use_lottery_ticket_hypothesis=False)) == 18
    assert asked == [0, 1, 2, 3]
    with pytest.raises(MisconfigurationException, match=r"amount=1\.5"):
        fit(amount=lambda epoch: 1.5)


# -- errors ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"pruning_fn": "l2"}, "choose one of .*'ln_structured'"),
        ({"pruning_fn": prune.l1_unstructured}, "the class, no instance"),
        ({"pruning_fn": prune.L1Unstructured(0.5)}, "the class, no instance"),
        ({"pruning_fn": "random_structured", "pruning_dim": 0}, "use_global_unstructured=False"),
        ({"pruning_fn": prune.LnStructured}, "use_global_unstructured=False"),
        ({"pruning_fn": "random_structured", "use_global_unstructured": False}, "needs `pruning_dim`"),
        (
            {"pruning_fn": "ln_structured", "use_global_unstructured": False, "pruning_dim": 0},
            "needs `pruning_norm`",
        ),
        ({"parameter_names": ["kernel"]}, r"\['kernel'\] cannot be pruned by name"),
        ({"amount": 1.5}, "fraction from 0.0 to 1.0"),
        ({"amount": -1}, "fraction from 0.0 to 1.0"),
        ({"amount": True}, "fraction from 0.0 to 1.0"),
        ({"amount": "half"}, "fraction from 0.0 to 1.0"),
        ({"amount": float("nan")}, "fraction from 0.0 to 1.0"),
        ({"verbose": 3}, "choose 0, 1 or 2"),
        ({"parameters_to_prune": [nn.Linear(1, 1)]}, "give pairs of a module"),
        ({"apply_pruning": "no"}, "apply_pruning='no'.*True or False, or give a function"),
        ({"use_lottery_ticket_hypothesis": None}, "True or False, or give a function"),
        ({"make_pruning_permanent": lambda epoch: True}, r"make_pruning_permanent=.*True or False\."),
        ({"resample_parameters": "x"}, "resample_parameters='x'.*True or False"),
        ({"pruning_dim": "a"}, "pruning_dim='a'.*number of a dimension"),
        ({"pruning_norm": "x"}, "pruning_norm='x'.*give a number"),
        ({"parameters_to_prune": [(nn.Linear(1, 1), "weight")]}, "is no part of `Net`"),
        ({"amount": 32}, "there are 31 to prune"),
        ({"amount": 2, "use_global_unstructured": False}, "there are 1 to prune"),
        (
            {"pruning_fn": "random_structured", "use_global_unstructured": False, "pruning_dim": 0},
            r"\['net.0.bias', 'net.2.bias'\] have one dimension only",
        ),
    ],
)
def test_bad_values(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(MisconfigurationException, match=message):
        fit(**arguments)


def test_bad_parameters() -> None:
    model = Net()
    with pytest.raises(MisconfigurationException, match=r"has no parameter 'kernel'; it has \['weight', 'bias'\]"):
        fit(model=model, parameters_to_prune=[(model.net[0], "kernel")])  # type: ignore[index]
    with pytest.raises(MisconfigurationException, match="found nothing to prune"):
        ModelPruning.sanitize_parameters_to_prune(nn.Tanh())

    class Nothing(ModelPruning):
        def filter_parameters_to_prune(self, parameters_to_prune: Any = ()) -> Any:
            return []

    with pytest.raises(MisconfigurationException, match="left nothing to prune"):
        fit(callbacks=[Nothing("l1_unstructured")])


def test_outside_of_a_run() -> None:
    with pytest.raises(RuntimeError, match="only during a Trainer's run"):
        ModelPruning("l1_unstructured").apply_lottery_ticket_hypothesis()


def test_the_same_is_found_as_before_when_used_again() -> None:
    """One callback for several models."""
    callback = ModelPruning("l1_unstructured", amount=0.5)
    for model in (Net(), Net()):
        assert zeros(fit(model=model, callbacks=[callback], max_epochs=1)) == 16
    small = Line()
    trainer(max_epochs=1, callbacks=[callback]).fit(small, loader(1))
    assert sum(int((value == 0).sum()) for value in small.parameters()) == 2

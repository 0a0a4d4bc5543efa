"""Averages of the weights: against those computed by hand, in validation, in checkpoints, resumed bit for bit."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.optim.swa_utils import get_ema_avg_fn, get_ema_multi_avg_fn

import gpulayer.pytorch as L
from gpulayer.fabric.utilities.exceptions import MisconfigurationException
from gpulayer.pytorch.callbacks import (
    EMAWeightAveraging,
    ModelCheckpoint,
    OnExceptionCheckpoint,
    StochasticWeightAveraging,
    WeightAveraging,
)
from tests.architecture.test_host_sync import ScalarReads
from tests.pytorch.models import FEATURES, Validated, loader, same, trainer, weights


class Net(L.Module):
    """BatchNorm, dropout, a layer that is used under two names, a mask with infinities, counters, two groups."""

    def __init__(self, dtype: torch.dtype = torch.float32) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(FEATURES, 8), nn.BatchNorm1d(8), nn.Dropout(0.3), nn.Linear(8, 1))
        self.again = self.net[0]
        self.register_buffer("mask", torch.full((3, 3), float("-inf")).triu(1))
        self.register_buffer("position", torch.arange(7))
        self.register_buffer("scratch", torch.zeros(1), persistent=False)
        self.dtype_wanted = dtype
        self.after_steps: list[dict[str, Tensor]] = []
        self.validated: list[dict[str, Tensor]] = []

    def loss(self, batch: Any) -> Tensor:
        x, y = batch
        return nn.functional.mse_loss(self.net(x.to(self.net[0].weight.dtype)).float(), y)

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        self.scratch = self.scratch + 1  # another tensor in the place of the buffer
        loss = self.loss(batch)
        self.log("loss", loss, on_epoch=True)
        return loss

    def on_train_batch_end(self, *_: Any) -> None:
        self.after_steps.append(weights(self))

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        self.log("val_loss", self.loss(batch))

    def on_validation_epoch_end(self) -> None:
        self.validated.append(weights(self))

    def configure_optimizers(self) -> Any:
        first, last = self.net[0].parameters(), [*self.net[1].parameters(), *self.net[3].parameters()]
        return torch.optim.AdamW([{"params": first, "lr": 0.02}, {"params": last, "lr": 0.005}])


def fit(callback: Any, path: str | None = None, model: Any = None, validates: bool = True, **arguments: Any) -> Any:
    L.seed_everything(1, verbose=False)
    model = model() if isinstance(model, type) else model or Net()
    if path is not None:
        L.seed_everything(99, verbose=False)
    callbacks = [callback, *arguments.pop("callbacks", [])]
    used = trainer(**{"max_epochs": 2, "callbacks": callbacks, **arguments})
    val = loader(2, 2) if validates else None
    used.fit(model, loader(4, 4, shuffle=True), val, ckpt_path=path)
    return used, model


def by_hand(states: list[dict[str, Tensor]], decay: float | None) -> dict[str, Tensor]:
    """In float64; `decay` None: the mean."""
    average = {name: value.double() for name, value in states[0].items()}
    for count, state in enumerate(states[1:], 1):
        share = 1 / (count + 1) if decay is None else 1 - decay
        for name, value in state.items():
            if name != "mask":
                average[name] = (1 - share) * average[name] + share * value.double()
    return average


def close_to(found: dict[str, Tensor], expected: dict[str, Tensor]) -> bool:
    return found.keys() == expected.keys() and all(
        torch.allclose(found[name].double(), expected[name], rtol=1e-7, atol=1e-7)
        for name in found
        if found[name].is_floating_point()
    )


MADE = {
    "mean": (lambda: WeightAveraging(), None),
    "ema": (lambda: EMAWeightAveraging(decay=0.9), 0.9),
    "ema of torch": (lambda: WeightAveraging(multi_avg_fn=get_ema_multi_avg_fn(0.9)), 0.9),
    "mean of the user": (lambda: WeightAveraging(avg_fn=lambda old, new, count: old + (new - old) / (count + 1)), None),
}


@pytest.mark.filterwarnings("ignore:.*has a `validation_step`, but there is no validation loader")
@pytest.mark.parametrize("name", ["mean", "ema"])
@pytest.mark.parametrize("steps", [1, 8, 24])
def test_the_average_is_that_computed_by_hand(name: str, steps: int) -> None:
    make, decay = MADE[name]
    _, model = fit(make(), validates=False, max_epochs=-1, max_steps=steps)
    assert close_to(weights(model), by_hand(model.after_steps, decay))


@pytest.mark.parametrize("name", ["ema of torch", "mean of the user"])
def test_functions_of_the_user(name: str) -> None:
    make, decay = MADE[name]
    model = Validated()
    states: list[dict[str, Tensor]] = []

    class Notes(L.Callback):
        def on_train_batch_end(self, trainer: L.Trainer, pl_module: L.Module, *_: Any) -> None:
            states.append(weights(pl_module))

    fit(make(), model=model, callbacks=[Notes()])
    assert len(states) == 8
    expected = by_hand(states, decay)
    assert all(torch.allclose(weights(model)[key].double(), expected[key], atol=1e-6) for key in expected)


def test_what_is_no_number_is_not_averaged() -> None:
    _, model = fit(EMAWeightAveraging(decay=0.9))
    state = weights(model)
    assert torch.equal(state["position"], torch.arange(7))
    assert torch.equal(state["mask"], Net().mask)
    assert state["net.1.num_batches_tracked"] == 8
    assert model.again is model.net[0]


def test_buffers_left_out() -> None:
    _, model = fit(EMAWeightAveraging(use_buffers=False, decay=0.9))
    state, expected = weights(model), by_hand(model.after_steps, 0.9)
    assert torch.equal(state["net.1.running_mean"], model.after_steps[-1]["net.1.running_mean"])
    assert torch.allclose(state["net.0.weight"].double(), expected["net.0.weight"], atol=1e-7)


# -- when --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "steps"),
    [
        ({}, range(8)),
        ({"update_every_n_steps": 3}, [0, 3, 6]),
        ({"update_starting_at_step": 5}, [5, 6, 7]),
        ({"update_starting_at_step": 4, "update_every_n_steps": 3}, [6]),
        ({"update_starting_at_epoch": 1}, [4, 5, 6, 7]),
        ({"update_starting_at_epoch": 1, "update_starting_at_step": 6}, [6, 7]),
        ({"update_every_n_steps": 0, "update_starting_at_epoch": 0}, [3, 7]),
        ({"update_every_n_steps": 0, "update_starting_at_epoch": 1}, [7]),
    ],
)
def test_when_it_is_updated(arguments: dict[str, Any], steps: Any) -> None:
    _, model = fit(EMAWeightAveraging(decay=0.5, **arguments))
    assert close_to(weights(model), by_hand([model.after_steps[step] for step in steps], 0.5))


def test_accumulated_batches_are_one_step() -> None:
    _, model = fit(EMAWeightAveraging(decay=0.5), accumulate_grad_batches=2)
    expected = by_hand([model.after_steps[batch] for batch in (1, 3, 5, 7)], 0.5)
    assert torch.allclose(weights(model)["net.0.weight"].double(), expected["net.0.weight"], atol=1e-7)


def test_every_second_step_where_a_batch_takes_two() -> None:
    """The steps that end a batch are 1, 3, 5 ...: none of these numbers is even, but a step before each is."""

    class Twice(Validated):
        def __init__(self) -> None:
            super().__init__()
            self.automatic_optimization = False
            self.states: list[dict[str, Tensor]] = []

        def training_step(self, batch: Any, batch_idx: int) -> None:
            for optimizer in self.optimizers():
                optimizer.zero_grad()
                self.manual_backward(self.loss(batch))
                optimizer.step()

        def on_train_batch_end(self, *_: Any) -> None:
            self.states.append(weights(self))

        def configure_optimizers(self) -> Any:
            return [torch.optim.SGD(self.parameters(), lr=0.01), torch.optim.SGD(self.parameters(), lr=0.02)]

    model = Twice()
    fit(EMAWeightAveraging(decay=0.5, update_every_n_steps=2), model=model)
    expected = by_hand(model.states, 0.5)
    assert torch.allclose(weights(model)["net.weight"].double(), expected["net.weight"], atol=1e-7)


def test_the_users_own_choice() -> None:
    class Own(WeightAveraging):
        def should_update(self, step_idx: int | None = None, epoch_idx: int | None = None) -> bool:
            return step_idx == 2 or epoch_idx == 1

    _, model = fit(Own())
    assert close_to(weights(model), by_hand([model.after_steps[step] for step in (2, 7)], None))


# -- validation --------------------------------------------------------------------------------------------------------


def test_validation_uses_the_averages_and_training_does_not() -> None:
    _, model = fit(EMAWeightAveraging(decay=0.5))
    _, plain = fit(L.Callback())
    assert all(map(same, model.after_steps, plain.after_steps))
    for epoch in range(2):
        assert close_to(model.validated[epoch], by_hand(model.after_steps[: 4 * epoch + 4], 0.5))


def test_before_the_start_validation_uses_the_trained_weights() -> None:
    """Lightning's issue 21724: it validates a copy of the weights from before training."""
    _, model = fit(EMAWeightAveraging(decay=0.5, update_starting_at_step=6))
    assert same(model.validated[0], model.after_steps[3])
    assert close_to(model.validated[1], by_hand(model.after_steps[6:], 0.5))


def test_without_any_update_the_trained_weights_stay() -> None:
    with pytest.warns(UserWarning, match="EMAWeightAveraging made no update in 8 steps"):
        _, model = fit(EMAWeightAveraging(update_starting_at_step=100))
    assert same(weights(model), model.after_steps[-1])


@pytest.mark.parametrize("error", [RuntimeError, KeyboardInterrupt])
def test_an_error_in_validation_leaves_the_trained_weights(error: type[BaseException]) -> None:
    class Fails(Net):
        def validation_step(self, batch: Any, batch_idx: int) -> None:
            raise error("in validation")

    L.seed_everything(1, verbose=False)
    model = Fails()
    with pytest.raises(error):
        trainer(max_epochs=1, callbacks=[EMAWeightAveraging(decay=0.5)]).fit(model, loader(), loader())
    assert same(weights(model), model.after_steps[-1])


def test_afterwards_the_module_has_the_averages_and_evaluations_change_nothing() -> None:
    used, model = fit(EMAWeightAveraging(decay=0.5))
    before = weights(model)
    used.validate(model, loader(2), verbose=False)
    assert same(before, weights(model))
    other = Net()
    untouched = weights(other)
    used.validate(other, loader(2), verbose=False)
    assert same(untouched, weights(other))


# -- 16 bits, devices, compiled ----------------------------------------------------------------------------------------


def test_what_has_16_bits_is_averaged_in_32() -> None:
    """With a decay of 0.999 the changes of a bfloat16 average would be rounded away."""
    model = Validated(lr=0.02)
    states: list[dict[str, Tensor]] = []

    class Notes(L.Callback):
        def on_train_batch_end(self, trainer: L.Trainer, pl_module: L.Module, *_: Any) -> None:
            states.append(weights(pl_module))

    used, _ = fit(
        EMAWeightAveraging(decay=0.999), model=model, callbacks=[Notes()], precision="bf16-true", max_epochs=20
    )
    used.save_checkpoint("end.ckpt")
    saved = torch.load("end.ckpt", weights_only=True)
    expected = by_hand(states, 0.999)["net.weight"]
    assert model.net.weight.dtype == torch.bfloat16
    assert torch.allclose(saved["state_dict"]["net.weight"].double(), expected, atol=1e-6)
    assert not torch.equal(saved["state_dict"]["net.weight"].bfloat16(), states[0]["net.weight"])
    assert torch.equal(saved["current_model_state"]["net.weight"], states[-1]["net.weight"])
    assert torch.allclose(Validated.load_from_checkpoint("end.ckpt").net.weight.double(), expected, atol=1e-6)


def test_mixed_formats_and_complex_numbers() -> None:
    class Mixed(Validated):
        def __init__(self) -> None:
            super().__init__()
            self.wide = nn.Parameter(torch.ones(2, dtype=torch.float64))
            self.phase = nn.Parameter(torch.ones(2, dtype=torch.complex64))
            self.narrow = nn.Parameter(torch.ones(2, dtype=torch.float16))
            self.states: list[dict[str, Tensor]] = []

        def training_step(self, batch: Any, batch_idx: int) -> Tensor:
            rest = self.wide.square().sum() + self.phase.abs().square().sum() + self.narrow.float().square().sum()
            return self.loss(batch) + rest.float()

        def on_train_batch_end(self, *_: Any) -> None:
            self.states.append(weights(self))

        def configure_optimizers(self) -> Any:
            return torch.optim.SGD(self.parameters(), lr=0.01)

    model = Mixed()
    fit(EMAWeightAveraging(decay=0.5), model=model)
    phase = model.states[0]["phase"]
    for state in model.states[1:]:
        phase = 0.5 * phase + 0.5 * state["phase"]
    assert torch.allclose(model.phase, phase)
    expected = by_hand([{key: state[key] for key in ("wide", "net.weight")} for state in model.states], 0.5)
    assert torch.allclose(model.wide, expected["wide"])
    assert torch.allclose(model.net.weight.double(), expected["net.weight"], atol=1e-7)


@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf")
def test_a_compiled_module() -> None:
    def run(compiled: bool) -> dict[str, Tensor]:
        L.seed_everything(1, verbose=False)
        model = Validated()
        given: Any = torch.compile(model, backend="eager") if compiled else model
        trainer(max_epochs=2, callbacks=[EMAWeightAveraging(decay=0.5)]).fit(given, loader(), loader())
        return weights(model)

    assert same(run(True), run(False))


def test_layers_made_late() -> None:
    class Late(Validated):
        def __init__(self) -> None:
            super().__init__()
            self.net = None  # type: ignore[assignment]

        def configure_model(self) -> None:
            if self.net is None:
                self.net = nn.Sequential(nn.LazyLinear(3), nn.Linear(3, 1))

    model = Late()
    model.configure_model()
    model(torch.zeros(1, FEATURES))
    fit(EMAWeightAveraging(device="cpu", decay=0.5), model=model)


@pytest.mark.filterwarnings("ignore:.*has a `validation_step`, but there is no validation loader")
def test_nothing_is_read_on_the_host_by_an_update() -> None:
    def reads(steps: int, callbacks: list[Any]) -> int:
        with ScalarReads() as mode:
            trainer(max_epochs=1, callbacks=callbacks).fit(Validated(), loader(steps))
        return mode.count

    for make, _ in (MADE["mean"], MADE["ema"]):
        assert reads(30, [make()]) == reads(5, [make()])


# -- checkpoints -------------------------------------------------------------------------------------------------------


def test_checkpoints_hold_the_averages_and_the_trained_weights() -> None:
    saver = ModelCheckpoint("saved", "{step}", every_n_train_steps=3, save_top_k=-1)
    _, model = fit(EMAWeightAveraging(decay=0.5), callbacks=[saver])
    saved = torch.load("saved/step=6.ckpt", weights_only=True)
    assert close_to(saved["state_dict"], by_hand(model.after_steps[:6], 0.5))
    assert same(saved["current_model_state"], model.after_steps[5])
    assert saved["averaging_state"] == {"n_averaged": torch.tensor(6)}
    assert saved["callbacks"]["EMAWeightAveraging"] == {"latest_update_step": 6}


def test_a_file_with_weights_only_holds_the_averages() -> None:
    saver = ModelCheckpoint("saved", "{epoch}", save_weights_only=True, monitor="val_loss", save_top_k=-1)
    _, model = fit(EMAWeightAveraging(decay=0.5), callbacks=[saver])
    saved = torch.load("saved/epoch=0.ckpt", weights_only=True)
    assert same(saved["state_dict"], model.validated[0])
    assert "current_model_state" not in saved


def test_a_state_whose_names_are_changed() -> None:
    class Renames(Validated):
        def __init__(self) -> None:
            super().__init__()
            self.register_state_dict_post_hook(self.rename)

        @staticmethod
        def rename(module: nn.Module, state: dict[str, Any], prefix: str, metadata: Any) -> None:
            for key in list(state):
                state[f"renamed.{key}"] = state.pop(key)

    used, model = fit(EMAWeightAveraging(decay=0.5), model=Renames())
    used.save_checkpoint("end.ckpt")
    saved = torch.load("end.ckpt", weights_only=True)
    assert torch.equal(saved["state_dict"]["renamed.net.weight"], model.net.weight)
    assert not torch.equal(saved["current_model_state"]["renamed.net.weight"], model.net.weight)


RESUMED = {
    "mean": lambda: WeightAveraging(),
    "ema": lambda: EMAWeightAveraging(decay=0.9),
    "every third": lambda: EMAWeightAveraging(decay=0.5, update_every_n_steps=3),
    "late": lambda: EMAWeightAveraging(decay=0.5, update_starting_at_step=5),
    "by epoch": lambda: EMAWeightAveraging(decay=0.5, update_every_n_steps=0, update_starting_at_epoch=0),
    "without buffers": lambda: EMAWeightAveraging(decay=0.5, use_buffers=False),
    "of torch": lambda: WeightAveraging(multi_avg_fn=get_ema_multi_avg_fn(0.9)),
    "one by one": lambda: WeightAveraging(avg_fn=get_ema_avg_fn(0.9)),
}


@pytest.mark.filterwarnings("ignore:The checkpoint holds the state of callbacks")
@pytest.mark.parametrize("precision", ["32-true", "bf16-true"])
@pytest.mark.parametrize("name", RESUMED)
def test_a_resumed_run_ends_the_same_bit_for_bit(name: str, precision: Any) -> None:
    """Saved after batches, validations and epochs."""
    savers = [
        ModelCheckpoint("saved", "{step}", every_n_train_steps=3, save_top_k=-1),
        ModelCheckpoint("saved", "validated-{epoch}", monitor="val_loss", save_top_k=-1),
        ModelCheckpoint("saved", "epoch-{epoch}", save_top_k=-1, save_on_train_epoch_end=True),
    ]
    arguments = {"precision": precision, "val_check_interval": 2}
    _, whole = fit(RESUMED[name](), callbacks=savers, **arguments)
    files = sorted(Path("saved").glob("*.ckpt"))
    assert len(files) >= 6
    for file in files:
        _, resumed = fit(RESUMED[name](), str(file), **arguments)
        assert same(weights(resumed), weights(whole)), file
        count = len(resumed.after_steps)
        assert not count or all(map(same, resumed.after_steps, whole.after_steps[-count:])), file


def test_a_run_that_ended_goes_on_from_its_trained_weights() -> None:
    _, whole = fit(EMAWeightAveraging(decay=0.5), max_epochs=3)
    used, _ = fit(EMAWeightAveraging(decay=0.5), max_epochs=2)
    used.save_checkpoint("end.ckpt")
    _, resumed = fit(EMAWeightAveraging(decay=0.5), "end.ckpt", max_epochs=3)
    assert same(weights(resumed), weights(whole))


def test_resumed_where_nothing_is_left_the_module_has_the_averages() -> None:
    used, whole = fit(EMAWeightAveraging(decay=0.5))
    used.save_checkpoint("end.ckpt")
    _, resumed = fit(EMAWeightAveraging(decay=0.5), "end.ckpt")
    assert resumed.after_steps == []
    assert same(weights(resumed), weights(whole))


def test_saved_by_an_error_in_validation() -> None:
    class Fails(Net):
        fails = True

        def validation_step(self, batch: Any, batch_idx: int) -> None:
            if self.fails:
                raise RuntimeError("in validation")
            super().validation_step(batch, batch_idx)

    with pytest.raises(RuntimeError, match="in validation"):
        fit(EMAWeightAveraging(decay=0.5), model=Fails, callbacks=[OnExceptionCheckpoint("saved")])
    Fails.fails = False
    _, whole = fit(EMAWeightAveraging(decay=0.5), model=Fails)
    _, resumed = fit(EMAWeightAveraging(decay=0.5), "saved/on_exception.ckpt", Fails)
    assert len(resumed.after_steps) == 4
    assert same(weights(resumed), weights(whole))


def test_a_layer_that_changes_after_the_start() -> None:
    class Changes(Validated):
        def on_train_epoch_end(self) -> None:
            nn.utils.parametrizations.weight_norm(self.net)

    with pytest.raises(MisconfigurationException, match="lost its 'weight' after averaging had begun"):
        fit(EMAWeightAveraging(), model=Changes())


def test_tested_from_a_checkpoint_the_averages_are() -> None:
    used, model = fit(EMAWeightAveraging(decay=0.5))
    used.save_checkpoint("end.ckpt")
    expected = weights(model)
    with torch.no_grad():
        model.net[0].weight.zero_()
    used.validate(model, loader(2), ckpt_path="end.ckpt", verbose=False)
    assert same(weights(model), expected)


def test_a_checkpoint_without_averages() -> None:
    used, _ = fit(L.Callback(), max_epochs=1)
    used.save_checkpoint("plain.ckpt")
    _, resumed = fit(EMAWeightAveraging(decay=0.5), "plain.ckpt", max_epochs=2)
    assert close_to(weights(resumed), by_hand(resumed.after_steps, 0.5))


# -- errors ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"decay": 1.5}, r"decay=1\.5.*from 0 to 1"),
        ({"decay": "high"}, "decay='high'"),
        ({"update_every_n_steps": -1}, "update_every_n_steps=-1.*from 1"),
        ({"update_every_n_steps": 0}, "update_every_n_steps=0.*update_starting_at_epoch"),
        ({"update_every_n_steps": 1.0}, r"update_every_n_steps=1\.0.*a whole number"),
        ({"update_starting_at_step": "5"}, "update_starting_at_step='5'.*or None"),
        ({"update_starting_at_epoch": True}, "update_starting_at_epoch=True"),
        ({"update_starting_at_epoch": -1}, "update_starting_at_epoch=-1.*from 0, or None"),
        ({"use_buffers": "yes"}, "use_buffers='yes'.*True or False"),
        ({"device": "gpu"}, "device='gpu'"),
        ({"device": 1.5}, r"device=1\.5"),
    ],
)
def test_bad_values(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(MisconfigurationException, match=message):
        EMAWeightAveraging(**arguments)


@pytest.mark.parametrize(
    "make", [lambda: EMAWeightAveraging("cuda:99"), lambda: StochasticWeightAveraging(0.1, device="cuda:99")]
)
def test_a_device_that_is_not_there(make: Any) -> None:
    """The callback can be made where there is none, for it may be used elsewhere."""
    with pytest.raises(MisconfigurationException, match=r"device='cuda:99'.*this machine has no such device"):
        fit(make())


def test_bad_functions() -> None:
    with pytest.raises(MisconfigurationException, match="was given both"):
        WeightAveraging(avg_fn=get_ema_avg_fn(), multi_avg_fn=get_ema_multi_avg_fn())
    with pytest.raises(MisconfigurationException, match="avg_fn=3"):
        WeightAveraging(avg_fn=3)  # type: ignore[arg-type]


@pytest.mark.parametrize("other", [WeightAveraging(), StochasticWeightAveraging(0.1)])
def test_two_averages(other: Any) -> None:
    with pytest.raises(MisconfigurationException, match="average"):
        fit(EMAWeightAveraging(), callbacks=[other])

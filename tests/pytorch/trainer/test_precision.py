"""Number formats in the Trainer: what steps, gradients, weights and checkpoints are in."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from gpulayer.fabric.accelerators import CPUAccelerator
from gpulayer.fabric.utilities.exceptions import MisconfigurationException
from gpulayer.pytorch.strategies import SingleDeviceStrategy
from tests.pytorch.models import FEATURES, Line, Validated, loader, same, trainer, weights


@pytest.mark.parametrize(
    ("given", "name"),
    [(64, "64-true"), ("64", "64-true"), (32, "32-true"), ("32", "32-true"), (16, "16-mixed"), ("16", "16-mixed"),
     ("fp16", "16-mixed"), ("bf16", "bf16-mixed"), (None, "32-true")],
)  # fmt: skip
def test_short_forms(given: Any, name: str) -> None:
    used = trainer(precision=given)
    assert used.precision == name
    assert (used.scaler is not None) == (name == "16-mixed")
    used.fit(Line(), loader())
    assert used.global_step == 4


@pytest.mark.parametrize("name", ["transformer-engine", "transformer-engine-float16"])
def test_eight_bits(name: str) -> None:
    with pytest.raises(MisconfigurationException, match=r"package transformer-engine.*use 'bf16-mixed'"):
        trainer(precision=name)


# -- everything in one format -----------------------------------------------------------------------------------------

TRUE = {"16-true": torch.float16, "bf16-true": torch.bfloat16, "64-true": torch.float64}


class Looks(Validated):
    """Notes the formats of its weights, inputs, outputs and new tensors, by step."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: dict[str, set[torch.dtype]] = {}

    def look(self, step: str, batch: Any) -> None:
        assert batch["count"].dtype == torch.int64
        tensors = (self.net.weight, batch["x"], batch["nested"][0], self(batch["x"]), torch.zeros(1))
        self.seen.setdefault(step, set()).update(tensor.dtype for tensor in tensors)

    def loss(self, batch: Any) -> Tensor:
        return (self(batch["x"]) - batch["nested"][0]).square().mean()

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        self.look("train", batch)
        return super().training_step(batch, batch_idx)

    def validation_step(self, batch: Any, batch_idx: int) -> Any:
        self.look("validate", batch)
        return super().validation_step(batch, batch_idx)

    def test_step(self, batch: Any, batch_idx: int) -> Any:
        self.look("test", batch)
        return super().test_step(batch, batch_idx)

    def predict_step(self, batch: Any, batch_idx: int) -> Any:
        self.look("predict", batch)
        return self(batch["x"])


def batches() -> list[Any]:
    """Batches of floating-point numbers in a dict and below it, and of whole numbers."""
    return [{"x": x, "nested": [y], "count": torch.arange(2)} for x, y in loader()]


@pytest.mark.parametrize("precision", TRUE)
def test_weights_inputs_and_new_tensors(precision: str) -> None:
    """In every step; afterwards the weights stay in that format, and new tensors are of 32 bits again."""
    dtype, model, used = TRUE[precision], Looks(), trainer(precision=precision, num_sanity_val_steps=1)
    before = weights(model)
    used.fit(model, batches(), batches())
    assert (model.net.weight.dtype, model.dtype) == (dtype, dtype)
    assert not torch.equal(model.net.weight, before["net.weight"].to(dtype))
    used.validate(model, batches())
    used.test(model, batches())
    predictions = used.predict(model, batches()) or []
    assert {prediction.dtype for prediction in predictions} == {dtype}
    assert model.net.weight.dtype == dtype
    assert model.seen == {step: {dtype} for step in ("validate", "train", "test", "predict")}
    assert torch.get_default_dtype() == torch.float32


@pytest.mark.parametrize("precision", TRUE)
def test_an_error_leaves_new_tensors_of_32_bits(precision: str) -> None:
    class Breaks(Line):
        def training_step(self, batch: Any, batch_idx: int) -> Any:
            raise ValueError("the user's own")

    with pytest.raises(ValueError, match="the user's own"):
        trainer(precision=precision).fit(Breaks(), loader())
    assert torch.get_default_dtype() == torch.float32


def test_64_bits_are_those_of_a_module_made_so() -> None:
    """Bit for bit the plain loop in double precision."""
    model, plain = Line(), Line().double()
    plain.load_state_dict(model.state_dict())
    trainer(precision="64-true").fit(model, loader())
    optimizer = plain.configure_optimizers()
    for x, y in loader():
        optimizer.zero_grad()
        plain.loss((x.double(), y.double())).backward()
        optimizer.step()
    assert same(weights(model), weights(plain))


@pytest.mark.parametrize("precision", TRUE)
def test_a_checkpoint_of_that_format_goes_on(precision: str) -> None:
    first = trainer(precision=precision)
    first.fit(Line(), loader())
    first.save_checkpoint("model.ckpt")
    saved = torch.load("model.ckpt", weights_only=True)
    assert saved["state_dict"]["net.weight"].dtype == TRUE[precision]
    model, second, whole = Line(), trainer(precision=precision, max_epochs=2), Line()
    second.fit(model, loader(), ckpt_path="model.ckpt")
    assert second.global_step == 8
    assert model.net.weight.dtype == TRUE[precision]
    assert second.optimizers[0].state[model.net.weight]["momentum_buffer"].dtype == TRUE[precision]
    assert whole.net.weight.dtype == torch.float32


@pytest.mark.parametrize("precision", TRUE)
def test_a_resumed_run_is_the_unbroken_one(precision: str) -> None:
    """Bit for bit: the weights are not rounded to 32 bits on their way into the model."""

    def fitted(model: Any, epochs: int, path: str | None = None) -> Any:
        used = trainer(precision=precision, max_epochs=epochs)
        used.fit(model, loader(), ckpt_path=path)
        return used

    whole, first, second, evaluated = Line(), Line(), Line(), Validated()
    first.load_state_dict(whole.state_dict())
    fitted(whole, 2)
    fitted(first, 1).save_checkpoint("model.ckpt")
    trainer(precision=precision).validate(evaluated, loader(), ckpt_path="model.ckpt")
    assert same(weights(evaluated), weights(first))
    fitted(second, 2, "model.ckpt")
    assert same(weights(second), weights(whole))


@pytest.mark.parametrize("precision", TRUE)
def test_layers_that_loading_makes_are_converted(precision: str) -> None:
    class Grows(Line):
        def on_load_checkpoint(self, checkpoint: Any) -> None:
            self.net = nn.Linear(FEATURES, 1)

    first, second = Line(), Grows()
    used = trainer(precision=precision)
    used.fit(first, loader())
    used.save_checkpoint("model.ckpt")
    trainer(precision=precision, max_epochs=2).fit(second, loader(), ckpt_path="model.ckpt")
    assert second.net.weight.dtype == TRUE[precision]


@pytest.mark.parametrize("precision", [None, "bf16-mixed", *TRUE])
def test_layers_of_configure_model_have_the_format_and_the_device_at_once(precision: str | None) -> None:
    class Late(Line):
        def configure_model(self) -> None:
            made.append(nn.Linear(FEATURES, 1).weight)
            raise KeyError("enough seen")

    made: list[Tensor] = []
    used = trainer(precision=precision, strategy=SingleDeviceStrategy("meta", CPUAccelerator()))
    with pytest.raises(KeyError, match="enough seen"):
        used.fit(Late(), loader())
    assert (made[0].dtype, made[0].device.type) == (TRUE.get(precision or "", torch.float32), "meta")
    assert (torch.ones(1).dtype, torch.ones(1).device.type) == (torch.float32, "cpu")


@pytest.mark.parametrize("precision", TRUE)
def test_complex_weights(precision: str) -> None:
    """They keep their imaginary part and are trained."""

    class Wave(Line):
        def __init__(self) -> None:
            super().__init__()
            self.wave = nn.Parameter(torch.full((1,), 1 + 2j, dtype=torch.complex64))

        def forward(self, x: Tensor) -> Tensor:
            prediction: Tensor = self.net(x) * self.wave.abs().to(x.dtype)
            return prediction

    model = Wave()
    trainer(precision=precision).fit(model, loader())
    assert model.wave.dtype == torch.complex64
    assert model.wave.item() != 1 + 2j
    assert model.wave.item().imag == pytest.approx(2 * model.wave.item().real)


# -- bf16-mixed -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("precision", ["bf16-mixed", "16-mixed"])
def test_mixed_precision_computes_in_16_bits_and_keeps_32(precision: str) -> None:
    class Mixed(Validated):
        def forward(self, x: Tensor) -> Tensor:
            output = super().forward(x)
            seen.add((x.dtype, self.net.weight.dtype, output.dtype))
            return output

        def on_before_optimizer_step(self, optimizer: Any) -> None:
            gradients.add(self.net.weight.grad.dtype)  # type: ignore[union-attr]

    seen: set[Any] = set()
    gradients: set[Any] = set()
    half = torch.bfloat16 if precision == "bf16-mixed" else torch.float16
    model, used = Mixed(), trainer(precision=precision)
    used.fit(model, loader(), loader())
    used.test(model, loader())
    predictions = used.predict(model, loader()) or []
    assert seen == {(torch.float32, torch.float32, half)}
    assert gradients == {torch.float32}
    assert {prediction.dtype for prediction in predictions} == {half}
    assert model.net.weight.dtype == torch.float32
    used.save_checkpoint("model.ckpt")
    assert ("MixedPrecision" in torch.load("model.ckpt", weights_only=True)) == (precision == "16-mixed")

"""The guide's "common issues"."""

from __future__ import annotations

import warnings
from typing import Any

import pytest
import torch

import gpulayer.pytorch as L
from gpulayer.fabric.utilities.exceptions import MisconfigurationException
from tests.workflows.guide import Classifier, block, execute, loader

HAS_GPU = torch.cuda.is_available() or torch.backends.mps.is_available()
NOT_DECREASING = block("Common issue: loss not decreasing")


def lit_model() -> type[L.LightningModule]:
    """Workflow 2's class, with a small network as MyModel."""
    model: type[L.LightningModule] = execute(
        block("Workflow 2: validation and testing, the model"), MyModel=Classifier
    )["LitModel"]
    return model


def with_training_step(code: str) -> L.LightningModule:
    """Workflow 2's model with the `training_step` that a block defines."""
    step = execute(code)["training_step"]
    return type("LitModel", (lit_model(),), {"training_step": step})()


def test_loss_not_decreasing_prints_the_first_batch(capsys: pytest.CaptureFixture[str]) -> None:
    """The block says `loss = ...`; the dots are filled in with workflow 2's loss."""
    assert NOT_DECREASING.count("loss = ...") == 1
    loss = "loss = nn.functional.cross_entropy(self.model(batch[0]), batch[1])"
    model = with_training_step(NOT_DECREASING.replace("loss = ...", loss))
    L.Trainer(max_epochs=2, logger=False, enable_checkpointing=False).fit(model, loader(0, 64), loader(64, 96))
    printed = capsys.readouterr().out
    assert printed.count("Batch shape: torch.Size([32, 784])") == 2  # once an epoch
    assert printed.count("Labels: tensor([0, 1, 2, 3,") == 2


def test_loss_not_decreasing_with_its_dots_left_in_is_explained() -> None:
    """Word for word the block returns Ellipsis."""
    with pytest.raises(MisconfigurationException, match=r"`training_step` returned Ellipsis\. Return the loss"):
        L.Trainer(logger=False, enable_checkpointing=False).fit(
            with_training_step(NOT_DECREASING), loader(0, 64), loader(64, 96)
        )


@pytest.mark.parametrize(
    ("written", "name", "dtype"), [("bf16", "bf16-mixed", torch.bfloat16), ("fp16", "16-mixed", torch.float16)]
)
def test_out_of_memory(written: str, name: str, dtype: torch.dtype) -> None:
    """Four batches a step, in 16 bits. 11 batches are 3 steps, the last of 3 batches.

    Once as it is, and once with the 'fp16' that its comment names in place of 'bf16'; nothing else is substituted.
    """
    code = block("Common issue: out of memory")
    assert code.count("precision='bf16'") == 1
    trainer = execute(code.replace("precision='bf16'", f"precision={written!r}"))["trainer"]
    model, formats = lit_model()(), []
    model.model.register_forward_hook(lambda module, inputs, output: formats.append(output.dtype))
    trainer.fit(model, loader(0, 352), loader(352, 384))
    assert trainer.global_step == 3
    assert trainer.precision == name
    assert set(formats) == {dtype}
    assert {parameter.dtype for parameter in model.parameters()} == {torch.float32}


def test_validation_not_running(recwarn: pytest.WarningsRecorder) -> None:
    """Without a loader it says that nothing is validated; with one it validates. Nothing is substituted."""
    wrong, correct = block("Common issue: validation not running").split("# CORRECT")
    data: dict[str, Any] = {"train_loader": loader(0, 64), "val_loader": loader(64, 96)}

    model = lit_model()()
    with pytest.warns(UserWarning, match="no validation loader: nothing is validated"):
        execute(wrong, trainer=(trainer := L.Trainer()), model=model, **data)
    assert "val_loss" not in trainer.callback_metrics

    model = lit_model()()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        execute(correct, trainer=(trainer := L.Trainer()), model=model, **data)
    assert float(trainer.callback_metrics["val_loss"]) > 0


def test_explicit_devices_on_the_cpu() -> None:
    """The first half of the block, word for word."""
    cpu, _ = block("Common issue: DDP spawns multiple processes unexpectedly").split("# Then GPU")
    trainer = execute(cpu)["trainer"]
    trainer.fit(lit_model()(), loader(0, 64), loader(64, 96))
    assert trainer.world_size == 1
    assert trainer.strategy.root_device.type == "cpu"


def test_explicit_devices_on_a_gpu() -> None:
    """The second half, word for word; without a GPU it ends with an error that says so."""
    _, gpu = block("Common issue: DDP spawns multiple processes unexpectedly").split("# Then GPU")
    if not HAS_GPU:
        with pytest.raises(MisconfigurationException, match=r"sees no GPU here\. Use `accelerator='auto'`"):
            execute(gpu)
        return
    trainer = execute(gpu)["trainer"]
    places: list[str] = []
    model = lit_model()()
    model.model.register_forward_hook(lambda module, inputs, output: places.append(output.device.type))
    trainer.fit(model, loader(0, 64), loader(64, 96))
    assert set(places) <= {"cuda", "mps"}

"""Modules as ONNX and TorchScript."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from tests.pytorch.models import FEATURES, Line, dataset, loader, trainer


class Exported(Line):
    """Dropout shows whether it was exported in evaluation mode."""

    def __init__(self, width: int = 8) -> None:
        super().__init__()
        self.save_hyperparameters()
        self.net = nn.Sequential(nn.Linear(FEATURES, width), nn.Dropout(0.5), nn.Linear(width, 1))  # type: ignore[assignment]
        self.example_input_array = torch.zeros(2, FEATURES)


@pytest.fixture
def trained() -> Exported:
    """A module that a Trainer has run, and still holds."""
    model = Exported()
    trainer(max_steps=2).fit(model, loader())
    return model


def outputs(model: Exported, x: Tensor) -> Tensor:
    """What the module computes in evaluation mode."""
    model.eval()
    with torch.no_grad():
        result: Tensor = model(x)
    model.train()
    return result


def modes(model: nn.Module) -> list[bool]:
    return [part.training for part in model.modules()]


# -- TorchScript ------------------------------------------------------------------------------------------------------


old = pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning")  # torch's own, of all of TorchScript


@old
@pytest.mark.parametrize("method", ["script", "trace"])
def test_torchscript_computes_the_same(trained: Exported, method: str) -> None:
    """In evaluation mode, and also from its file; the module goes on as it was."""
    held, x = trained.trainer, dataset(8).tensors[0]
    script = trained.to_torchscript("model.pt", method=method)
    assert isinstance(script, torch.jit.ScriptModule)
    for one in (script, torch.jit.load("model.pt")):
        assert torch.equal(one(x), outputs(trained, x))
        assert torch.equal(one(x), one(x))
    assert trained.trainer is held
    assert trained.training
    trainer().fit(trained, loader())


@old
def test_torchscript_of_an_example_that_is_given(trained: Exported) -> None:
    trained.example_input_array = None
    script = trained.to_torchscript(Path("model.pt"), method="trace", example_inputs=torch.ones(1, FEATURES))
    assert Path("model.pt").is_file()
    assert script(torch.ones(5, FEATURES)).shape == (5, 1)
    with pytest.raises(ValueError, match="needs an example of the inputs"):
        trained.to_torchscript(method="trace")
    with pytest.raises(ValueError, match=r"method='graph'.*'script' or 'trace'"):
        trained.to_torchscript(method="graph")
    assert trained.training


@old
def test_torchscript_of_a_module_that_no_trainer_ran() -> None:
    model = Exported()
    assert model.to_torchscript()(torch.ones(3, FEATURES)).shape == (3, 1)
    assert model.to_torchscript(method="trace")(torch.ones(3, FEATURES)).shape == (3, 1)


@old
def test_torchscript_within_a_run() -> None:
    """As a callback that exports each epoch does."""

    class Exports(Exported):
        def on_train_epoch_end(self) -> None:
            script = self.to_torchscript(method="trace")
            made.append(script(torch.ones(1, FEATURES)))
            self.log("exported", 1.0)

    made: list[Tensor] = []
    used = trainer(max_epochs=2)
    used.fit(Exports(), loader())
    assert len(made) == 2
    assert used.callback_metrics["exported"] == 1


@old
def test_an_error_in_an_export_leaves_the_module_in_order(trained: Exported) -> None:
    held = trained.trainer
    with pytest.raises(RuntimeError, match="mat1 and mat2"):
        trained.to_torchscript(method="trace", example_inputs=torch.ones(1, FEATURES + 1))
    assert trained.trainer is held
    assert trained.training


@old
@pytest.mark.parametrize("fails", [False, True])
@pytest.mark.parametrize("frozen", [False, True])
def test_each_part_is_back_in_its_own_mode(frozen: bool, fails: bool) -> None:
    """A part that the user put into evaluation mode, as in fine-tuning, stays there."""
    model = Exported()
    model.net[0].train(not frozen)
    before = modes(model)
    if fails:
        with pytest.raises(RuntimeError, match="mat1 and mat2"):
            model.to_torchscript(method="trace", example_inputs=torch.ones(1, FEATURES + 1))
    else:
        model.to_torchscript(method="trace")
    assert modes(model) == before


# -- ONNX -------------------------------------------------------------------------------------------------------------


@pytest.fixture
def onnx() -> Any:
    """The package, where it and what it needs are installed."""
    pytest.importorskip("onnxscript")
    return pytest.importorskip("onnx")


@pytest.mark.filterwarnings("ignore")  # the exporter warns of its own parts
def test_onnx_computes_the_same(trained: Exported, onnx: Any) -> None:
    from onnx.reference import ReferenceEvaluator

    held, x = trained.trainer, dataset(2).tensors[0]
    trained.to_onnx("model.onnx", verbose=False)
    graph = onnx.load("model.onnx")
    onnx.checker.check_model(graph, full_check=True)
    (found,) = ReferenceEvaluator(graph).run(None, {graph.graph.input[0].name: x.numpy()})
    torch.testing.assert_close(torch.from_numpy(found), outputs(trained, x))
    assert trained.trainer is held
    assert trained.training


@pytest.mark.filterwarnings("ignore")
def test_onnx_of_a_sample_into_memory(trained: Exported, onnx: Any) -> None:
    trained.example_input_array = None
    with pytest.raises(ValueError, match="`to_onnx` needs an example of the inputs"):
        trained.to_onnx("model.onnx")
    buffer = io.BytesIO()
    trained.to_onnx(buffer, torch.ones(3, FEATURES), verbose=False, dynamo=False, input_names=["x"])
    graph = onnx.load_from_string(buffer.getvalue())
    onnx.checker.check_model(graph)
    assert [value.name for value in graph.graph.input] == ["x"]


def test_onnx_without_its_packages(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gpulayer.pytorch.core.module.find_spec", lambda name: None)
    with pytest.raises(ModuleNotFoundError, match="`to_onnx` needs onnx and onnxscript: pip install onnx onnxscript"):
        Exported().to_onnx("model.onnx")

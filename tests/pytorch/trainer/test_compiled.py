"""Modules and steps that the user compiled with torch.compile."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor

import gpulayer.pytorch as L
from tests.pytorch.models import Line, Validated, dataset, loader, same, trainer, weights

# torch's own, where a graph is cut while a loss is alive; it hides it, but not from a filter that raises
pytestmark = pytest.mark.filterwarnings(r"ignore:The \.grad attribute of a Tensor that is not a leaf")

traced: list[Any] = []


def backend(graph: Any, inputs: Any) -> Callable[..., Any]:
    """Runs what was traced as it is, and keeps it to be looked at."""
    traced.append(graph)
    forward: Callable[..., Any] = graph.forward
    return forward


@pytest.fixture(autouse=True)
def nothing_traced() -> Iterator[None]:
    traced.clear()
    torch.compiler.reset()
    yield
    torch.compiler.reset()


def operations() -> str:
    """The code of all graphs that were traced."""
    return "\n".join(graph.code for graph in traced)


class Marked(Validated):
    """Its training step has an operation that is nowhere else; it logs before and after."""

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        x, y = batch
        error = self(x) - y
        self.log("largest", error.detach().abs().max())
        loss = (error * torch.sinc(error * 0.1)).square().mean()
        self.log("train_loss", loss, on_step=True, on_epoch=True)
        return loss


class Decorated(Marked):
    """Compiles its step itself."""

    @torch.compile(backend=backend)
    def training_step(self, batch: Any, batch_idx: int) -> Any:
        return super().training_step(batch, batch_idx)


def whole(model: Marked) -> Any:
    return torch.compile(model, backend=backend)


def step_alone(model: Marked) -> Any:
    model.training_step = torch.compile(model.training_step, backend=backend)  # type: ignore[method-assign]
    return model


def own(model: Marked) -> Any:
    decorated = Decorated()
    decorated.load_state_dict(model.state_dict())
    return decorated


WAYS = [whole, step_alone, own]


@pytest.mark.parametrize("way", WAYS, ids=lambda way: way.__name__)
def test_it_trains_compiled_to_the_same_weights(way: Callable[[Marked], Any]) -> None:
    """The step is in what was traced; metrics, validation, checkpoint and the module are those of an eager run."""
    eager, model = Marked(), Marked()
    model.load_state_dict(eager.state_dict())
    given = way(model)
    settings = {"max_epochs": 2, "num_sanity_val_steps": 1}
    expected, used = trainer(**settings), trainer(**settings)
    expected.fit(eager, loader(), loader())
    used.fit(given, loader(), loader())
    trained: Any = used.lightning_module
    assert "sinc" in operations()
    assert same(weights(trained), weights(eager))
    assert set(used.callback_metrics) == set(expected.callback_metrics)
    assert set(used.callback_metrics) >= {"largest", "train_loss_epoch", "train_loss_step", "val_loss"}
    for name, value in expected.callback_metrics.items():
        torch.testing.assert_close(used.callback_metrics[name], value)
    used.save_checkpoint("model.ckpt")
    saved = torch.load("model.ckpt", weights_only=True)["state_dict"]
    assert list(saved) == ["net.weight", "net.bias"]
    assert same(weights(Marked.load_from_checkpoint("model.ckpt")), weights(eager))


def test_a_compiled_module_in_every_call() -> None:
    model = Marked()
    compiled: Any = torch.compile(model, backend=backend)
    used = trainer()
    used.fit(compiled, loader(), loader())
    assert used.lightning_module is used.model is model
    for call, name in ((used.validate, "val_loss"), (used.test, "test_loss")):
        traced.clear()
        assert set(call(compiled, loader())) == {name}
        assert traced
    traced.clear()
    predictions: Any = used.predict(compiled, loader())
    assert traced
    torch.testing.assert_close(torch.cat(predictions), model(dataset(8).tensors[0]))


def test_resuming_a_compiled_run_and_going_on_eagerly() -> None:
    model = Marked()
    first = trainer()
    first.fit(torch.compile(model, backend=backend), loader(), loader())  # type: ignore[arg-type]
    first.save_checkpoint("model.ckpt")
    found = []
    for way in (whole, lambda fresh: fresh):
        again = trainer(max_epochs=2)
        again.fit(way(Marked()), loader(), loader(), ckpt_path="model.ckpt")
        assert again.global_step == 8
        found.append(weights(again.lightning_module))
    assert same(*found)


def test_settings_of_the_compiler_are_kept() -> None:
    """Without dynamic shapes a batch of another size is traced anew; with them it is not."""
    for dynamic, graphs in ((True, 1), (False, 2)):
        traced.clear()
        torch.compiler.reset()

        class Plain(Line):
            def training_step(self, batch: Any, batch_idx: int) -> Any:
                return (self(batch[0]) - batch[1]).square().mean()

        batches = [[x[:size], y[:size]] for size, (x, y) in zip((3, 5), loader(2, 6), strict=True)]
        trainer().fit(torch.compile(Plain(), backend=backend, dynamic=dynamic), batches)  # type: ignore[arg-type]
        assert len(traced) == graphs


def test_manual_optimization_compiled_in_part() -> None:
    """The net is compiled, the step around it is not."""

    class Manual(L.Module):
        def __init__(self) -> None:
            super().__init__()
            self.automatic_optimization = False
            self.net = Line().net
            self.error = torch.compile(self.error_of, backend=backend)

        def error_of(self, x: Tensor, y: Tensor) -> Tensor:
            return (self.net(x) - y).square().mean()

        def training_step(self, batch: Any, batch_idx: int) -> None:
            optimizer = self.optimizers()
            optimizer.zero_grad()
            self.manual_backward(self.error(*batch))
            optimizer.step()

        def configure_optimizers(self) -> Any:
            return torch.optim.SGD(self.parameters(), lr=0.05)

    used = trainer()
    used.fit(Manual(), loader())
    assert used.global_step == 4
    assert len(traced) == 1


def test_something_else_that_was_compiled() -> None:
    with pytest.raises(TypeError, match=r"takes a `gpulayer\.pytorch\.Module`"):
        trainer().fit(torch.compile(torch.nn.Linear(4, 1), backend=backend), loader())  # type: ignore[arg-type]

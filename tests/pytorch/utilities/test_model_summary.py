"""Summaries: what they count and measure, that they leave the model as it was, and how they look."""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

import gpulayer.pytorch as L
from gpulayer.fabric.utilities.exceptions import MisconfigurationException
from gpulayer.pytorch.utilities.model_summary import (
    LayerSummary,
    ModelSummary,
    get_formatted_model_size,
    get_human_readable_count,
    parse_batch_shape,
    summarize,
)
from gpulayer.pytorch.utilities.model_summary.table import GAP, draw, totals, width_of


class Model(L.Module):
    """Its parts, called one after another or by `call`."""

    def __init__(self, example: Any = None, call: Callable[..., Any] | None = None, **parts: Any) -> None:
        super().__init__()
        for name, part in parts.items():
            setattr(self, name, part)
        self.example_input_array = example
        self.call = call

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        if self.call is not None:
            return self.call(self, *args, **kwargs)
        (x,) = args
        for part in self.children():
            x = part(x)
        return x


def cells(summary: ModelSummary, header: str) -> list[str]:
    return dict(summary.columns())[header]


def number_of_hooks(model: nn.Module) -> int:
    of_all = nn.modules.module
    return sum(len(module._forward_hooks) + len(module._forward_pre_hooks) for module in model.modules()) + len(
        of_all._global_forward_hooks
    )


# -- counts ------------------------------------------------------------------------------------------------------------


def test_parameters_at_each_depth() -> None:
    inner = nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3))
    inner.scale = nn.Parameter(torch.ones(7))
    model = Model(net=inner, head=nn.Linear(3, 2).requires_grad_(False), own=nn.Parameter(torch.zeros(5)))
    for depth, names in {
        0: [],
        1: ["net", "head"],
        2: ["net", "net.0", "net.1", "head"],
        -1: ["net", "net.0", "net.1", "head"],
    }.items():
        summary = ModelSummary(model, depth)
        assert summary.layer_names == [name for name, _ in summary.named_modules] == names
        assert (summary.total_parameters, summary.trainable_parameters) == (28 + 8 + 5, 28 + 5)
        assert summary.total_layer_params == 28 + 8
    summary = ModelSummary(model, -1)
    assert summary.param_nums == [28, 15, 6, 8]
    assert cells(summary, "Name")[-1] == "other params"
    assert cells(summary, "Params")[-1].strip() == "5"


def test_modes_are_those_before_the_example() -> None:
    model = Model(torch.ones(2, 4), a=nn.Sequential(nn.Linear(4, 4), nn.Dropout()).eval(), b=nn.Linear(4, 4))
    summary = ModelSummary(model, -1)
    assert summary.training_modes == [False, False, False, True]
    assert cells(summary, "Mode") == ["eval", "eval", "eval", "train"]
    assert summary.total_training_modes == {"train": 1, "eval": 3}


def test_size_counts_each_number_format() -> None:
    """Lightning takes every parameter for one of the Trainer's precision."""
    model = Model(
        half=nn.Linear(1000, 1000, bias=False).half(),
        double=nn.Linear(1000, 1000, bias=False).double(),
        byte=nn.Parameter(torch.zeros(1000, dtype=torch.int8), requires_grad=False),
        complex=nn.Parameter(torch.zeros(1000, dtype=torch.complex64)),
        sparse=nn.Parameter(torch.eye(10).to_sparse()),
    )
    assert ModelSummary(model).model_size == pytest.approx(2 + 8 + 0.001 + 0.008 + 0.0004)


def test_shared_parameters_and_modules_count_once() -> None:
    embedding, head, shared = nn.Embedding(10, 4), nn.Linear(4, 10, bias=False), nn.Linear(4, 4)
    head.weight = embedding.weight
    model = Model(
        torch.zeros(2, 3, dtype=torch.long),
        embedding=embedding,
        first=nn.Sequential(shared),
        second=nn.Sequential(nn.ReLU(), shared),
        head=head,
    )
    summary = ModelSummary(model, -1)
    assert summary.total_parameters == summary.total_layer_params == 40 + 20
    assert summary.layer_names == ["embedding", "first", "first.0", "second", "second.0", "head"]
    assert "other params" not in cells(summary, "Name")
    flops = [sum(counts.values()) for counts in summary.flop_counts.values()]
    once = 2 * 6 * 4 * 4
    assert flops == [0, once, 2 * once, once, 0, 2 * 6 * 4 * 10]
    assert summary.total_flops == 2 * once + 2 * 6 * 4 * 10


def test_flops_are_those_of_the_formulas() -> None:
    model = Model(
        torch.ones(2, 3, 16, 16), conv=nn.Conv2d(3, 8, 3, padding=1), flat=nn.Flatten(), out=nn.Linear(2048, 5)
    )
    summary = ModelSummary(model)
    by_layer = {name: sum(counts.values()) for name, counts in summary.flop_counts.items()}
    assert by_layer == {"conv": 2 * 2 * 8 * 16 * 16 * 3 * 9, "flat": 0, "out": 2 * 2 * 2048 * 5}
    assert summary.total_flops == sum(by_layer.values())


def test_attention_counts_in_a_transformer() -> None:
    """torch's fused layers hide their products and submodules; a summary runs the ones that are written out."""
    batch, length, width, hidden = 2, 5, 8, 16
    layer = nn.TransformerEncoderLayer(width, 2, hidden, batch_first=True)
    summary = ModelSummary(Model(torch.ones(batch, length, width), net=nn.TransformerEncoder(layer, 2)), -1)
    assert torch.backends.mha.get_fastpath_enabled(), "training has them back"
    tokens = batch * length
    products = 2 * tokens * (4 * width * width + 2 * width * hidden) + 4 * tokens * length * width
    assert summary.total_flops == 2 * products
    assert summary.out_sizes[summary.layer_names.index("net.layers.0.linear1")] == [batch, length, hidden]


# -- shapes ------------------------------------------------------------------------------------------------------------


@dataclass
class Output:
    logits: Tensor
    loss: None = None


class Named(NamedTuple):
    x: Tensor
    y: int


@pytest.mark.parametrize(
    ("batch", "shape"),
    [
        (torch.ones(2, 3), [2, 3]),
        (torch.ones(()), []),
        ((torch.ones(2),), [[2]]),
        ([torch.ones(2), (torch.ones(3), None)], [[2], [[3], "?"]]),
        ({"a": torch.ones(2), 3: "text"}, {"a": [2], 3: "?"}),
        (Output(torch.ones(4)), {"logits": [4], "loss": "?"}),
        (Named(torch.ones(1), 5), [[1], "?"]),
        (torch.ones(2).numpy(), [2]),
        (None, "?"),
        (torch.nested.nested_tensor([torch.ones(2), torch.ones(3)], layout=torch.jagged), "?"),
    ],
)
def test_shapes_of_any_batch(batch: Any, shape: Any) -> None:
    assert parse_batch_shape(batch) == shape


def test_layers_that_are_called_by_keywords() -> None:
    attention = nn.MultiheadAttention(4, 1, batch_first=True)
    model = Model(
        {"x": torch.ones(1, 2, 4), "hidden": torch.ones(1, 2, 4)},
        lambda self, x, hidden: self.net(query=x, key=hidden, value=hidden, key_padding_mask=None)[0],
        net=attention,
    )
    summary = ModelSummary(model)
    assert summary.in_sizes == [[[1, 2, 4]] * 3]
    assert summary.out_sizes == [[[1, 2, 4], [1, 2, 2]]]


def test_layers_that_are_called_several_times_or_never() -> None:
    def call(self: Any, x: Tensor) -> Tensor:
        return self.often(self.often(x[:1]).repeat(3, 1))

    summary = ModelSummary(Model(torch.ones(3, 4), call, often=nn.Linear(4, 4), never=nn.Linear(4, 4)))
    assert summary.in_sizes == [[1, 4], "?"]
    assert summary.total_flops == 2 * 4 * 4 * (1 + 3)


def test_layers_in_torchscript() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        layer = torch.jit.script(nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3)))
    before = {name: value.clone() for name, value in layer.state_dict().items()}
    summary = ModelSummary(Model(torch.ones(2, 4), net=layer, last=nn.Linear(3, 3)), -1)
    assert summary.param_nums == [21, 15, 6, 12]
    assert summary.in_sizes == ["?", "?", "?", [2, 3]]
    assert layer.training
    assert all(torch.equal(before[name], value) for name, value in layer.state_dict().items())
    layer(torch.ones(2, 4))
    assert layer.state_dict()["1.num_batches_tracked"] == 1


def test_a_layer_by_itself() -> None:
    layer = nn.Conv2d(3, 8, 3)
    summary = LayerSummary(layer)
    assert (summary.layer_type, summary.num_parameters, summary.training) == ("Conv2d", 224, True)
    assert summary.in_size == summary.out_size == "?"
    layer(torch.ones(1, 3, 5, 5))
    assert (summary.in_size, summary.out_size) == ([1, 3, 5, 5], [1, 8, 3, 3])
    assert not layer._forward_hooks
    other = LayerSummary(layer)
    other.detach_hook()
    assert not layer._forward_hooks


def test_the_example_goes_through_the_transfer_hooks() -> None:
    class Hooked(Model):
        def on_after_batch_transfer(self, batch: Any, dataloader_idx: int) -> Any:
            return batch.float()

    assert ModelSummary(Hooked(torch.ones(2, 4, dtype=torch.uint8), net=nn.Linear(4, 1))).out_sizes == [[2, 1]]


# -- nothing is left changed -------------------------------------------------------------------------------------------


class Restless(nn.Module):
    """Draws random numbers, counts its calls in buffers and drops out."""

    def __init__(self, error: bool = False) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(4)
        self.drop = nn.Dropout().eval()
        self.error = error
        self.register_buffer("in_place", torch.zeros(()))
        self.register_buffer("anew", torch.zeros(()))
        self.register_buffer("absent", None)
        self.register_buffer("overlapping", torch.ones(1).expand(3))

    def forward(self, x: Tensor) -> Tensor:
        assert not self.training
        assert not torch.is_grad_enabled()
        self.in_place += 1
        self.anew = self.anew + torch.rand(())
        if self.error:
            raise ZeroDivisionError("of the model")
        return self.drop(self.norm(x)) + torch.rand(4)


@pytest.mark.parametrize("error", [False, True])
def test_the_model_stays_as_it_was(error: bool) -> None:
    model = Model(torch.randn(8, 4), first=nn.Linear(4, 4), net=Restless(error))
    before = {name: value.clone() for name, value in model.state_dict().items()}
    identities = {name: id(buffer) for name, buffer in model.named_buffers()}
    modes = [module.training for module in model.modules()]
    hooks, state = number_of_hooks(model), torch.get_rng_state()
    if error:
        message = r"`Model\.forward` failed on its `example_input_array`.*ZeroDivisionError: of the model"
        with pytest.raises(MisconfigurationException, match=message) as raised:
            ModelSummary(model, -1)
        assert isinstance(raised.value.__cause__, ZeroDivisionError)
    else:
        ModelSummary(model, -1)
    assert all(torch.equal(before[name], value) for name, value in model.state_dict().items())
    assert identities == {name: id(buffer) for name, buffer in model.named_buffers()}
    assert modes == [module.training for module in model.modules()]
    assert hooks == number_of_hooks(model) == 0
    assert torch.equal(state, torch.get_rng_state())
    assert all(parameter.grad is None for parameter in model.parameters())
    assert torch.is_grad_enabled()


class Doubled(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        return 2 * self.layer(x)


def test_nothing_is_compiled_for_a_summary() -> None:
    compiled: list[int] = []

    def backend(graph: Any, inputs: Any) -> Any:
        compiled.append(len(compiled))
        return graph

    torch._dynamo.reset()
    in_place = Doubled()
    in_place.compile(backend=backend)
    model = Model(
        torch.ones(2, 4), wrapped=torch.compile(nn.Sequential(nn.Linear(4, 4)), backend=backend), in_place=in_place
    )
    for same in (model, torch.compile(model, backend=backend)):
        summary = ModelSummary(same, -1)
        assert summary.layer_names[:3] == ["wrapped", "wrapped._orig_mod", "wrapped._orig_mod.0"]
        assert summary.out_sizes == [[2, 4]] * 5
        assert summary.total_flops == 2 * 2 * (4 * 4 + 4 * 4)
    assert not compiled
    with torch.no_grad():
        model(torch.ones(2, 4))
    assert len(compiled) == 2, "afterwards they compile as ever"


# -- unusual weights ---------------------------------------------------------------------------------------------------


def test_lazy_parameters_are_shown_and_warned_of_once() -> None:
    model = Model(net=nn.Sequential(nn.LazyLinear(5), nn.Linear(5, 2)), head=nn.LazyBatchNorm1d())
    with pytest.warns(UserWarning, match=r"no shape before the first forward pass: set `self\.example_input") as told:
        summary, text = (made := ModelSummary(model, 2)), str(made)
    assert len(told) == 1
    assert [cell.strip() for cell in cells(summary, "Params")] == ["12 + lazy", "lazy", "12", "lazy"]
    assert summary.total_parameters == 12
    assert "LazyLinear" in text


def test_lazy_parameters_are_made_by_the_example() -> None:
    model = Model(torch.ones(2, 4), net=nn.Sequential(nn.LazyLinear(3), nn.LazyBatchNorm1d()))
    parameter = model.net[0].weight
    summary = ModelSummary(model, -1)
    assert summary.layer_types == ["Sequential", "Linear", "BatchNorm1d"]
    assert summary.param_nums == [21, 15, 6]
    assert model.net[0].weight is parameter, "an optimizer that has it keeps it"
    assert torch.equal(model.net[1].running_mean, torch.zeros(3))


def test_weights_that_are_nowhere() -> None:
    with torch.device("meta"):
        net = nn.Sequential(nn.Linear(100_000, 100_000), nn.BatchNorm1d(100_000))
    summary = ModelSummary(Model(torch.ones(2, 100_000), net=net), -1)
    assert summary.total_flops == 2 * 2 * 10**10
    assert summary.model_size == pytest.approx(4 * (10**10 + 3 * 10**5) / 1e6)
    assert summary.out_sizes == [[2, 100_000]] * 3


def test_ten_thousand_layers() -> None:
    model = Model(torch.ones(1, 4), net=nn.Sequential(*(nn.Linear(4, 4) for _ in range(10_000))))
    start = time.process_time()
    summary = ModelSummary(model, -1)
    lines = str(summary).splitlines()
    assert time.process_time() - start < 30, "a few seconds on a machine with nothing else to do"
    assert summary.total_parameters == 200_000
    assert summary.total_flops == 10_000 * 2 * 4 * 4
    assert lines[2 + 10_000].split() == ["10000", "net.9999", "Linear", "20", "train", "32", "[1,", "4]", "[1,", "4]"]


# -- as text -----------------------------------------------------------------------------------------------------------


def test_table() -> None:
    model = Model(torch.zeros(10, 256), net=nn.Sequential(nn.Linear(256, 512), nn.BatchNorm1d(512)))
    text = """\
   Name   Type         Params  Mode   FLOPs  In sizes   Out sizes
-  -----  -----------  ------  -----  -----  ---------  ---------
0  net    Sequential    132 K  train  2.6 M  [10, 256]  [10, 512]
1  net.0  Linear        131 K  train  2.6 M  [10, 256]  [10, 512]
2  net.1  BatchNorm1d   1.0 K  train    0    [10, 512]  [10, 512]

132 K  trainable parameters
0      frozen parameters
132 K  parameters in all
0.530  MB of parameters
3      modules in train mode
0      modules in eval mode
2.6 M  FLOPs of a forward pass"""
    assert str(summarize(model, max_depth=-1)) == repr(ModelSummary(model, -1)) == text


def test_table_without_an_example_has_no_shapes() -> None:
    columns = ModelSummary(Model(net=nn.Linear(2, 2))).columns()
    assert [header for header, _ in columns] == [" ", "Name", "Type", "Params", "Mode"]


def test_no_layers_no_table() -> None:
    model = Model(net=nn.Linear(2, 2), own=nn.Parameter(torch.ones(1)))
    assert ModelSummary(model, 0).columns() == ModelSummary(Model()).columns() == []
    assert str(ModelSummary(Model())).splitlines()[0] == "0      trainable parameters"


def test_counts_in_words() -> None:
    numbers = [0, 7, 999, 1000, 1234, 123_456, 2e6, 3e9, 4e14, 5e15]
    words = ["0  ", "7  ", "999  ", "1.0 K", "1.2 K", "123 K", "2.0 M", "3.0 B", "400 T", "5,000 T"]
    assert [get_human_readable_count(number) for number in numbers] == words
    assert [get_formatted_model_size(size) for size in (0, 0.53, 1234.5678)] == ["0.000", "0.530", "1,234.568"]
    with pytest.raises(ValueError, match="from 0"):
        get_human_readable_count(-1)


@pytest.mark.parametrize("depth", [-2, 1.5, "1", True, None])
def test_wrong_depth(depth: Any) -> None:
    with pytest.raises(MisconfigurationException, match=r"`ModelSummary\(max_depth=.*\)`: give a number of levels, -1"):
        ModelSummary(Model(), depth)


def test_cut_where_the_terminal_is_narrow() -> None:
    columns = [
        (" ", ["0", "1"]),
        ("Name", ["encoder.layers.0.attention", "encoder.layers.1.attention"]),
        ("Type", ["MultiheadAttention", "编码器"]),
        ("Params", ["1.2 K", "12  "]),
        ("Out sizes", ["[1, 64, 112, 112]", "{logits: [1, 2, 3], states: [[1, 2], [1, 2], [1, 2]]}"]),
    ]
    below = totals(1, 1, 0.1, {"train": 1, "eval": 0}, 0)
    assert draw(columns, below, 60).split("\n\n")[0].splitlines() == [
        "Name              Type              Params  Out sizes",
        "----------------  ----------------  ------  ----------------",
        "…ers.0.attention  Multihea…tention   1.2 K  [1,64,112,112]",
        "…ers.1.attention  编码器              12    {logits:…[1,2]]}",
    ]
    assert draw(columns, below, 40).splitlines()[2] == "…rs.0.attention  Multihe…tention   1.2 K"
    assert draw(columns, below, 9).splitlines()[2] == "…ttention"


names = st.text(st.characters(codec="utf-8", categories=["Lu", "Ll", "Lo", "Mn", "Nd", "Pc"]), min_size=1, max_size=70)


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(names, names, names), min_size=1, max_size=4), st.integers(24, 120))
def test_columns_are_aligned_and_fit(rows: list[tuple[str, str, str]], width: int) -> None:
    name, kind, size = map(list, zip(*rows, strict=True))
    columns = [(" ", [str(i) for i in range(len(rows))]), ("Name", name), ("Type", kind), ("In sizes", size)]
    lines = draw(columns, totals(1, 1, 0.1, {"train": 1, "eval": 0}, 0), width).split("\n\n")[0].splitlines()
    assert len(lines) == len(rows) + 2
    rule = lines[1]
    assert all(width_of(line) <= len(rule) <= width for line in lines)
    first = rule.split(GAP)[0]
    for line in lines[2:]:  # what stands in the second column begins where its rule begins
        start = 0
        while width_of(line[:start]) < len(first + GAP):
            start += 1
        assert line[:start].endswith(GAP)


trees = st.recursive(st.integers(0, 3), lambda children: st.lists(children, min_size=1, max_size=3), max_leaves=8)


@settings(max_examples=40, deadline=None)
@given(trees, st.integers(1, 4))
def test_totals_of_any_nesting(tree: Any, depth: int) -> None:
    """Leaves of the same number are the same layer."""
    leaves = [nn.Linear(4, 4).requires_grad_(bool(i % 2)) for i in range(4)]
    used: set[int] = set()

    def grow(node: Any) -> nn.Module:
        if isinstance(node, int):
            used.add(node)
            return leaves[node]
        return nn.Sequential(*map(grow, node))

    summary = ModelSummary(Model(torch.ones(1, 4), net=grow(tree), own=nn.Parameter(torch.ones(3))), depth)
    assert summary.total_layer_params == 20 * len(used)
    assert summary.total_parameters == 20 * len(used) + 3
    assert summary.trainable_parameters == 20 * len(used & {1, 3}) + 3
    assert sum(summary.flop_counts["net"].values()) == summary.total_flops
    assert all(name.count(".") < depth for name in summary.layer_names)
    assert summary.out_sizes == [[1, 4]] * len(summary.out_sizes)

"""Monitors: the same names at the same steps in the loggers, and the same values where they do not depend on the clock.

GPUlayer's rows may hold more: the epoch, and readings of the host that Lightning has not got.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from torch.optim import SGD, Adagrad, Adam
from torch.optim.lr_scheduler import ExponentialLR, OneCycleLR, ReduceLROnPlateau

from tests.parity.oracle import GPULAYER, LIGHTNING, close, outcome_of
from tests.parity.recorder import FEATURES, Lab, Outcome
from tests.parity.scenarios.logging import recording_logger

Rows = list[tuple[int, dict[str, float]]]


def loader(batches: int) -> Any:
    rows = torch.randn(2 * batches, FEATURES, generator=torch.Generator().manual_seed(0))
    return torch.utils.data.DataLoader(rows, batch_size=2)


def net(lab: Lab, configure: Callable[[Any], Any], manual: bool = False) -> Any:
    """Two layers, trained by the optimizers that `configure` makes."""

    class Net(lab.L.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b = torch.nn.Linear(FEATURES, 1), torch.nn.Linear(FEATURES, 1)
            self.automatic_optimization = not manual

        def training_step(self, batch: torch.Tensor, batch_idx: int) -> Any:
            loss = (self.a(batch) + self.b(batch)).square().mean()
            self.log("loss", loss.detach(), on_step=False, on_epoch=True, logger=False)
            if manual:
                self.manual_backward(loss)
                optimizers = self.optimizers()
                for optimizer in optimizers if isinstance(optimizers, list) else [optimizers]:
                    optimizer.step()
                    optimizer.zero_grad()
                    optimizer.param_groups[0]["lr"] /= 2
            return loss

        def validation_step(self, batch: torch.Tensor, batch_idx: int, dataloader_idx: int = 0) -> None:
            pass

        def test_step(self, batch: torch.Tensor, batch_idx: int, dataloader_idx: int = 0) -> None:
            pass

        def predict_step(self, batch: torch.Tensor, batch_idx: int, dataloader_idx: int = 0) -> Any:
            return batch

        def configure_optimizers(self) -> Any:
            return configure(self)

    return Net()


def sgd(module: Any) -> Any:
    return SGD(module.parameters(), lr=1.0)


def rows_of(
    library: str,
    folder: Path,
    make: Callable[[Lab], list[Any]],
    call: str = "fit",
    configure: Callable[[Any], Any] = sgd,
    manual: bool = False,
    data: Callable[[], tuple[Any, ...]] = lambda: (loader(5), loader(3)),
    **arguments: Any,
) -> tuple[Rows, list[Any], dict[str, float]]:
    """What the loggers got in one call, the callbacks, and the metrics that the Trainer holds then."""
    kept: list[Any] = []

    def scenario(L: ModuleType, folder: Path) -> Outcome:
        lab = Lab(L, folder)
        logger, callbacks = recording_logger(lab), make(lab)
        trainer = lab.trainer(**{"logger": logger, "callbacks": callbacks, "log_every_n_steps": 2, **arguments})
        getattr(trainer, call)(net(lab, configure, manual), *data())
        known = {**trainer.callback_metrics, **trainer.logged_metrics}
        metrics = {name: float(value) for name, value in known.items() if name != "loss"}
        kept.extend([logger.rows, callbacks, metrics])
        return Outcome()

    outcome_of(library, scenario, folder / library)
    return kept[0], kept[1], kept[2]


# -- LearningRateMonitor -----------------------------------------------------------------------------------------------


def by(interval: str, cls: type = SGD, scheduler: Any = ExponentialLR, arguments: Any = (0.5,), **more: Any) -> Any:
    """One optimizer with a scheduler; what begins with "of_" is for the scheduler's dict."""
    entry = {name.removeprefix("of_"): value for name, value in more.items() if name.startswith("of_")}
    given = {name: value for name, value in more.items() if not name.startswith("of_")}

    def configure(module: Any) -> Any:
        optimizer = cls(module.parameters(), lr=1.0, **given)
        return [optimizer], [{"scheduler": scheduler(optimizer, *arguments), "interval": interval, **entry}]

    return configure


def groups(*names: str | None) -> Any:
    def configure(module: Any) -> Any:
        layers = (module.a, module.b)
        made = [{"params": list(layer.parameters()), "lr": 0.5 + i} for i, layer in enumerate(layers)]
        for group, name in zip(made, names, strict=False):
            group.update({"name": name} if name else {})
        optimizer = SGD(made[: len(names) or 2], lr=1.0, momentum=0.5)
        return [optimizer], [{"scheduler": ExponentialLR(optimizer, 0.5), "interval": "step"}]

    return configure


def two(*scheduled: int, first: type = SGD, names: tuple[str, ...] = ()) -> Any:
    def configure(module: Any) -> Any:
        optimizers = [first(module.a.parameters(), lr=1.0), SGD(module.b.parameters(), lr=2.0)]
        schedulers: list[dict[str, Any]] = [
            {"scheduler": ExponentialLR(optimizers[i], 0.5), "interval": ("step", "epoch")[i]} for i in scheduled
        ]
        for scheduler, name in zip(schedulers, names, strict=False):
            scheduler["name"] = name
        return optimizers, schedulers

    return configure


def chained(*names: str | None) -> Any:
    def configure(module: Any) -> Any:
        optimizer = SGD(module.parameters(), lr=1.0)
        schedulers: list[dict[str, Any]] = [
            {"scheduler": ExponentialLR(optimizer, gamma), "interval": interval}
            for gamma, interval in ((0.5, "step"), (0.9, "epoch"))
        ]
        for scheduler, name in zip(schedulers, names, strict=True):
            scheduler.update({"name": name} if name else {})
        return [optimizer], schedulers

    return configure


def first_layer(name: str | None = None, scheduled: bool = True) -> Any:
    """The other layer is added in the second epoch."""

    def configure(module: Any) -> Any:
        optimizer = SGD(module.a.parameters(), lr=1.0)
        entry = {"scheduler": ExponentialLR(optimizer, 0.5), **({"name": name} if name else {})}
        return ([optimizer], [entry]) if scheduled else optimizer

    return configure


EVERYTHING = {"log_momentum": True, "log_weight_decay": True}
EACH = {"log_every_n_steps": 1}
# configure_optimizers, arguments of the monitor, arguments of the Trainer and of `rows_of`
RATES: dict[str, tuple[Any, dict[str, Any], dict[str, Any]]] = {
    "step": (by("step"), {"logging_interval": "step"}, EACH),
    "step_every_second": (by("step"), {"logging_interval": "step"}, {}),
    "step_every_third": (by("step"), {}, {"log_every_n_steps": 3}),
    "epoch": (by("epoch"), {"logging_interval": "epoch"}, {}),
    "epoch_of_a_step_scheduler": (by("step"), {"logging_interval": "epoch"}, {}),
    "step_of_an_epoch_scheduler": (by("epoch"), {"logging_interval": "step"}, EACH),
    "as_the_scheduler": (by("epoch"), {}, EACH),
    "no_scheduler": (sgd, {}, {}),
    "no_scheduler_step": (sgd, {"logging_interval": "step"}, EACH),
    "no_scheduler_epoch": (sgd, {"logging_interval": "epoch", **EVERYTHING}, EACH),
    "never": (by("step"), {"logging_interval": "step"}, {"log_every_n_steps": 0}),
    "momentum": (by("step", momentum=0.9, weight_decay=0.1), EVERYTHING, EACH),
    "betas": (by("step", Adam), EVERYTHING, EACH),
    "no_momentum": (by("step", Adagrad), EVERYTHING, EACH),
    "cycle": (by("step", scheduler=OneCycleLR, arguments=(1.0, 10), momentum=0.9), EVERYTHING, EACH),
    "plateau": (by("epoch", scheduler=ReduceLROnPlateau, arguments=(), of_monitor="loss"), {}, EACH),
    "name_of_the_scheduler": (by("step", of_name="warm"), {}, {}),
    "groups": (groups(), EVERYTHING, {}),
    "groups_with_names": (groups("x", "y"), EVERYTHING, {}),
    "groups_some_with_names": (groups("x", None), {}, {}),
    "one_group_with_a_name": (groups("x"), {}, {}),
    "manual": (sgd, {"logging_interval": "step"}, {"manual": True, **EACH}),
    "manual_two": (two(first=Adam), {}, {"manual": True}),
    "manual_two_of_a_class": (two(0, 1), {}, {"manual": True, **EACH}),
    "manual_two_without_schedulers": (two(), {}, {"manual": True, **EACH}),
    "manual_two_one_scheduler": (two(1), {}, {"manual": True, **EACH}),
    "manual_two_one_scheduler_step": (two(1), {"logging_interval": "step"}, {"manual": True, **EACH}),
    "manual_two_with_names": (two(0, 1, names=("p", "q")), {}, {"manual": True, **EACH}),
    "two_schedulers": (chained(None, None), {}, EACH),
    "two_schedulers_with_names": (chained("p", "q"), {}, EACH),
    "two_schedulers_first_with_name": (chained("p", None), {}, EACH),
    "two_schedulers_second_with_name": (chained(None, "q"), {}, EACH),
    "group_added": (first_layer(), {}, EACH),
    "group_added_step": (first_layer(), {"logging_interval": "step"}, EACH),
    "group_added_no_scheduler": (first_layer(scheduled=False), {"logging_interval": "epoch", **EVERYTHING}, EACH),
    "group_added_to_a_named_scheduler": (first_layer("warm"), {}, EACH),
}


def unfreezing(lab: Lab) -> Any:
    class Unfreezing(lab.L.Callback):
        def on_train_epoch_start(self, trainer: Any, pl_module: Any) -> None:
            if trainer.current_epoch == 1:
                trainer.optimizers[0].add_param_group({"params": list(pl_module.b.parameters()), "lr": 0.125})

    return Unfreezing()


@pytest.mark.parametrize("name", RATES)
def test_learning_rates(name: str, tmp_path: Path) -> None:
    configure, given, arguments = RATES[name]

    def make(lab: Lab) -> list[Any]:
        before = [unfreezing(lab)] if name.startswith("group_added") else []
        return [*before, lab.callbacks.LearningRateMonitor(**given)]

    def run(library: str) -> tuple[Rows, list[Any], dict[str, float]]:
        return rows_of(library, tmp_path, make, configure=configure, **arguments)

    expected, (*_, oracle), metrics = run(LIGHTNING)
    found, (*_, monitor), own_metrics = run(GPULAYER)
    assert all({"epoch"} == set(row) - set(other) for (_, row), (_, other) in zip(found, expected, strict=True))
    without_epoch = [(step, {name: v for name, v in row.items() if name != "epoch"}) for step, row in found]
    assert close(without_epoch, expected), (without_epoch, expected)
    assert close(monitor.lrs, oracle.lrs), (monitor.lrs, oracle.lrs)
    assert close(own_metrics, metrics)
    # Lightning has None there before the first value.
    kept = {key: value for key, value in oracle.last_momentum_values.items() if value is not None}
    assert close(monitor.last_momentum_values, kept)


def test_rates_of_accumulated_batches(tmp_path: Path) -> None:
    """Deliberately once a step, where Lightning writes for each batch."""

    def run(library: str) -> Rows:
        make: Any = lambda lab: [lab.callbacks.LearningRateMonitor("step")]  # noqa: E731
        return rows_of(library, tmp_path, make, configure=by("step"), accumulate_grad_batches=2)[0]

    expected, found = run(LIGHTNING), run(GPULAYER)
    assert [step for step, _ in expected] == [1, 1, 3, 3, 5]
    assert [step for step, _ in found] == [1, 3, 5]
    assert {step: row["lr-SGD"] for step, row in found} == {step: row["lr-SGD"] for step, row in expected}


# -- DeviceStatsMonitor ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("call", "data", "arguments"),
    [
        ("fit", lambda: (loader(5), loader(3)), {}),
        ("fit", lambda: (loader(5), loader(3)), {"log_every_n_steps": 1}),
        ("fit", lambda: (loader(5), loader(3)), {"val_check_interval": 2}),
        ("fit", lambda: (loader(5), [loader(3), loader(2)]), {}),
        ("validate", lambda: (loader(5),), {}),
        ("validate", lambda: ([loader(3), loader(2)],), {}),
        ("test", lambda: (loader(5),), {"log_every_n_steps": 1}),
        ("predict", lambda: (loader(5),), {}),
    ],
)
def test_device_stats(call: str, data: Any, arguments: dict[str, Any], tmp_path: Path) -> None:
    def run(library: str) -> list[tuple[int, set[str]]]:
        make: Any = lambda lab: [lab.callbacks.DeviceStatsMonitor()]  # noqa: E731
        return [(s, set(row)) for s, row in rows_of(library, tmp_path, make, call, data=data, **arguments)[0]]

    expected, found = run(LIGHTNING), run(GPULAYER)
    assert [step for step, _ in found] == [step for step, _ in expected]
    own = {"cpu_vm_used", "cpu_process_rss"}
    for (_, names), (_, known) in zip(found, expected, strict=True):
        assert {name.rpartition("/")[2] for name in names - known} == own
        assert not known - names


# -- ThroughputMonitor -------------------------------------------------------------------------------------------------

COUNTED = ("batches", "samples", "lengths")  # the others depend on the clock


def counted(rows: Rows, separator: str) -> Rows:
    return [(s, {n: v for n, v in row.items() if n.rpartition(separator)[2] in COUNTED}) for s, row in rows]


@pytest.mark.parametrize(
    ("call", "data", "given", "arguments"),
    [
        ("fit", lambda: (loader(5),), {}, {}),
        ("fit", lambda: (loader(5), loader(3)), {}, {"max_epochs": 1}),
        ("fit", lambda: (loader(5),), {"length_fn": torch.numel, "separator": "|"}, {"log_every_n_steps": 1}),
        ("fit", lambda: (loader(5),), {}, {"accumulate_grad_batches": 2}),
        ("fit", lambda: (loader(6),), {}, {"log_every_n_steps": 0}),
        ("fit", lambda: (loader(5),), {}, {"manual": True}),
        ("validate", lambda: (loader(5),), {}, {}),
        ("validate", lambda: ([loader(3), loader(4)],), {}, {}),
        ("test", lambda: (loader(5),), {"length_fn": torch.numel}, {"log_every_n_steps": 1}),
        ("predict", lambda: (loader(5),), {}, {}),
    ],
)
def test_throughput(call: str, data: Any, given: dict[str, Any], arguments: dict[str, Any], tmp_path: Path) -> None:
    def run(library: str) -> tuple[Rows, set[str]]:
        make: Any = lambda lab: [lab.callbacks.ThroughputMonitor(len, window_size=3, **given)]  # noqa: E731
        rows, _, metrics = rows_of(library, tmp_path, make, call, data=data, **arguments)
        return rows, set(metrics)

    (expected, known), (found, own) = run(LIGHTNING), run(GPULAYER)
    assert own - {"epoch"} == known - {"epoch"}
    assert [(step, set(row)) for step, row in found] == [(step, set(row)) for step, row in expected]
    separator = given.get("separator", "/")
    assert counted(found, separator) == counted(expected, separator)


def test_validations_count_on(tmp_path: Path) -> None:
    """Lightning counts the batches of each validation alone, and the loggers' step anew in each epoch; its window is
    emptied, so that short validations never have rates. Training is not concerned.
    """

    def run(library: str) -> tuple[list[tuple[int, float, bool]], Rows]:
        make: Any = lambda lab: [lab.callbacks.ThroughputMonitor(len, window_size=3)]  # noqa: E731
        rows = rows_of(library, tmp_path, make, data=lambda: (loader(4), loader(3)), val_check_interval=2)[0]
        validated = [
            (step, row["validate/batches"], "validate/device/batches_per_sec" in row)
            for step, row in rows
            if "validate/time" in row
        ]
        return validated, counted([(step, row) for step, row in rows if "train/time" in row], "/")

    expected, found = run(LIGHTNING), run(GPULAYER)
    assert expected[0] == [(2, 2, False), (5, 2, False), (2, 2, False), (5, 2, False)]
    assert found[0] == [(2, 2, False), (5, 5, True), (8, 8, True), (11, 11, True)]
    assert found[1] == expected[1]


@pytest.mark.parametrize("world_size", [1, 4])
def test_rates(world_size: int) -> None:
    """Throughput itself, given the same times."""

    def computed(library: str) -> list[dict[str, float]]:
        throughput = importlib.import_module(f"{library.partition('.')[0]}.fabric.utilities.throughput").Throughput(
            available_flops=1e3, world_size=world_size, window_size=3
        )
        found = []
        for i in range(1, 8):
            throughput.update(time=i**1.5, batches=i, samples=2 * i + i * i, lengths=10 * i * i, flops=i**3)
            found.append(dict(throughput.compute()))
        return found

    assert close(computed(GPULAYER), computed(LIGHTNING))


@pytest.mark.parametrize("with_loss", [False, True])
def test_measured_operations(with_loss: bool) -> None:
    def measured(library: str) -> int:
        module = importlib.import_module(f"{library.partition('.')[0]}.fabric.utilities.throughput")
        with torch.device("meta"):
            model = torch.nn.Sequential(torch.nn.Conv1d(2, 3, 3), torch.nn.Flatten(), torch.nn.Linear(18, 5))
            x = torch.randn(4, 2, 8)
        return int(module.measure_flops(model, lambda: model(x), torch.Tensor.sum if with_loss else None))

    assert measured(GPULAYER) == measured(LIGHTNING)

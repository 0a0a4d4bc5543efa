"""PyTorchProfiler: recordings of a few batches, as tables and as traces that can be opened."""

from __future__ import annotations

import json
import re
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.profiler import schedule

import gpulayer.pytorch as L
from gpulayer.fabric.utilities.exceptions import MisconfigurationException
from gpulayer.pytorch.profilers import PyTorchProfiler
from tests.pytorch.models import Line, Validated, loader, trainer


def traces(folder: Path) -> dict[str, list[dict[str, Any]]]:
    """The events of every trace in a folder."""
    found = sorted(folder.glob("*.pt.trace.json"))
    return {path.name: json.loads(path.read_text())["traceEvents"] for path in found}


def ranges(events: list[dict[str, Any]]) -> Counter[str]:
    """How often each range of the host is in a trace, whose events have what a viewer needs."""
    whole = [event for event in events if event["ph"] == "X"]
    assert whole
    assert all(event["dur"] >= 0 and "ts" in event and "tid" in event for event in whole)
    return Counter(event["name"] for event in whole if event.get("cat") in ("user_annotation", "cpu_op"))


class Named(Validated):
    def training_step(self, batch: Any, batch_idx: int) -> Any:
        with self.trainer.profiler.profile("mine"):
            return super().training_step(batch, batch_idx)


def test_three_batches_of_each_stage_by_default(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    trainer(profiler=PyTorchProfiler(tmp_path), max_epochs=2).fit(Named(), loader(8), loader(6))
    found = {name: ranges(events) for name, events in traces(tmp_path).items()}
    assert list(found) == ["fit-train-5-0.pt.trace.json", "fit-validation-5-0.pt.trace.json"]
    train, validation = found.values()
    assert {name: train[name] for name in train if name.startswith("ProfilerStep#")} == {
        "ProfilerStep#2": 1,
        "ProfilerStep#3": 1,
        "ProfilerStep#4": 1,
    }
    step = "[Strategy]SingleDeviceStrategy.training_step"
    wanted = (step, "[Strategy]SingleDeviceStrategy.backward", "mine", "[module]torch.nn.modules.linear.Linear: net",
              "[_TrainingEpochLoop].train_dataloader_next", "aten::addmm", "Optimizer.step#SGD.step")  # fmt: skip
    assert {name: train[name] for name in wanted} == dict.fromkeys(wanted, 3)
    assert validation["[Strategy]SingleDeviceStrategy.validation_step"] == 3
    assert step not in validation
    text = caplog.text
    assert "Operators of train, up to batch 5; for https://ui.perfetto.dev" in text
    assert "Operators of validation, up to batch 5" in text
    assert "aten::addmm" in text


@pytest.mark.parametrize("call", ["validate", "test", "predict"])
def test_other_calls(call: str, tmp_path: Path) -> None:
    getattr(trainer(profiler=PyTorchProfiler(tmp_path)), call)(Validated(), loader(8))
    ((name, events),) = traces(tmp_path).items()
    assert name == f"{call}-5-0.pt.trace.json"
    step = {"validate": "validation"}.get(call, call)
    assert ranges(events)[f"[Strategy]SingleDeviceStrategy.{step}_step"] == 3


@pytest.mark.parametrize("batches", [1, 2, 4])
def test_of_few_batches_all_are_recorded(batches: int, tmp_path: Path) -> None:
    trainer(profiler=PyTorchProfiler(tmp_path), max_epochs=1).fit(Validated(), loader(batches), loader(batches))
    train, validation = (ranges(events) for events in traces(tmp_path).values())
    assert train["[Strategy]SingleDeviceStrategy.training_step"] == batches
    assert validation["[Strategy]SingleDeviceStrategy.validation_step"] == batches


def test_a_schedule_counts_the_batches_of_a_stage_across_epochs(tmp_path: Path) -> None:
    """Epochs of 4 batches, a validation after each: batches 6 and 7 of training are in the second epoch."""
    profiler = PyTorchProfiler(tmp_path, schedule=schedule(wait=4, warmup=1, active=2, repeat=1))
    trainer(profiler=profiler, max_epochs=2).fit(Validated(), loader(4), loader(4))
    found = {name: ranges(events) for name, events in traces(tmp_path).items()}
    assert list(found) == ["fit-train-7-0.pt.trace.json", "fit-validation-7-0.pt.trace.json"]
    assert found["fit-train-7-0.pt.trace.json"]["[Strategy]SingleDeviceStrategy.training_step"] == 2


def test_a_validation_in_the_middle_of_a_recording_is_in_it(tmp_path: Path) -> None:
    profiler = PyTorchProfiler(tmp_path, schedule=schedule(wait=0, warmup=1, active=3, repeat=1))
    trainer(profiler=profiler, max_epochs=1, val_check_interval=2).fit(Validated(), loader(8), loader(2))
    found = {name: ranges(events) for name, events in traces(tmp_path).items()}
    train = found["fit-train-4-0.pt.trace.json"]
    assert train["[Strategy]SingleDeviceStrategy.training_step"] == 3
    assert train["[Strategy]SingleDeviceStrategy.validation_step"] in (2, 4)


def test_a_schedule_that_repeats_writes_a_trace_each_time(tmp_path: Path) -> None:
    profiler = PyTorchProfiler(tmp_path, "perf", schedule=schedule(wait=1, warmup=1, active=1))
    trainer(profiler=profiler, max_epochs=1).fit(Line(), loader(9))
    assert list(traces(tmp_path)) == [f"fit-perf-train-{batch}-0.pt.trace.json" for batch in (3, 6, 9)]
    assert "Operators of train, up to batch 9" in (tmp_path / "fit-perf-0.txt").read_text()


def test_a_schedule_without_an_end_is_warned_of(tmp_path: Path) -> None:
    profiler = PyTorchProfiler(tmp_path, export_to_chrome=False, schedule=schedule(wait=1, warmup=1, active=1))
    with pytest.warns(UserWarning, match="recorded train 10 times"):
        trainer(profiler=profiler, max_epochs=1).fit(Line(), loader(33))


def test_a_schedule_that_comes_to_nothing_is_warned_of(tmp_path: Path) -> None:
    profiler = PyTorchProfiler(tmp_path, schedule=schedule(wait=50, warmup=1, active=1))
    with pytest.warns(UserWarning, match="recorded nothing"):
        trainer(profiler=profiler, max_epochs=1).fit(Line(), loader())
    assert traces(tmp_path) == {}


def test_names_of_submodules_cost_only_the_batches_that_are_recorded(tmp_path: Path) -> None:
    hooked = []

    class Looks(Line):
        def training_step(self, batch: Any, batch_idx: int) -> Any:
            hooked.append(bool(self.net._forward_hooks))
            return super().training_step(batch, batch_idx)

    model = Looks()
    trainer(profiler=PyTorchProfiler(tmp_path), max_epochs=1).fit(model, loader(8))
    assert hooked == [False, True, True, True, True, False, False, False]  # one of them warms up
    hooked.clear()
    trainer(profiler=PyTorchProfiler(tmp_path, record_module_names=False), max_epochs=1).fit(model, loader(8))
    assert not any(hooked)
    assert not model.net._forward_hooks
    assert not model.net._forward_pre_hooks


def test_tables(tmp_path: Path) -> None:
    def table(**arguments: Any) -> list[str]:
        profiler = PyTorchProfiler(tmp_path, export_to_chrome=False, **arguments)
        trainer(profiler=profiler, max_epochs=1).fit(Line(), loader(8))
        return profiler.summary().splitlines()

    lines = table(row_limit=3, profile_memory=True, sort_by_key="cpu_memory_usage")
    head = lines[2]
    assert "CPU Mem" in head
    rows = lines[4 : lines.index(lines[1], 4)]
    assert len(rows) == 3
    place = re.split(r"\s{2,}", head.strip()).index("CPU Mem")
    units = {"b": 1, "Kb": 1024, "KB": 1024, "B": 1}
    used = [re.split(r"\s{2,}", row.strip())[place].split() for row in rows]
    numbers = [float(number) * units[unit] for number, unit in used]
    assert numbers == sorted(numbers, reverse=True)
    assert len(table(row_limit=-1)) > 30
    assert "Input Shapes" in table(group_by_input_shapes=True)[2]
    wide = max(len(line) for line in table(table_kwargs={"max_name_column_width": 20})[1:])
    assert wide < max(len(line) for line in table()[1:])
    assert traces(tmp_path) == {}


def test_a_handler_of_ones_own_takes_the_place_of_traces(tmp_path: Path) -> None:
    seen = []
    profiler = PyTorchProfiler(tmp_path, on_trace_ready=lambda profile: seen.append(len(profile.events())))
    trainer(profiler=profiler, max_epochs=1).fit(Line(), loader(8))
    assert len(seen) == 1
    assert seen[0] > 0
    assert traces(tmp_path) == {}


def test_a_run_that_breaks_off_while_it_is_recorded(tmp_path: Path) -> None:
    class Fails(Line):
        def training_step(self, batch: Any, batch_idx: int) -> Any:
            if batch_idx == 3 and not tmp_path.joinpath("failed").exists():
                tmp_path.joinpath("failed").touch()
                raise RuntimeError("boom")
            return super().training_step(batch, batch_idx)

    runner, model = trainer(profiler=PyTorchProfiler(tmp_path), max_epochs=1), Fails()
    with pytest.raises(RuntimeError, match="boom"):
        runner.fit(model, loader(8))
    assert ranges(traces(tmp_path)["fit-train-4-0.pt.trace.json"])["[Strategy]SingleDeviceStrategy.backward"] == 1
    assert not model.net._forward_hooks
    runner.fit(model, loader(8))
    assert "fit-train-5-0.pt.trace.json" in traces(tmp_path)


def test_a_trace_that_cannot_be_written_does_not_end_the_run(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "file").write_text("")
    runner = trainer(profiler=PyTorchProfiler(tmp_path / "file"), max_epochs=1)
    runner.fit(Line(), loader(8))
    assert runner.global_step == 8
    assert "could not write" in caplog.text
    assert "Operators of train, up to batch 5\n" in caplog.text


def test_traces_lie_in_the_folder_of_the_run(tmp_path: Path) -> None:
    runner = L.Trainer(accelerator="cpu", default_root_dir=tmp_path, profiler="pytorch", enable_checkpointing=False)
    runner.fit(Line(), loader(8))
    assert list(traces(Path(runner.log_dir or ""))) == ["fit-train-5-0.pt.trace.json"]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"row_limit": "all"}, "row_limit='all'"),
        ({"row_limit": -2}, "-1 for all"),
        ({"sort_by_key": "time"}, "cpu_time_total"),
        ({"schedule": 3}, "schedule=3"),
        ({"schedule": lambda step: step}, "ProfilerAction"),
        ({"profile_memroy": True}, "profile_memory"),
    ],
)
def test_wrong_arguments(arguments: Any, words: str) -> None:
    with pytest.raises(MisconfigurationException, match=words):
        PyTorchProfiler(**arguments)


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_nvtx_needs_a_gpu() -> None:
    with pytest.raises(MisconfigurationException, match="NVIDIA GPU"):
        PyTorchProfiler(emit_nvtx=True)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_nvtx(tmp_path: Path) -> None:
    profiler = PyTorchProfiler(tmp_path, emit_nvtx=True)
    L.Trainer(accelerator="gpu", logger=False, enable_checkpointing=False, profiler=profiler).fit(Line(), loader(8))
    assert traces(tmp_path) == {}


def test_a_resumed_run_is_recorded_though_few_batches_are_left(tmp_path: Path) -> None:
    saves = L.callbacks.ModelCheckpoint(dirpath=tmp_path, filename="cut", every_n_train_steps=6)
    trainer(max_epochs=1, callbacks=[saves]).fit(Line(), loader(8))
    runner = trainer(profiler=PyTorchProfiler(tmp_path), max_epochs=1, callbacks=[saves])
    runner.fit(Line(), loader(8), ckpt_path=str(tmp_path / "cut.ckpt"))
    assert ranges(traces(tmp_path)["fit-train-2-0.pt.trace.json"])["[Strategy]SingleDeviceStrategy.training_step"] == 2


@pytest.mark.filterwarnings("ignore:Profiler won't be using warmup")
def test_a_recording_that_has_no_batch_leaves_no_trace(tmp_path: Path) -> None:
    for folder, plan, last in (
        (tmp_path / "saved", schedule(wait=0, warmup=0, active=1), [5, 6, 7, 8]),
        (tmp_path / "warmed_up", schedule(wait=0, warmup=1, active=1), [2, 4, 6, 8]),
        (tmp_path / "late", schedule(wait=0, warmup=1, active=1, skip_first=3), [5, 7]),
    ):
        profiler = PyTorchProfiler(folder, schedule=plan)
        trainer(profiler=profiler, max_epochs=1).fit(Line(), loader(8))
        found = traces(folder)
        assert list(found)[-len(last) :] == [f"fit-train-{batch}-0.pt.trace.json" for batch in last]
        assert all(ranges(events)["[Strategy]SingleDeviceStrategy.training_step"] == 1 for events in found.values())
        assert "aten::addmm" in profiler.summary()


def test_a_step_that_fetches_its_batches_is_one_batch(tmp_path: Path) -> None:
    class Fetches(Line):
        def training_step(self, dataloader_iter: Any) -> Any:  # type: ignore[override]
            batches = [next(dataloader_iter)[0] for _ in range(2)]
            with self.trainer.profiler.profile("computes"):
                return sum(self.loss(batch) for batch in batches)

    trainer(profiler=PyTorchProfiler(tmp_path), max_epochs=1).fit(Fetches(), loader(16))
    ((name, events),) = traces(tmp_path).items()
    assert name == "fit-train-5-0.pt.trace.json"
    steps = [event for event in events if event.get("name") == "[Strategy]SingleDeviceStrategy.training_step"
             and event["ph"] == "X" and event["cat"] == "user_annotation"]  # fmt: skip
    inner = [event for event in events if event.get("name") == "computes" and event["ph"] == "X"
             and event["cat"] == "user_annotation"]  # fmt: skip
    assert len(steps) == len(inner) == 3
    for step, computes in zip(steps, inner, strict=True):
        assert step["ts"] <= computes["ts"]
        assert step["ts"] + step["dur"] >= computes["ts"] + computes["dur"]


def test_a_torch_profiler_around_the_call_is_refused() -> None:
    with torch.profiler.profile(), pytest.raises(MisconfigurationException, match="at work around this call"):
        trainer(profiler=PyTorchProfiler(), max_epochs=1).fit(Line(), loader())


def test_a_torch_profiler_within_a_recording_ends_that_alone(tmp_path: Path) -> None:
    class Profiled(Line):
        def training_step(self, batch: Any, batch_idx: int) -> Any:
            if batch_idx == 3:
                with torch.profiler.profile():
                    return super().training_step(batch, batch_idx)
            return super().training_step(batch, batch_idx)

    runner, model = trainer(profiler=PyTorchProfiler(tmp_path), max_epochs=1), Profiled()
    with pytest.warns(UserWarning, match="used a `torch.profiler` of its own"):
        runner.fit(model, loader(8))
    assert runner.global_step == 8
    assert not model.net._forward_hooks


def test_a_trace_is_there_whole_or_not_at_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(source: Any, target: Any) -> None:
        Path(target).write_text("half of it")
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("shutil.copyfile", full)
    trainer(profiler=PyTorchProfiler(tmp_path), max_epochs=1).fit(Line(), loader(8))
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"sort_by_key": ["count"]}, "choose one of"),
        ({"table_kwargs": {"colour": 1}}, "max_name_column_width"),
        ({"table_kwargs": [1]}, "give a dict"),
        ({"table_kwargs": {"sort_by": "time"}}, "choose one of"),
        ({"activities": []}, "No valid profiler activities"),
        ({"activities": ["cpu"]}, "No valid profiler activities"),
        ({"on_trace_ready": 3}, "give a function"),
    ],
)
def test_what_torch_would_refuse_in_the_run(arguments: Any, words: str) -> None:
    with pytest.raises(MisconfigurationException, match=words):
        PyTorchProfiler(**arguments)

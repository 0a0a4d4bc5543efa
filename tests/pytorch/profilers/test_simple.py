"""SimpleProfiler on real runs: shares that add up, times that are known, and a run that it does not change."""

from __future__ import annotations

import copy
import pickle
import re
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import Dataset

import gpulayer.pytorch as L
from gpulayer.fabric.utilities.exceptions import MisconfigurationException
from gpulayer.pytorch.profilers import AdvancedProfiler, PassThroughProfiler, Profiler, PyTorchProfiler, SimpleProfiler
from gpulayer.pytorch.profilers.report import actions, batches, by_stage, shares, spoken
from gpulayer.pytorch.profilers.timeline import Timeline
from tests.pytorch.models import Line, Validated, loader, same, stream, trainer, weights

PAUSE = 0.02


def reports(caplog: pytest.LogCaptureFixture) -> str:
    """What was logged since the last time."""
    text = "\n".join(record.getMessage() for record in caplog.records)
    caplog.clear()
    return text


class Slow(Validated):
    """Sleeps at known places."""

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        with self.trainer.profiler.profile("own"):
            time.sleep(2 * PAUSE)
        return super().training_step(batch, batch_idx)

    def backward(self, loss: torch.Tensor, *args: Any, **kwargs: Any) -> None:
        time.sleep(PAUSE)
        loss.backward(*args, **kwargs)

    def on_train_batch_start(self, batch: Any, batch_idx: int) -> None:
        time.sleep(PAUSE)

    def optimizer_step(self, epoch: int, batch_idx: int, optimizer: Any, optimizer_closure: Any = None) -> None:
        time.sleep(PAUSE)
        optimizer.step(closure=optimizer_closure)


class SlowRows(Dataset[Any]):
    def __len__(self) -> int:
        return 8

    def __getitem__(self, index: int) -> Any:
        time.sleep(PAUSE)
        return torch.ones(4), torch.ones(1)


def test_each_part_gets_the_time_that_was_spent_in_it() -> None:
    """4 batches of 2 rows: 8 pauses in data, 8 in forward, 4 each in backward, hooks and the optimizer."""
    profiler = SimpleProfiler()
    data = torch.utils.data.DataLoader(SlowRows(), batch_size=2)
    trainer(profiler=profiler, max_epochs=1, limit_val_batches=2).fit(Slow(), data, data)
    stages = by_stage(profiler.timeline)
    train = {part: seconds / PAUSE for part, seconds in stages["train"].items()}
    expected = {"data": 8, "forward": 8, "backward": 4, "hooks": 4, "optimizer": 4}
    for part, pauses in expected.items():
        assert pauses <= train[part] < pauses * 1.5 + 2, (part, train)
    assert train["rest"] < 2
    assert 4 <= stages["validation"]["data"] / PAUSE < 8
    assert batches(profiler.timeline) == {"train": 4, "validation": 2}
    seconds, calls = actions(profiler.timeline)["own"]
    assert calls == 4
    assert 8 <= seconds / PAUSE < 14


@pytest.mark.parametrize("call", ["fit", "validate", "test", "predict"])
def test_shares_of_each_stage_add_up_to_100(call: str, caplog: pytest.LogCaptureFixture) -> None:
    runner = trainer(profiler="simple", max_epochs=2, enable_checkpointing=True, num_sanity_val_steps=2)
    if call == "fit":
        runner.fit(Validated(), loader(), loader())
    else:
        getattr(runner, call)(Validated(), loader())
    text = reports(caplog)
    table = text[text.index(f"Where the time of {call} went") :].split("\n\n")[1].splitlines()
    columns = [re.findall(r"([\d.]+) %|(-)(?=\s|$)", line) for line in table[1:]]
    rows = [
        [float(number or 0) for number, _ in row] for row, line in zip(columns, table[1:], strict=True) if "%" in line
    ]
    *parts, total = rows
    assert all(share == 100 for share in total)
    assert len(total) == {"fit": 4}.get(call, 3)
    for column in zip(*parts, strict=True):
        assert sum(column) == pytest.approx(100, abs=1e-6)
    assert max(len(line) for line in text[text.index("Where the time") :].split("\n\n\n")[0].splitlines()) <= 80


def test_rounded_shares_add_up() -> None:
    assert shares([1, 1, 1]) == [33.4, 33.3, 33.3]
    assert shares([0, 0]) == [0, 0]
    drawn = torch.rand(500, 9, generator=torch.Generator().manual_seed(0)).tolist()
    assert all(sum(shares(values)) == pytest.approx(100, abs=1e-9) for values in drawn)


def test_times_are_told_in_few_digits() -> None:
    told = [spoken(seconds) for seconds in (7e-6, 4.564e-3, 0.123, 0.9996, 12.34, 456.7, 12_345)]
    assert told == ["7 us", "4.56 ms", "123 ms", "1 s", "12.3 s", "457 s", "12,345 s"]


@pytest.mark.parametrize("profiler", ["simple", "advanced", "pytorch"])
@pytest.mark.parametrize("manual", [False, True])
def test_a_profiled_run_ends_with_the_same_weights(profiler: str, manual: bool) -> None:
    class Trained(Validated):
        def __init__(self) -> None:
            super().__init__()
            self.automatic_optimization = not manual

        def training_step(self, batch: Any, batch_idx: int) -> Any:
            loss = super().training_step(batch, batch_idx)
            if manual:
                optimizer = self.optimizers()
                optimizer.zero_grad()
                self.manual_backward(loss)
                optimizer.step()
            return loss

    def trained(**arguments: Any) -> Any:
        torch.manual_seed(1)
        model = Trained()
        runner = trainer(max_epochs=2, **arguments)
        runner.fit(model, loader(shuffle=True), loader())
        return weights(model), dict(runner.callback_metrics)

    plain, profiled = trained(), trained(profiler=profiler)
    assert same(plain[0], profiled[0])
    assert plain[1] == profiled[1]


@pytest.mark.parametrize("profiler", ["simple", "advanced", "pytorch"])
def test_a_profiled_run_that_is_resumed_in_mid_epoch_ends_with_the_same_weights(profiler: str) -> None:
    def trained(ckpt_path: str | None = None, **arguments: Any) -> Any:
        torch.manual_seed(1)
        model = Validated()
        trainer(max_epochs=2, **arguments).fit(model, loader(shuffle=True), loader(), ckpt_path=ckpt_path)
        return weights(model)

    def saves() -> Any:
        return [L.callbacks.ModelCheckpoint(dirpath=".", filename="cut", every_n_train_steps=6)]

    whole = trained()
    trained(profiler=profiler, callbacks=saves(), max_steps=7)
    assert same(whole, trained("cut.ckpt", profiler=profiler, callbacks=saves()))


def test_manual_optimization_is_split_up() -> None:
    class Manual(Line):
        def __init__(self) -> None:
            super().__init__()
            self.automatic_optimization = False

        def training_step(self, batch: Any, batch_idx: int) -> None:
            optimizer = self.optimizers()
            optimizer.zero_grad()
            self.manual_backward(self.loss(batch))
            optimizer.step()

    profiler = SimpleProfiler()
    trainer(profiler=profiler, max_epochs=1).fit(Manual(), loader())
    train = by_stage(profiler.timeline)["train"]
    assert {"forward", "backward", "optimizer"} <= train.keys()


def test_accumulation_clipping_lbfgs_and_schedulers_are_measured() -> None:
    class Other(Line):
        def configure_optimizers(self) -> Any:
            optimizer = torch.optim.LBFGS(self.parameters(), lr=0.01)
            return [optimizer], [{"scheduler": torch.optim.lr_scheduler.StepLR(optimizer, 1), "interval": "step"}]

        def lr_scheduler_step(self, scheduler: Any, metric: Any) -> None:
            time.sleep(PAUSE)
            scheduler.step()

    profiler = SimpleProfiler()
    trainer(profiler=profiler, max_epochs=1, accumulate_grad_batches=2).fit(Other(), loader())
    found = actions(profiler.timeline)
    assert found["[LightningModule]test_accumulation_clipping_lbfgs_and_schedulers_are_measured.<locals>.Other"
                 ".lr_scheduler_step"][1] == 2  # fmt: skip
    assert by_stage(profiler.timeline)["train"]["optimizer"] > 2 * PAUSE

    profiler = SimpleProfiler()
    trainer(profiler=profiler, max_epochs=1, accumulate_grad_batches=2, gradient_clip_val=1.0).fit(Line(), loader())
    found = actions(profiler.timeline)
    assert found["[LightningModule]Line.optimizer_step"][1] == 2
    assert found["[LightningModule]Line.configure_gradient_clipping"][1] == 2
    assert found["[Strategy]SingleDeviceStrategy.training_step"][1] == 4


def test_callbacks_checkpoints_and_loggers_are_told_apart(tmp_path: Path) -> None:
    class Lazy(L.Callback):
        def on_train_batch_end(self, *args: Any) -> None:
            time.sleep(PAUSE)

    profiler = SimpleProfiler()
    L.Trainer(
        accelerator="cpu", default_root_dir=tmp_path, max_epochs=1, callbacks=[Lazy()], profiler=profiler,
        log_every_n_steps=1, num_sanity_val_steps=0,
    ).fit(Validated(), loader(), loader())  # fmt: skip
    found = actions(profiler.timeline)
    assert (
        found["[Callback]test_callbacks_checkpoints_and_loggers_are_told_apart.<locals>.Lazy.on_train_batch_end"][1]
        == 4
    )
    assert found["save_checkpoint"][1] == 1
    assert found["[Checkpoint]ModelCheckpoint.on_train_epoch_end"][0] >= found["save_checkpoint"][0]
    assert found["[Results].log_metrics"][1] == 5  # a row each step, and one for the validation
    train = by_stage(profiler.timeline)["train"]
    assert train["hooks"] >= 4 * PAUSE
    assert train["checkpoints"] > 0
    assert train["logging"] > 0


def test_the_file_holds_every_action_and_grows_with_each_call(tmp_path: Path) -> None:
    profiler = SimpleProfiler(dirpath=tmp_path / "reports", filename="perf")
    runner = trainer(profiler=profiler, max_epochs=1)
    model = Validated()
    runner.fit(model, loader(), loader())
    runner.test(model, loader())
    assert sorted(file.name for file in (tmp_path / "reports").iterdir()) == ["fit-perf-0.txt", "test-perf-0.txt"]
    text = (tmp_path / "reports" / "fit-perf-0.txt").read_text()
    assert all(name in text for name in actions_of_file(text))
    assert "more: give" not in text
    assert "[Strategy]SingleDeviceStrategy.backward" in text
    assert "test_step" not in text
    runner.fit(model, loader(), loader())
    assert (tmp_path / "reports" / "fit-perf-0.txt").read_text().count("Where the time of fit went") == 2


def actions_of_file(text: str) -> list[str]:
    rows = text.split("\nAction")[1].splitlines()[2:]
    return [row.split()[0] for row in rows if row.strip()]


def test_the_file_goes_to_the_folder_of_the_run(tmp_path: Path) -> None:
    runner = L.Trainer(accelerator="cpu", default_root_dir=tmp_path, profiler=SimpleProfiler(filename="perf"))
    runner.fit(Line(), loader())
    assert (Path(runner.log_dir or "") / "fit-perf-0.txt").exists()


def test_not_extended_has_no_calls_and_shares(caplog: pytest.LogCaptureFixture) -> None:
    trainer(profiler=SimpleProfiler(extended=False)).fit(Line(), loader())
    head = next(line for line in reports(caplog).splitlines() if line.startswith("Action"))
    assert head.split() == ["Action", "total", "mean"]
    trainer(profiler=SimpleProfiler()).fit(Line(), loader())
    head = next(line for line in reports(caplog).splitlines() if line.startswith("Action"))
    assert head.split() == ["Action", "total", "share", "calls", "mean"]


def test_waiting_for_data_is_said_in_words(caplog: pytest.LogCaptureFixture) -> None:
    trainer(profiler="simple").fit(Line(), torch.utils.data.DataLoader(SlowRows()))
    assert "num_workers" in reports(caplog)


@pytest.mark.parametrize("error", [RuntimeError, KeyboardInterrupt])
def test_a_run_that_breaks_off_is_reported_and_the_next_starts_anew(
    error: type[BaseException], caplog: pytest.LogCaptureFixture
) -> None:
    class Fails(Line):
        def training_step(self, batch: Any, batch_idx: int) -> Any:
            if batch_idx == 2 and self.current_epoch == 0 and not getattr(self, "failed", False):
                self.failed = True
                raise error("boom")
            return super().training_step(batch, batch_idx)

    profiler = SimpleProfiler()
    runner = trainer(profiler=profiler, max_epochs=1)
    model = Fails()
    with pytest.raises(error):
        runner.fit(model, loader())
    assert "Where the time of fit went" in reports(caplog)
    assert profiler.timeline.stack == ()
    assert batches(profiler.timeline)["train"] == 3
    runner.fit(model, loader())
    assert batches(profiler.timeline)["train"] == 4


def test_a_run_that_never_reaches_its_loop_has_no_report(caplog: pytest.LogCaptureFixture) -> None:
    with pytest.raises(MisconfigurationException):
        trainer(profiler="simple").fit(Line())
    assert "Where the time" not in reports(caplog)


def test_a_report_that_cannot_be_written_does_not_end_the_run(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "file").write_text("")
    runner = trainer(profiler=SimpleProfiler(dirpath=tmp_path / "file", filename="perf"), max_epochs=1)
    runner.fit(Line(), loader())
    assert runner.state.finished
    text = reports(caplog)
    assert "could not write its report" in text
    assert "Where the time of fit went" in text


def test_what_is_read_after_a_call_is_no_part_of_its_report() -> None:
    profiler = SimpleProfiler()
    runner = trainer(profiler=profiler, max_epochs=1)
    runner.fit(Validated(), loader(), loader())
    report = profiler.summary()
    assert runner.callback_metrics
    assert profiler.summary() == report


def test_a_call_within_a_call_is_part_of_its_report(caplog: pytest.LogCaptureFixture) -> None:
    class Tests(L.Callback):
        def on_train_epoch_end(self, runner: L.Trainer, module: Any) -> None:
            other = trainer(profiler=runner.profiler)
            other.test(Line(), loader(3), verbose=False)

    profiler = SimpleProfiler()
    trainer(profiler=profiler, max_epochs=1, callbacks=[Tests()]).fit(Line(), loader())
    assert batches(profiler.timeline) == {"train": 4, "test": 3}
    assert reports(caplog).count("Where the time") == 1


def test_several_loaders_iterators_and_streams_are_waited_for() -> None:
    class Fetches(Line):
        def training_step(self, dataloader_iter: Any) -> Any:  # type: ignore[override]
            batch, batch_idx, _ = next(dataloader_iter)
            return super().training_step(batch, batch_idx)

    for model, data, count in (
        (Line(), stream(), 4),
        (Fetches(), loader(), 4),
        (Line(), list(loader(3)), 3),
    ):
        profiler = SimpleProfiler()
        trainer(profiler=profiler, max_epochs=1).fit(model, data)
        assert batches(profiler.timeline)["train"] == count
        assert by_stage(profiler.timeline)["train"]["data"] > 0


# -- actions of the user's --------------------------------------------------------------------------------------------


def test_actions_may_nest_in_themselves_and_end_in_another_order() -> None:
    timeline = Timeline()
    timeline.start("a")
    timeline.start("a")
    timeline.start("b")
    timeline.stop("a")
    assert timeline.stack == ("a", "b")
    timeline.stop("a")
    timeline.stop("b")
    timeline.close()
    assert timeline.stack == ()
    assert {name: calls for name, (_, calls) in actions(timeline).items()} == {"a": 2, "b": 1}


@pytest.mark.parametrize("profiler", [SimpleProfiler(), AdvancedProfiler()])
def test_stopping_what_was_not_started_is_an_error(profiler: Profiler) -> None:
    with pytest.raises(ValueError, match="'mine' was stopped, but it was not started"):
        profiler.stop("mine")


def test_without_a_trainer() -> None:
    profiler = SimpleProfiler()
    with profiler.profile("mine"):
        time.sleep(PAUSE)
    assert "mine" in profiler.summary()
    assert SimpleProfiler().summary() == ""


def test_a_device_that_is_behind_is_read_later() -> None:
    """As CUDA's events are: a slice's time is known when the device has come to its end."""

    class Behind:
        limit = 0

        def __init__(self) -> None:
            self.marks = 0

        def mark(self) -> int:
            self.marks += 1
            return self.marks

        def reached(self, mark: int) -> bool:
            return mark <= self.limit

        def seconds(self, begin: int, end: int) -> float:
            return float(end - begin)

    clock = Behind()
    timeline = Timeline(clock)  # type: ignore[arg-type]
    for _ in range(600):
        timeline.start("a")
        timeline.stop("a")
    assert not timeline.spent
    clock.limit = 500
    for _ in range(500):
        timeline.start("a")
        timeline.stop("a")
    assert sum(timeline.spent.values()) == 499
    timeline.close()
    assert timeline.spent[("a",)] == 1100
    assert timeline.spent[()] == 1101


# -- the Trainer's argument --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("given", "kind"),
    [
        (None, PassThroughProfiler),
        ("simple", SimpleProfiler),
        ("Advanced", AdvancedProfiler),
        ("pytorch", PyTorchProfiler),
    ],
)
def test_names(given: Any, kind: type) -> None:
    assert type(trainer(profiler=given).profiler) is kind


@pytest.mark.parametrize("given", ["simpel", "xla", 3, SimpleProfiler])
def test_what_is_no_profiler_is_refused(given: Any) -> None:
    with pytest.raises(MisconfigurationException, match="choose 'simple', 'advanced' or 'pytorch'"):
        trainer(profiler=given)


def test_a_profiler_is_refused_where_speed_is_measured() -> None:
    with pytest.raises(MisconfigurationException, match="profiler='simple'"):
        L.Trainer(barebones=True, profiler="simple")


def test_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PL_TRAINER_PROFILER", "simple")
    assert type(trainer().profiler) is SimpleProfiler


@pytest.mark.parametrize("arguments", [{"dirpath": 3}, {"filename": "a/b"}, {"filename": ""}, {"filename": 3}])
@pytest.mark.parametrize("kind", [SimpleProfiler, AdvancedProfiler, PyTorchProfiler])
def test_wrong_files(kind: Any, arguments: Any) -> None:
    with pytest.raises(MisconfigurationException, match=next(iter(arguments))):
        kind(**arguments)


def test_without_a_profiler_a_run_keeps_its_own_callables(caplog: pytest.LogCaptureFixture) -> None:
    class Uses(Line):
        def training_step(self, batch: Any, batch_idx: int) -> Any:
            with self.trainer.profiler.profile("mine"):
                return super().training_step(batch, batch_idx)

    model = Uses()
    runner = trainer(max_epochs=1)
    runner.fit(model, loader())
    assert runner._fitted is not None
    assert runner._fitted.training_step == model.training_step
    assert runner._fitted.backward is torch.Tensor.backward
    assert runner._fitted.train.watch is None
    assert "log" not in vars(runner.results)
    assert "Where the time" not in reports(caplog)


def test_a_profiler_of_ones_own() -> None:
    class Names(Profiler):
        def __init__(self) -> None:
            super().__init__()
            self.begun: list[str] = []
            self.open: list[str] = []
            self.calls: list[str] = []

        def setup(self, stage: str, local_rank: int | None = None, log_dir: str | None = None) -> None:
            super().setup(stage, local_rank, log_dir)
            self.calls.append(f"setup {stage} {local_rank}")

        def start(self, action_name: str) -> None:
            self.begun.append(action_name)
            self.open.append(action_name)

        def stop(self, action_name: str) -> None:
            self.open.remove(action_name)

        def summary(self) -> str:
            self.calls.append("summary")
            return "own report"

        def teardown(self, stage: str | None) -> None:
            self.calls.append(f"teardown {stage}")

    profiler = Names()
    trainer(profiler=profiler, max_epochs=1).fit(Validated(), loader(), loader())
    assert profiler.calls == ["setup fit 0", "summary", "teardown fit"]
    assert profiler.open == []
    assert {
        "[Strategy]SingleDeviceStrategy.training_step",
        "[Strategy]SingleDeviceStrategy.backward",
        "[Strategy]SingleDeviceStrategy.batch_to_device",
        "[Strategy]SingleDeviceStrategy.validation_step",
        "[_TrainingEpochLoop].train_dataloader_next",
        "[_EvaluationLoop].val_next",
        "[LightningModule]Validated.optimizer_step",
        "run_training",
        "run_validation",
    } <= set(profiler.begun)


@pytest.mark.parametrize("profiler", ["simple", "advanced", "pytorch"])
def test_a_trainer_with_a_profiler_can_be_pickled_and_used_again(profiler: str) -> None:
    runner = trainer(profiler=profiler, max_epochs=1)
    runner.fit(Line(), loader())
    again = pickle.loads(pickle.dumps(runner.profiler))
    assert again.summary() == runner.profiler.summary() != ""
    other = trainer(profiler=copy.deepcopy(runner.profiler), max_epochs=1)
    other.fit(Line(), loader())
    runner.fit(Line(), loader())

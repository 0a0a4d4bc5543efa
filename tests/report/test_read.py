"""What is read of a run's folder, as it is left by a training, by a killed one, by another program."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest
import torch

from gpulayer.report.groups import group
from gpulayer.report.metrics import Metrics, Series, read_metrics
from gpulayer.report.read import find_runs, names_of, read_run
from gpulayer.report.thin import mean, thin
from tests.report.trained import HOSTILE


@pytest.fixture
def folder(trained: Path) -> Path:
    """A trained run's folder."""
    return trained / "Line" / "version_0"


def read(tmp_path: Path, content: str | bytes) -> tuple[Metrics, list[str]]:
    """A metrics.csv with this content, and the notes about it."""
    file = tmp_path / "metrics.csv"
    file.write_bytes(content if isinstance(content, bytes) else content.encode())
    notes: list[str] = []
    return read_metrics(file, notes), notes


class TestTrainedRun:
    def test_metrics(self, folder: Path) -> None:
        run = read_run(folder, "it")
        assert run.notes == []
        assert set(run.metrics.series) == {"loss_step", "loss_epoch", "val_loss", "lr-SGD", f"{HOSTILE}/größe"}
        assert run.metrics.series["val_loss"].steps == [7, 15, 23]
        assert run.metrics.series["loss_step"].steps == list(range(1, 24, 2))
        assert run.metrics.series["lr-SGD"].values == pytest.approx([0.1, 0.09, 0.081])

    def test_epochs(self, folder: Path) -> None:
        metrics = read_run(folder, "it").metrics
        assert metrics.epoch_ends == [(-1, 0.0), (7, 1.0), (15, 2.0), (23, 3.0)]
        assert [metrics.epochs_done(step) for step in (-1, 3, 7, 11, 23, 99)] == [0.0, 0.5, 1.0, 1.5, 3.0, 3.0]

    def test_hparams(self, folder: Path) -> None:
        expected = {"lr": "0.1", "note": HOSTILE, "optimizer.name": "SGD", "optimizer.nesterov": "False"}
        assert read_run(folder, "it").hparams == expected

    def test_times(self, folder: Path) -> None:
        run = read_run(folder, "it")
        assert run.started is not None
        assert run.ended is not None
        assert run.started <= run.ended

    def test_checkpoints(self, folder: Path) -> None:
        run = read_run(folder, "it")
        names = ["epoch=1-step=16.ckpt", "epoch=2-step=24.ckpt", "last.ckpt"]
        assert [file.path for file in run.checkpoints] == [f"checkpoints/{name}" for name in names]
        assert [(file.epoch, file.step) for file in run.checkpoints] == [(1, 16), (2, 24), (2, 24)]
        assert [file.best_by for file in run.checkpoints] == [[], ["val_loss"], []]
        logged = run.metrics.series["val_loss"].values[1:]
        scores = [file.scores["val_loss"] for file in run.checkpoints]
        assert scores == pytest.approx([*logged, logged[-1]])
        assert all(file.size > 1000 for file in run.checkpoints)

    def test_a_run_that_was_moved(self, folder: Path, tmp_path: Path) -> None:
        shutil.copytree(folder, tmp_path / "elsewhere")
        assert read_run(tmp_path / "elsewhere", "it").checkpoints == read_run(folder, "it").checkpoints

    def test_damaged_and_foreign_checkpoints(self, folder: Path, tmp_path: Path) -> None:
        copy = tmp_path / "run"
        shutil.copytree(folder, copy)
        whole = (copy / "checkpoints/last.ckpt").read_bytes()
        (copy / "checkpoints/epoch=2-step=24.ckpt").write_bytes(whole[: len(whole) // 2])
        (copy / "checkpoints/epoch=7-step=70-val_acc=0.25.ckpt").write_bytes(b"no checkpoint")
        (copy / "checkpoints/empty.ckpt").touch()
        torch.save({"weight": torch.zeros(2)}, copy / "checkpoints/weights.ckpt")
        torch.save({"global_step": 3, "model": torch.nn.Linear(1, 1)}, copy / "checkpoints/epoch=0-step=3.ckpt")
        run = read_run(copy, "it")
        files = {Path(file.path).name: file for file in run.checkpoints}
        assert files["last.ckpt"].problem == files["epoch=1-step=16.ckpt"].problem == ""
        assert "Linear" in files["epoch=0-step=3.ckpt"].problem
        assert "no checkpoint of a Trainer" in files["weights.ckpt"].problem
        assert (files["epoch=2-step=24.ckpt"].epoch, files["epoch=2-step=24.ckpt"].step) == (2, 24)
        assert files["epoch=2-step=24.ckpt"].best_by == ["val_loss"]  # the others know it
        assert files["epoch=7-step=70-val_acc=0.25.ckpt"].scores == {"val_acc": 0.25}
        assert len(run.notes) == 5
        assert all("not read" in note for note in run.notes)

    def test_a_sharded_checkpoint_is_one(self, tmp_path: Path) -> None:
        shards = tmp_path / "checkpoints" / "epoch=0-step=8.ckpt"
        shards.mkdir(parents=True)
        (shards / "a.distcp").write_bytes(b"x" * 600)
        (shards / "b.ckpt").write_bytes(b"x" * 400)
        (file,) = read_run(tmp_path, "it").checkpoints
        assert (file.path, file.size, file.step, file.problem) == ("checkpoints/epoch=0-step=8.ckpt", 1000, 8, "")


class TestDamagedMetrics:
    @pytest.mark.parametrize("content", ["", "epoch,step,loss\r\n", "\r\n", "\ufeff"])
    def test_no_rows(self, tmp_path: Path, content: str) -> None:
        metrics, notes = read(tmp_path, content)
        assert (metrics.rows, metrics.series, metrics.last_step) == (0, {}, None)
        assert notes == ["metrics.csv has no rows yet."]

    def test_one_row(self, tmp_path: Path) -> None:
        metrics, notes = read(tmp_path, "epoch,step,loss\n0,4,0.5\n")
        assert metrics.series == {"loss": Series([4], [0.5])}
        assert metrics.epochs_done(4) == 1
        assert notes == []

    def test_a_row_that_is_being_written(self, tmp_path: Path) -> None:
        metrics, notes = read(tmp_path, "epoch,step,loss\n0,0,0.5\n0,1,0.2")
        assert metrics.series["loss"].values == [0.5]
        assert "no end" in notes[0]

    def test_rows_that_were_cut(self, tmp_path: Path) -> None:
        """What CSVLogger leaves when a run is killed within a row, and resumed."""
        metrics, notes = read(tmp_path, "epoch,step,a,b\n0,0,0.5,1\n0,1,0.2\n0,2,0.25,3\n0,\n0,4,1,1\n")
        assert metrics.series == {"a": Series([0, 2, 4], [0.5, 0.25, 1]), "b": Series([0, 2, 4], [1, 3, 1])}
        assert notes == [
            "2 rows were cut short in metrics.csv; the cell at the cut is left out.",
            "1 row was without a step in metrics.csv; left out.",
        ]

    def test_a_column_that_came_later(self, tmp_path: Path) -> None:
        metrics, notes = read(tmp_path, "epoch,step,a,b\n0,0,1\n0,1,2\n0,2,3,4\n")
        assert metrics.series == {"a": Series([0, 1, 2], [1, 2, 3]), "b": Series([2], [4])}
        assert notes == []

    def test_nan_and_infinity(self, tmp_path: Path) -> None:
        metrics, _ = read(tmp_path, "epoch,step,a\n0,0,1\n0,1,nan\n0,2,inf\n0,3,-Infinity\n0,4,2\n")
        assert metrics.series["a"].values == [1, None, None, None, 2]

    def test_text(self, tmp_path: Path) -> None:
        metrics, notes = read(tmp_path, "epoch,step,a,b\n0,0,1,cat\n0,1,oops,dog\n0,2,3,\n")
        assert metrics.series == {"a": Series([0, 2], [1, 3])}
        assert [note.split(",")[0] for note in notes] == ["Column 'b' holds text", "Column 'a' holds text"]

    def test_a_resumed_run_that_logs_steps_again(self, tmp_path: Path) -> None:
        metrics, notes = read(tmp_path, "epoch,step,a\n" + "".join(f"0,{s},{s}\n" for s in [0, 1, 2, 3, 4, 2, 3]))
        assert metrics.series["a"].steps == [0, 1, 2, 3]
        assert "3 values were logged again" in notes[0]

    def test_several_values_at_one_step(self, tmp_path: Path) -> None:
        """As DeviceStatsMonitor logs them during a validation."""
        metrics, notes = read(tmp_path, "epoch,step,a\n0,7,1\n0,7,2\n0,7,3\n1,8,4\n")
        assert metrics.series["a"] == Series([7, 7, 7, 8], [1, 2, 3, 4])
        assert notes == []

    def test_no_step_column(self, tmp_path: Path) -> None:
        metrics, notes = read(tmp_path, "loss\n3\n2\n")
        assert metrics.series["loss"] == Series([0, 1], [3, 2])
        assert "no column `step`" in notes[0]
        assert metrics.epochs_done(1) is None

    def test_rows_without_a_step(self, tmp_path: Path) -> None:
        metrics, notes = read(tmp_path, "epoch,step,a\n0,,1\n0,nan,1\n0,inf,1\n0,x,1\n0,7.0,5\n")
        assert metrics.series["a"] == Series([7], [5])
        assert notes == ["4 rows were without a step in metrics.csv; left out."]

    def test_bytes_that_are_no_text(self, tmp_path: Path) -> None:
        metrics, notes = read(tmp_path, b"epoch,step,a\n0,0,1\n\xff\xfe\0\0,1\n" + b'0,1,"' + b"x" * 200_000 + b'"\n')
        assert metrics.series["a"].values[:1] == [1]
        assert any("damaged" in note for note in notes)

    def test_no_file(self, tmp_path: Path) -> None:
        (tmp_path / "hparams.yaml").write_text("a: 1")
        run = read_run(tmp_path, "it")
        assert (run.metrics, run.hparams, run.ended) == (Metrics(), {"a": "1"}, None)
        assert run.notes == ["There is no metrics.csv."]

    def test_a_folder_instead_of_files(self, tmp_path: Path) -> None:
        (tmp_path / "metrics.csv").mkdir()
        (tmp_path / "hparams.yaml").mkdir()
        assert len(read_run(tmp_path, "it").notes) == 2

    @pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
    def test_no_permission(self, tmp_path: Path) -> None:
        (tmp_path / "metrics.csv").write_text("step,a\n0,1\n")
        (tmp_path / "metrics.csv").chmod(0)
        assert "Permission denied" in read_run(tmp_path, "it").notes[0]

    @pytest.mark.parametrize("epochs", ["0,1,0", "5,5,5", "-1,0,1", "0.5,nan,x", "3,2,1", ",,"])
    def test_odd_epochs(self, tmp_path: Path, epochs: str) -> None:
        """No axis is worse than none; an axis never goes back."""
        rows = "".join(f"{epoch},{step},1\n" for step, epoch in enumerate(epochs.split(",")))
        metrics, _ = read(tmp_path, f"epoch,step,a\n{rows}")
        done = [metrics.epochs_done(step) for step in range(3)]
        known = [value for value in done if value is not None]
        assert known == sorted(known)
        assert len(known) in (0, 3)


class TestHparams:
    @pytest.mark.parametrize(
        ("text", "expected"),
        [
            ("", {}),
            ("a:\n  b: {c: 1, d: {}}\n  e: [1, x]\n", {"a.b.c": "1", "a.b.d": "{}", "a.e": "[1, 'x']"}),
            ("p: !!python/object/apply:pathlib.PosixPath [/, data]", {"p": "PosixPath(/, data)"}),
            ("p: !!python/tuple [1, 2]", {"p": "tuple(1, 2)"}),
            ("p: !mine {x: 3}", {"p.x": "3"}),
            ("p: !!python/name:torch.nn.ReLU ''", {"p": "torch.nn.ReLU"}),
            ("1: 2", {"1": "2"}),
            ("a: null", {"a": "None"}),
        ],
    )
    def test_values(self, tmp_path: Path, text: str, expected: dict[str, str]) -> None:
        (tmp_path / "hparams.yaml").write_text(text)
        assert read_run(tmp_path, "it").hparams == expected

    @pytest.mark.parametrize("text", ["a: [1", "- 1\n- 2", "\x01", "&a {b: *a}", "a: 2024-99-99"])
    def test_unreadable(self, tmp_path: Path, text: str) -> None:
        (tmp_path / "hparams.yaml").write_text(text)
        (tmp_path / "metrics.csv").write_text("step,a\n0,1\n")
        run = read_run(tmp_path, "it")
        assert run.metrics.series["a"].values == [1]
        assert len(run.notes) == 1 or run.hparams  # said, or shown as far as it goes

    def test_no_code_is_run(self, tmp_path: Path) -> None:
        (tmp_path / "hparams.yaml").write_text(f"a: !!python/object/apply:os.mkdir ['{tmp_path}/made']")
        assert "mkdir" in read_run(tmp_path, "it").hparams["a"]
        assert not (tmp_path / "made").exists()


class TestFind:
    def test_a_run_or_its_file(self, folder: Path) -> None:
        assert find_runs(folder) == find_runs(folder / "metrics.csv") == [folder]

    def test_all_below_oldest_first(self, tmp_path: Path) -> None:
        for age, name in enumerate(["b/version_2", "b/version_10", "a/version_0", "deep/er/x"]):
            (tmp_path / name).mkdir(parents=True)
            (tmp_path / name / "metrics.csv").touch()
            os.utime(tmp_path / name / "metrics.csv", (age // 2, age // 2))
        found = [folder.relative_to(tmp_path).as_posix() for folder in find_runs(tmp_path)]
        assert found == ["b/version_2", "b/version_10", "a/version_0", "deep/er/x"]

    def test_what_lies_in_a_run_belongs_to_it(self, tmp_path: Path) -> None:
        (tmp_path / "inside").mkdir()
        (tmp_path / "metrics.csv").touch()
        (tmp_path / "inside" / "metrics.csv").touch()
        assert find_runs(tmp_path) == [tmp_path]

    def test_nothing_there(self, tmp_path: Path) -> None:
        with pytest.raises(FileNotFoundError, match="there is no folder"):
            find_runs(tmp_path / "missing")
        with pytest.raises(FileNotFoundError, match=r"no run in .* metrics\.csv"):
            find_runs(tmp_path)
        (tmp_path / "file").touch()
        with pytest.raises(NotADirectoryError, match="is a file"):
            find_runs(tmp_path / "file")

    def test_names(self, tmp_path: Path) -> None:
        assert names_of([tmp_path / "runs/Net/version_0"]) == ["Net/version_0"]
        assert names_of([tmp_path / "a/version_0", tmp_path / "b/version_0"]) == ["a/version_0", "b/version_0"]


class TestThin:
    def test_a_short_line_stays(self) -> None:
        series = Series([0, 1], [1, 2])
        assert thin(series, 2) is series

    def test_spikes_gaps_and_ends_stay(self) -> None:
        values: list[float | None] = [1.0 + (step % 7) / 100 for step in range(100_000)]
        values[54_321], values[777], values[888] = 50.0, -50.0, None
        thinned = thin(Series(list(range(100_000)), values), 2000)
        kept = dict(zip(thinned.steps, thinned.values, strict=True))
        assert 1000 < len(kept) <= 2003
        assert thinned.steps == sorted(kept)
        assert (kept[54_321], kept[777], kept[888]) == (50.0, -50.0, None)
        assert {0, 99_999} <= set(kept)

    def test_all_missing(self) -> None:
        assert set(thin(Series(list(range(100)), [None] * 100), 10).values) == {None}

    def test_mean(self) -> None:
        series = Series(list(range(8)), [1, 3, 5, None, None, None, -1, 1])
        assert mean(series, 4) == Series([1, 3, 5, 7], [2, 5, None, 0])


def charts(*names: str) -> dict[str, list[str]]:
    """The title of each chart, with its lines."""
    return {found.title: [line.name for line in found.lines] for found in group(names)}


class TestGroups:
    def test_stages_and_forks(self) -> None:
        assert charts("acc", "val_acc", "loss_epoch", "loss_step", "val_loss") == {
            "loss": ["loss_epoch", "loss_step", "val_loss"],
            "acc": ["acc", "val_acc"],
        }
        assert charts("val/iou/a", "train/iou/a") == {"iou/a": ["train/iou/a", "val/iou/a"]}
        assert charts("loss_val", "loss_train") == {"loss": ["loss_train", "loss_val"]}
        assert charts("loss/dataloader_idx_0", "val_loss/dataloader_idx_1") == {
            "loss": ["loss/dataloader_idx_0", "val_loss/dataloader_idx_1"]
        }

    def test_one_alone_keeps_its_name(self) -> None:
        assert charts("val_f1", "env_step", "test", "") == {name: [name] for name in ("val_f1", "env_step", "test", "")}

    def test_sections(self) -> None:
        sections = {
            found.title: found.section
            for found in group(
                "lr-Adam lr-Adam-momentum train/device/batches_per_sec train/time train/batches mfu time "
                "DeviceStatsMonitor.on_train_batch_end/cpu_percent".split()
            )
        }
        assert sections == {
            "Learning rate": "Learning rate",
            "Momentum": "Learning rate",
            "batches per second": "Throughput",
            "mfu": "Throughput",
            "time in total": "Throughput",
            "batches in total": "Throughput",
            "time": "Metrics",
            "cpu_percent": "Device",
        }

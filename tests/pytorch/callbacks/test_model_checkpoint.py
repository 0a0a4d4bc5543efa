"""ModelCheckpoint on scores that are known beforehand."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from math import inf, nan
from pathlib import Path
from typing import Any

import pytest
import torch

import gpulayer.pytorch as L
from gpulayer.pytorch.callbacks import ModelCheckpoint
from tests.pytorch.models import Line, Scored, Validated, loader, same, trainer, weights


def run(scores: Sequence[float], saver: ModelCheckpoint, **arguments: Any) -> L.Trainer:
    """One epoch of four steps for each score."""
    used = trainer(max_epochs=len(scores), callbacks=[saver], **arguments)
    used.fit(Scored(scores), loader(), loader())
    return used


def files(folder: str = "saved") -> list[str]:
    return sorted(file.name for file in Path(folder).iterdir())


def epochs(folder: str = "saved") -> list[int]:
    """The epochs of the checkpoints in a folder."""
    return sorted(read(file)["epoch"] for file in Path(folder).iterdir())


def read(path: str | Path) -> dict[str, Any]:
    content: dict[str, Any] = torch.load(path, weights_only=True)
    return content


# -- which are kept ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("mode", "top", "kept"),
    [("min", 1, [3]), ("min", 2, [1, 3]), ("min", 3, [1, 3, 4]), ("max", 1, [2]), ("max", 2, [0, 2]),
     ("max", 9, [0, 1, 2, 3, 4])],
)  # fmt: skip
def test_the_best_are_kept(mode: str, top: int, kept: list[int]) -> None:
    scores = [4.0, 2.0, 5.0, 1.0, 3.0]
    saver = ModelCheckpoint("saved", monitor="score", mode=mode, save_top_k=top)
    run(scores, saver)
    assert epochs() == kept
    best = (min if mode == "min" else max)(scores)
    assert float(saver.best_model_score) == best
    assert read(saver.best_model_path)["epoch"] == scores.index(best)
    if top == len(kept):  # then one more has to beat the worst of them
        worst = sorted((scores[epoch] for epoch in kept), reverse=mode == "max")[-1]
        assert read(saver.kth_best_model_path)["epoch"] == scores.index(worst)
        assert float(saver.kth_value) == worst
    assert {Path(path).name: float(score) for path, score in saver.best_k_models.items()} == {
        f"epoch={epoch}-step={4 * (epoch + 1)}.ckpt": scores[epoch] for epoch in kept
    }


def test_all_are_kept_with_a_monitor() -> None:
    saver = ModelCheckpoint("saved", monitor="score", save_top_k=-1)
    run([2, 1, 3], saver)
    assert epochs() == [0, 1, 2]
    assert read(saver.best_model_path)["epoch"] == 1


def test_all_are_kept_without_a_monitor() -> None:
    run([2, 1, 3], ModelCheckpoint("saved", save_top_k=-1))
    assert epochs() == [0, 1, 2]


def test_none_is_kept() -> None:
    saver = ModelCheckpoint("saved", monitor="score", save_top_k=0)
    run([2, 1, 3], saver)
    assert not Path("saved").exists()
    assert saver.best_model_path == ""


def test_without_a_monitor_the_newest_is_kept_and_counts_as_best() -> None:
    saver = ModelCheckpoint("saved")
    run([1, 2, 3], saver)
    assert files() == ["epoch=2-step=12.ckpt"]
    assert saver.best_model_path == str(Path("saved/epoch=2-step=12.ckpt").absolute())


def test_of_two_with_one_score_the_older_stays() -> None:
    run([2, 1, 1, 1], ModelCheckpoint("saved", monitor="score"))
    assert epochs() == [1]


@pytest.mark.parametrize("mode", ["min", "max"])
@pytest.mark.parametrize("scores", [[nan, 2, 3], [2, nan, 3], [3, 2, nan]])
def test_nan_is_never_best(mode: str, scores: list[float]) -> None:
    saver = ModelCheckpoint("saved", monitor="score", mode=mode, save_top_k=2)
    run(scores, saver)
    best = (min if mode == "min" else max)(score for score in scores if score == score)
    assert float(saver.best_model_score) == best
    assert sorted(scores[epoch] for epoch in epochs()) == [2, 3]


@pytest.mark.parametrize("mode", ["min", "max"])
def test_nan_makes_room_for_infinity_and_the_other_way_round(mode: str) -> None:
    """Where every score is bad something is kept all the same."""
    run([nan, nan, inf if mode == "min" else -inf], ModelCheckpoint("saved", monitor="score", mode=mode))
    assert len(files()) == 1


def test_what_is_best_is_known_beforehand() -> None:
    """A checkpoint's weights are those of the epoch in its name."""
    seen = {}

    class Keeps(Scored):
        def on_train_epoch_end(self) -> None:
            seen[self.current_epoch] = weights(self)

    saver = ModelCheckpoint("saved", monitor="score", save_top_k=2)
    trainer(max_epochs=4, callbacks=[saver]).fit(Keeps([4, 1, 2, 3]), loader(), loader())
    assert epochs() == [1, 2]
    for file in Path("saved").iterdir():
        content = read(file)
        assert same(content["state_dict"], seen[content["epoch"]])


# -- last -------------------------------------------------------------------------------------------------------------


def test_last_is_the_newest_whatever_its_score() -> None:
    saver = ModelCheckpoint("saved", monitor="score", save_last=True)
    run([1, 2, 3], saver)
    assert files() == ["epoch=0-step=4.ckpt", "last.ckpt"]
    assert read("saved/last.ckpt")["epoch"] == 2
    assert saver.last_model_path == str(Path("saved/last.ckpt").absolute())
    assert read(saver.best_model_path)["epoch"] == 0


def test_last_is_a_file_that_stands_alone() -> None:
    """Not a link: it can be copied elsewhere."""
    run([1], ModelCheckpoint("saved", save_last=True))
    assert not Path("saved/last.ckpt").is_symlink()


def test_last_as_a_link() -> None:
    run([2, 1], ModelCheckpoint("saved", save_last="link"))
    assert Path("saved/last.ckpt").readlink() == Path("epoch=1-step=8.ckpt")
    assert read("saved/last.ckpt")["epoch"] == 1


def test_last_as_a_link_where_the_newest_is_not_among_the_best() -> None:
    """There is nothing to link to, so it is a file; the best is left as it was."""
    saver = ModelCheckpoint("saved", monitor="score", save_last="link")
    run([1, 2, 3], saver)
    assert read("saved/last.ckpt")["epoch"] == 2
    assert read(saver.best_model_path)["epoch"] == 0


def test_only_last() -> None:
    run([1, 2, 3], ModelCheckpoint("saved", save_top_k=0, save_last=True))
    assert files() == ["last.ckpt"]
    assert read("saved/last.ckpt")["epoch"] == 2


def test_last_under_another_name() -> None:
    class Named(ModelCheckpoint):
        CHECKPOINT_NAME_LAST = "newest-{epoch}"

    run([1, 2], Named("saved", save_top_k=0, save_last=True))
    assert files() == ["newest-epoch=1.ckpt"]


# -- names ------------------------------------------------------------------------------------------------------------


def test_a_template_that_names_no_metric_is_said() -> None:
    """A typo would otherwise go unnoticed: the name counts as 0, as in Lightning."""
    saver = ModelCheckpoint("saved", filename="{missing:.1f}")
    with pytest.warns(UserWarning, match="names 'missing', which was not logged"):
        trainer(callbacks=[saver]).fit(Scored([1.2346]), loader(), loader())
    assert Path(saver.best_model_path).name == "missing=0.0.ckpt"


@pytest.mark.parametrize(
    ("template", "insert", "name"),
    [
        (None, True, "epoch=0-step=4"),
        ("model", True, "model"),
        ("{epoch}", True, "epoch=0"),
        ("model-{epoch:02d}-{score:.2f}", True, "model-epoch=00-score=1.23"),
        ("model-{epoch:02d}-{score:.2f}", False, "model-00-1.23"),
        ("{step:08d}_{score:.3e}", False, "00000004_1.235e+00"),
        ("{score:+.1f}", False, "+1.2"),
        ("val={val/acc:.1f}", False, "val=0.5"),
        ("{{literal}}-{epoch}", True, "{literal}-epoch=0"),
    ],
)
def test_templates(template: str | None, insert: bool, name: str) -> None:
    class Named(Scored):
        def validation_step(self, batch: Any, batch_idx: int) -> None:
            super().validation_step(batch, batch_idx)
            self.log("val/acc", 0.5)

    saver = ModelCheckpoint("saved", filename=template, auto_insert_metric_name=insert)
    trainer(callbacks=[saver]).fit(Named([1.2346]), loader(), loader())
    assert files() == [f"{name}.ckpt"]


def test_a_slash_in_a_metrics_name_makes_a_folder() -> None:
    """As with Lightning; auto_insert_metric_name=False is the way out."""
    saver = ModelCheckpoint("saved", filename="{val/acc:.1f}")
    assert Path(saver.format_checkpoint_name({"val/acc": torch.tensor(0.5)})).parts[-2:] == ("val", "acc=0.5.ckpt")


@pytest.mark.parametrize("monitor", ["val/score", "val score", "val.score", "score@1", "größe"])
def test_a_monitor_with_an_unusual_name(monitor: str) -> None:
    class Named(Validated):
        def validation_step(self, batch: Any, batch_idx: int) -> None:
            self.log(monitor, [3.0, 1.0, 2.0][self.current_epoch])

    template = f"{{epoch}}-{{{monitor}:.1f}}"
    saver = ModelCheckpoint("saved", filename=template, monitor=monitor, auto_insert_metric_name=False)
    trainer(max_epochs=3, callbacks=[saver]).fit(Named(), loader(), loader())
    assert files() == ["1-1.0.ckpt"]


def test_a_name_that_is_taken_gets_a_number() -> None:
    """A second run into the folder of a first leaves the first one's files."""
    for _ in range(3):
        run([1], ModelCheckpoint("saved", filename="model"))
    assert files() == ["model-v1.ckpt", "model-v2.ckpt", "model.ckpt"]


@pytest.mark.parametrize(("scores", "kept"), [([3, 2, 1], [1, 2]), ([1, 2], [0, 1]), ([1, 3, 2], [0, 2])])
def test_one_name_for_several_of_a_run(scores: list[float], kept: list[int]) -> None:
    """A template that does not tell the epochs apart: none that is to be kept is written over."""
    saver = ModelCheckpoint("saved", filename="model", monitor="score", save_top_k=2)
    run(scores, saver)
    assert epochs() == kept
    assert files() == ["model-v1.ckpt", "model.ckpt"]
    assert read(saver.best_model_path)["epoch"] == scores.index(min(scores))


def test_one_name_for_all_of_a_run() -> None:
    """So it is where all are kept."""
    run([1, 2, 3], ModelCheckpoint("saved", filename="model", monitor="score", save_top_k=-1))
    assert epochs() == [0, 1, 2]


def test_without_the_counter_a_file_is_written_over() -> None:
    for _ in range(2):
        run([2, 1], ModelCheckpoint("saved", filename="model", enable_version_counter=False))
    assert files() == ["model.ckpt"]


def test_the_folder_is_the_runs_own_by_default() -> None:
    saver = ModelCheckpoint()
    run([1], saver, logger=None)
    assert Path(saver.dirpath or "") == Path("runs/Scored/version_0/checkpoints").absolute()
    assert files(saver.dirpath) == ["epoch=0-step=4.ckpt"]


def test_without_a_logger_the_folder_is_under_the_root() -> None:
    run([1], ModelCheckpoint(), default_root_dir="elsewhere")
    assert files("elsewhere/checkpoints") == ["epoch=0-step=4.ckpt"]


# -- when -------------------------------------------------------------------------------------------------------------


def steps(folder: str = "saved") -> list[int]:
    return sorted(read(file)["global_step"] for file in Path(folder).iterdir())


def test_every_so_many_steps() -> None:
    """Twelve steps in three epochs."""
    trainer(max_epochs=3, callbacks=[ModelCheckpoint("saved", every_n_train_steps=5, save_top_k=-1)]).fit(
        Line(), loader()
    )
    assert steps() == [5, 10]


def test_every_so_many_steps_the_newest() -> None:
    trainer(max_epochs=3, callbacks=[ModelCheckpoint("saved", every_n_train_steps=5)]).fit(Line(), loader())
    assert files() == ["epoch=2-step=10.ckpt"]


def test_every_so_many_steps_with_accumulation() -> None:
    """Twelve batches are six steps; each is saved once."""
    saver = ModelCheckpoint("saved", every_n_train_steps=2, save_top_k=-1)
    trainer(max_epochs=3, callbacks=[saver], accumulate_grad_batches=2).fit(Line(), loader())
    assert steps() == [2, 4, 6]


def test_a_validation_before_the_first_step_saves_nothing() -> None:
    """It comes in the middle of the first accumulation window: there is nothing to save yet."""
    saver = ModelCheckpoint("saved", monitor="val_loss", save_top_k=-1)
    trainer(callbacks=[saver], accumulate_grad_batches=4, val_check_interval=2).fit(Validated(), loader(), loader())
    assert steps() == [1]


def test_every_so_many_steps_the_best_by_a_metric_of_training() -> None:
    class Known(Line):
        def training_step(self, batch: Any, batch_idx: int) -> Any:
            self.log("score", float(abs(self.global_step - 5)), on_step=True)
            return self.loss(batch)

    saver = ModelCheckpoint("saved", every_n_train_steps=1, monitor="score")
    trainer(max_epochs=3, callbacks=[saver]).fit(Known(), loader())
    assert float(saver.best_model_score) == 0
    assert steps() == [6]  # `training_step` sees 5 steps done; with its own there are 6


def test_every_so_many_epochs() -> None:
    run([1] * 7, ModelCheckpoint("saved", every_n_epochs=3, save_top_k=-1))
    assert epochs() == [2, 5]


def test_each_time_so_much_time_has_gone_by() -> None:
    """No time between two saves: after every batch. An hour: never."""
    soon = ModelCheckpoint("soon", train_time_interval=timedelta(microseconds=1), save_top_k=-1)
    late = ModelCheckpoint("late", train_time_interval=timedelta(hours=1), save_top_k=-1)
    trainer(max_epochs=2, callbacks=[soon, late]).fit(Line(), loader())
    assert steps("soon") == list(range(1, 9))
    assert not Path("late").exists()


def test_at_a_validation_within_the_epoch() -> None:
    """Two validations an epoch: a checkpoint after each, and none besides."""
    saver = ModelCheckpoint("saved", monitor="score", save_top_k=-1)
    run([1, 2], saver, val_check_interval=0.5)
    assert steps() == [2, 4, 6, 8]


def test_after_validation_rather_than_at_the_epochs_end() -> None:
    saver = ModelCheckpoint("saved", save_on_train_epoch_end=False, save_top_k=-1)
    run([1, 2, 3, 4], saver, check_val_every_n_epoch=2)
    assert epochs() == [1, 3]


def test_a_score_is_that_of_the_weights_it_is_saved_with() -> None:
    """every_n_train_steps=4 falls on the epoch's end: the validation of that very step is the score."""
    saver = ModelCheckpoint("saved", monitor="score", every_n_train_steps=4, save_top_k=-1)
    run([3, 1, 2], saver)
    assert {read(path)["epoch"]: float(score) for path, score in saver.best_k_models.items()} == {0: 3, 1: 1, 2: 2}


def test_the_default_saves_each_epoch() -> None:
    """Without any ModelCheckpoint the Trainer keeps the newest epoch."""
    used = L.Trainer(accelerator="cpu", max_epochs=3)
    used.fit(Line(), loader())
    assert files("runs/Line/version_0/checkpoints") == ["epoch=2-step=12.ckpt"]
    assert isinstance(used.checkpoint_callback, ModelCheckpoint)


def test_an_exception_saves_where_that_is_wanted() -> None:
    class Breaks(Line):
        def training_step(self, batch: Any, batch_idx: int) -> Any:
            if self.global_step == 6:
                raise ValueError("the user's own")
            return super().training_step(batch, batch_idx)

    saver = ModelCheckpoint("saved", save_on_exception=True, every_n_epochs=5, save_top_k=-1)
    with pytest.raises(ValueError, match="the user's own"):
        trainer(max_epochs=9, callbacks=[saver]).fit(Breaks(), loader())
    assert steps() == [6]


# -- what -------------------------------------------------------------------------------------------------------------


def test_weights_only() -> None:
    run([1], ModelCheckpoint("saved", filename="model", save_weights_only=True))
    content = read("saved/model.ckpt")
    assert "state_dict" in content
    assert not {"optimizer_states", "lr_schedulers", "callbacks"} & set(content)


def test_two_savers_at_once() -> None:
    best = ModelCheckpoint("best", monitor="score")
    every = ModelCheckpoint("every", every_n_epochs=2, save_top_k=-1)
    trainer(max_epochs=4, callbacks=[best, every]).fit(Scored([4, 3, 1, 2]), loader(), loader())
    assert epochs("best") == [2]
    assert epochs("every") == [1, 3]


def test_the_best_go_on_counting_after_a_resume() -> None:
    """Kept before the break: 1 and 2. A worse one afterwards does not replace them, a better one does."""
    scores = [1.0, 2.0, 5.0, 0.5]

    def saver() -> ModelCheckpoint:
        return ModelCheckpoint("saved", monitor="score", save_top_k=2, save_last=True)

    trainer(max_epochs=2, callbacks=[saver()]).fit(Scored(scores), loader(), loader())
    again = saver()
    used = trainer(max_epochs=4, callbacks=[again])
    used.fit(Scored(scores), loader(), loader(), ckpt_path="last")
    assert used.current_epoch == 4
    assert sorted(float(score) for score in again.best_k_models.values()) == [0.5, 1.0]
    assert files() == ["epoch=0-step=4.ckpt", "epoch=3-step=16.ckpt", "last.ckpt"]


def test_a_file_that_someone_deleted_is_not_missed() -> None:
    class Deletes(L.Callback):
        def on_train_epoch_start(self, trainer: L.Trainer, pl_module: L.Module) -> None:
            for file in Path("saved").glob("*.ckpt"):
                file.unlink()

    used = trainer(max_epochs=3, callbacks=[Deletes(), ModelCheckpoint("saved", monitor="score")])
    used.fit(Scored([3, 2, 1]), loader(), loader())
    assert epochs() == [2]


def test_best_and_last_are_words_for_their_files() -> None:
    saver = ModelCheckpoint("saved", monitor="score", save_last=True)

    class Tested(Scored):
        def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
            loaded.append(checkpoint["epoch"])

    loaded: list[int] = []
    used = trainer(max_epochs=3, callbacks=[saver])
    model = Tested([1, 2, 3])
    used.fit(model, loader(), loader())
    used.test(model, loader(), ckpt_path="best")
    assert used.ckpt_path == saver.best_model_path
    used.test(model, loader(), ckpt_path="last")
    used.test(dataloaders=loader())  # without a model: the best
    used.test(model, loader())  # with one: as it is
    assert loaded == [0, 2, 0]

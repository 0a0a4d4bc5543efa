"""ModelCheckpoint on scores that are known beforehand: which files it keeps, and when it saves."""

from __future__ import annotations

import os
from datetime import timedelta
from math import inf, nan
from pathlib import Path
from typing import Any

import pytest
import torch

import gpulayer.pytorch as L
from gpulayer.fabric.checkpoint import AsyncCheckpointIO
from gpulayer.fabric.utilities.exceptions import MisconfigurationException
from gpulayer.pytorch.callbacks import ModelCheckpoint
from gpulayer.pytorch.loggers import CSVLogger
from tests.pytorch.callbacks.saved import epochs, files, read, run, steps
from tests.pytorch.models import Line, Scored, Validated, loader, same, trainer, weights

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


@pytest.mark.parametrize(
    "interval",
    [{"every_n_epochs": 2}, {"every_n_epochs": 0}, {"every_n_train_steps": 5}, {"train_time_interval": timedelta(1)}],
    ids=str,
)
def test_last_is_the_newest_at_the_end_of_training_too(interval: dict[str, Any]) -> None:
    """Three epochs end between two saves."""
    run([3, 1, 2], ModelCheckpoint("saved", save_last=True, **interval))
    assert read("saved/last.ckpt")["global_step"] == 12


def test_last_is_written_once_where_a_save_falls_on_the_end() -> None:
    saved = []

    class Counts(Scored):
        def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
            saved.append(checkpoint["global_step"])

    saver = ModelCheckpoint("saved", save_last=True)
    trainer(max_epochs=2, callbacks=[saver]).fit(Counts([2, 1]), loader(), loader())
    assert saved == [4, 8]


def test_last_under_another_name() -> None:
    class Named(ModelCheckpoint):
        CHECKPOINT_NAME_LAST = "newest-{epoch}"

    run([1, 2], Named("saved", save_top_k=0, save_last=True))
    assert files() == ["newest-epoch=1.ckpt"]


def test_a_run_that_must_end_now_is_saved_whatever_the_settings() -> None:
    """Weights only, no last, none of the best: the last file holds all that resuming needs, of this very batch."""
    saver = ModelCheckpoint("saved", save_top_k=0, save_weights_only=True)

    class Ends(L.Callback):
        def on_train_batch_start(self, trainer: L.Trainer, pl_module: L.Module, batch: Any, batch_idx: int) -> None:
            if trainer.global_step == 6:
                path = saver.save_last_now(trainer)
                before = os.stat(path)
                assert saver.save_last_now(trainer) == path
                assert os.stat(path) == before, "it was there already"
                raise KeyboardInterrupt

    torch.manual_seed(0)
    model = Line()
    with pytest.raises(KeyboardInterrupt):
        trainer(max_epochs=3, callbacks=[Ends(), saver]).fit(model, loader())
    assert files() == ["last.ckpt"]
    assert read("saved/last.ckpt")["global_step"] == 6
    resumed = Line()
    used = trainer(max_epochs=3, callbacks=[ModelCheckpoint("saved", save_top_k=0, save_weights_only=True)])
    used.fit(resumed, loader(), ckpt_path="last")
    torch.manual_seed(0)
    whole = Line()
    trainer(max_epochs=3).fit(whole, loader())
    assert same(weights(resumed), weights(whole))


def test_a_run_that_must_end_replaces_the_last_that_it_has() -> None:
    """Also where names change."""
    saver = ModelCheckpoint("saved", "{epoch}", save_last=True)
    saver.CHECKPOINT_NAME_LAST = "newest-{step}"

    class Ends(L.Callback):
        def on_train_batch_start(self, trainer: L.Trainer, pl_module: L.Module, batch: Any, batch_idx: int) -> None:
            if trainer.global_step == 6:
                saver.save_last_now(trainer)
                trainer.should_stop = True

    trainer(max_epochs=3, callbacks=[Ends(), saver]).fit(Scored([1, 2, 3]), loader(), loader())
    assert files() == ["epoch=1.ckpt", "newest-step=7.ckpt"]


# -- when -------------------------------------------------------------------------------------------------------------


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


def test_the_time_counts_from_the_start_of_training() -> None:
    """Not from when the callback was made; in a run that goes on, from its start."""
    now = [0.0]
    saver = ModelCheckpoint("saved", train_time_interval=timedelta(seconds=10), save_top_k=-1)
    saver._trigger.clock = lambda: now[0]

    class Passes(L.Callback):
        def on_train_batch_start(self, trainer: L.Trainer, pl_module: L.Module, batch: Any, batch_idx: int) -> None:
            now[0] += 4

    now[0] = 1000.0
    trainer(max_epochs=2, callbacks=[Passes(), saver]).fit(Line(), loader())
    assert steps() == [3, 6]


def test_a_metric_that_comes_with_the_first_validation() -> None:
    """Saves that are due before it have no score; training goes on, with a warning."""
    saver = ModelCheckpoint("saved", monitor="score", every_n_train_steps=3, save_top_k=-1, save_last=True)
    with pytest.warns(UserWarning, match=r"monitor='score'.*not logged so far.*train_loss"):
        run([3, 1, 2], saver)
    assert [read(file)["global_step"] for file in saver.best_k_models] == [6, 9, 12]
    assert read("saved/last.ckpt")["global_step"] == 12


@pytest.mark.parametrize("validates", [True, False])
def test_a_metric_that_never_comes(validates: bool) -> None:
    """Training ends when it has had its chance, and what was trained is saved."""
    saver = ModelCheckpoint("saved", monitor="scroe")
    with pytest.raises(MisconfigurationException, match=r"'scroe'.*no such metric.*train_loss.*goes on from it"):
        trainer(callbacks=[saver]).fit(Scored([1]) if validates else Line(), loader(), loader() if validates else None)
    assert steps() == [4]


class Breaks(Scored):
    """Raises at a step."""

    def __init__(self, at: int, accumulated: int = 1) -> None:
        super().__init__([1.0, 2.0, 3.0])
        self.at = at

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        if self.global_step == self.at:
            raise ValueError("the user's own")
        return super().training_step(batch, batch_idx)


def break_off(saver: ModelCheckpoint, at: int = 6) -> None:
    with pytest.raises(ValueError, match="the user's own"):
        trainer(max_epochs=3, callbacks=[saver]).fit(Breaks(at), loader(), loader())


@pytest.mark.parametrize("arguments", [{"monitor": "score"}, {}, {"save_top_k": 0}, {"save_top_k": -1}], ids=str)
def test_an_exception_saves_beside_the_best(arguments: dict[str, Any]) -> None:
    """One more file, which counts as none of them, as in Lightning."""
    saver = ModelCheckpoint("saved", save_on_exception=True, **arguments)
    break_off(saver)
    assert steps() == ([6] if saver.save_top_k == 0 else [4, 6])
    assert saver.best_model_path.endswith("" if saver.save_top_k == 0 else "epoch=0-step=4.ckpt")
    assert len(saver.best_k_models) == (saver.monitor is not None)


def test_an_exception_renews_the_last() -> None:
    break_off(ModelCheckpoint("saved", "model", save_on_exception=True, save_last=True))
    assert {name: read(f"saved/{name}")["global_step"] for name in files()} == {
        "model.ckpt": 4,
        "model-v1.ckpt": 6,
        "last.ckpt": 6,
    }


@pytest.mark.parametrize("at", [0, 4])
def test_an_exception_with_nothing_new_to_save(at: int) -> None:
    """Before the first step, and right after a save."""
    break_off(ModelCheckpoint("saved", save_on_exception=True), at)
    assert (steps() if Path("saved").exists() else []) == ([4] if at else [])


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


@pytest.mark.parametrize("counted", [True, False])
def test_two_savers_in_one_folder_with_one_name(counted: bool) -> None:
    """The second one's files get numbers; without the counter each writes over the other's, as asked."""
    savers = [
        ModelCheckpoint("saved", "model", monitor, save_last=True, enable_version_counter=counted)
        for monitor in ("score", "train_loss")
    ]
    trainer(max_epochs=3, callbacks=list(savers)).fit(Scored([3, 2, 1]), loader(), loader())
    expected = ["last-v1.ckpt", "last.ckpt", "model-v1.ckpt", "model.ckpt"] if counted else ["last.ckpt", "model.ckpt"]
    assert files() == expected
    again = [
        ModelCheckpoint("saved", "model", monitor, save_last=True, enable_version_counter=counted)
        for monitor in ("score", "train_loss")
    ]
    used = trainer(max_epochs=5, callbacks=list(again))
    used.fit(Scored([3, 2, 1, 0.5, 0.25]), loader(), loader(), ckpt_path="last")
    assert files() == expected
    assert [Path(saver.last_model_path).name for saver in again] == [
        Path(saver.last_model_path).name for saver in savers
    ]


@pytest.mark.parametrize("plugins", [[], [AsyncCheckpointIO()]], ids=["at once", "in the background"])
def test_loggers_hear_of_a_file_when_it_is_there(plugins: list[Any]) -> None:
    heard: list[list[int]] = []

    class Hears(CSVLogger):
        def after_save_checkpoint(self, checkpoint_callback: Any) -> None:
            heard.append(sorted(read(path)["epoch"] for path in checkpoint_callback.best_k_models))

    saver = ModelCheckpoint("saved", monitor="score", save_top_k=-1)
    used = trainer(max_epochs=3, callbacks=[saver], plugins=plugins, logger=Hears("logs"))
    used.fit(Scored([3, 2, 1]), loader(), loader())
    assert heard == [[0], [0, 1], [0, 1, 2]]

"""ModelCheckpoint: saves the run, every so often and when it is at its best."""

from __future__ import annotations

import os
from collections.abc import Callable
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING, Any, Literal

import fsspec
import torch
import yaml
from torch import Tensor

from gpulayer.fabric.utilities.exceptions import MisconfigurationException
from gpulayer.fabric.utilities.files import clean_up, exists, join, list_folder
from gpulayer.fabric.utilities.rank_zero import rank_zero_info, rank_zero_warn
from gpulayer.fabric.utilities.types import Path
from gpulayer.pytorch.callbacks.checkpoint import places
from gpulayer.pytorch.callbacks.checkpoint.arguments import check_arguments, interval
from gpulayer.pytorch.callbacks.checkpoint.files import CheckpointFiles
from gpulayer.pytorch.callbacks.checkpoint.ranking import as_score, best_of, is_better, worst_of, worst_score
from gpulayer.pytorch.callbacks.checkpoint.saves import Moment
from gpulayer.pytorch.core.hooks import StepOutput, overridden

if TYPE_CHECKING:
    from gpulayer.pytorch.core.module import Module
    from gpulayer.pytorch.trainer.trainer import Trainer


class ModelCheckpoint(CheckpointFiles):
    """Save checkpoints: after each epoch, or every so many steps or minutes; keep the best, all, or the newest.

    Files that are no longer kept are deleted when the new one is safe; only files of `dirpath`, and never the one that
    the run resumed from.

    Args:
        dirpath: the folder, or a URL that fsspec writes. Default: `checkpoints` in the run's folder.
        filename: a template such as "model-{epoch:02d}-{val_loss:.2f}". Default: "{epoch}-{step}".
        monitor: the metric that tells which checkpoints are best; None: the newest is.
        verbose: log a line for each save.
        save_last: also keep the newest state, whatever its score, as `last.ckpt`: at each save and at the end of
            training. "link": as a link to the newest of the best, where it is one of them; a copy where the store has
            no links.
        save_top_k: how many of the best to keep; -1 for all, 0 for none. NaN is never better than another score.
        save_on_exception: save when the run ends by an error or by Ctrl+C: one more file, which counts as none of the
            best, and the last one.
        save_weights_only: leave out what only resuming needs.
        mode: "min" if a lower metric is better, "max" if a higher one is.
        auto_insert_metric_name: write "epoch=01" where the template says "{epoch:02d}"; False: "01". A slash in a
            metric's name then makes no folder.
        every_n_train_steps: save every so many optimizer steps.
        train_time_interval: save each time so much time has gone by in this call of `fit`.
        every_n_epochs: save every so many epochs; the default, with 1.
        save_on_train_epoch_end: save at the end of the training epoch, or after validation. Default: at the end of
            the epoch if there is one validation an epoch, or none.
        enable_version_counter: append "-v1" where a file of the name exists; False: write over it.
        on_save_error: what to do when a checkpoint cannot be stored, for a full disk or a server that is away: "raise"
            ends the run; "warn" logs a warning, goes on, and tries again at the next save. The checkpoint before is
            kept. An object that cannot be pickled, or an error of your code, always raises.

    Attributes:
        best_model_path: the file with the best score; without a monitor the newest; "" before the first.
        best_model_score: its score.
        best_k_models: the scores of the files that are kept, by path.
        kth_best_model_path: the worst of them, once there are `save_top_k`.
        kth_value: its score.
        current_score: the score of the newest state, whether it was among the best or not.
        last_model_path: the file that `save_last` keeps.
        dirpath: the folder.

    Raises:
        MisconfigurationException: a value that cannot be used, or several intervals.
    """

    def __init__(
        self,
        dirpath: Path | None = None,
        filename: str | None = None,
        monitor: str | None = None,
        verbose: bool = False,
        save_last: bool | Literal["link"] | None = None,
        save_top_k: int = 1,
        save_on_exception: bool = False,
        save_weights_only: bool = False,
        mode: str = "min",
        auto_insert_metric_name: bool = True,
        every_n_train_steps: int | None = None,
        train_time_interval: timedelta | None = None,
        every_n_epochs: int | None = None,
        save_on_train_epoch_end: bool | None = None,
        enable_version_counter: bool = True,
        on_save_error: Literal["raise", "warn"] = "raise",
    ) -> None:
        check_arguments(dirpath, filename, monitor, save_last, save_top_k, mode, on_save_error)
        super().__init__(
            dirpath,
            filename,
            save_last,
            save_weights_only,
            mode,
            auto_insert_metric_name,
            enable_version_counter,
            on_save_error,
        )
        self.monitor = monitor
        self.verbose = verbose
        self.save_top_k = save_top_k
        self.save_on_exception = save_on_exception
        self._save_on_train_epoch_end = save_on_train_epoch_end
        self._trigger = interval(every_n_train_steps, train_time_interval, every_n_epochs)
        self._every_n_train_steps = self._trigger.steps or 0
        self._every_n_epochs = self._trigger.epochs or 0
        self._train_time_interval = train_time_interval
        self._stage = "fit"
        self._resumed_from: str | None = None
        self._goes_on = False  # whether this is the run that the state is of
        self._after_validation = False  # a save that is due waits for the validation that scores it
        self._validated = False  # whether a validation has ended since training began

    @property
    def every_n_epochs(self) -> int:
        """The interval in epochs; 0 if it is another."""
        return self._every_n_epochs

    @property
    def state_key(self) -> str:
        return self._generate_state_key(
            monitor=self.monitor,
            mode=self.mode,
            every_n_train_steps=self._every_n_train_steps,
            every_n_epochs=self._every_n_epochs,
            train_time_interval=self._train_time_interval,
        )

    # -- when --------------------------------------------------------------------------------------------------------

    def setup(self, trainer: Trainer, pl_module: Module, stage: str) -> None:
        folder = places.default_folder(trainer) if self.dirpath is None else self.dirpath
        self.dirpath = trainer.strategy.broadcast(folder)
        self._stage = stage
        self._resumed_from = None if trainer.ckpt_path is None else os.fspath(trainer.ckpt_path)
        if self._resumed_from is not None and not trainer.reruns:  # the same run deletes it as it would have
            self._not_to_delete.add(self._resumed_from)
        if stage == "fit" and trainer.is_global_zero and not trainer.fast_dev_run:
            clean_up(folder)
            try:
                list_folder(folder)
            except NotADirectoryError as error:
                raise MisconfigurationException(
                    f"`ModelCheckpoint(dirpath={folder!r})` is a file: give a folder, which need not exist yet."
                ) from error
            if self._resumed_from is None and self.all_checkpoints(trainer) and self.save_top_k != 0:
                rank_zero_info("ModelCheckpoint saves to %s, which is not empty.", folder)

    def on_train_start(self, trainer: Trainer, pl_module: Module) -> None:
        self._trigger.restart()
        self._validated = False
        if self._goes_on:
            self._goes_on = False
            self._delete_replaced(trainer)
            self._catch_up(trainer)

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: Module, outputs: StepOutput, batch: Any, batch_idx: int
    ) -> None:
        if self._trigger.at_step(trainer.global_step) or self._trigger.at_time():
            self._save_after_batch(trainer)

    def on_validation_end(self, trainer: Trainer, pl_module: Module) -> None:
        if not trainer.sanity_checking:
            self._validated = True
            self._save_after_validation(trainer)

    def on_train_epoch_end(self, trainer: Trainer, pl_module: Module) -> None:
        self._save_after_epoch(trainer)

    def on_train_end(self, trainer: Trainer, pl_module: Module) -> None:
        moment = self._last[1]
        newest = moment is not None and moment.step == trainer.global_step
        if self.save_last and trainer.global_step and not newest and not trainer.fast_dev_run:
            self._settle(trainer)
            self._save_last_checkpoint(trainer, self._monitor_candidates(trainer))

    def on_fit_end(self, trainer: Trainer, pl_module: Module) -> None:
        self._settle(trainer)

    def on_exception(self, trainer: Trainer, pl_module: Module, exception: BaseException) -> None:
        wanted = self.save_on_exception and trainer.lightning_module is not None
        try:
            self._settle(trainer)
        finally:
            if wanted and not self._should_skip_saving_checkpoint(trainer):
                candidates = self._monitor_candidates(trainer)
                self._save_aside(trainer, candidates)
                self._save_last_checkpoint(trainer, candidates)
                self._settle(trainer)

    def _save_after_batch(self, trainer: Trainer) -> None:
        if self._should_skip_saving_checkpoint(trainer):
            return
        self._trigger.restart()
        # With a monitor, a score is due first if validation follows this very step (Lightning's issue 20185).
        if self.monitor is not None and trainer._run is not None and trainer._run.validation_due():
            self._after_validation = True
        else:
            self._save(trainer)

    def _save_after_validation(self, trainer: Trainer) -> None:
        due, self._after_validation = self._after_validation, False
        if self._should_skip_saving_checkpoint(trainer):
            return
        at_epoch = self._trigger.at_epoch(trainer.current_epoch + 1)
        if due or (at_epoch and not self._should_save_on_train_epoch_end(trainer)):
            self._save(trainer)

    def _save_after_epoch(self, trainer: Trainer) -> None:
        if self._should_skip_saving_checkpoint(trainer) or not self._should_save_on_train_epoch_end(trainer):
            return
        if self._trigger.at_epoch(trainer.current_epoch + 1):
            self._save(trainer, at_epoch_end=True)

    def _catch_up(self, trainer: Trainer) -> None:
        """Save what was due in the hook in which the checkpoint was written that the run goes on from.

        That hook is not called again, and another callback may have written the checkpoint before this one's turn.
        """
        run, position = trainer._run, trainer.progress.position
        if run is None:
            return
        stepped = self._trigger.at_step(trainer.global_step) and run.ends_window()
        if position == "batch" and stepped:
            self._save_after_batch(trainer)
        elif position == "validated":
            self._after_validation = stepped and self.monitor is not None
            self._save_after_validation(trainer)
        elif position == "epoch":
            self._save_after_epoch(trainer)

    def _should_skip_saving_checkpoint(self, trainer: Trainer) -> bool:
        return bool(
            trainer.fast_dev_run
            or trainer.state.fn != "fit"
            or trainer.sanity_checking
            or trainer.global_step in (0, self._last_global_step_saved)
        )

    def _should_save_on_train_epoch_end(self, trainer: Trainer) -> bool:
        if self._save_on_train_epoch_end is not None:
            return self._save_on_train_epoch_end
        if trainer.check_val_every_n_epoch != 1:
            return False
        return not sum(trainer.num_val_batches) or trainer.val_check_interval == 1.0

    # -- what --------------------------------------------------------------------------------------------------------

    def _save(self, trainer: Trainer, at_epoch_end: bool = False) -> None:
        """Write what this moment calls for: one of the best, and the last."""
        self._settle(trainer)
        candidates = self._monitor_candidates(trainer)
        if self.monitor is not None and self.monitor not in candidates and self.save_top_k != 0:
            self._miss_monitor(trainer, candidates, at_epoch_end)
        self._save_topk_checkpoint(trainer, candidates)
        self._save_last_checkpoint(trainer, candidates)

    def save_last_now(self, trainer: Trainer) -> str:
        """Write all that resuming needs of this moment as this callback's "last" file, whatever its settings.

        For a run that is about to end, as on SIGTERM: the same script goes on from it with `ckpt_path="last"`. When
        this returns the file is safe. Nothing is written if the last file already holds this very moment.

        Args:
            trainer: the Trainer, in `fit` and between two batches.

        Returns:
            The file's path; "" if it could not be stored and `on_save_error` is "warn".
        """
        self._settle(trainer)
        now = Moment.now(trainer, full=True)
        if self._last[1] != now:
            self._write_last(trainer, self._monitor_candidates(trainer), now)
            self._settle(trainer)
        return self._last[0] if self._last[1] == now else ""

    def _monitor_candidates(self, trainer: Trainer) -> dict[str, Tensor]:
        """The metrics that names and scores are made of, "epoch" and "step" among them."""
        metrics: dict[str, Tensor] = dict(trainer.callback_metrics)
        for name, count in (("epoch", trainer.current_epoch), ("step", trainer.global_step)):
            metrics[name] = metrics[name].int() if name in metrics else torch.tensor(count)
        return metrics

    def _save_topk_checkpoint(self, trainer: Trainer, monitor_candidates: dict[str, Tensor]) -> None:
        """Write one of the best, if this moment is among them."""
        if self.save_top_k == 0:
            return
        with self._attempt(trainer) as before:
            if self.monitor is None:
                replaced = self.best_model_path if self.save_top_k == 1 else ""
                self.best_model_path = self._free_path(trainer, monitor_candidates, replaced)
                self._write_best(trainer, monitor_candidates, self.best_model_path, replaced, before)
            elif self.monitor in monitor_candidates:
                self.current_score = current = monitor_candidates[self.monitor].detach().cpu()
                if self.check_monitor_top_k(trainer, current):
                    self._save_scored(trainer, monitor_candidates, current, before)
                elif self.verbose:
                    rank_zero_info("%s %.5g is not among the best %d.", self.monitor, float(current), self.save_top_k)
        if self.save_last != "link":
            self._delete_replaced(trainer)

    def check_monitor_top_k(self, trainer: Trainer, current: Tensor | None = None) -> bool:
        """Whether a score is to be kept: there is room, or it is better than the worst that is kept."""
        if current is None or self.save_top_k == 0:
            return False
        if self.save_top_k == -1 or len(self.best_k_models) < self.save_top_k:
            return True
        return is_better(current, self.best_k_models[self.kth_best_model_path], self.mode)

    def _save_scored(
        self, trainer: Trainer, candidates: dict[str, Tensor], score: Tensor, before: dict[str, Any]
    ) -> None:
        """Write one of the best by score, in place of the worst if there is no room."""
        replaced = self.kth_best_model_path if len(self.best_k_models) == self.save_top_k else ""
        path = self._free_path(trainer, candidates, replaced)
        kept = {file: of for file, of in self.best_k_models.items() if file != replaced}
        self.best_k_models = {**kept, path: as_score(score, self.mode)}
        self._rank()
        self._write_best(trainer, candidates, path, replaced, before)
        if self.verbose:
            rank_zero_info("%s %.5g: saved %s", self.monitor, float(score), path)

    def _rank(self) -> None:
        """Find the best and the worst of those that are kept."""
        kept = self.best_k_models
        full = kept and self.save_top_k in (-1, len(kept))
        self.best_model_path = best_of(kept, self.mode) if kept else ""
        self.best_model_score = kept.get(self.best_model_path)
        self.kth_best_model_path = worst_of(kept, self.mode) if full else ""
        self.kth_value = kept.get(self.kth_best_model_path, worst_score(self.mode))

    def _write_best(
        self, trainer: Trainer, candidates: dict[str, Tensor], path: str, replaced: str, before: dict[str, Any]
    ) -> None:
        if self.save_last:  # a copy of this file, which is to know its own name
            self.last_model_path = self._last_path(trainer, candidates)
        if replaced and replaced != path:  # the file itself names what it replaces, in case the run is killed then
            self._replaced += (replaced,)
        self._write(trainer, path, before, partial(self._save_checkpoint, trainer))
        self._newest = path, Moment.now(trainer, full=not self.save_weights_only)

    def _save_last_checkpoint(self, trainer: Trainer, monitor_candidates: dict[str, Tensor]) -> None:
        """Write the last file, if there is to be one."""
        if self.save_last:
            self._write_last(trainer, monitor_candidates, Moment.now(trainer, full=not self.save_weights_only))

    def _write_last(self, trainer: Trainer, candidates: dict[str, Tensor], now: Moment) -> None:
        with self._attempt(trainer) as before:
            replaced, (newest, moment) = self._last[0], self._newest
            self.last_model_path = path = self._last_path(trainer, candidates)
            if moment == now and not overridden("_save_checkpoint", self, CheckpointFiles):
                write: Callable[[str], None] = partial(self._copy, trainer, newest)
            elif now.full and self.save_weights_only:
                write = partial(trainer.save_checkpoint, weights_only=False)
            else:
                write = partial(self._save_checkpoint, trainer)
            if replaced and replaced != path:
                self._replaced += (replaced,)
            self._write(trainer, path, before, write)
            self._last = path, now
        if self._last[1] == now:
            self._delete_replaced(trainer)

    def _miss_monitor(self, trainer: Trainer, candidates: dict[str, Tensor], at_epoch_end: bool) -> None:
        """Say that the metric is missing; raise where it has had its chance, a validation or else an epoch.

        The training so far is saved first: it may have taken hours.
        """
        names = sorted(set(candidates) - {"epoch", "step"}) or "none"
        validates = trainer._run is not None and trainer._run.validates
        if not self._validated and (validates or not at_epoch_end):
            if "missing" not in self._told:
                self._told.add("missing")
                rank_zero_warn(
                    f"`ModelCheckpoint(monitor={self.monitor!r})`: this metric was not logged so far (there are "
                    f"{names}), so no checkpoint counts as one of the best yet."
                )
            return
        path = self._save_aside(trainer, candidates)
        saved = f" The state of this moment was saved: `trainer.fit(..., ckpt_path={path!r})` goes on from it."
        raise MisconfigurationException(
            f"`ModelCheckpoint(monitor={self.monitor!r})`: no such metric was logged; there are {names}. "
            f"Log it with `self.log({self.monitor!r}, ...)`, or monitor one of those.{saved if path else ''}"
        )

    # -- state -------------------------------------------------------------------------------------------------------

    def to_yaml(self, filepath: Path | None = None) -> None:
        """Write the paths and scores of `best_k_models` as YAML.

        Args:
            filepath: where; default: `best_k_models.yaml` in `dirpath`.
        """
        path = join(self.dirpath or "", "best_k_models.yaml") if filepath is None else os.fspath(filepath)
        with fsspec.open(path, "w") as file:
            yaml.dump({path: float(score) for path, score in self.best_k_models.items()}, file)

    def state_dict(self) -> dict[str, Any]:
        return {
            "monitor": self.monitor,
            "best_model_score": self.best_model_score,
            "best_model_path": self.best_model_path,
            "current_score": self.current_score,
            "dirpath": self.dirpath,
            "best_k_models": dict(self.best_k_models),
            "kth_best_model_path": self.kth_best_model_path,
            "kth_value": self.kth_value,
            "last_model_path": self.last_model_path,
            "saved_step": self._last_global_step_saved,  # these two are not Lightning's
            "replaced": list(self._replaced),
        }

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Take over the files of the run that is resumed, where they are now: their folder may have been moved.

        A call that only evaluates a checkpoint changes nothing for a callback that has saved some itself.
        """
        if self._stage != "fit" and self._last_global_step_saved:
            return
        before, now = state_dict.get("dirpath") or self.dirpath or "", self.dirpath or ""
        scores: dict[str, Tensor] = dict(state_dict.get("best_k_models", {}))
        best, last = state_dict["best_model_path"], state_dict.get("last_model_path", "")
        replaced = [path for path in state_dict.get("replaced", ()) if path not in (best, *scores)]
        wanted = {path for path in (best, last, *scores) if path}
        moved = self._resumed_from is not None and places.same_file(places.folder_of(self._resumed_from), now)
        found = {path: places.find_again(path, before, now, moved) for path in wanted}
        gone = sorted(path for path in wanted if not found[path])
        if before != now and not moved and len(gone) == len(wanted):
            if best and exists(best):
                self.best_model_path = best
                self._not_to_delete.add(best)
            rank_zero_warn(
                f"The checkpoint's ModelCheckpoint wrote to {before!r}, this one writes to {now!r}: of its files "
                "only the best one's path is taken over."
            )
            return
        if gone:
            rank_zero_info("ModelCheckpoint goes on without %s: there are no such files any more.", ", ".join(gone))
        if before == now and self._resumed_from is not None and self._is_last(self._resumed_from):
            self._leftovers = places.newer_than(self._resumed_from, now) - set(found.values())
        self._goes_on = "saved_step" in state_dict
        self._replaced = tuple(filter(None, (places.find_again(path, before, now, moved) for path in replaced)))
        self._last_global_step_saved = state_dict.get("saved_step", 0)
        self.current_score = state_dict.get("current_score")
        self.last_model_path = found.get(last, "")
        self._last = self.last_model_path, None
        self.best_k_models = {found[path]: score for path, score in scores.items() if found[path]}
        while self.save_top_k != -1 and len(self.best_k_models) > self.save_top_k:  # it was more in the run before
            self.best_k_models.pop(worst_of(self.best_k_models, self.mode))
        self._rank()
        if not scores:
            self.best_model_path = found.get(best, "")
            self.best_model_score = state_dict["best_model_score"]

"""ModelCheckpoint: saves the run, every so often and when it is at its best."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from math import isnan
from typing import TYPE_CHECKING, Any, Literal

import torch
from torch import Tensor

from gpulayer.fabric.utilities.exceptions import MisconfigurationException
from gpulayer.fabric.utilities.rank_zero import rank_zero_info, rank_zero_warn
from gpulayer.fabric.utilities.types import Path
from gpulayer.pytorch.callbacks.templates import check_template, fill_template, template_fields
from gpulayer.pytorch.core.callback import Checkpoint
from gpulayer.pytorch.core.hooks import StepOutput
from gpulayer.pytorch.loops.when import Every, every

if TYPE_CHECKING:
    from gpulayer.pytorch.core.module import Module
    from gpulayer.pytorch.trainer.trainer import Trainer


class ModelCheckpoint(Checkpoint):
    """Save checkpoints: after each epoch, or every so many steps or minutes; keep the best, all, or the newest.

    Args:
        dirpath: the folder. Default: `checkpoints` in the run's folder.
        filename: a template such as "model-{epoch:02d}-{val_loss:.2f}". Default: "{epoch}-{step}".
        monitor: the metric that tells which checkpoints are best; None: the newest is.
        verbose: log a line for each save.
        save_last: also keep the newest state, whatever its score, as `last.ckpt`; "link": as a link.
        save_top_k: how many of the best to keep; -1 for all, 0 for none.
        save_on_exception: save when the run ends by an error or by Ctrl+C.
        save_weights_only: leave out what only resuming needs.
        mode: "min" if a lower metric is better, "max" if a higher one is.
        auto_insert_metric_name: write "epoch=01" where the template says "{epoch:02d}"; False: "01".
        every_n_train_steps: save every so many optimizer steps.
        train_time_interval: save each time so much time has gone by.
        every_n_epochs: save every so many epochs; the default, with 1.
        save_on_train_epoch_end: save at the end of the training epoch, or after validation. Default: at the end of
            the epoch if there is one validation an epoch, or none.
        enable_version_counter: append "-v1" where a file of the name exists; False: write over it.

    Raises:
        MisconfigurationException: a value that cannot be used, or several intervals.
    """

    CHECKPOINT_JOIN_CHAR = "-"
    CHECKPOINT_EQUALS_CHAR = "="
    CHECKPOINT_NAME_LAST = "last"
    FILE_EXTENSION = ".ckpt"
    STARTING_VERSION = 1

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
    ) -> None:
        super().__init__()
        if mode not in ("min", "max"):
            raise MisconfigurationException(f"`ModelCheckpoint(mode={mode!r})`: choose 'min' or 'max'.")
        if isinstance(save_top_k, bool) or not isinstance(save_top_k, int) or save_top_k < -1:
            raise MisconfigurationException(
                f"`ModelCheckpoint(save_top_k={save_top_k!r})`: give how many to keep, -1 for all, or 0 for none."
            )
        if monitor is None and save_top_k not in (-1, 0, 1):
            raise MisconfigurationException(
                f"`ModelCheckpoint(save_top_k={save_top_k})` needs `monitor=`, the metric that says which are "
                "best; without one, save_top_k is 1 (the newest), -1 (all) or 0."
            )
        if save_last not in (None, True, False, "link"):
            raise MisconfigurationException(
                f"`ModelCheckpoint(save_last={save_last!r})`: choose True, False or 'link'."
            )
        if train_time_interval is not None and not (
            isinstance(train_time_interval, timedelta) and train_time_interval > timedelta(0)
        ):
            raise MisconfigurationException(
                f"`ModelCheckpoint(train_time_interval={train_time_interval!r})`: give a timedelta, such as "
                "`timedelta(minutes=30)`."
            )
        if monitor is not None and not isinstance(monitor, str):
            raise MisconfigurationException(
                f"`ModelCheckpoint(monitor={monitor!r})`: give the name of a logged metric."
            )
        if dirpath is not None and not isinstance(dirpath, (str, os.PathLike)):
            raise MisconfigurationException(f"`ModelCheckpoint(dirpath={dirpath!r})`: give a folder.")
        check_template(filename)
        self._unknown_told = False
        self.dirpath = None if dirpath is None else os.fspath(dirpath)
        if self.dirpath is not None and "://" not in self.dirpath:
            self.dirpath = os.path.realpath(os.path.expanduser(self.dirpath))
        self.filename = filename
        self.monitor = monitor
        self.verbose = verbose
        self.save_last = save_last
        self.save_top_k = save_top_k
        self.save_on_exception = save_on_exception
        self.save_weights_only = save_weights_only
        self.mode = mode
        self.auto_insert_metric_name = auto_insert_metric_name
        self._save_on_train_epoch_end = save_on_train_epoch_end
        self._enable_version_counter = enable_version_counter
        self._trigger = self._read_interval(every_n_train_steps, train_time_interval, every_n_epochs)

        self.best_k_models: dict[str, Tensor] = {}
        self.best_model_path = ""
        self.best_model_score: Tensor | None = None
        self.kth_best_model_path = ""
        self.kth_value = torch.tensor(float("inf") if mode == "min" else float("-inf"))
        self.current_score: Tensor | None = None
        self.last_model_path = ""
        self._last_saved_step = -1
        self._after_validation = False  # a save that is due waits for the validation that scores it

    def _read_interval(self, steps: int | None, time: timedelta | None, epochs: int | None) -> Every:
        given = [
            name
            for name, value in (
                ("every_n_train_steps", steps), ("train_time_interval", time), ("every_n_epochs", epochs),
            )
            if value
        ]  # fmt: skip
        if len(given) > 1:
            raise MisconfigurationException(
                f"ModelCheckpoint takes one interval, but got {' and '.join(given)}: use a ModelCheckpoint for each."
            )
        for name, value in (("every_n_train_steps", steps), ("every_n_epochs", epochs)):
            if value is not None and (isinstance(value, bool) or not isinstance(value, int) or value < 0):
                raise MisconfigurationException(f"`ModelCheckpoint({name}={value})`: give a number from 0.")
        self._every_n_train_steps = steps or 0
        self._train_time_interval = time
        self._every_n_epochs = epochs if epochs is not None else 0 if given else 1
        if steps is not None and not given:
            self._every_n_epochs = epochs or 0
        if steps:
            return every(steps=steps)
        if time:
            return every(seconds=time.total_seconds())
        return every(epochs=self._every_n_epochs)

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
        self.dirpath = trainer.strategy.broadcast(self._resolve_dirpath(trainer))
        if trainer.is_global_zero and stage == "fit":
            self._warn_if_not_empty()

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: Module, outputs: StepOutput, batch: Any, batch_idx: int
    ) -> None:
        if self._skip(trainer) or not (self._trigger.at_step(trainer.global_step) or self._trigger.at_time()):
            return
        self._trigger.restart()
        # With a monitor, a score is due first if validation follows this very step (Lightning's issue 20185).
        if self.monitor is not None and trainer._run is not None and trainer._run.validation_due():
            self._after_validation = True
        else:
            self._save(trainer)

    def on_validation_end(self, trainer: Trainer, pl_module: Module) -> None:
        due = self._after_validation
        self._after_validation = False
        if self._skip(trainer):
            return
        at_epoch = self._trigger.at_epoch(trainer.current_epoch + 1)
        if due or (at_epoch and not self._at_train_epoch_end(trainer)):
            self._save(trainer)

    def on_train_epoch_end(self, trainer: Trainer, pl_module: Module) -> None:
        if self._skip(trainer) or not self._at_train_epoch_end(trainer):
            return
        if self._trigger.at_epoch(trainer.current_epoch + 1):
            self._save(trainer)

    def on_exception(self, trainer: Trainer, pl_module: Module, exception: BaseException) -> None:
        if self.save_on_exception and trainer.lightning_module is not None and not self._skip(trainer, since=0):
            self._save(trainer, scored=False)

    def _skip(self, trainer: Trainer, since: int = 1) -> bool:
        """Whether nothing is to be saved; `since` is the first step that has something worth it."""
        return bool(
            trainer.fast_dev_run
            or trainer.state.fn != "fit"
            or trainer.sanity_checking
            or trainer.global_step in (self._last_saved_step, since - 1)
        )

    def _at_train_epoch_end(self, trainer: Trainer) -> bool:
        if self._save_on_train_epoch_end is not None:
            return self._save_on_train_epoch_end
        if trainer.check_val_every_n_epoch != 1:
            return False
        return not sum(trainer.num_val_batches) or trainer.val_check_interval == 1.0

    # -- what --------------------------------------------------------------------------------------------------------

    def _save(self, trainer: Trainer, scored: bool = True) -> None:
        """Write what this moment calls for: one of the best, and the last."""
        metrics = self._candidates(trainer)
        saved, last, previous_last = "", "", self.last_model_path
        if self.save_last:  # the file of the best, which is saved first, is to name the last one, too
            last = self.last_model_path = self._path(metrics, previous_last, self.CHECKPOINT_NAME_LAST)
        if self.save_top_k != 0:
            if self.monitor is None:
                saved = self._save_newest(trainer, metrics)
            elif self.monitor in metrics:
                saved = self._save_if_best(trainer, metrics)
            elif scored:
                self._complain(trainer, metrics)
        if last:
            self._save_last(trainer, last, previous_last, saved)
        elif not saved and not scored:  # an exception before the first score: whatever there is, is worth keeping
            self._write(trainer, self._path(metrics))

    def _candidates(self, trainer: Trainer) -> dict[str, Tensor]:
        return {
            "epoch": torch.tensor(trainer.current_epoch),
            "step": torch.tensor(trainer.global_step),
            **trainer.callback_metrics,
        }

    def _complain(self, trainer: Trainer, metrics: dict[str, Tensor]) -> None:
        """Say that the metric is missing. The training so far is saved first: it may have taken hours."""
        names = sorted(set(metrics) - {"epoch", "step"})
        path = self._path(metrics)
        self._write(trainer, path)
        raise MisconfigurationException(
            f"`ModelCheckpoint(monitor={self.monitor!r})`: no such metric was logged; there are {names or 'none'}. "
            f"Log it with `self.log({self.monitor!r}, ...)`, or monitor one of those. "
            f"The state of this moment was saved as {path!r}: `trainer.fit(..., ckpt_path=...)` goes on from it."
        )

    def _save_newest(self, trainer: Trainer, metrics: dict[str, Tensor]) -> str:
        previous = self.best_model_path
        path = self._path(metrics, previous if self.save_top_k == 1 else "")
        with self._undone_by_an_error():
            self.best_model_path = path
            self._write(trainer, path)
        if self.save_top_k == 1 and previous and previous != path:
            self._remove(trainer, previous)
        return path

    def _save_if_best(self, trainer: Trainer, metrics: dict[str, Tensor]) -> str:
        assert self.monitor is not None
        score = metrics[self.monitor].detach().cpu()
        self.current_score = score
        if isnan(float(score)):  # never the best; kept only while there is room
            score = torch.tensor(float("inf") if self.mode == "min" else float("-inf"))
        full = self.save_top_k != -1 and len(self.best_k_models) >= self.save_top_k
        if full and not self._better(score, self.best_k_models[self.kth_best_model_path]):
            if self.verbose:
                rank_zero_info("%s %.5g is not among the best %d.", self.monitor, float(score), self.save_top_k)
            return ""
        dropped = self.kth_best_model_path if full else ""
        path = self._path(metrics, dropped)
        with self._undone_by_an_error():
            self.best_k_models.pop(dropped, None)
            self.best_k_models[path] = score
            self._rank()
            self._write(trainer, path)
        if self.verbose:
            rank_zero_info("%s %.5g: saved %s", self.monitor, float(score), path)
        if dropped and dropped != path:
            self._remove(trainer, dropped)
        return path

    def _better(self, score: Tensor, than: Tensor) -> bool:
        return bool(score < than) if self.mode == "min" else bool(score > than)

    def _rank(self) -> None:
        """Find the best and the worst of those that are kept; of two with one score the older is better."""
        ranked = sorted(self.best_k_models.items(), key=lambda item: float(item[1]), reverse=self.mode == "max")
        self.best_model_path, self.best_model_score = ranked[0]
        if len(ranked) == self.save_top_k:
            self.kth_best_model_path, self.kth_value = ranked[-1]

    def _save_last(self, trainer: Trainer, path: str, previous: str, saved: str) -> None:
        if self.save_last == "link" and saved:
            _link(saved, path)
        elif saved:
            trainer.strategy.checkpoint_io.copy_checkpoint(saved, path)
            trainer.delivery.checkpoint_saved(self)
        else:
            self._write(trainer, path)
        if previous and previous != path:
            self._remove(trainer, previous)

    @contextmanager
    def _undone_by_an_error(self) -> Iterator[None]:
        """The file names itself as the best, so the state changes before it is written, and back if that fails."""
        before = self._state()
        try:
            yield
        except BaseException:
            for name, value in before.items():
                setattr(self, name, value)
            raise

    def _write(self, trainer: Trainer, path: str) -> None:
        self._last_saved_step = trainer.global_step
        trainer.save_checkpoint(path, self.save_weights_only)
        trainer.delivery.checkpoint_saved(self)

    def _remove(self, trainer: Trainer, path: str) -> None:
        """Delete a file of this callback's own folder; never the one that the run was resumed from."""
        real = os.path.realpath(path)
        own = os.path.dirname(real) == os.path.realpath(self.dirpath or "")
        resumed_from = trainer.ckpt_path is not None and real == os.path.realpath(trainer.ckpt_path)
        if trainer.is_global_zero and own and not resumed_from:
            trainer.strategy.checkpoint_io.remove_checkpoint(path)

    # -- where -------------------------------------------------------------------------------------------------------

    def _resolve_dirpath(self, trainer: Trainer) -> str:
        if self.dirpath is not None:
            return self.dirpath
        if trainer.loggers:
            first = trainer.loggers[0]
            folder = getattr(first, "log_dir", None)
            if folder is None:
                version = first.version if isinstance(first.version, str) else f"version_{first.version}"
                folder = os.path.join(first.save_dir or trainer.default_root_dir, str(first.name), version)
        else:
            folder = trainer.default_root_dir
        folder = os.path.join(folder, "checkpoints")
        return folder if "://" in folder else os.path.join(trainer.started_in, folder)

    def _warn_if_not_empty(self) -> None:
        if self.save_top_k != 0 and self.dirpath and os.path.isdir(self.dirpath) and os.listdir(self.dirpath):
            rank_zero_info("ModelCheckpoint saves to %s, which is not empty.", self.dirpath)

    def format_checkpoint_name(
        self, metrics: dict[str, Any], filename: str | None = None, ver: int | None = None
    ) -> str:
        """The path of a checkpoint with these metrics.

        Args:
            metrics: values by name; "epoch" and "step" among them. A name that is missing counts as 0.
            filename: the template; None: this callback's.
            ver: a number to append, as "-v1".
        """
        template = filename or self.filename or "{epoch}-{step}"
        missing = [name for name in template_fields(template) if name not in metrics]
        if missing and not self._unknown_told:
            self._unknown_told = True
            rank_zero_warn(
                f"ModelCheckpoint's filename {template!r} names {missing[0]!r}, which was not logged and counts as 0; "
                f"there are {sorted(metrics)}."
            )
        name = fill_template(template, metrics, self.CHECKPOINT_EQUALS_CHAR if self.auto_insert_metric_name else None)
        if ver is not None:
            name = f"{name}{self.CHECKPOINT_JOIN_CHAR}v{ver}"
        return os.path.join(self.dirpath or "", name + self.FILE_EXTENSION)

    def _path(self, metrics: dict[str, Tensor], replaces: str = "", template: str | None = None) -> str:
        """Where to save now: a name that is not taken, unless by the file that the new one replaces."""
        path = self.format_checkpoint_name(metrics, template)
        version = self.STARTING_VERSION
        while self._enable_version_counter and os.path.exists(path) and path != replaces:
            path = self.format_checkpoint_name(metrics, template, version)
            version += 1
        return path

    def last_checkpoints(self, trainer: Trainer) -> set[str]:
        """The files that `ckpt_path="last"` may mean."""
        folder = self._resolve_dirpath(trainer)
        if self.last_model_path and os.path.exists(self.last_model_path):
            return {self.last_model_path}
        if not os.path.isdir(folder):
            return set()
        literal = self.CHECKPOINT_NAME_LAST.split("{")[0]
        return {
            os.path.join(folder, name)
            for name in os.listdir(folder)
            if name.startswith(literal) and name.endswith(self.FILE_EXTENSION)
        }

    # -- state -------------------------------------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        return self._state()

    def _state(self) -> dict[str, Any]:
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
        }

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        if self.dirpath == state_dict.get("dirpath", self.dirpath):
            self.best_model_score = state_dict["best_model_score"]
            self.best_k_models = dict(state_dict.get("best_k_models", {}))
            self.kth_best_model_path = state_dict.get("kth_best_model_path", "")
            self.kth_value = state_dict.get("kth_value", self.kth_value)
            self.last_model_path = state_dict.get("last_model_path", "")
        else:
            rank_zero_warn(
                f"The checkpoint's ModelCheckpoint wrote to {state_dict['dirpath']!r}, this one writes to "
                f"{self.dirpath!r}: of its files only the best one's path is taken over."
            )
        self.best_model_path = state_dict["best_model_path"]


def _link(source: str, target: str) -> None:
    """Make `target` a relative link to `source`, replacing it whole or not at all."""
    temporary = f"{target}.part"
    if os.path.lexists(temporary):
        os.unlink(temporary)
    os.symlink(os.path.relpath(source, os.path.dirname(target)), temporary)
    os.replace(temporary, target)

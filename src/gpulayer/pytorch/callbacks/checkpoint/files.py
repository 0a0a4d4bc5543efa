"""The files of ModelCheckpoint: their names, how they reach the store, and what becomes of it if one does not."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from typing import TYPE_CHECKING, Any, Literal

from torch import Tensor

from gpulayer.fabric.utilities.exceptions import SaveError, storing
from gpulayer.fabric.utilities.files import exists, join, list_folder
from gpulayer.fabric.utilities.rank_zero import log, rank_zero_warn
from gpulayer.fabric.utilities.types import Path
from gpulayer.pytorch.callbacks.checkpoint import places
from gpulayer.pytorch.callbacks.checkpoint.ranking import worst_score
from gpulayer.pytorch.callbacks.checkpoint.saves import Moment, Save, written_at
from gpulayer.pytorch.callbacks.checkpoint.templates import fill_template, made_from, template_fields
from gpulayer.pytorch.core.callback import Checkpoint

if TYPE_CHECKING:
    from gpulayer.pytorch.trainer.trainer import Trainer

# What a save changes; each is replaced, never changed in place, so that it can be put back.
BY_A_SAVE = (
    "best_k_models",
    "best_model_path",
    "best_model_score",
    "kth_best_model_path",
    "kth_value",
    "current_score",
    "last_model_path",
    "_last_global_step_saved",
    "_newest",
    "_last",
    "_replaced",
)


class CheckpointFiles(Checkpoint):
    """Names, writes and deletes checkpoints, and knows which there are; ModelCheckpoint says when and which.

    The arguments are those of ModelCheckpoint.
    """

    CHECKPOINT_JOIN_CHAR = "-"
    CHECKPOINT_EQUALS_CHAR = "="
    CHECKPOINT_NAME_LAST = "last"
    FILE_EXTENSION = ".ckpt"
    STARTING_VERSION = 1

    def __init__(
        self,
        dirpath: Path | None,
        filename: str | None,
        save_last: bool | Literal["link"] | None,
        save_weights_only: bool,
        mode: str,
        auto_insert_metric_name: bool,
        enable_version_counter: bool,
        on_save_error: str,
    ) -> None:
        super().__init__()
        self.dirpath = None if dirpath is None else places.absolute(dirpath)
        self.filename = filename
        self.save_last = save_last
        self.save_weights_only = save_weights_only
        self.mode = mode
        self.auto_insert_metric_name = auto_insert_metric_name
        self.on_save_error = on_save_error
        self._enable_version_counter = enable_version_counter

        self.best_k_models: dict[str, Tensor] = {}
        self.best_model_path = ""
        self.best_model_score: Tensor | None = None
        self.kth_best_model_path = ""
        self.kth_value = worst_score(mode)
        self.current_score: Tensor | None = None
        self.last_model_path = ""

        self._last_global_step_saved = 0  # the step of the newest file; there is nothing to save at step 0
        self._newest: tuple[str, Moment | None] = ("", None)  # the newest of the best, and the moment that it holds
        self._last: tuple[str, Moment | None] = ("", None)  # the last file; `last_model_path` may be one to be written
        self._replaced: tuple[str, ...] = ()  # files to delete once the new ones are safe
        self._under_way: list[Save] = []  # what a store that works in the background has yet to show
        self._not_to_delete: set[str] = set()
        self._leftovers: set[str] = set()  # what a killed run wrote after the last file, which is to be written again
        self._told: set[str] = set()  # what was warned of

    # -- where -------------------------------------------------------------------------------------------------------

    def format_checkpoint_name(
        self,
        metrics: dict[str, Any],
        filename: str | None = None,
        ver: int | None = None,
        prefix: str | None = None,
    ) -> str:
        """The path of a checkpoint with these metrics.

        Args:
            metrics: values by name; "epoch" and "step" among them. A name that is missing counts as 0.
            filename: the template; None: this callback's.
            ver: a number to append, as "-v1".
            prefix: put before the name, with a dash.
        """
        template = filename or self.filename or f"{{epoch}}{self.CHECKPOINT_JOIN_CHAR}{{step}}"
        missing = [name for name in template_fields(template) if name not in metrics]
        if missing and missing[0] not in self._told:
            self._told.add(missing[0])
            rank_zero_warn(
                f"ModelCheckpoint's filename {template!r} names {missing[0]!r}, which was not logged and counts as 0; "
                f"there are {sorted(metrics)}."
            )
        name = fill_template(template, metrics, self.CHECKPOINT_EQUALS_CHAR if self.auto_insert_metric_name else None)
        version = None if ver is None else f"v{ver}"
        parts = [part for part in (prefix, name, version) if part is not None]
        return join(self.dirpath or "", self.CHECKPOINT_JOIN_CHAR.join(parts) + self.FILE_EXTENSION)

    def file_exists(self, filepath: Path, trainer: Trainer) -> bool:
        """Whether the first process finds a file there."""
        with storing(f"look for {os.fspath(filepath)!r}"):
            return bool(trainer.strategy.broadcast(trainer.is_global_zero and exists(filepath)))

    def _free_path(
        self, trainer: Trainer, candidates: dict[str, Tensor], replaced: str = "", template: str | None = None
    ) -> str:
        """Where to save now: a name that is not taken, unless by the file that the new one replaces."""
        path = self.format_checkpoint_name(candidates, template)
        version, free = self.STARTING_VERSION, {replaced, *self._leftovers}
        while self._enable_version_counter and path not in free and self.file_exists(path, trainer):
            free.add(path)  # where names come from a subclass that knows no versions
            path = self.format_checkpoint_name(candidates, template, version)
            version += 1
        return path

    def _last_path(self, trainer: Trainer, candidates: dict[str, Tensor]) -> str:
        return self._free_path(trainer, candidates, self._last[0], self.CHECKPOINT_NAME_LAST)

    def last_checkpoints(self, trainer: Trainer) -> set[str]:
        """The files that `ckpt_path="last"` may mean."""
        if self.last_model_path and exists(self.last_model_path):
            return {self.last_model_path}
        return {path for path in self.all_checkpoints(trainer) if self._is_last(path)}

    def all_checkpoints(self, trainer: Trainer) -> set[str]:
        """The files in this callback's folder that may be checkpoints."""
        found = list_folder(self.dirpath or places.default_folder(trainer))
        return {path for path in found if path.endswith(self.FILE_EXTENSION)}

    def _is_last(self, path: str) -> bool:
        """Whether a file's name is one of a last file's."""
        name, version = path.replace(os.sep, "/").rpartition("/")[2], f"{self.CHECKPOINT_JOIN_CHAR}v"
        stem = name.removesuffix(self.FILE_EXTENSION)
        return stem != name and made_from(self.CHECKPOINT_NAME_LAST, stem, version)

    # -- the store ---------------------------------------------------------------------------------------------------

    def _save_checkpoint(self, trainer: Trainer, filepath: str) -> None:
        """Write one checkpoint; subclasses may write something else, or more."""
        trainer.save_checkpoint(filepath, self.save_weights_only)

    def _remove_checkpoint(self, trainer: Trainer, filepath: str) -> None:
        """Delete one checkpoint."""
        trainer.strategy.checkpoint_io.remove_checkpoint(filepath)

    def _copy(self, trainer: Trainer, source: str, target: str) -> None:
        checkpoint_io = trainer.strategy.checkpoint_io
        with storing(f"save {target!r}"):
            if self.save_last == "link":
                checkpoint_io.link_checkpoint(source, target)
            else:
                checkpoint_io.copy_checkpoint(source, target)

    def _write(self, trainer: Trainer, path: str, before: dict[str, Any], write: Callable[[str], None]) -> None:
        """Hand a file to the store; loggers are told when it is there."""
        with storing(f"save {path!r}"):
            save = Save(path, written_at(path), before)
        self._last_global_step_saved = trainer.global_step
        write(path)
        self._leftovers.discard(path)
        if save.arrived():
            trainer.delivery.checkpoint_saved(self)
        else:
            self._under_way.append(save)

    @contextmanager
    def _attempt(self, trainer: Trainer) -> Iterator[dict[str, Any]]:
        """A block that saves; if it fails all is as before, and `on_save_error` says whether that raises.

        Yields:
            What was before, for a save that fails later, in the background.
        """
        before = {name: getattr(self, name) for name in BY_A_SAVE} | {"last_model_path": self._last[0]}
        try:
            yield before
        except Exception as error:
            vars(self).update(before)
            with suppress(Exception):  # what fails in the background meanwhile fails for the same reason
                trainer.strategy.checkpoint_io.wait()
            self._raise_or_warn(trainer, error, [self])
        except BaseException:
            vars(self).update(before)
            raise

    def _settle(self, trainer: Trainer) -> None:
        """Wait until all that was handed in is stored; what went wrong with it in the background comes out here."""
        try:
            with storing("save a checkpoint in the background"):
                trainer.strategy.checkpoint_io.wait()
        except Exception as error:
            self._raise_or_warn(trainer, error, [])
        if self._under_way:
            self._under_way.clear()
            trainer.delivery.checkpoint_saved(self)

    def _raise_or_warn(self, trainer: Trainer, error: Exception, failed: list[CheckpointFiles]) -> None:
        """Raise the error of a save, unless it is the store's and all whose files it took forgive that."""
        savers = [callback for callback in trainer.checkpoint_callbacks if isinstance(callback, CheckpointFiles)]
        lost = {saver: saver._forget_lost() for saver in savers}
        hit = failed + [saver for saver, paths in lost.items() if paths] or [self]
        if not isinstance(error, SaveError) or any(saver.on_save_error == "raise" for saver in hit):
            self._last_global_step_saved = trainer.global_step  # `on_exception` need not try the same again
            raise error
        missing = [path for paths in lost.values() for path in paths]
        log.warning(
            "ModelCheckpoint %s%s. Training goes on; the checkpoints before are kept.",
            error,
            f" ({', '.join(missing)})" if missing else "",
        )

    def _forget_lost(self) -> list[str]:
        """Take back what was handed in and is not there. Returns those paths."""
        lost = [save for save in self._under_way if not save.arrived()]
        for save in reversed(lost):
            vars(self).update(save.before)
        self._under_way = [save for save in self._under_way if not any(save is other for other in lost)]
        return [save.path for save in lost]

    def _save_aside(self, trainer: Trainer, candidates: dict[str, Tensor]) -> str:
        """Write a file that counts as none of the best. Returns its path; "" if that failed and is forgiven."""
        path = ""
        with self._attempt(trainer) as before:
            path = self._free_path(trainer, candidates)
            self._write(trainer, path, before, partial(self._save_checkpoint, trainer))
        return path if self._last_global_step_saved == trainer.global_step else ""

    def _delete_replaced(self, trainer: Trainer) -> None:
        """Delete what was replaced: files of the own folder, and never the one that the run was resumed from."""
        for path in self._replaced if trainer.is_global_zero else ():
            own = places.lies_in(path, self.dirpath or "")
            if not own or any(places.same_file(path, other) for other in self._not_to_delete):
                continue
            try:
                with storing(f"delete {path!r}"):
                    self._remove_checkpoint(trainer, path)
            except SaveError as error:
                self._raise_or_warn(trainer, error, [self])
        self._replaced = ()

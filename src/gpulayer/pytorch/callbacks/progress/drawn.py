"""What the bars that we draw share: when something is drawn, and what becomes of it where nothing can be."""

from __future__ import annotations

from math import inf
from time import monotonic
from typing import TYPE_CHECKING, Any

from gpulayer.fabric.utilities.exceptions import MisconfigurationException
from gpulayer.fabric.utilities.rank_zero import rank_zero_info
from gpulayer.fabric.utilities.spoken import duration, speed
from gpulayer.pytorch.callbacks.progress.progress_bar import ProgressBar
from gpulayer.pytorch.core.callback import Monitor

if TYPE_CHECKING:
    from gpulayer.pytorch.core.module import Module
    from gpulayer.pytorch.trainer.trainer import Trainer

BETWEEN_DRAWINGS = 0.1  # seconds, at least: more than ten pictures a second are only work
DRAWING_SHARE = 0.02  # of the time: where drawing is slow, there are fewer pictures,
MOST_BETWEEN_DRAWINGS = 0.5  # seconds, but not fewer than that
BETWEEN_LINES = 60.0  # seconds: where nothing can be drawn

TRAIN, SANITY, VALIDATION, TEST, PREDICT = "train", "sanity", "validation", "test", "predict"
LINES = {SANITY: "sanity check", VALIDATION: "validation", TEST: "test", PREDICT: "predict"}
DESCRIPTIONS = {
    TRAIN: "train_description",
    SANITY: "sanity_check_description",
    VALIDATION: "validation_description",
    TEST: "test_description",
    PREDICT: "predict_description",
}


class DrawnProgressBar(ProgressBar, Monitor):
    """Follows a run and says when a bar is opened, drawn and closed; subclasses know how.

    After a batch the clock is looked at, and nothing else. When it is time, the metrics are read, which is the only
    moment when the host waits for the device, and the bar is drawn. The ends of training epochs and of other stages
    are drawn always. Where the output is neither a terminal nor a notebook, nothing is drawn: the Trainer logs a line
    for each epoch and about each minute of it, and this bar one about each minute of an evaluation.

    It is a Monitor, so that what the module logs at the end of an epoch is shown.

    Args:
        refresh_rate: the clock is looked at after every so many batches; 0 shows nothing.
        leave: each epoch's finished bar stays on the screen, and the next one begins below it.

    Raises:
        MisconfigurationException: a value that cannot be used.
    """

    def __init__(self, refresh_rate: int, leave: bool) -> None:
        super().__init__()
        whole_number(f"{type(self).__name__}(refresh_rate", refresh_rate)
        self._refresh_rate = refresh_rate
        self._leave = leave
        self._is_drawn = False
        self._every = refresh_rate or 1
        self._next = inf  # when to draw, or to write a line
        self._trains = False  # whether an epoch's bar is there
        self._stage: str | None = None  # the evaluation that is running,
        self._loader = 0  # its loader,
        self._done = 0  # how many batches of that are done,
        self._before = 0  # and of those before it,
        self._started = 0.0  # since when

    @property
    def refresh_rate(self) -> int:
        """After how many batches the clock is looked at."""
        return self._refresh_rate

    @property
    def is_enabled(self) -> bool:
        return self._enabled and self.refresh_rate > 0

    @property
    def is_drawn(self) -> bool:
        return self._is_drawn

    def disable(self) -> None:
        super().disable()
        self._stop()

    # -- how it is drawn: for subclasses -----------------------------------------------------------------------------

    def _can_draw(self) -> bool:
        """Whether there is a place for a bar."""
        raise NotImplementedError

    def _begin(self, stage: str, description: str | None, total: int | float, done: int) -> None:
        """Count from `done` to `total`: a new epoch, or a new loader. Without a description, it keeps its own."""
        raise NotImplementedError

    def _draw(self, stage: str, done: int, metrics: dict[str, Any] | None) -> None:
        """Draw the bar of a stage, which has begun; without metrics, it keeps those that it has."""
        raise NotImplementedError

    def _close(self, stage: str) -> None:
        """Take the bar of a stage from the screen, or leave it there if it is to stay; there may be none."""
        raise NotImplementedError

    def _close_all(self) -> None:
        """Close every bar, and leave the terminal as it was."""
        raise NotImplementedError

    # -- set-up and end ----------------------------------------------------------------------------------------------

    def setup(self, trainer: Trainer, pl_module: Module, stage: str) -> None:
        super().setup(trainer, pl_module, stage)
        self._is_drawn = self.is_enabled and self._can_draw()
        self._next = 0.0 if self._is_drawn else inf

    def teardown(self, trainer: Trainer, pl_module: Module, stage: str) -> None:
        self._stop()

    def on_exception(self, trainer: Trainer, pl_module: Module, exception: BaseException) -> None:
        if self._is_drawn:  # what was reached; metrics are not read, for after an error a device may not answer
            if self._trains:
                self._draw(TRAIN, trainer.progress.batch_in_epoch, None)
            elif self._stage is not None:
                self._draw(self._stage, self._done, None)
        self._stop()

    def _stop(self) -> None:
        self._close_all()
        self.reset_dataloader_idx_tracker()
        self._is_drawn, self._next, self._trains, self._stage = False, inf, False, None

    def __getstate__(self) -> dict[str, Any]:
        """A copy shows nothing until it runs: what is on the screen belongs to the original."""
        return {**super().__getstate__(), "_trainer": None, "_is_drawn": False, "_next": inf}

    # -- training ----------------------------------------------------------------------------------------------------

    def on_train_start(self, trainer: Trainer, pl_module: Module) -> None:
        if trainer.progress.mid_epoch:  # a resumed epoch at its end does not start again
            self._begin_epoch(trainer)

    def on_train_epoch_start(self, trainer: Trainer, pl_module: Module) -> None:
        self._begin_epoch(trainer)

    def on_train_batch_end(self, trainer: Trainer, pl_module: Module, outputs: Any, batch: Any, batch_idx: int) -> None:
        if (batch_idx + 1) % self._every == 0 and monotonic() >= self._next:
            self._refresh_train()

    def on_train_epoch_end(self, trainer: Trainer, pl_module: Module) -> None:
        if self._is_drawn:
            self._refresh_train()
            if self._leave:
                self._close(TRAIN)
                self._trains = False

    def on_train_end(self, trainer: Trainer, pl_module: Module) -> None:
        self._close(TRAIN)
        self._trains = False

    def _begin_epoch(self, trainer: Trainer) -> None:
        self._trains = True
        last = trainer.max_epochs
        description = f"Epoch {trainer.current_epoch + 1}" + (f"/{last}" if last > 0 else "")
        self._begin(TRAIN, description, self.total_train_batches, trainer.progress.batch_in_epoch)
        if monotonic() >= self._next:
            self._refresh_train()

    def _refresh_train(self) -> None:
        self._show(TRAIN, self.trainer.progress.batch_in_epoch, self._metrics())

    # -- evaluation --------------------------------------------------------------------------------------------------

    def on_validation_start(self, trainer: Trainer, pl_module: Module) -> None:
        self._start(SANITY if trainer.sanity_checking else VALIDATION)

    def on_test_start(self, trainer: Trainer, pl_module: Module) -> None:
        self._start(TEST)

    def on_predict_start(self, trainer: Trainer, pl_module: Module) -> None:
        self._start(PREDICT)

    def on_validation_batch_end(
        self, trainer: Trainer, pl_module: Module, outputs: Any, batch: Any, batch_idx: int, dataloader_idx: int = 0
    ) -> None:
        self._count(batch_idx, dataloader_idx)

    def on_test_batch_end(
        self, trainer: Trainer, pl_module: Module, outputs: Any, batch: Any, batch_idx: int, dataloader_idx: int = 0
    ) -> None:
        self._count(batch_idx, dataloader_idx)

    def on_predict_batch_end(
        self, trainer: Trainer, pl_module: Module, outputs: Any, batch: Any, batch_idx: int, dataloader_idx: int = 0
    ) -> None:
        self._count(batch_idx, dataloader_idx)

    def on_validation_end(self, trainer: Trainer, pl_module: Module) -> None:
        self._finish()

    def on_test_end(self, trainer: Trainer, pl_module: Module) -> None:
        self._finish()

    def on_predict_end(self, trainer: Trainer, pl_module: Module) -> None:
        self._finish()

    @property
    def _alone(self) -> bool:
        """Whether the evaluation is all that runs, so that its bar has the metrics and stays."""
        return self.trainer.state.fn != "fit"

    def _start(self, stage: str) -> None:
        self._stage, self._started, self._before, self._done = stage, monotonic(), 0, 0
        if self.is_enabled and not self._is_drawn:
            self._next = monotonic() + BETWEEN_LINES
        self._begin_loader(0)

    def _begin_loader(self, index: int, done: int = 0) -> None:
        """A loader's bar; of one that follows another, a batch is done when that is noticed."""
        assert self._stage is not None
        self.has_dataloader_changed(index)  # the totals are those of this loader from now on
        self._before += self._done
        self._loader, self._done = index, done
        name = getattr(self, DESCRIPTIONS[self._stage])
        self._begin(self._stage, f"{name} DataLoader {index}" if self._several() else None, self._total(), done)
        if self._is_drawn and monotonic() >= self._next:
            self._refresh_evaluation()

    def _several(self) -> bool:
        """Whether there are several loaders."""
        trainer = self.trainer
        counts = {TEST: trainer.num_test_batches, PREDICT: trainer.num_predict_batches}
        return len(counts.get(self._stage or "", trainer.num_val_batches)) > 1

    def _total(self) -> int | float:
        """Batches of the loader that is running."""
        if self._stage == TEST:
            return self.total_test_batches_current_dataloader
        if self._stage == PREDICT:
            return self.total_predict_batches_current_dataloader
        return self.total_val_batches_current_dataloader

    def _count(self, batch_idx: int, dataloader_idx: int) -> None:
        """A batch is done."""
        if dataloader_idx != self._loader:
            self._begin_loader(dataloader_idx, batch_idx + 1)
        self._done = batch_idx + 1
        if self._done % self._every == 0 and monotonic() >= self._next:
            self._refresh_evaluation()

    def _refresh_evaluation(self) -> None:
        assert self._stage is not None
        if not self._is_drawn:
            self._log_line()
            return
        if self._trains:  # its bar stands above, and may be some batches old
            self._draw(TRAIN, self.trainer.progress.batch_in_epoch, None)
        self._show(self._stage, self._done, self._metrics() if self._alone else None)

    def _finish(self) -> None:
        """An evaluation is over: one inside `fit` gives its place, and its metrics, to the bar of training."""
        assert self._stage is not None
        stage, self._stage = self._stage, None
        if self._is_drawn:
            if self._alone:
                self._show(stage, self._done, self._metrics())
            self._close(stage)
            if stage == VALIDATION and not self._alone and monotonic() >= self._next:
                self._refresh_train()
        elif self.is_enabled:
            self._next = inf
            if stage == PREDICT:  # the other stages have a line of the Trainer's
                batches, seconds = self._before + self._done, monotonic() - self._started
                rank_zero_info("predict: %d batches  %s, %s", batches, duration(seconds), _rate(batches, seconds))
        self.reset_dataloader_idx_tracker()

    def _log_line(self) -> None:
        """How far the evaluation is."""
        assert self._stage is not None
        total, batches, seconds = self._total(), self._before + self._done, monotonic() - self._started
        name = LINES[self._stage] + (f" loader {self._loader}" if self._several() else "")
        left = f"  {duration((total - self._done) * seconds / batches)} left" if total < inf else ""
        done = f"batch {self._done}" + (f"/{total}" if total < inf else "")
        rank_zero_info("%s  %s  %s%s", name, done, _rate(batches, seconds), left)
        self._next = monotonic() + BETWEEN_LINES

    # -- both --------------------------------------------------------------------------------------------------------

    def _metrics(self) -> dict[str, Any]:
        return self.get_metrics(self.trainer, self.trainer.lightning_module)

    def _show(self, stage: str, done: int, metrics: dict[str, Any] | None) -> None:
        """Draw, and say when the next time is."""
        began = monotonic()
        self._draw(stage, done, metrics)
        now = monotonic()
        self._next = now + min(max(BETWEEN_DRAWINGS, (now - began) / DRAWING_SHARE), MOST_BETWEEN_DRAWINGS)


def _rate(batches: int, seconds: float) -> str:
    return speed(batches / max(seconds, 1e-9))


def whole_number(argument: str, value: Any) -> None:
    """Raise unless an argument is a whole number from 0; it is given as "Class(name"."""
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise MisconfigurationException(f"`{argument}={value!r})`: give a whole number from 0.")

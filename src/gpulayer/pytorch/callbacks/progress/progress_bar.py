"""ProgressBar: the base of all progress bars, for those that users write, too."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from gpulayer.fabric.utilities.rank_zero import rank_zero_warn
from gpulayer.pytorch.core.callback import Callback

if TYPE_CHECKING:
    from gpulayer.pytorch.core.module import Module
    from gpulayer.pytorch.trainer.trainer import Trainer


class ProgressBar(Callback):
    """Knows what a bar shows: names, totals and metrics. Subclasses draw, in the hooks of a Callback.

    A bar that draws itself sets up its own drawing in the hooks, and overrides `print` if lines would tear it:

        class Percent(ProgressBar):
            def on_train_batch_end(self, trainer, pl_module, outputs, batch, batch_idx):
                print(f"{100 * (batch_idx + 1) / self.total_train_batches:.0f} %", end="\\r")
    """

    def __init__(self) -> None:
        super().__init__()
        self._trainer: Trainer | None = None
        self._current_eval_dataloader_idx: int | None = None
        self._enabled = True

    @property
    def trainer(self) -> Trainer:
        """The Trainer that runs.

        Raises:
            TypeError: none has run yet.
        """
        if self._trainer is None:
            raise TypeError(f"`{type(self).__name__}.trainer` is there from the `setup` of a run on.")
        return self._trainer

    # -- names -------------------------------------------------------------------------------------------------------

    @property
    def sanity_check_description(self) -> str:
        """The name of the sanity check."""
        return "Sanity Checking"

    @property
    def train_description(self) -> str:
        """The name of training."""
        return "Training"

    @property
    def validation_description(self) -> str:
        """The name of a validation."""
        return "Validation"

    @property
    def test_description(self) -> str:
        """The name of a test."""
        return "Testing"

    @property
    def predict_description(self) -> str:
        """The name of a prediction."""
        return "Predicting"

    # -- totals ------------------------------------------------------------------------------------------------------

    @property
    def total_train_batches(self) -> int | float:
        """Batches of a training epoch; inf if that is not known."""
        return self.trainer.num_training_batches

    @property
    def total_val_batches_current_dataloader(self) -> int | float:
        """Batches of the validation loader that is running, in the sanity check those it takes; inf if not known."""
        trainer = self.trainer
        return self._current(trainer.num_sanity_val_batches if trainer.sanity_checking else trainer.num_val_batches)

    @property
    def total_test_batches_current_dataloader(self) -> int | float:
        """Batches of the test loader that is running; inf if that is not known."""
        return self._current(self.trainer.num_test_batches)

    @property
    def total_predict_batches_current_dataloader(self) -> int | float:
        """Batches of the loader that is predicted; inf if that is not known."""
        return self._current(self.trainer.num_predict_batches)

    @property
    def total_val_batches(self) -> int | float:
        """Batches of all validation loaders; 0 in an epoch without validation, inf if that is not known."""
        trainer = self.trainer
        every = trainer.check_val_every_n_epoch
        if every is not None and (trainer.current_epoch + 1) % every:
            return 0
        return sum(trainer.num_val_batches)

    def _current(self, totals: list[int | float]) -> int | float:
        index = self._current_eval_dataloader_idx or 0
        return totals[index] if index < len(totals) else 0

    def has_dataloader_changed(self, dataloader_idx: int) -> bool:
        """Whether this loader is another one than at the last call; it is remembered as the one that runs."""
        before, self._current_eval_dataloader_idx = self._current_eval_dataloader_idx, dataloader_idx
        return before != dataloader_idx

    def reset_dataloader_idx_tracker(self) -> None:
        """No loader runs."""
        self._current_eval_dataloader_idx = None

    # -- whether it is there -----------------------------------------------------------------------------------------

    @property
    def is_enabled(self) -> bool:
        """Whether it shows anything."""
        return self._enabled

    @property
    def is_disabled(self) -> bool:
        """Whether it shows nothing."""
        return not self.is_enabled

    @property
    def is_drawn(self) -> bool:
        """Whether it moves on a screen now, so that the Trainer leaves out its lines about a long epoch."""
        return self.is_enabled

    def disable(self) -> None:
        """Show nothing from the next run on; processes other than the first do this by themselves."""
        self._enabled = False

    def enable(self) -> None:
        """Take `disable` back."""
        self._enabled = True

    def print(self, *args: Any, **kwargs: Any) -> None:
        """`print`, without tearing the bar; `trainer.print` and `module.print` come here."""
        print(*args, **kwargs)

    def setup(self, trainer: Trainer, pl_module: Module, stage: str) -> None:
        self._trainer = trainer
        if not trainer.is_global_zero:
            self.disable()

    # -- metrics -----------------------------------------------------------------------------------------------------

    def get_metrics(self, trainer: Trainer, pl_module: Module) -> dict[str, int | str | float | dict[str, float]]:
        """What stands at the end of the bar; override it to add to it or to take from it.

        Returns:
            What was logged with `prog_bar=True`, by name, and before it the version of the run.
        """
        standard, logged = get_standard_metrics(trainer), trainer.progress_bar_metrics
        if both := sorted(standard.keys() & logged.keys()):
            rank_zero_warn(
                f"The progress bar shows {both} of its own; what you logged under the name takes its place. Log it "
                "under another, or leave the bar's out in `get_metrics`."
            )
        return {**standard, **logged}


def get_standard_metrics(trainer: Trainer) -> dict[str, int | str]:
    """What every bar shows: `v_num`, the version of the run that the first logger writes, if it has one.

    Of a version that is a text, such as the id of a run on a server, the last four letters are shown.
    """
    version = trainer.loggers[0].version if trainer.loggers else None
    if version is None:
        return {}
    return {"v_num": version[-4:] if isinstance(version, str) else version}

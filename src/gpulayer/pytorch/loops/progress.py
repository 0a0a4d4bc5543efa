"""Progress: how far a run is. Its fields are assigned in `loops/` and nowhere else; checkpoints keep it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any


class Position:
    """What the last finished batch still owes. Checkpoints keep it, so that a resume loses and repeats nothing."""

    READY = "ready"  # nothing: the next batch comes, or after the last one the epoch's end
    BATCH = "batch"  # validation, if it is due, and the schedulers that watch a metric
    VALIDATED = "validated"  # the schedulers that watch a metric
    EPOCH = "epoch"  # the hooks of the epoch's end are running: its metric-watching schedulers, and its count


@dataclass
class Evaluated:
    """Batches of one kind of evaluation: in the last run of it, and in all."""

    current: int = 0
    total: int = 0
    by_loader: dict[int, int] = field(default_factory=dict)  # batches of each loader in the runs before

    def start(self) -> None:
        """Begin a run over all loaders."""
        self.current = 0

    def loader_done(self, index: int, batches: int) -> None:
        """Count the batches of a loader that is through."""
        self.current += batches
        self.total += batches
        self.by_loader[index] = self.by_loader.get(index, 0) + batches


@dataclass
class Progress:
    """The counters of training, and those of each evaluation.

    Args:
        epoch: finished epochs, which is the number of the current one.
        batch: finished training batches of all epochs.
        batch_in_epoch: finished training batches of this epoch.
        step: optimizer steps.
        window: batches after which an optimizer step was due; the loggers' step. It differs from `step` in manual
            optimization, where a batch may take several optimizer steps, or none.
        scheduler_steps: moves of schedulers.
        epoch_start_step: `step` at the start of this epoch.
        epoch_start_scheduler_steps: `scheduler_steps` at the start of this epoch.
        last_batch: whether the current batch is the epoch's last.
        ended: whether that batch is done.
        stepped: whether an optimizer step was due after the last finished batch; None if that is not known.
        position: what the last finished batch still owes.
        validation: of the validations within training.
    """

    epoch: int = 0
    batch: int = 0
    batch_in_epoch: int = 0
    step: int = 0
    window: int = 0
    scheduler_steps: int = 0
    epoch_start_step: int = 0
    epoch_start_scheduler_steps: int = 0
    last_batch: bool = False
    ended: bool = False
    stepped: bool | None = None
    position: str = Position.READY
    validation: Evaluated = field(default_factory=Evaluated)
    validate: Evaluated = field(default_factory=Evaluated)
    test: Evaluated = field(default_factory=Evaluated)
    predict: Evaluated = field(default_factory=Evaluated)

    @property
    def mid_epoch(self) -> bool:
        """Whether an epoch has begun and is not over."""
        return self.batch_in_epoch > 0 or self.position != Position.READY

    @property
    def within_epoch(self) -> bool:
        """Whether nothing is owed and the next batch, if not begun, is one of the same epoch."""
        return self.position == Position.READY and self.batch_in_epoch > 0 and not self.ended

    def batch_done(self, step_due: bool) -> None:
        """Count a batch; `step_due`: it ended a window of accumulated batches."""
        self.batch += 1
        self.batch_in_epoch += 1
        self.window += step_due
        self.ended = self.last_batch
        self.stepped = step_due
        self.position = Position.BATCH

    def epoch_done(self) -> None:
        """Count an epoch."""
        self.epoch += 1
        self.restart_epoch()

    def restart_epoch(self) -> None:
        """The next batch is the first of an epoch."""
        self.batch_in_epoch = 0
        self.epoch_start_step = self.step
        self.epoch_start_scheduler_steps = self.scheduler_steps
        self.ended = False
        self.stepped = None
        self.position = Position.READY


def _counts(total: int, current: int, *names: str) -> dict[str, dict[str, int]]:
    return {"total": dict.fromkeys(names, total), "current": dict.fromkeys(names, current)}


_EVALUATION = ("ready", "completed", "started", "processed")


def loops_state(at: Progress, manual: bool, stepped: bool = False, validating: bool = False) -> dict[str, Any]:
    """The "loops" part of a checkpoint, in Lightning's layout, with its four counters as Lightning has them.

    Args:
        at: the progress.
        manual: whether the module steps its optimizers itself: Lightning counts those apart.
        stepped: whether an optimizer step was due after the last finished batch. Lightning counts it when it goes on
            from a checkpoint of mid-epoch.
        validating: whether the hooks of that batch's end are over, for a validation is running.
    """
    in_epoch = at.step - at.epoch_start_step
    automatic_steps, automatic_in_epoch = (0, 0) if manual else (at.step, in_epoch)
    manual_steps, manual_in_epoch = (at.step, in_epoch) if manual else (0, 0)
    begun = at.epoch + at.mid_epoch
    processed = at.epoch + (at.position == Position.EPOCH)
    epochs = {"ready": begun, "completed": at.epoch, "started": begun, "processed": processed}
    batches = _counts(at.batch, at.batch_in_epoch, *_EVALUATION)
    for counts in batches.values():
        counts["completed"] -= at.position == Position.BATCH and not validating
        counts["ready"] += at.within_epoch
    late = stepped and (at.within_epoch or at.position in (Position.BATCH, Position.VALIDATED))

    def evaluation(done: Evaluated) -> dict[str, Any]:
        return {**_counts(done.total, done.current, *_EVALUATION), "is_last_batch": done.total > 0}

    return {
        "fit_loop": {
            "state_dict": {},
            "epoch_loop.state_dict": {"_batches_that_stepped": at.window - late},
            "epoch_loop.batch_progress": {**batches, "is_last_batch": at.ended},
            "epoch_loop.scheduler_progress": _counts(
                at.scheduler_steps, at.scheduler_steps - at.epoch_start_scheduler_steps, "ready", "completed"
            ),
            "epoch_loop.automatic_optimization.state_dict": {},
            "epoch_loop.automatic_optimization.optim_progress": {
                "optimizer": {
                    "step": _counts(automatic_steps, automatic_in_epoch, "ready", "completed"),
                    "zero_grad": _counts(automatic_steps, automatic_in_epoch, "ready", "completed", "started"),
                }
            },
            "epoch_loop.manual_optimization.state_dict": {},
            "epoch_loop.manual_optimization.optim_step_progress": _counts(
                manual_steps, manual_in_epoch, "ready", "completed"
            ),
            "epoch_loop.val_loop.state_dict": {},
            "epoch_loop.val_loop.batch_progress": evaluation(at.validation),
            "epoch_progress": {"total": dict(epochs), "current": dict(epochs)},
        },
        "validate_loop": {"state_dict": {}, "batch_progress": evaluation(at.validate)},
        "test_loop": {"state_dict": {}, "batch_progress": evaluation(at.test)},
        "predict_loop": {
            "state_dict": {},
            "batch_progress": _counts(at.predict.total, at.predict.current, *_EVALUATION),
        },
    }


def load_loops_state(at: Progress, checkpoint: dict[str, Any]) -> None:
    """Set the counters of training from a checkpoint of ours or of Lightning's.

    Args:
        at: the progress to set.
        checkpoint: the checkpoint; without a "loops" part its epoch and global_step are taken.
    """
    own = checkpoint.get("gpulayer", {})
    loop = checkpoint.get("loops", {}).get("fit_loop")
    at.restart_epoch()
    if not loop:
        at.epoch = int(checkpoint.get("epoch", -1)) + 1
        at.step = at.window = at.epoch_start_step = int(checkpoint.get("global_step", 0))
        return
    batches, epochs = loop["epoch_loop.batch_progress"], loop["epoch_progress"]["current"]
    automatic = loop["epoch_loop.automatic_optimization.optim_progress"]["optimizer"]["step"]
    manual = loop["epoch_loop.manual_optimization.optim_step_progress"]
    # Of Lightning's four counters "processed" is right: "completed" lags by one in a checkpoint written in mid-epoch
    # (its issues 18060, 19367, 19815).
    at.epoch = epochs["completed"]
    at.batch = batches["total"]["processed"]
    at.batch_in_epoch = batches["current"]["processed"]
    begun = batches["current"]["ready"] > at.batch_in_epoch  # another batch, which is not done
    at.last_batch = at.ended = bool(batches["is_last_batch"]) and not begun
    steps = max(automatic, manual, key=lambda counts: int(counts["total"]["completed"]))
    at.step = steps["total"]["completed"]
    at.epoch_start_step = at.step - steps["current"]["completed"]
    moves = loop["epoch_loop.scheduler_progress"]
    at.scheduler_steps = moves["total"]["completed"]
    at.epoch_start_scheduler_steps = at.scheduler_steps - moves["current"]["completed"]
    validation = loop["epoch_loop.val_loop.batch_progress"]
    at.validation.total = validation["total"]["processed"]
    stepped = loop["epoch_loop.state_dict"]["_batches_that_stepped"]
    lags = not begun and stepped < (at.batch if steps is manual else at.step)
    if own:
        at.position, at.window, at.stepped = own["position"], own["window"], own.get("stepped")
    elif epochs["processed"] > epochs["completed"]:
        at.position, at.window = Position.EPOCH, stepped
    elif epochs["completed"] == epochs["started"]:  # between two epochs, or after the last
        at.window = stepped
        at.restart_epoch()
    else:
        at.window = stepped + lags
        if at.batch_in_epoch > batches["current"]["completed"] or (lags and not validation["is_last_batch"]):
            at.position = Position.BATCH
        else:
            at.position = Position.VALIDATED if lags else Position.READY

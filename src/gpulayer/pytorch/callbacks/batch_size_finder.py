"""BatchSizeFinder: try batch sizes on a few steps each, and set the largest one that fits into memory."""

from __future__ import annotations

from collections.abc import Generator
from typing import TYPE_CHECKING, Any

from gpulayer.fabric.utilities.exceptions import InvalidValueError, MisconfigurationException
from gpulayer.fabric.utilities.rank_zero import rank_zero_info, rank_zero_warn
from gpulayer.pytorch.core.attributes import Attribute, attribute_to_set
from gpulayer.pytorch.core.callback import Callback
from gpulayer.pytorch.core.combined_loader import CombinedLoader
from gpulayer.pytorch.utilities.memory import garbage_collection_cuda, is_oom_error

if TYPE_CHECKING:
    from gpulayer.pytorch.core.module import Module
    from gpulayer.pytorch.trainer.trainer import Trainer

MODES = ("power", "binsearch")
DATA = {"fit": "train", "validate": "val", "test": "test", "predict": "predict"}  # as Lightning names their arguments


def sizes_to_try(mode: str, first: int, most: int, max_trials: int) -> Generator[int, bool, int]:
    """The search: gives a size to try, and is sent whether it fits.

    Sizes are doubled as long as they fit, or halved as long as none does. Then "power" is through, and "binsearch" goes
    on in the middle between the largest that fits and the smallest that does not.

    Args:
        mode: "power" or "binsearch".
        first: the first size.
        most: the largest size.
        max_trials: after so many sizes that fit it ends.

    Returns:
        The largest size that was found to fit; 0 if not even 1 does.
    """
    fits, fails = 0, most + 1  # the largest and the smallest such size
    failed, size = False, min(first, most)
    while fails - fits > 1 and max_trials > 0:
        if (yield size):
            fits, max_trials = size, max_trials - 1
        else:
            fails, failed = size, True
        if not failed:
            size = min(2 * fits, most)
        elif mode == "binsearch" or not fits:
            size = (max(fits, 1) + fails) // 2 if mode == "binsearch" else fails // 2
        else:
            break
    return fits


def with_margin(size: int, margin: float) -> int:
    """The size that leaves such a part of the memory of the largest one free; at least 1."""
    return max(1, int(size * (1 - margin)))


class BatchSizeFinder(Callback):
    """Finds the largest batch size that fits into memory, sets it, and lets the call go on with it.

    Each size is tried on a few batches of the call: optimizer steps and a validation in `fit`, else the batches of the
    evaluation. Afterwards weights, optimizers, random states and the Trainer are what they were before. The loaders are
    made anew with each size, so `train_dataloader` and its like have to use the attribute. A resumed run goes on with
    the size of its checkpoint.

    Subclasses may call `self.scale_batch_size(trainer, pl_module)` in `on_train_epoch_start`, too, and leave hooks out
    by overriding them.

    Args:
        mode: "power" doubles the size until memory runs out; "binsearch" then looks for the largest size in between.
        steps_per_trial: optimizer steps of a `fit`, or batches of an evaluation, on which each size is tried.
        init_val: the first size, in samples.
        max_trials: end after so many sizes that fit.
        batch_arg_name: the attribute's name, on the module, the datamodule, or in the hyperparameters of one; with dots
            for a part of a part. If there are several, all are set.
        margin: with "binsearch", the part by which the size found is made smaller, so that not all memory is in use;
            from 0 to below 1.
        max_val: the largest size that is tried. Nor is any tried that is larger than the data.

    Attributes:
        optimal_batch_size: the size that was found; before that `init_val`, and None with `fast_dev_run`.

    Raises:
        InvalidValueError: an argument is none of those.
    """

    SUPPORTED_MODES = MODES
    comes_first = True

    def __init__(
        self,
        mode: str = "power",
        steps_per_trial: int = 3,
        init_val: int = 2,
        max_trials: int = 25,
        batch_arg_name: str = "batch_size",
        margin: float = 0.05,
        max_val: int = 8192,
    ) -> None:
        mode = mode.lower() if isinstance(mode, str) else mode
        if mode not in MODES:
            raise InvalidValueError(f"`mode={mode!r}`: choose 'power' or 'binsearch'.")
        for name, value in (
            ("steps_per_trial", steps_per_trial),
            ("init_val", init_val),
            ("max_trials", max_trials),
            ("max_val", max_val),
        ):
            if isinstance(value, bool) or not isinstance(value, int) or value < 1:
                raise InvalidValueError(f"`{name}={value!r}`: give a number of at least 1.")
        if isinstance(margin, bool) or not isinstance(margin, (int, float)) or not 0 <= margin < 1:
            raise InvalidValueError(
                f"`margin={margin!r}`: give the part of the batch size that is to be left out, such as 0.05; from 0 to "
                "below 1."
            )
        if not isinstance(batch_arg_name, str) or not batch_arg_name:
            raise InvalidValueError(f"`batch_arg_name={batch_arg_name!r}`: give the attribute's name.")
        self.optimal_batch_size: int | None = init_val
        self._mode = mode
        self._steps_per_trial = steps_per_trial
        self._init_val = init_val
        self._max_trials = max_trials
        self._batch_arg_name = batch_arg_name
        self._margin = margin
        self._max_val = max_val
        self._found = False
        self._resumed = False

    def state_dict(self) -> dict[str, Any]:
        return {"optimal_batch_size": self.optimal_batch_size} if self._found else {}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.optimal_batch_size, self._found = state_dict["optimal_batch_size"], True

    def on_load_checkpoint(self, trainer: Trainer, pl_module: Module, checkpoint: dict[str, Any]) -> None:
        """Set the size of the run that goes on, whose batches are counted; optimizers and loaders are made with it."""
        state = checkpoint.get("callbacks", {}).get(self.state_key)
        self._resumed = bool(state) and trainer.state.fn == "fit"
        if state and self._resumed:
            for place in attribute_to_set(self._batch_arg_name, pl_module, trainer.datamodule, "batch_arg_name"):
                place.value = state["optimal_batch_size"]

    def setup(self, trainer: Trainer, pl_module: Module, stage: str) -> None:
        """Raise before anything runs.

        Raises:
            MisconfigurationException: there is no such attribute, the loaders are made already, or there are several
                processes.
        """
        self._resumed = False
        self._check(trainer, stage)
        places = attribute_to_set(self._batch_arg_name, pl_module, trainer.datamodule, "batch_arg_name")
        on_module = [place.where for place in places if place.where.startswith("model.")]
        if len(on_module) > 1:
            rank_zero_warn(f"Both `{on_module[0]}` and `{on_module[1]}` are there: the batch size is set in both.")

    def on_fit_start(self, trainer: Trainer, pl_module: Module) -> None:
        if not self._resumed:
            self.scale_batch_size(trainer, pl_module)

    def on_validation_start(self, trainer: Trainer, pl_module: Module) -> None:
        if trainer.state.fn == "validate":
            self.scale_batch_size(trainer, pl_module)

    def on_test_start(self, trainer: Trainer, pl_module: Module) -> None:
        self.scale_batch_size(trainer, pl_module)

    def on_predict_start(self, trainer: Trainer, pl_module: Module) -> None:
        self.scale_batch_size(trainer, pl_module)

    def scale_batch_size(self, trainer: Trainer, pl_module: Module) -> None:
        """Search now, set the size, and let the call that is under way use it.

        Args:
            trainer: the Trainer, in a call.
            pl_module: its module.

        Raises:
            MisconfigurationException: there is no attribute to set, or the loaders are made already, or are empty.
            RuntimeError: not even a batch of one sample fits.
        """
        assert trainer.state.fn is not None
        call = trainer.state.fn.value
        if trainer.fast_dev_run:
            rank_zero_warn("The batch size finder is skipped with `fast_dev_run`.")
            self.optimal_batch_size = None
            return
        if call == "fit" and trainer.progress.mid_epoch:
            rank_zero_info(
                "The batch size finder is skipped: a resumed epoch goes on with the size that it began with."
            )
            return
        self._check(trainer, call)
        places = attribute_to_set(self._batch_arg_name, pl_module, trainer.datamodule, "batch_arg_name")
        before = [place.value for place in places]
        search = _Search(trainer, places, self._steps_per_trial)
        try:
            size = search.run(self._mode, self._init_val, self._max_val, self._max_trials)
            if self._mode == "binsearch" and size != search.samples:  # of all data, less would add a batch of the rest
                size = with_margin(size, self._margin)
        except BaseException:
            for place, value in zip(places, before, strict=True):
                place.value = value
            raise
        set_all(places, size)
        garbage_collection_cuda()
        rank_zero_info("Batch size set to %d.", size)
        self.optimal_batch_size, self._found = size, True
        if any(value != size for value in before):
            trainer.renew_loaders()
            if call == "fit" and trainer.global_step == 0:  # a schedule may be as long as the epochs have batches
                trainer.renew_optimizers()

    def _check(self, trainer: Trainer, call: str) -> None:
        assert trainer.sources is not None
        if trainer.sources.of_call(call).given is not None:
            raise MisconfigurationException(
                f"The batch size finder makes the loaders anew with each size, and `{call}` was given some that are "
                f"made already: make them in the `{DATA[call]}_dataloader` method of the module or of a datamodule, "
                f"with `batch_size=self.{self._batch_arg_name}`."
            )
        if trainer.world_size > 1:
            raise MisconfigurationException(
                f"The batch size finder works in one process, and there are {trainer.world_size}: find the size on one "
                "device first."
            )


class _Search:
    """One search, in a call that is under way.

    Args:
        trainer: the Trainer.
        places: what to set.
        steps: on how many steps to try each size.

    Attributes:
        samples: how many there are; None if that is not known.
    """

    def __init__(self, trainer: Trainer, places: list[Attribute], steps: int) -> None:
        self.trainer = trainer
        self.places = places
        self.steps = steps
        self.samples: int | None = None
        self.error: BaseException | None = None  # the last one, without the frames that hold the memory

    def run(self, mode: str, first: int, max_val: int, max_trials: int) -> int:
        """Find the size."""
        try:
            set_all(self.places, 1)
            self.trainer.try_out([_Measure()])
        except _Measured as measured:
            self.samples = measured.samples
        search = sizes_to_try(mode, first, max_val if self.samples is None else min(max_val, self.samples), max_trials)
        fits: bool | None = None
        try:
            while True:
                size = next(search) if fits is None else search.send(fits)
                fits = self.fits(size)
                rank_zero_info("Batch size %d %s.", size, "fits" if fits else "is too large")
        except StopIteration as end:
            if not end.value:
                raise RuntimeError(f"Not even a batch of one sample fits into memory: {self.error}") from self.error
            return int(end.value)

    def fits(self, size: int) -> bool:
        """Whether some steps with this size leave memory free."""
        set_all(self.places, size)
        trainer, trial = self.trainer, _Trial(self.steps * self.trainer.accumulate_grad_batches)
        garbage_collection_cuda()
        validates = trainer.state.fn != "fit" or trainer.limit_val_batches != 0
        try:
            trainer.try_out([trial], max_steps=self.steps, batches=self.steps if validates else None)
        except (RuntimeError, MemoryError) as error:
            if not is_oom_error(error):
                raise
            self.error = error.with_traceback(None)
        else:
            self.error = None
            if not trial.count:
                raise MisconfigurationException(f"There is no batch to try: the loader gives none of size {size}.")
        return self.error is None


class _Trial(Callback):
    """Ends a training after so many batches, though the module may not take an optimizer step in each."""

    def __init__(self, batches: int) -> None:
        self.batches = batches
        self.count = 0

    def on_train_batch_start(self, trainer: Trainer, pl_module: Module, batch: Any, batch_idx: int) -> None:
        self.count += 1
        if self.count >= self.batches:
            trainer.should_stop = True

    def _evaluated(self, *args: Any, **kwargs: Any) -> None:
        self.count += 1

    on_validation_batch_start = on_test_batch_start = on_predict_batch_start = _evaluated


class _Measured(Exception):
    """How many samples there are is known: the run that told it need not go on."""

    def __init__(self, samples: int | None) -> None:
        self.samples = samples


class _Measure(Callback):
    """Raises `_Measured` when the loaders are there."""

    def on_train_start(self, trainer: Trainer, pl_module: Module) -> None:
        raise _Measured(samples_in(trainer.train_dataloader, trainer.limit_train_batches))

    def on_validation_start(self, trainer: Trainer, pl_module: Module) -> None:
        raise _Measured(samples_in(trainer.val_dataloaders, trainer.limit_val_batches))

    def on_test_start(self, trainer: Trainer, pl_module: Module) -> None:
        raise _Measured(samples_in(trainer.test_dataloaders, trainer.limit_test_batches))

    def on_predict_start(self, trainer: Trainer, pl_module: Module) -> None:
        raise _Measured(samples_in(trainer.predict_dataloaders, trainer.limit_predict_batches))


def samples_in(loaders: Any, limit: int | float) -> int | None:
    """How many samples the longest of the loaders draws.

    Args:
        loaders: one, or several in a list, tuple or dict.
        limit: the Trainer's limit. A fraction of the batches must leave one at least, so it is taken of the samples.

    Returns:
        The number; None if it is not known.
    """
    lengths = [_length(loader) for loader in CombinedLoader(loaders, "sequential").flattened]
    known = [length for length in lengths if length is not None]
    if not known or len(known) < len(lengths):
        return None
    return max(1, int(max(known) * limit) if isinstance(limit, float) else max(known))


def _length(loader: Any) -> int | None:
    for part in ("sampler", "dataset"):
        try:
            return len(getattr(loader, part))
        except (AttributeError, TypeError, NotImplementedError):
            continue
    return None


def set_all(places: list[Attribute], size: int) -> None:
    """Set the attribute everywhere."""
    for place in places:
        place.value = size

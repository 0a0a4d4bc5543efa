"""LearningRateFinder: raise the learning rate in a short training that leaves no trace, and see where the loss falls.

The range test is that of L. N. Smith, "Cyclical Learning Rates for Training Neural Networks", 2017 (arXiv:1506.01186).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from tqdm.auto import tqdm

from gpulayer.fabric.utilities.exceptions import MisconfigurationException
from gpulayer.fabric.utilities.rank_zero import rank_zero_info, rank_zero_warn
from gpulayer.pytorch.core.attributes import Attribute, attribute_to_set, attributes_named
from gpulayer.pytorch.core.callback import Callback
from gpulayer.pytorch.core.optimizer import NoOptimizer

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from gpulayer.pytorch.core.module import Module
    from gpulayer.pytorch.trainer.trainer import Trainer

MODES = ("linear", "exponential")
NAMES = ("lr", "learning_rate")  # the attributes that are looked for where none is named
MOST_BATCHES = 100  # without an optimizer step
SMOOTHING = 0.98  # of the loss: the weight of what came before, at each step


class _LRFinder:
    """What a range test found: `results["lr"]` and `results["loss"]`, step by step.

    Args:
        mode: how the learning rate was raised, "linear" or "exponential".
        lr_min: the first learning rate.
        lr_max: the last one.
        num_training: how many steps were asked for.
    """

    def __init__(self, mode: str, lr_min: float, lr_max: float, num_training: int) -> None:
        self.mode = mode
        self.lr_min = lr_min
        self.lr_max = lr_max
        self.num_training = num_training
        self.results: dict[str, list[float]] = {"lr": [], "loss": []}
        self._optimal_idx: int | None = None  # of the last suggestion

    def rate(self, step: int) -> float:
        """The learning rate of a step, from 0.

        The first one is `lr_min`; then they are those of a way from `lr_min` to `lr_max` in `num_training` steps.
        """
        if step == 0:
            return self.lr_min
        done = (step + 1) / self.num_training
        if self.mode == "linear":
            return self.lr_min + done * (self.lr_max - self.lr_min)
        return float(self.lr_min * (self.lr_max / self.lr_min) ** done)

    def suggestion(self, skip_begin: int = 10, skip_end: int = 1) -> float | None:
        """The learning rate at which the loss falls fastest: where the curve that `plot` draws is steepest.

        That is, the slope over the logarithm of the rate with `mode="exponential"`, else over the rate itself.

        Args:
            skip_begin: how many of the first steps to leave out.
            skip_end: how many of the last.

        Returns:
            The learning rate; None, with a line that says so, if there are fewer than two steps left.
        """
        end = len(self.results["loss"]) - skip_end
        points = [
            (index, rate, loss)
            for index, (rate, loss) in enumerate(zip(self.results["lr"], self.results["loss"], strict=True))
            if skip_begin <= index < end and torch.isfinite(torch.tensor(loss))
        ]
        if len(points) < 2:
            self._optimal_idx = None
            rank_zero_warn(
                f"No learning rate is suggested, for {len(self.results['loss'])} steps are too few: {skip_begin} at "
                f"the beginning and {skip_end} at the end do not count, nor do those without a finite loss. Try more "
                "steps, or call `suggestion(skip_begin=...)`."
            )
            return None
        rates = torch.tensor([rate for _, rate, _ in points], dtype=torch.float64)
        places = rates.log() if self.mode == "exponential" else rates
        slopes = torch.gradient(torch.tensor([loss for _, _, loss in points], dtype=torch.float64), spacing=[places])[0]
        self._optimal_idx, rate, _ = points[int(slopes.argmin())]
        return rate

    def plot(self, suggest: bool = False, show: bool = False, ax: Axes | None = None) -> Any:
        """Draw the loss over the learning rate; needs matplotlib.

        Args:
            suggest: mark the suggested learning rate.
            show: show the picture in a window.
            ax: the axes to draw into; None for a new picture.

        Returns:
            The figure.
        """
        try:
            import matplotlib.pyplot as plt
        except ModuleNotFoundError as error:
            raise ModuleNotFoundError("`plot` draws with matplotlib: `pip install matplotlib`.") from error
        figure: Any = ax.figure if ax is not None else None
        if ax is None:
            figure, ax = plt.subplots()
        rates, losses = self.results["lr"], self.results["loss"]
        ax.plot(rates, losses)
        if self.mode == "exponential":
            ax.set_xscale("log")
        ax.set_xlabel("Learning rate")
        ax.set_ylabel("Loss (smoothed)")
        if suggest and (rate := self.suggestion()) is not None:
            ax.plot(rate, losses[self._optimal_idx or 0], "o", color="red", label=f"suggested: {rate:.3g}")
            ax.legend()
        if show:
            plt.show()
        return figure


class LearningRateFinder(Callback):
    """Runs a learning rate range test before training, and sets the rate that it suggests.

    The test is a training of `num_training_steps` optimizer steps in which the learning rate rises from `min_lr` to
    `max_lr`. Weights, optimizers, random states and the Trainer are afterwards what they were before. The suggestion
    goes into the attribute and into the optimizer, so the training that follows begins with it.

    Subclasses may call `self.lr_find(trainer, pl_module)` in `on_train_epoch_start`, too.

    Args:
        min_lr: the first learning rate.
        max_lr: the last one.
        num_training_steps: optimizer steps.
        mode: "exponential" or "linear".
        early_stop_threshold: end when the smoothed loss is above so many times the least one, or is NaN; None: never.
        update_attr: set the attribute, and the optimizer's learning rate.
        attr_name: the attribute's name; "" for `lr` or `learning_rate`, on the module, the datamodule or in the
            hyperparameters of one.

    Attributes:
        optimal_lr: what the last test found, with `results`, `suggestion()` and `plot()`.

    Raises:
        MisconfigurationException: an argument is none of those.
    """

    SUPPORTED_MODES = MODES
    comes_first = True

    def __init__(
        self,
        min_lr: float = 1e-8,
        max_lr: float = 1,
        num_training_steps: int = 100,
        mode: str = "exponential",
        early_stop_threshold: float | None = 4.0,
        update_attr: bool = True,
        attr_name: str = "",
    ) -> None:
        mode = mode.lower() if isinstance(mode, str) else mode
        if mode not in MODES:
            raise MisconfigurationException(f"`mode={mode!r}`: choose 'exponential' or 'linear'.")
        if not is_positive(min_lr) or not is_positive(max_lr) or not min_lr < max_lr:
            raise MisconfigurationException(
                f"`min_lr={min_lr!r}, max_lr={max_lr!r}`: give two learning rates above 0, the smaller one first."
            )
        if isinstance(num_training_steps, bool) or not isinstance(num_training_steps, int) or num_training_steps < 1:
            raise MisconfigurationException(
                f"`num_training_steps={num_training_steps!r}` (of the Tuner: `num_training`): give a number of at "
                "least 1."
            )
        if early_stop_threshold is not None and not is_positive(early_stop_threshold):
            raise MisconfigurationException(
                f"`early_stop_threshold={early_stop_threshold!r}`: give a number above 0, how many times the least "
                "loss is too much; or None, to go on in any case."
            )
        self.optimal_lr: _LRFinder | None = None
        self._min_lr, self._max_lr = min_lr, max_lr
        self._num_training_steps = num_training_steps
        self._mode = mode
        self._early_stop_threshold = early_stop_threshold
        self._update_attr = update_attr
        self._attr_name = attr_name
        self._resumed = False
        self._before_training = False
        self._due = False  # once the optimizers are those of the checkpoint

    def state_dict(self) -> dict[str, Any]:
        found = self.optimal_lr
        return {} if found is None else {"results": found.results}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.optimal_lr = _LRFinder(self._mode, self._min_lr, self._max_lr, self._num_training_steps)
        self.optimal_lr.results = state_dict["results"]
        self._resumed = True

    def on_fit_start(self, trainer: Trainer, pl_module: Module) -> None:
        self._due = False
        if trainer.ckpt_path is None:
            self._before_training = True
            try:
                self.lr_find(trainer, pl_module)
            finally:
                self._before_training = False
        elif not self._resumed or self.optimal_lr is None:
            self._due = True
        else:  # the optimizers get their rates from the checkpoint
            self._resumed = False
            if self._update_attr and (rate := self.optimal_lr.suggestion()) is not None:
                for place in self._places(trainer, pl_module):
                    place.value = rate

    def on_train_start(self, trainer: Trainer, pl_module: Module) -> None:
        if self._due:
            self._due = False
            self.lr_find(trainer, pl_module)

    def lr_find(self, trainer: Trainer, pl_module: Module) -> None:
        """Run the test now.

        Args:
            trainer: the Trainer, in a `fit`.
            pl_module: its module.

        Raises:
            MisconfigurationException: there is no attribute to set, or the module has several optimizers.
        """
        if trainer.fast_dev_run:
            rank_zero_warn("The learning rate finder is skipped with `fast_dev_run`.")
            return
        places = self._places(trainer, pl_module) if self._update_attr else []
        _check_settable(places)
        check_optimizers(trainer.optimizers)
        found = self.optimal_lr = _LRFinder(self._mode, self._min_lr, self._max_lr, self._num_training_steps)
        shows = trainer.progress_bar_callback is not None and trainer.is_global_zero
        with tqdm(desc="Finding a learning rate", total=self._num_training_steps, disable=not shows) as bar:
            test = _RangeTest(found, self._early_stop_threshold, bar)
            trainer.try_out([test], max_steps=self._num_training_steps)
        if places and (rate := found.suggestion()) is not None:
            for place in places:
                place.value = rate
            if self._before_training:  # the module makes its groups and schedulers from the new rate
                trainer.renew_optimizers()
            else:
                set_rate(trainer, rate)
            rank_zero_info("Learning rate set to %s.", rate)

    def _places(self, trainer: Trainer, module: Module) -> list[Attribute]:
        if self._attr_name:
            return attribute_to_set(self._attr_name, module, trainer.datamodule)
        for name in NAMES:
            if found := attributes_named(name, module, trainer.datamodule):
                if len(found) > 1:
                    rank_zero_warn(f"Both {' and '.join(f'`{one.where}`' for one in found)} are there: both are set.")
                return found
        raise MisconfigurationException(
            "The learning rate finder found neither `lr` nor `learning_rate` on the module, the datamodule or in the "
            "hyperparameters of one: set `self.lr` in `__init__` and use it in `configure_optimizers`, name another "
            "attribute with `attr_name=`, or pass `update_attr=False`."
        )


class _RangeTest(Callback):
    """Sets the learning rate of each step, and notes the loss.

    Args:
        found: where the numbers go.
        threshold: end when the loss is above so many times the least one; None: never.
        bar: is moved by each step.
    """

    def __init__(self, found: _LRFinder, threshold: float | None, bar: Any) -> None:
        self.found = found
        self.threshold = threshold
        self.bar = bar
        self.losses: list[Tensor] = []  # of the batches that share an optimizer step, divided by their number
        self.batches = 0  # since the last optimizer step
        self.step = 0
        self.averaged = 0  # steps that had a loss
        self.average = 0.0
        self.least = float("inf")

    def on_train_batch_start(self, trainer: Trainer, pl_module: Module, batch: Any, batch_idx: int) -> None:
        for optimizer in trainer.optimizers:
            for group in optimizer.param_groups:
                group["lr"] = self.found.rate(self.step)

    def on_train_batch_end(self, trainer: Trainer, pl_module: Module, outputs: Any, batch: Any, batch_idx: int) -> None:
        if "loss" in outputs:
            self.losses.append(outputs["loss"])
        self.batches += 1
        if trainer.global_step == self.step:
            if self.batches > MOST_BATCHES * trainer.accumulate_grad_batches:
                raise MisconfigurationException(
                    f"No optimizer step was taken in {self.batches} batches, so no learning rate can be tried: does "
                    "the loader give None, or does `training_step` never call `optimizer.step()`?"
                )
            return
        self.batches = 0
        smoothed = self.smoothed(trainer)
        self.found.results["lr"].append(self.found.rate(self.step))
        self.found.results["loss"].append(smoothed)
        self.bar.update()
        self.step, self.losses = trainer.global_step, []

    def smoothed(self, trainer: Trainer) -> float:
        """The average with the loss of this step; NaN if `training_step` returned none. It may end the test."""
        loss = torch.stack(self.losses).sum().item() if self.losses else 0.0
        parts = trainer.strategy.gather_numbers([loss, float(bool(self.losses))])
        number = sum(has_loss for _, has_loss in parts)
        if not number:
            return float("nan")
        self.averaged += 1
        self.average = SMOOTHING * self.average + (1 - SMOOTHING) * sum(loss for loss, _ in parts) / number
        smoothed = self.average / (1 - SMOOTHING**self.averaged)
        if self.averaged > 2 and self.diverges(smoothed):
            trainer.should_stop = True
            rank_zero_info("The learning rate finder ends after %d steps, for the loss diverges.", self.step + 1)
        if smoothed < self.least or self.averaged == 1:
            self.least = smoothed
        return smoothed

    def diverges(self, smoothed: float) -> bool:
        """Whether a loss is above `threshold` times the least one, or as far above it where that is below 0; or NaN."""
        return self.threshold is not None and not smoothed - self.least <= (self.threshold - 1) * abs(self.least)


def _check_settable(places: list[Attribute]) -> None:
    """Whether the attributes can be set, asked before the search.

    Raises:
        MisconfigurationException: one cannot.
    """
    for place in places:
        try:
            place.value = place.value
        except (AttributeError, TypeError) as error:
            raise MisconfigurationException(
                f"The learning rate finder cannot set `{place.where}`: {error}. Name the attribute that you do set, "
                "such as `attr_name='hparams.lr'`, or pass `update_attr=False`."
            ) from error


def check_optimizers(optimizers: list[Any]) -> None:
    """Whether there is one optimizer to test.

    Raises:
        MisconfigurationException: there is none, or there are several.
    """
    number = sum(not isinstance(optimizer, NoOptimizer) for optimizer in optimizers)
    if number != 1:
        raise MisconfigurationException(
            f"The learning rate finder needs one optimizer, and `configure_optimizers` returned {number or 'none'}."
        )


def set_rate(trainer: Trainer, rate: float) -> None:
    """Let the optimizer go on with another learning rate; groups with rates of their own keep the proportions."""
    for optimizer in trainer.optimizers:
        before = optimizer.param_groups[0]["lr"]
        for group in optimizer.param_groups:
            group["lr"] = rate * group["lr"] / before if before else rate
    for config in trainer.lr_scheduler_configs:
        if bases := getattr(config.scheduler, "base_lrs", None):
            config.scheduler.base_lrs = [rate * base / bases[0] if bases[0] else rate for base in bases]


def is_positive(value: Any) -> bool:
    """Whether it is a finite number above 0."""
    return isinstance(value, (int, float)) and not isinstance(value, bool) and 0 < value < float("inf")

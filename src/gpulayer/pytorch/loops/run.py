"""Run: what one call of fit, validate, test or predict needs, resolved before its first batch."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from time import monotonic
from typing import Any, NamedTuple
from weakref import ref

import torch
from torch import Tensor
from torch.optim import Optimizer

from gpulayer.fabric.utilities.exceptions import MisconfigurationException
from gpulayer.fabric.utilities.rank_zero import rank_zero_warn
from gpulayer.fabric.utilities.seed import isolate_rng
from gpulayer.pytorch.core.module import Module
from gpulayer.pytorch.core.optimizer import LRSchedulerConfig
from gpulayer.pytorch.loops.batches import Batches
from gpulayer.pytorch.loops.hooks import Hooks, nothing
from gpulayer.pytorch.loops.progress import Evaluated, Progress
from gpulayer.pytorch.loops.results import Results
from gpulayer.pytorch.loops.when import Every


def zero_grad(optimizer: Optimizer, batch_idx: int) -> None:
    """Free the gradients, as a module does that does not override it."""
    optimizer.zero_grad()


def step_optimizer(optimizer: Optimizer, closure: Callable[[], Any], **kwargs: Any) -> Any:
    """One step of an optimizer that computes the gradients itself."""
    return optimizer.step(closure=closure, **kwargs)


def first_gradient(optimizer: Optimizer) -> Tensor | None:
    """That of the first parameter that has one."""
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            if parameter.grad is not None:
                gradient: Tensor = parameter.grad
                return gradient
    return None


class UsedGradients(NamedTuple):
    """The gradients of an optimizer after its last step, by the first of them."""

    first: ref[Tensor]
    version: int
    renewed: bool  # whether they were others than at the step before, so that the module does not go on adding to them


@dataclass
class Schedulers:
    """The learning-rate schedulers, by when they move."""

    by_step: list[LRSchedulerConfig] = field(default_factory=list)
    by_epoch: list[LRSchedulerConfig] = field(default_factory=list)
    plateau_by_step: list[LRSchedulerConfig] = field(default_factory=list)
    plateau_by_epoch: list[LRSchedulerConfig] = field(default_factory=list)

    @classmethod
    def of(cls, configs: list[LRSchedulerConfig]) -> Schedulers:
        """Sorted by interval, and by whether they watch a metric."""
        sorted_ = cls()
        sorted_.take(configs)
        return sorted_

    def take(self, configs: list[LRSchedulerConfig]) -> None:
        """Let these take the place of those that were here."""
        for kind in (self.by_step, self.by_epoch, self.plateau_by_step, self.plateau_by_epoch):
            kind.clear()
        for config in configs:
            kind_of = f"plateau_by_{config.interval}" if config.reduce_on_plateau else f"by_{config.interval}"
            getattr(self, kind_of).append(config)


@dataclass
class Evaluation:
    """A validation, test or prediction: its loaders, its step, and its hooks."""

    stage: str  # "validation", "test" or "predict"
    loaders: list[Batches]
    step: Callable[..., Any]
    step_name: str
    counts: Evaluated
    several: bool  # whether hooks are told which of several loaders a batch is from
    eval_mode: Callable[[], AbstractContextManager[Any]]  # the model in evaluation mode, and put back
    context: Callable[[], AbstractContextManager[Any]]  # no gradients; inside fit the random state is kept, too
    # Of a prediction with writers among the callbacks:
    keeps: bool = False  # whether one is given all predictions at the end
    predictions: list[list[Any]] = field(default_factory=list)  # of each loader; meanwhile
    batch_indices: list[list[Sequence[Any]]] = field(default_factory=list)  # likewise
    current_batch_indices: Sequence[Any] = ()
    on_start: Callable[..., Any] = nothing
    on_epoch_start: Callable[..., Any] = nothing
    on_batch_start: Callable[..., Any] = nothing
    on_batch_end: Callable[..., Any] = nothing
    on_epoch_end: Callable[..., Any] = nothing
    on_end: Callable[..., Any] = nothing

    def take_hooks(self, hooks: Hooks) -> None:
        """Look the hooks of this stage up, so that a batch need not."""
        for name in ("start", "epoch_start", "batch_start", "batch_end", "epoch_end", "end"):
            setattr(self, f"on_{name}", getattr(hooks, f"on_{self.stage}_{name}"))


def alone() -> bool:
    """With one process, nobody else has to come as far."""
    return True


@dataclass
class Ending:
    """What ends a run at its next boundary between two batches, once a signal has asked for that.

    All calls of a Trainer that are made within one another share it.
    """

    error: BaseException | None = None
    asked: bool = False  # whether there is an error, or another process asks to stop


@dataclass
class Run:
    """The objects and the ready-made callables of one call."""

    trainer: Any
    module: Module
    hooks: Hooks
    results: Results
    progress: Progress
    ending: Ending = field(default_factory=Ending)
    resumed: bool = False  # whether it goes on from a checkpoint
    # The epoch in which the training loader was made, and the random states then: where it is made more than once.
    loader_made: tuple[int, dict[str, Any]] | None = None
    train: Batches = field(default_factory=lambda: Batches(None, 0))
    validates: bool = False  # whether there are validations inside fit
    validation: Evaluation | None = None  # such a validation, once its loaders are made
    evaluation: Evaluation | None = None  # that of validate, test or predict
    optimizers: list[Optimizer] = field(default_factory=list)
    optimizer: Any = None  # the only one, in automatic optimization
    wrapped_optimizers: list[Any] = field(default_factory=list)
    scheduler_configs: list[LRSchedulerConfig] = field(default_factory=list)
    schedulers: Schedulers = field(default_factory=Schedulers)
    manual: bool = False
    used_gradients: dict[Optimizer, UsedGradients] = field(default_factory=dict)  # in manual optimization
    validate_every_n_batches: int | None = None  # None: once, after the epoch's last batch
    validate_every: Every | None = None  # in place of that: each time so much time has gone by
    validate_every_n_epochs: int | None = 1  # None: batches are counted across epochs

    training_step: Callable[..., Any] = nothing
    backward: Callable[..., Any] = Tensor.backward
    share_gradients: Callable[[Tensor], Tensor] | None = None  # of several processes, in the backward pass that follows
    zero_grad: Callable[[Optimizer, int], Any] = zero_grad
    clip: Callable[[Optimizer], Any] = nothing
    optimizer_step: Callable[[], Any] = nothing
    # Set where the optimizer must call the computation itself: LBFGS, or a module that overrides `optimizer_step`.
    closure_step: Callable[[Callable[[], Any], int, bool], Any] | None = None
    unscale: Callable[[Optimizer], None] = nothing  # float16: the gradients at their true size
    step_optimizer: Callable[..., Any] = step_optimizer  # the same as `optimizer_step`, for any optimizer
    steps_alone: bool = False  # whether the optimizers need no closure to step
    restore_joined: Callable[[], None] = nothing  # gives callbacks that were added the state that waits for them
    step_skipped: Callable[[], Any] = nothing  # float16: whether the last step was left out, for it was not finite
    scheduler_step: Callable[[Any, Any], Any] = nothing
    sync_gradients: Callable[[bool], None] = nothing  # told, when batches are accumulated, whether a step follows
    reload_train: Callable[[], None] = nothing  # makes the loader anew, in the epochs where the user wants that
    bind_optimizer: Callable[[], None] = nothing  # looks up what clips and steps, which hooks may have changed
    set_interval: Callable[[], None] = nothing  # when to validate, from how many batches this epoch has
    validating: Callable[[], AbstractContextManager[None]] = nullcontext  # the Trainer says that it validates
    load_validation: Callable[[], None] = nothing  # makes the loaders when the first validation is due, or anew
    together: Callable[[], bool] = alone  # asked when this process wants to stop: whether all do so after this batch
    report_line: Callable[[], None] = nothing  # logs how far the epoch is
    report_epoch: Callable[[], None] = nothing  # logs the epoch's metrics
    next_line: float = float("inf")

    def resolve_hooks(self) -> None:
        """Look the hooks up again, if someone added a callback."""
        if self.hooks.callbacks != self.trainer.callbacks:
            self.restore_joined()
            self.hooks.resolve(self.trainer.callbacks)
            if self.validation is not None:
                self.validation.take_hooks(self.hooks)

    def done(self) -> bool:
        """Whether training is over, asked between epochs."""
        trainer, at = self.trainer, self.progress
        if self.train.count == 0:
            return True
        if trainer.max_epochs != -1 and at.epoch >= trainer.max_epochs:
            return True
        return self.stopping()

    def end_if_asked(self) -> None:
        """Raise what a signal left behind, if all processes have come as far."""
        if self.ending.asked and self.together() and self.ending.error is not None:
            raise self.ending.error

    def stopping(self) -> bool:
        """Whether training is over, asked after each batch: the steps are done, or someone asked and it may."""
        trainer = self.trainer
        if trainer.should_stop and self.may_stop():
            return True
        limit: int = trainer.max_steps
        return limit != -1 and self.progress.step >= limit

    def may_stop(self) -> bool:
        """Whether `min_epochs` and `min_steps` are reached, and all processes are where they stop."""
        trainer, at = self.trainer, self.progress
        return at.epoch >= (trainer.min_epochs or 0) and at.step >= (trainer.min_steps or 0) and self.together()

    def validation_due(self) -> bool:
        """Whether a validation follows the batch that was just counted."""
        at = self.progress
        if not self.validates or not self.validates_in(at.epoch):
            return False
        if self.trainer.should_stop and self.may_stop():
            return True
        if self.validate_every is not None:
            return self.validate_every.at_time()
        if self.validate_every_n_batches is None:
            return at.last_batch
        count = at.batch if self.validate_every_n_epochs is None else at.batch_in_epoch
        return count % self.validate_every_n_batches == 0

    def validates_in(self, epoch: int) -> bool:
        """Whether an epoch is one with validations."""
        return self.validate_every_n_epochs is None or (epoch + 1) % self.validate_every_n_epochs == 0

    def window(self, batch_idx: int, accumulate: int) -> int:
        """How many batches share the optimizer step of this one: fewer than `accumulate` at the end of an epoch."""
        length = self.train.length
        if length is None:
            return accumulate
        return min(accumulate, length - (batch_idx - batch_idx % accumulate))

    def ends_window(self) -> bool:
        """Whether the batch that was last counted was the last of those that share an optimizer step."""
        at = self.progress
        if at.stepped is not None:  # it does not, where it was None in place of a batch
            return at.stepped
        return at.ended or at.batch_in_epoch % self.trainer.accumulate_grad_batches == 0

    def step_schedulers(self, configs: list[LRSchedulerConfig], count: int) -> None:
        """Move those whose turn it is at `count` steps or epochs."""
        for config in configs:
            if count % config.frequency == 0:
                metric = self.monitored(config) if config.reduce_on_plateau else None
                if config.reduce_on_plateau and metric is None:
                    continue
                self.scheduler_step(config.scheduler, metric)
                self.progress.scheduler_steps += 1

    def monitored(self, config: LRSchedulerConfig) -> Any:
        """The metric that a scheduler watches; None, with a warning, if it is missing and the scheduler not strict.

        Raises:
            MisconfigurationException: it was never logged, and the scheduler is strict.
        """
        metrics = self.results.refresh().callback
        name = config.monitor or ""
        if name in metrics:
            return metrics[name]
        message = (
            f"{type(config.scheduler).__name__} watches {name!r}, which was not logged; "
            f"logged so far: {sorted(metrics) or 'nothing'}. Log it with `self.log({name!r}, ...)`, or name another "
            "metric as the scheduler's 'monitor'."
        )
        if config.strict:
            raise MisconfigurationException(message)
        rank_zero_warn(message)
        return None

    def wrapped_step(self, optimizer: Optimizer, closure: Callable[[], Any] | None = None, **kwargs: Any) -> Any:
        """`optimizer.step()` as a module calls it: between the gradients and the step the hook, and the clipping.

        In manual optimization the module clips, and the step is counted here; in automatic optimization `fit` counts.
        """

        def computed() -> Any:
            loss = closure() if closure is not None else None
            self.unscale(optimizer)
            self.hooks.on_before_optimizer_step(optimizer)
            if not self.manual:
                self.clip(optimizer)
            return loss

        if closure is None and self.steps_alone:  # a closure takes 2 us of a step of SGD's
            computed()
            loss = optimizer.step(**kwargs)
        else:
            loss = self.step_optimizer(optimizer, computed, **kwargs)
        if self.manual:
            self.progress.step += 1
            self.note_used_gradients(optimizer)
        return loss

    def note_used_gradients(self, optimizer: Optimizer) -> None:
        """Manual optimization: an optimizer has made a step with its gradients."""
        gradient, before = first_gradient(optimizer), self.used_gradients.get(optimizer)
        if gradient is not None:
            renewed = before is not None and before.first() is not gradient
            self.used_gradients[optimizer] = UsedGradients(ref(gradient), gradient._version, renewed)

    def scale_gradients(self, factor: float) -> None:
        """Multiply every gradient of the optimizer, in place."""
        gradients = [
            parameter.grad
            for group in self.optimizer.param_groups
            for parameter in group["params"]
            if parameter.grad is not None
        ]
        if gradients:
            torch._foreach_mul_(gradients, factor)

    def zero_loss(self) -> Tensor:
        """A loss whose gradients are zero, of a process that has none for a batch."""
        trained = [parameter for parameter in self.module.parameters() if parameter.requires_grad]
        return torch.stack([parameter.sum() * 0.0 for parameter in trained]).sum()

    def pass_over_training(self) -> None:
        """Every training batch through `training_step` once more, without gradients, hooks, logs or a moved random
        state: for statistics that layers gather. A signal that comes meanwhile is answered afterwards.
        """
        trainer, results = self.trainer, self.trainer.results
        trainer.results = self.results = Results(results.device, module=results.module)
        self.train.set_epoch(self.progress.epoch)
        self.train.start = 0  # also where a resumed run found its last epoch at its end
        try:
            with isolate_rng(), torch.no_grad():
                for batch, i in self.train:
                    self.results.fx, self.results.batch = "training_step", batch
                    if batch is not None:
                        self.training_step(batch, i)
        finally:
            self.train.leave()
            self.results.abandon()
            trainer.results = self.results = results

    def restart_clock(self) -> None:
        """The next line about a long epoch comes a minute from now."""
        self.next_line = monotonic() + 60

"""The training loop. Read this file first.

`fit` is the order of everything that happens in training. What can be decided before the first batch already is: the
fields of `Run` are ready-made callables, and a hook that nobody overrides is a no-op.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import nullcontext
from functools import partial
from time import monotonic
from typing import Any

from torch import Tensor

from gpulayer.fabric.utilities.exceptions import MisconfigurationException
from gpulayer.fabric.utilities.rank_zero import rank_zero_warn
from gpulayer.fabric.utilities.seed import isolate_rng
from gpulayer.pytorch.loops.evaluate import evaluate
from gpulayer.pytorch.loops.hooks import nothing
from gpulayer.pytorch.loops.progress import Position
from gpulayer.pytorch.loops.run import Run, zero_grad

SKIP_EPOCH = -1


def fit(run: Run) -> None:
    """Epochs, batches, one optimization per batch, validation when it is due."""
    hooks, at, results, schedulers = run.hooks, run.progress, run.results, run.schedulers
    stepping = results.stepping["train"]  # what was logged with on_step
    if run.done() and not at.mid_epoch:
        return
    with isolate_rng() if run.resumed else nullcontext():  # what the hook drew counts in the process before
        hooks.on_train_start()
    while at.mid_epoch or not run.done():
        more, before = start_epoch(run), at.batch
        train, accumulate, skipped = run.train, run.trainer.accumulate_grad_batches, False
        for batch, i in train if more else ():
            at.last_batch = train.is_last
            results.fx, results.batch, results.batch_size = "training_step", batch, None
            if batch is not None and hooks.on_train_batch_start(batch, i) == SKIP_EPOCH:
                skipped = True
                break
            step_now = at.last_batch or (i + 1) % accumulate == 0
            if batch is None:
                output, step_now = None, no_batch()
            elif run.manual:
                output = run.training_step(batch, i)
            elif run.closure_step is not None:
                output = run.closure_step(partial(forward_backward, run, batch, i, accumulate, step_now), i, step_now)
            else:
                output = forward_backward(run, batch, i, accumulate, step_now)
                if step_now:
                    run.unscale(run.optimizer)
                    hooks.on_before_optimizer_step(run.optimizer)
                    run.clip(run.optimizer)
                    run.optimizer_step()
            if train.as_iterator:
                at.last_batch = train.is_last  # the step may have fetched several
            at.step += step_now and not run.manual
            at.batch_done(step_now)
            if schedulers.by_step and step_now and not run.step_skipped():
                run.step_schedulers(schedulers.by_step, at.step)
            if schedulers.by_epoch and at.last_batch:
                run.step_schedulers(schedulers.by_epoch, at.epoch + 1)
            if hooks.on_train_batch_end is not nothing:
                hooks.on_train_batch_end(as_outputs(output, run, i, accumulate), batch, i)
            if step_now and stepping:
                results.step_done(at.window, at.epoch, last=run.trainer.should_stop)
            if finish_batch(run, step_now):
                break
        finish_epoch(run, skipped)
        if more and not skipped and at.batch == before and run.trainer.max_epochs == -1:
            rank_zero_warn("The training loader gave no batches in this epoch, so training ends: is it used up?")
            break
    hooks.on_train_end()


def forward_backward(run: Run, batch: Any, i: int, accumulate: int, step_now: bool) -> Any:
    """One batch's loss and gradients, added to those of the other batches that share its optimizer step."""
    hooks, optimizer = run.hooks, run.optimizer
    opens_window = i % accumulate == 0
    watched = hooks.on_before_zero_grad is not nothing or run.zero_grad is not zero_grad
    if accumulate > 1:
        run.sync_gradients(step_now)
    if opens_window and not watched:
        optimizer.zero_grad()  # before the forward pass, which can then use their memory
    output = run.training_step(batch, i)
    loss = output if type(output) is Tensor else loss_of(output)
    if run.share_gradients is not None:
        loss = run.share_gradients(run.zero_loss() if loss is None else loss)  # the others wait for this process's part
    if opens_window and watched:  # where Lightning does it
        hooks.on_before_zero_grad(optimizer)
        run.zero_grad(optimizer, i)
    if loss is not None:
        if accumulate > 1:
            loss = loss / run.window(i, accumulate)
        hooks.on_before_backward(loss)
        run.backward(loss)
        hooks.on_after_backward()
    if step_now and accumulate > 1 and run.window(i, accumulate) > i % accumulate + 1:
        # The loader had no length, so its last window turned out shorter than the losses were divided by.
        run.scale_gradients(accumulate / (i % accumulate + 1))
    return output


def no_batch() -> bool:
    """A loader gave None, as a collate function does that found nothing usable: no step is taken."""
    rank_zero_warn("The training loader gave None in place of a batch: it is passed over.")
    return False


def loss_of(output: Any) -> Tensor | None:
    """The loss in what `training_step` returned.

    Raises:
        MisconfigurationException: it is neither a tensor, nor a dict with "loss", nor None.
    """
    if output is None:
        rank_zero_warn("`training_step` returned None: the batch adds no gradients.")
        return None
    loss = output.get("loss") if isinstance(output, Mapping) else output
    if isinstance(loss, Tensor):
        return loss
    given = f"a dict with {sorted(map(str, output))}" if isinstance(output, Mapping) else f"{output!r}"
    raise MisconfigurationException(
        f"`training_step` returned {given}. Return the loss as a tensor, a dict with it under 'loss', or None."
    )


def as_outputs(output: Any, run: Run, i: int, accumulate: int) -> Any:
    """What `on_train_batch_end` is given: a dict whose "loss" is detached and divided for accumulation."""
    if output is None:
        return {}
    loss = output["loss"] if isinstance(output, Mapping) and "loss" in output else output
    if isinstance(loss, Tensor):
        loss = loss.detach()
        if accumulate > 1 and not run.manual:
            loss = loss / run.window(i, accumulate)
        return {**output, "loss": loss} if isinstance(output, Mapping) else {"loss": loss}
    return output


def start_epoch(run: Run) -> bool:
    """The epoch's first hook; in a resumed epoch also what the checkpoint's last batch still owed.

    Returns:
        Whether the epoch has batches to train; a resumed one may be at its end.
    """
    at = run.progress
    run.end_if_asked()
    run.restart_clock()
    run.reload_train()
    run.resolve_hooks()
    run.train.set_epoch(at.epoch)
    run.set_interval()
    run.train.start = at.batch_in_epoch
    if at.position == Position.EPOCH:
        return False
    if not at.ended:
        at.last_batch = False
        with isolate_rng() if at.mid_epoch else nullcontext():
            run.hooks.on_train_epoch_start()
        run.resolve_hooks()
        run.bind_optimizer()
    return not finish_batch(run, step_now=run.ends_window()) and not at.ended


def finish_batch(run: Run, step_now: bool) -> bool:
    """What a finished batch owes: validation, then the schedulers that watch a metric. Returns whether to stop."""
    at = run.progress
    if run.ending.asked:  # a signal came; a resumed run begins here
        run.end_if_asked()
    if run.validates and at.position == Position.BATCH and run.validation_due():
        run.results.fx = None
        with run.validating():
            if step_now:  # otherwise they are half of an accumulated step
                run.module.on_validation_model_zero_grad()
            run.load_validation()
            if run.validate_every is not None:
                run.validate_every.restart()
            evaluate(run, run.validation, owed_at=at.window - step_now)
    if run.schedulers.plateau_by_step and step_now and at.position != Position.READY:
        run.step_schedulers(run.schedulers.plateau_by_step, at.step)
    at.position = Position.READY
    if monotonic() >= run.next_line:
        run.report_line()
        run.restart_clock()
    return run.stopping()


def finish_epoch(run: Run, skipped: bool) -> None:
    """The epoch's metrics and last hooks, the schedulers that watch a metric, the count."""
    at, results, schedulers = run.progress, run.results, run.schedulers
    run.train.leave()
    results.end("train")
    if at.position != Position.EPOCH:
        if skipped and at.step > at.epoch_start_step:  # the loop moves them after the last batch, which did not come
            at.ended = True
            run.step_schedulers(schedulers.by_epoch, at.epoch + 1)
        at.position = Position.EPOCH
        run.hooks.on_train_epoch_end()
    if at.ended:
        run.step_schedulers(schedulers.plateau_by_epoch, at.epoch + 1)
    results.send_epoch("train", max(at.window - 1, 0), at.epoch)
    run.report_epoch()
    results.close("train")
    at.epoch_done()

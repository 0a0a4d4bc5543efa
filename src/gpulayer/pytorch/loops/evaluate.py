"""The evaluation loop: validation, inside `fit` or alone, and test."""

from __future__ import annotations

from typing import Any

from gpulayer.pytorch.loops.progress import Position
from gpulayer.pytorch.loops.run import Evaluation, Run


def evaluate(run: Run, evaluation: Evaluation | None, owed_at: int | None = None) -> list[dict[str, float]]:
    """Every batch of every loader through the step.

    Args:
        run: the run.
        evaluation: what to evaluate.
        owed_at: set for the validation that training owes after a batch, to the step that loggers get: the one that the
            batch ended, or is part of. A checkpoint written in its last hook then says that it is done.

    Returns:
        The metrics, one dict for each loader.
    """
    assert evaluation is not None
    results, at, counts, ending = run.results, run.progress, evaluation.counts, run.ending
    step, several = evaluation.step, evaluation.several
    on_batch_start, on_batch_end = evaluation.on_batch_start, evaluation.on_batch_end
    stepping = results.stepping[evaluation.stage]
    counts.start()
    if not any(batches.count for batches in evaluation.loaders):
        return [{} for _ in evaluation.loaders]
    with evaluation.context(), evaluation.eval_mode():
        evaluation.on_start()
        evaluation.on_epoch_start()
        for index, batches in enumerate(evaluation.loaders):
            results.loader = index if several else None
            before, i = counts.by_loader.get(index, 0), -1
            batches.set_epoch(at.epoch)
            for batch, i in batches:
                args = (batch, i, index) if several else (batch, i)
                results.fx, results.batch, results.batch_size = evaluation.step_name, batch, None
                on_batch_start(*args)
                output = step(*args)
                on_batch_end(output, *args)
                if stepping:
                    results.evaluation_step_done(evaluation.stage, before + i)
                if ending.error is not None:  # a signal came
                    raise ending.error
            counts.loader_done(index, i + 1)
        results.end(evaluation.stage)
        evaluation.on_epoch_end()
        results.send_epoch(evaluation.stage, at.window if owed_at is None else owed_at, at.epoch)
        if owed_at is not None:
            at.position = Position.VALIDATED
        evaluation.on_end()
        metrics = results.close(evaluation.stage)
    return by_loader(metrics, len(evaluation.loaders))


def by_loader(metrics: dict[int | None, dict[str, float]], loaders: int) -> list[dict[str, float]]:
    """One dict for each loader; what was logged for none in particular is in all of them."""
    common: dict[str, Any] = metrics.get(None, {})
    return [{**common, **metrics.get(index, {})} for index in range(loaders)]

"""The prediction loop."""

from __future__ import annotations

from typing import Any

from gpulayer.pytorch.loops.run import Evaluation, Run


def predict(run: Run, evaluation: Evaluation | None, keep: bool) -> list[list[Any]]:
    """Every batch of every loader through `predict_step`.

    Args:
        run: the run.
        evaluation: what to predict.
        keep: whether to return the predictions; without it, their memory is free after each batch, unless a callback
            is given them at the end.

    Returns:
        For each loader the predictions of its batches; empty lists if they are not kept.
    """
    assert evaluation is not None
    results, counts, ending = run.results, evaluation.counts, run.ending
    step, several = evaluation.step, evaluation.several
    on_batch_start, on_batch_end = evaluation.on_batch_start, evaluation.on_batch_end
    kept: list[list[Any]] = [[] for _ in evaluation.loaders]
    indices: list[list[Any]] = [[] for _ in evaluation.loaders]
    evaluation.predictions, evaluation.batch_indices = kept, indices
    keep = keep or evaluation.keeps
    counts.start()
    if not any(batches.count for batches in evaluation.loaders):
        return kept
    with evaluation.context(), evaluation.eval_mode():
        evaluation.on_start()
        evaluation.on_epoch_start()
        for index, batches in enumerate(evaluation.loaders):
            batches.set_epoch(run.progress.epoch)
            i = -1
            for batch, i in batches:
                args = (batch, i, index) if several else (batch, i)
                results.fx, results.batch, results.batch_size = evaluation.step_name, batch, None
                on_batch_start(*args)
                prediction = step(*args)
                if batches.indices is not None:
                    evaluation.current_batch_indices = batches.indices.of(i)
                    if evaluation.keeps:
                        indices[index].append(evaluation.current_batch_indices)
                on_batch_end(prediction, *args)
                if keep:
                    kept[index].append(prediction)
                if ending.error is not None:  # a signal came
                    raise ending.error
            counts.loader_done(index, i + 1)
        results.fx = None
        evaluation.on_epoch_end()
        evaluation.on_end()
    evaluation.predictions, evaluation.batch_indices = [], []  # this run is kept until the next one
    return kept

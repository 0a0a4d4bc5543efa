"""Where GPUlayer differs from Lightning on purpose: scenario -> reason and Lightning's issue, per kind of comparison.

The comparing tests leave these out; `test_deliberate_differences.py` asserts what is right instead.
"""

from __future__ import annotations

RAGGED = "the last, ragged accumulation window is divided by the batches it holds (Lightning issue 19987)"
SKIPPED = "no step scheduler moves for batches skipped by on_train_batch_start (Lightning issue 21296)"
LAST = "last.ckpt is the newest state, written at every save event (Lightning issue 20185)"
ACROSS = "`frequency` of a step scheduler counts across epochs (Lightning issue 17544)"
RECOVERS = "EarlyStopping before min_epochs is evaluated again afterwards (Lightning issue 19966)"
ITERATOR = "a step that takes the iterator gets the ordinary hooks and indices; Lightning calls its own experimental"
RESTORED = "after an error in a validation the model is back in its modes, so that the next fit trains with dropout"
NOTHING = "nothing to predict is an empty list, which can be iterated, rather than None"
CARRIED = "a checkpoint carries the metrics, for what was due when it was written (Lightning issues 20277, 21938)"

HOOK_ORDER = {
    "scheduler_step_every_third_across_epochs": ACROSS,
    "early_stopping_recovers": RECOVERS,
    "skip_epoch_with_schedulers": SKIPPED,
    "best_and_last": LAST,
    "monitors_save_last": LAST,
    "checkpoint_only_last": LAST,
    "training_step_takes_iterator": ITERATOR,
}

STATE = {"exception_in_validation_step": RESTORED}

WEIGHTS = {
    "accumulation_ragged": RAGGED,
    "accumulation_ragged_all_overridden": RAGGED,
    "accumulation_of_four_with_three_batches": RAGGED,
    "limit_train_accumulation": RAGGED,
    "scheduler_step_accumulation": RAGGED,
    "val_check_interval_accumulation": RAGGED,
    "without_length_ragged": RAGGED,
    "best_and_last": LAST,
    "scheduler_step_every_third_across_epochs": ACROSS,
    "early_stopping_recovers": RECOVERS,
}

NOTES = {"skip_epoch_with_schedulers": SKIPPED}

COUNTERS = {"early_stopping_recovers": RECOVERS}

METRICS = {
    "resume_after_last_epoch": CARRIED,
    "early_stopping_recovers": RECOVERS,
    "scheduler_step_every_third_across_epochs": ACROSS,
    "scheduler_step_accumulation": RAGGED,
    "best_and_last": LAST,
}

CHECKPOINTS = {"best_and_last": LAST, "checkpoint_only_last": LAST}

RETURNED = {"best_and_last": LAST, "evaluation_limited_zero": NOTHING}

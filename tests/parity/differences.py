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
BY_STEPS = "`frequency` counts optimizer steps, also where each takes several batches (Lightning issue 17544)"
SHORTER = "an epoch of a loader without length ends with a validation, also if it is shorter than its limit"
UNCOUNTED = "a batch that on_train_batch_start skipped counts as none that was trained"
UNKNOWN = "steps that are not known in advance are inf; Lightning says -1, its value for no limit"
TOGETHER = "how many batches come; Lightning gives the length of each loader, though they go together"
CALLER = "fit leaves the caller's gradient mode as it was; Lightning switches gradients on for good"
IN_HOOKS = "a batch counts when it is done; Lightning counts in four stages, of which some are over after an error"
OF_ITS_CALL = "a DataModule has a part in the calls that it is given to; Lightning sets it up again in later ones"
FLOAT16 = "16-mixed is float16 with its scaler on the CPU, too; Lightning takes bfloat16 there"
STAND_IN = "the optimizer that stands in for none has an empty state of the usual form"
MADE_ONCE = "WeightAveraging copies the weights when averaging begins, so that configure_model is called once"
OF_AVERAGE = "the last validation is always of the average; Lightning validates it where there is BatchNorm"

HOOK_ORDER = {
    "configured_as_three_schedulers": ACROSS,
    "scheduler_when_step_every_second_accumulation": BY_STEPS,
    "plateau_step_val_loss_accumulation": BY_STEPS,
    "loaders_with_stream_limited_more": SHORTER,
    "loaders_of_streams_limited_more": SHORTER,
    "loaders_max_size_with_stream_limited_more": SHORTER,
    "validated_at_end_stream_limited_more": SHORTER,
    "skips_across_epochs": UNCOUNTED,
    "after_a_datamodule_validate": OF_ITS_CALL,
    "after_a_datamodule_test": OF_ITS_CALL,
    "after_a_datamodule_predict": OF_ITS_CALL,
    "scheduler_step_every_third_across_epochs": ACROSS,
    "early_stopping_recovers": RECOVERS,
    "skip_epoch_with_schedulers": SKIPPED,
    "best_and_last": LAST,
    "monitors_save_last": LAST,
    "checkpoint_only_last": LAST,
    "training_step_takes_iterator": ITERATOR,
    "averaged_by_torch": MADE_ONCE,
    "averaged_one_by_one": MADE_ONCE,
    "averaged_without_buffers": MADE_ONCE,
    "averaged_on_a_device": MADE_ONCE,
    "averaged_late_plainly": MADE_ONCE,
    "averaged_late_accumulated": MADE_ONCE,
}

STATE = {"exception_in_validation_step": RESTORED, "gradients_switched_off_by_the_user": CALLER}

WEIGHTS = {
    "precision_16_mixed": FLOAT16,
    "precision_16_mixed_manual": FLOAT16,
    "configured_as_three_schedulers": ACROSS,
    "scheduler_when_step_every_second_accumulation": BY_STEPS,
    "plateau_step_val_loss_accumulation": BY_STEPS,
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

NOTES = {
    "precision_16_mixed": FLOAT16,
    "precision_16_mixed_manual": FLOAT16,
    "skip_epoch_with_schedulers": SKIPPED,
    "estimated_steps_without_length_unlimited": UNKNOWN,
    "validation_batches_together": TOGETHER,
    "gradients_switched_off_by_the_user": CALLER,
}

COUNTERS = {"early_stopping_recovers": RECOVERS}

# What the views on the loops count: `trainer.fit_loop.epoch_loop.batch_progress` and the like.
SPIKES = ("one", "rtol", "atol", "both", "window", "warmup", "max", "not_finite", "not_finite_allowed")
VIEWS = COUNTERS | {
    **{f"spikes_{case}": IN_HOOKS for case in SPIKES},
    "exception_in_training_step": IN_HOOKS,
    "exception_in_validation_step": IN_HOOKS,
    "none_as_a_batch": "a loader's None takes no optimizer step",
    "manual_skips_the_rest": UNCOUNTED,
    "skip_epoch_by_module": UNCOUNTED,
    "skip_epoch_with_schedulers": UNCOUNTED,
    "skips_each_epoch": UNCOUNTED,
    "skips_at_the_first": UNCOUNTED,
    "skips_in_the_second_epoch": UNCOUNTED,
    "skips_at_the_last": UNCOUNTED,
    "skips_validating_by_batches": UNCOUNTED,
    "skips_across_epochs": UNCOUNTED,
    "skips_accumulation": UNCOUNTED,
    "skips_within_a_window": UNCOUNTED,
    "skips_within_a_window_of_two": UNCOUNTED,
    "skips_max_steps": UNCOUNTED,
    "skips_asking_to_stop": UNCOUNTED,
    "skips_without_length": UNCOUNTED,
}

# The states of optimizers and schedulers at the end.
STATES = WEIGHTS | {"optimizers_given_as_nothing": STAND_IN, "skip_epoch_with_schedulers": SKIPPED}

METRICS = {
    "stochastic_averaging_from_the_second_epoch": OF_AVERAGE,
    "stochastic_averaging_of_the_second_half": OF_AVERAGE,
    "stochastic_averaging_linear": OF_AVERAGE,
    "stochastic_averaging_with_a_list": OF_AVERAGE,
    "stochastic_averaging_of_the_last": OF_AVERAGE,
    "precision_16_mixed": FLOAT16,
    "precision_16_mixed_manual": FLOAT16,
    "configured_as_three_schedulers": ACROSS,
    "scheduler_when_step_every_second_accumulation": BY_STEPS,
    "plateau_step_val_loss_accumulation": BY_STEPS,
    "loaders_with_stream_limited_more": SHORTER,
    "loaders_of_streams_limited_more": SHORTER,
    "loaders_max_size_with_stream_limited_more": SHORTER,
    "resume_after_last_epoch": CARRIED,
    "early_stopping_recovers": RECOVERS,
    "scheduler_step_every_third_across_epochs": ACROSS,
    "scheduler_step_accumulation": RAGGED,
    "best_and_last": LAST,
}

CHECKPOINTS = {"best_and_last": LAST, "checkpoint_only_last": LAST}

RETURNED = {
    "best_and_last": LAST,
    "evaluation_limited_zero": NOTHING,
    "precision_16_mixed": FLOAT16,
    "precision_16_mixed_manual": FLOAT16,
}

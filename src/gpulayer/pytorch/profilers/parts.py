"""What the actions of a run belong to, by their names."""

from __future__ import annotations

from functools import lru_cache

# The parts of a stage, in the order of the report. What belongs to none is "rest".
DATA, TRANSFER, FORWARD, BACKWARD = "data", "to device", "forward", "backward"
OPTIMIZER, HOOKS, LOGGING, CHECKPOINTS = "optimizer", "hooks", "logging", "checkpoints"
REST = "rest"
PARTS = (DATA, TRANSFER, FORWARD, BACKWARD, OPTIMIZER, HOOKS, LOGGING, CHECKPOINTS, REST)

AROUND = "set-up, end"  # the stage of what is done before and after, the sanity check among it
# Actions that are a stage of the call, and its name in the report.
STAGES = {
    "run_sanity_check": AROUND,
    "run_training": "train",
    "run_validation": "validation",
    "run_test": "test",
    "run_predict": "predict",
}

# The step of each stage: it is called once a batch.
STEPS = {"train": "training_step", "validation": "validation_step", "test": "test_step", "predict": "predict_step"}

LOADERS = ("train_dataloader", "val_dataloader", "test_dataloader", "predict_dataloader")
_BY_METHOD = {
    "batch_to_device": TRANSFER,
    **dict.fromkeys(STEPS.values(), FORWARD),
    "backward": BACKWARD,
    "optimizer_step": OPTIMIZER,
    "optimizer_zero_grad": OPTIMIZER,
    "configure_gradient_clipping": OPTIMIZER,
    "lr_scheduler_step": OPTIMIZER,
    **dict.fromkeys(LOADERS, DATA),
}
_BY_OWNER = {"[Callback]": HOOKS, "[Checkpoint]": CHECKPOINTS, "[Results]": LOGGING}


@lru_cache(maxsize=1_000)
def part_of(action: str) -> str | None:
    """The part that an action belongs to; None for that of the action around it."""
    if action == "save_checkpoint":
        return CHECKPOINTS
    owner, bracket, method = action.partition("]")
    if not bracket or not owner.startswith("["):
        return None  # an action of the user's
    if method.endswith("_next"):
        return DATA
    name = method.rpartition(".")[2]
    part = _BY_OWNER.get(owner + bracket) or _BY_METHOD.get(name)
    return HOOKS if part is None and name.startswith("on_") else part

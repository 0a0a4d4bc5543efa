"""Callbacks that freeze, unfreeze and prune: the same weights, groups and masks."""

from __future__ import annotations

import logging
import re
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from torch import nn
from torch.nn.utils import prune
from torch.optim.lr_scheduler import StepLR

from tests.parity.recorder import FEATURES, Lab, Outcome, loader
from tests.parity.scenarios.registry import variants


def transfer(lab: Lab) -> type:
    """A network with a backbone and a head; it notes at each epoch's start what is trained, and how fast."""

    class Net(lab.Net):
        def __init__(self) -> None:
            super().__init__()
            self.backbone = nn.Sequential(
                nn.Linear(FEATURES, 6), nn.BatchNorm1d(6), nn.Tanh(), nn.Sequential(nn.Linear(6, 3), nn.LayerNorm(3))
            )
            self.head = nn.Linear(3, 1)
            self.net = nn.Sequential(self.backbone, self.head)
            self.seen: list[Any] = []

        def on_train_batch_start(self, batch: Any, batch_idx: int) -> None:
            super().on_train_batch_start(batch, batch_idx)
            groups = [(len(group["params"]), group["lr"]) for group in self.trainer.optimizers[0].param_groups]
            trained = [name for name, value in self.named_parameters() if value.requires_grad]
            tracked = [part.track_running_stats for part in self.modules() if isinstance(part, nn.BatchNorm1d)]
            self.seen.append([groups, trained, tracked])

        def configure_optimizers(self) -> Any:
            self.note("configure_optimizers")
            optimizer = torch.optim.SGD([one for one in self.parameters() if one.requires_grad], lr=0.1, momentum=0.9)
            return [optimizer], [lab.scheduler(StepLR, optimizer, step_size=2, gamma=0.5)]

    return Net


@variants(
    "backbone_{}",
    unfrozen={},
    at_once={"unfreeze_backbone_at_epoch": 0},
    never={"unfreeze_backbone_at_epoch": 9},
    slowly={"lambda_func": lambda epoch: 1 + epoch / 10, "backbone_initial_ratio_lr": 0.5},
    from_a_rate={"backbone_initial_lr": 0.07},
    beyond={"lambda_func": lambda epoch: 5.0, "should_align": False},
    without_batchnorm={"train_bn": False},
)
def backbone(L: ModuleType, folder: Path, **arguments: Any) -> Outcome:
    lab = Lab(L, folder)
    callback = lab.callbacks.BackboneFinetuning(**{"unfreeze_backbone_at_epoch": 1} | arguments)
    module, trainer = transfer(lab)(), lab.trainer(callbacks=[callback], max_epochs=5)
    trainer.fit(module, loader(3, batch_size=4))
    return lab.outcome(trainer, module, seen=module.seen, rate=getattr(callback, "previous_backbone_lr", None))


@variants("unfreezing_{}", all={}, without_batchnorm={"train_bn": False}, with_a_rate={"lr": 0.03})
def unfreezing(L: ModuleType, folder: Path, **arguments: Any) -> Outcome:
    """One part after another, the last first."""
    lab = Lab(L, folder)

    class Gradually(lab.callbacks.BaseFinetuning):
        def freeze_before_training(self, module: Any) -> None:
            self.freeze([module.backbone[:3], [module.backbone[3]]])

        def finetune_function(self, module: Any, epoch: int, optimizer: Any) -> None:
            part = {1: module.backbone[3], 3: [module.backbone[0], module.backbone[1]]}.get(epoch)
            if part is not None:
                self.unfreeze_and_add_param_group(part, optimizer, **arguments)

    module, trainer = transfer(lab)(), lab.trainer(callbacks=[Gradually()], max_epochs=5)
    trainer.fit(module, loader(3, batch_size=4))
    trainer.save_checkpoint(folder / "end.ckpt")
    kept = torch.load(folder / "end.ckpt", weights_only=False)["callbacks"]
    (state,) = kept.values()
    groups = [[group["params"] for group in groups] for groups in state["internal_optimizer_metadata"].values()]
    return lab.outcome(trainer, module, seen=module.seen, groups=groups)


class Quarter(prune.BasePruningMethod):
    """Every fourth entry."""

    PRUNING_TYPE = "unstructured"

    def compute_mask(self, t: torch.Tensor, default_mask: torch.Tensor) -> torch.Tensor:
        mask = default_mask.clone()
        mask.view(-1)[::4] = 0
        return mask


class Lines(logging.Handler):
    """The numbers in the lines of a logger that tell of pruning."""

    def __init__(self) -> None:
        super().__init__(logging.INFO)
        self.numbers: list[list[int]] = []

    def emit(self, record: logging.LogRecord) -> None:
        found = re.search(
            r"Pruned: (\d+)/(\d+) .*-> (\d+)/|: (\d+) \(.*of (\d+) were pruned, now (\d+) ", record.getMessage()
        )
        if found:
            was, size, now = [int(group) for group in found.groups() if group is not None]
            self.numbers.append([was, size, now])


@variants(
    "pruning_{}",
    globally={"pruning_fn": "l1_unstructured"},
    at_random={"pruning_fn": "random_unstructured"},
    each={"pruning_fn": "l1_unstructured", "use_global_unstructured": False},
    each_at_random={"pruning_fn": "random_unstructured", "use_global_unstructured": False},
    channels={
        "pruning_fn": "ln_structured",
        "pruning_dim": 0,
        "pruning_norm": 2,
        "use_global_unstructured": False,
        "parameter_names": ["weight"],
    },
    channels_at_random={
        "pruning_fn": "random_structured",
        "pruning_dim": 1,
        "use_global_unstructured": False,
        "parameter_names": ["weight"],
        "amount": 1,
    },
    by_class={"pruning_fn": Quarter},
    of_a_number={"pruning_fn": "l1_unstructured", "amount": 3},
    by_epoch={"pruning_fn": "l1_unstructured", "amount": lambda epoch: 0.1 * epoch},
    sometimes={"pruning_fn": "l1_unstructured", "apply_pruning": lambda epoch: epoch == 1},
    never={"pruning_fn": "l1_unstructured", "apply_pruning": False},
    of_biases={"pruning_fn": "l1_unstructured", "parameter_names": ["bias"]},
    after_validation={"pruning_fn": "l1_unstructured", "prune_on_train_epoch_end": False},
    kept_apart={"pruning_fn": "l1_unstructured", "make_pruning_permanent": False},
    of_some={"pruning_fn": "l1_unstructured", "some": True},
    lottery={"pruning_fn": "l1_unstructured", "use_lottery_ticket_hypothesis": lambda epoch: epoch == 1},
    resampled={
        "pruning_fn": "random_unstructured",
        "use_lottery_ticket_hypothesis": True,
        "resample_parameters": True,
    },
)
def pruning(L: ModuleType, folder: Path, some: bool = False, **arguments: Any) -> Outcome:
    """Pruned after each epoch, with a file in the middle.

    Lightning resets weights to those before training in the first epoch only, see `test_pruning.py`.
    """
    lab = Lab(L, folder)
    module = lab.Net()
    if some:
        arguments["parameters_to_prune"] = [(module.net[2], "weight"), (module.net[0], "bias")]
    settings = {"amount": 0.3, "use_lottery_ticket_hypothesis": False, "verbose": 1} | arguments
    keeper = lab.callbacks.ModelCheckpoint(dirpath=folder, filename="{epoch}", save_top_k=-1)
    trainer = lab.trainer(
        callbacks=[lab.callbacks.ModelPruning(**settings), keeper], enable_checkpointing=True, max_epochs=3
    )
    logger, lines = logging.getLogger(L.__name__.partition(".")[0]), Lines()
    level, disabled = logger.level, logging.root.manager.disable
    logger.setLevel(logging.INFO)
    logging.disable(logging.NOTSET)
    logger.addHandler(lines)
    try:
        # A validation moves Lightning's random state; but for it, what Lightning prunes is older than the last step.
        at_random = "random" in str(arguments["pruning_fn"])
        validated = None if at_random else loader(1)
        trainer.fit(module, loader(3, batch_size=4), validated)
    finally:
        logger.removeHandler(lines)
        logger.setLevel(level)
        logging.disable(disabled)
    outcome = lab.outcome(trainer, module, lines=lines.numbers)
    outcome.notes["saved"] = {
        name: {key: value.tolist() for key, value in sorted(file["state_dict"].items())}
        for name, file in outcome.checkpoints.items()
    }
    outcome.weights = dict(sorted(outcome.weights.items()))  # Lightning leaves what was pruned at the end
    return outcome

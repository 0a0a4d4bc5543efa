"""LearningRateMonitor: logs the learning rate of every parameter group."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any, Literal

from torch.optim import Optimizer

from gpulayer.fabric.utilities.exceptions import MisconfigurationException
from gpulayer.pytorch.callbacks.log_points import at_start, require_logger
from gpulayer.pytorch.core.callback import Callback

if TYPE_CHECKING:
    from gpulayer.pytorch.core.module import Module
    from gpulayer.pytorch.trainer.trainer import Trainer


class LearningRateMonitor(Callback):
    """Log learning rates as `lr-Adam`, or under the `name` of a scheduler's dict.

    Several optimizers of a class get `-1`, `-2` ..., several parameter groups `/pg1`, `/pg2` ..., or their own "name".
    An optimizer with several schedulers has a name for each. Groups that are added during training, as finetuning
    does, are logged from then on; where the first was alone, what was logged of it goes on as `/pg1`.

    Args:
        logging_interval: "step" (at log points, before the step), "epoch" (at its start), or None: as each scheduler's
            interval says, and at both for an optimizer without one.
        log_momentum: also log momenta, as `...-momentum`; of Adam's betas the first.
        log_weight_decay: also log weight decays, as `...-weight_decay`.

    Attributes:
        lrs: every learning rate that was logged, by name.
        last_momentum_values: the newest momenta, by name.
        last_weight_decay_values: the newest weight decays, by name.

    Raises:
        MisconfigurationException: an unknown interval; at the start of training: the Trainer has no logger, or two
            groups of an optimizer have the same name.
    """

    def __init__(
        self,
        logging_interval: Literal["step", "epoch"] | None = None,
        log_momentum: bool = False,
        log_weight_decay: bool = False,
    ) -> None:
        super().__init__()
        if logging_interval not in (None, "step", "epoch"):
            raise MisconfigurationException(
                f"`LearningRateMonitor(logging_interval={logging_interval!r})`: choose 'step', 'epoch' or None."
            )
        self.logging_interval = logging_interval
        self.log_momentum = log_momentum
        self.log_weight_decay = log_weight_decay
        self.lrs: dict[str, list[float]] = {}
        self.last_momentum_values: dict[str, float] = {}
        self.last_weight_decay_values: dict[str, float] = {}
        self._names: list[list[str]] = []  # of the groups of each entry, as they were last logged

    def on_train_start(self, trainer: Trainer, pl_module: Module) -> None:
        require_logger(trainer, self)
        for optimizer in trainer.optimizers:
            _check_names(optimizer)
        self._names = [names for names, _, _ in _entries(trainer)]
        self.lrs = {name: [] for names in self._names for name in names}
        self.last_momentum_values, self.last_weight_decay_values = {}, {}

    def on_train_batch_start(self, trainer: Trainer, pl_module: Module, batch: Any, batch_idx: int) -> None:
        if self.logging_interval != "epoch" and at_start(trainer):
            self._log(trainer, "step")

    def on_train_epoch_start(self, trainer: Trainer, pl_module: Module) -> None:
        if self.logging_interval != "step" and not trainer.progress.batch_in_epoch:  # or it goes on, and was logged
            self._log(trainer, "epoch")

    def _log(self, trainer: Trainer, moment: str) -> None:
        values: dict[str, float] = {}
        current = _entries(trainer)
        self._rename([names for names, _, _ in current])
        for names, optimizer, interval in current:
            if self.logging_interval is not None or interval in (None, moment):
                for name, group in zip(names, optimizer.param_groups, strict=True):
                    values.update(self._values(name, group))
        if values:
            trainer.results.metrics.callback.update(values)
            trainer.delivery.row({**values, "epoch": trainer.current_epoch}, trainer.progress.window)

    def _values(self, name: str, group: dict[str, Any]) -> dict[str, float]:
        """Of one group, which are noted, too."""
        values = {name: float(group["lr"])}
        self.lrs[name].append(values[name])
        if self.log_momentum:
            momentum = float(group["betas"][0] if "betas" in group else group.get("momentum", 0))
            values[f"{name}-momentum"] = self.last_momentum_values[f"{name}-momentum"] = momentum
        if self.log_weight_decay:
            decay = float(group.get("weight_decay", 0))
            values[f"{name}-weight_decay"] = self.last_weight_decay_values[f"{name}-weight_decay"] = decay
        return values

    def _rename(self, current: list[list[str]]) -> None:
        """Groups were added: a first one that was alone has another name now, and the new ones have no values yet."""
        if current == self._names:
            return
        pairs = [pair for old, new in zip(self._names, current, strict=False) for pair in zip(old, new, strict=False)]
        renamed = dict(pairs)
        self.lrs = {renamed.get(name, name): values for name, values in self.lrs.items()}
        for name in (name for names in current for name in names):
            self.lrs.setdefault(name, [])
        self._names = current


def _entries(trainer: Trainer) -> list[tuple[list[str], Optimizer, str | None]]:
    """The names of its groups, the optimizer and the interval of each scheduler; then those of the other optimizers."""
    scheduled: list[tuple[Optimizer, str | None, str | None]] = [
        (config.scheduler.optimizer, config.name, config.interval)
        for config in trainer.lr_scheduler_configs
        if getattr(config.scheduler, "optimizer", None) is not None
    ]
    known = {id(optimizer) for optimizer, _, _ in scheduled}
    rest = [(optimizer, None, None) for optimizer in trainer.optimizers if id(optimizer) not in known]
    seen: Counter[str] = Counter()
    found: list[tuple[list[str], Optimizer, str | None]] = []
    for optimizer, given, interval in [*scheduled, *rest]:
        name = given or f"lr-{type(optimizer).__name__}"
        seen[name] += 1
        if seen[name] > 1:
            name = f"{name}-{seen[name] - 1}"
        found.append(([name + suffix for suffix in _suffixes(optimizer.param_groups)], optimizer, interval))
    return found


def _suffixes(groups: list[dict[str, Any]]) -> list[str]:
    """What tells the groups of an optimizer apart: their own names, or numbers if there are several."""
    numbered = [f"/pg{number}" if len(groups) > 1 else "" for number in range(1, len(groups) + 1)]
    return [f"/{group['name']}" if "name" in group else number for group, number in zip(groups, numbered, strict=True)]


def _check_names(optimizer: Optimizer) -> None:
    """Two groups of one name would be logged as one.

    Raises:
        MisconfigurationException: there are such groups.
    """
    counts = Counter(_suffixes(optimizer.param_groups))
    if twice := [suffix[1:] for suffix, count in counts.items() if count > 1]:
        raise MisconfigurationException(
            f"{type(optimizer).__name__} has several parameter groups named {twice[0]!r}, which LearningRateMonitor "
            "cannot tell apart: give each a 'name' of its own, or none."
        )

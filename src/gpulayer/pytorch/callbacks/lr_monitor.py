"""LearningRateMonitor: logs the learning rate of every parameter group."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any, Literal

from torch.optim import Optimizer

from gpulayer.fabric.utilities.exceptions import MisconfigurationException
from gpulayer.pytorch.core.callback import Callback

if TYPE_CHECKING:
    from gpulayer.pytorch.core.module import Module
    from gpulayer.pytorch.trainer.trainer import Trainer


class LearningRateMonitor(Callback):
    """Log learning rates as `lr-Adam`, or under the `name` of a scheduler's dict.

    Several optimizers of a class get `-1`, `-2` ..., several parameter groups `/pg1`, `/pg2` ..., or their own "name".

    Args:
        logging_interval: "step", "epoch", or None: as each scheduler's interval says.
        log_momentum: also log momenta, as `...-momentum`.
        log_weight_decay: also log weight decays, as `...-weight_decay`.

    Raises:
        MisconfigurationException: an unknown interval; at the start of training: the Trainer has no logger.
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
        self._groups: list[tuple[str, dict[str, Any], str]] = []  # name, group, interval

    def on_train_start(self, trainer: Trainer, pl_module: Module) -> None:
        if not trainer.loggers and not trainer.fast_dev_run:
            raise MisconfigurationException(
                "LearningRateMonitor writes to loggers, and `Trainer(logger=False)` has none: give one, or leave "
                "it out."
            )
        self._groups = self._name_groups(trainer)
        self.lrs = {name: [] for name, _, _ in self._groups}

    def on_train_batch_start(self, trainer: Trainer, pl_module: Module, batch: Any, batch_idx: int) -> None:
        if self.logging_interval == "epoch" or not trainer.log_every_n_steps:
            return
        if trainer.progress.window % trainer.log_every_n_steps == 0:
            self._log(trainer, "step" if self.logging_interval is None else None)

    def on_train_epoch_start(self, trainer: Trainer, pl_module: Module) -> None:
        if self.logging_interval != "step":
            self._log(trainer, "epoch" if self.logging_interval is None else None)

    def _log(self, trainer: Trainer, interval: str | None) -> None:
        values: dict[str, float] = {}
        for name, group, group_interval in self._groups:
            if interval in (None, group_interval):
                values[name] = float(group["lr"])
                self.lrs[name].append(values[name])
                if self.log_momentum:
                    momentum = group["betas"][0] if "betas" in group else group.get("momentum", 0)
                    values[f"{name}-momentum"] = float(momentum)
                if self.log_weight_decay:
                    values[f"{name}-weight_decay"] = float(group.get("weight_decay", 0))
        if values:
            trainer.results.metrics.callback.update(values)
            values["epoch"] = trainer.current_epoch
            for logger in trainer.loggers:
                logger.log_metrics(metrics=values, step=trainer.progress.window)

    def _name_groups(self, trainer: Trainer) -> list[tuple[str, dict[str, Any], str]]:
        named: list[tuple[str, dict[str, Any], str]] = []
        seen: Counter[str] = Counter()
        done: set[int] = set()
        configs: list[tuple[Optimizer, str | None, str]] = [
            (config.scheduler.optimizer, config.name, config.interval)
            for config in trainer.lr_scheduler_configs
            if getattr(config.scheduler, "optimizer", None) is not None
        ]
        scheduled = {id(optimizer) for optimizer, _, _ in configs}
        rest = [optimizer for optimizer in trainer.optimizers if id(optimizer) not in scheduled]
        for optimizer, given, interval in [*configs, *((optimizer, None, "epoch") for optimizer in rest)]:
            if id(optimizer) in done and given is None:
                continue
            done.add(id(optimizer))
            base = given or f"lr-{type(optimizer).__name__}"
            seen[base] += 1
            if seen[base] > 1:
                base = f"{base}-{seen[base] - 1}"
            groups = optimizer.param_groups
            for number, group in enumerate(groups, 1):
                suffix = f"/{group['name']}" if "name" in group else f"/pg{number}" if len(groups) > 1 else ""
                named.append((base + suffix, group, interval))
        return named

"""DeviceStatsMonitor: logs the memory and the load of the device, and of the machine."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from gpulayer.fabric.utilities.device_stats import host_stats
from gpulayer.pytorch.callbacks.log_points import at_end, at_start, every_nth, require_logger, step_before
from gpulayer.pytorch.core.callback import Callback
from gpulayer.pytorch.core.hooks import StepOutput

if TYPE_CHECKING:
    from gpulayer.pytorch.core.module import Module
    from gpulayer.pytorch.trainer.trainer import Trainer


class DeviceStatsMonitor(Callback):
    """Log what `trainer.accelerator.get_device_stats` says, before and after a batch, at log points.

    The names are `DeviceStatsMonitor.on_train_batch_start/<name>`, likewise with `on_train_batch_end`, and with
    `validation` or `test` for `train`. When batches are accumulated, the start is that of the step's first batch, and
    the end that of its last. In an evaluation every `log_every_n_steps`-th batch is a log point.

    - CPU, by psutil: `cpu_percent` (load of all cores), `cpu_vm_percent` and `cpu_vm_used` (memory in use; the second
      in bytes), `cpu_swap_percent`, `cpu_process_rss` (memory of this process, bytes).
    - CUDA: what `torch.cuda.memory_stats` counts, such as `allocated_bytes.all.peak`; with nvidia-ml-py installed also
      `utilization.gpu` (percent), `temperature.gpu` (degrees Celsius) and `power.draw` (watts). These are read in a
      thread once a second, so that training does not wait for the driver.
    - MPS: the memory that torch and Metal's driver have allocated.

    Args:
        cpu_stats: log those of the CPU: True for always, False for never, None if it is what the run computes on.

    Raises:
        MisconfigurationException: in `setup`: the Trainer has no logger.
        ModuleNotFoundError: in `setup`: those of the CPU are wanted, and psutil is not installed.
    """

    def __init__(self, cpu_stats: bool | None = None) -> None:
        super().__init__()
        self._cpu_stats = cpu_stats
        self._batch = 0  # in the evaluation that is running

    def setup(self, trainer: Trainer, pl_module: Module, stage: str) -> None:
        if stage != "predict":
            require_logger(trainer, self)
            self._read(trainer)  # what is missing shows now, and a load is measured from one reading to the next

    def on_train_batch_start(self, trainer: Trainer, pl_module: Module, batch: Any, batch_idx: int) -> None:
        if at_start(trainer):
            self._log(trainer, "on_train_batch_start", trainer.progress.window)

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: Module, outputs: StepOutput, batch: Any, batch_idx: int
    ) -> None:
        if at_end(trainer):
            self._log(trainer, "on_train_batch_end", step_before(trainer))

    def on_validation_start(self, trainer: Trainer, pl_module: Module) -> None:
        self._batch = 0

    def on_validation_batch_start(
        self, trainer: Trainer, pl_module: Module, batch: Any, batch_idx: int, dataloader_idx: int = 0
    ) -> None:
        self._batch += 1
        self._evaluated(trainer, "on_validation_batch_start")

    def on_validation_batch_end(
        self,
        trainer: Trainer,
        pl_module: Module,
        outputs: StepOutput,
        batch: Any,
        batch_idx: int,
        dataloader_idx: int = 0,
    ) -> None:
        self._evaluated(trainer, "on_validation_batch_end")

    def on_test_start(self, trainer: Trainer, pl_module: Module) -> None:
        self._batch = 0

    def on_test_batch_start(
        self, trainer: Trainer, pl_module: Module, batch: Any, batch_idx: int, dataloader_idx: int = 0
    ) -> None:
        self._batch += 1
        self._evaluated(trainer, "on_test_batch_start")

    def on_test_batch_end(
        self,
        trainer: Trainer,
        pl_module: Module,
        outputs: StepOutput,
        batch: Any,
        batch_idx: int,
        dataloader_idx: int = 0,
    ) -> None:
        self._evaluated(trainer, "on_test_batch_end")

    def _evaluated(self, trainer: Trainer, hook: str) -> None:
        if every_nth(trainer, self._batch) and not trainer.sanity_checking:
            self._log(trainer, hook, step_before(trainer) if trainer.state.fn == "fit" else trainer.progress.window)

    def _log(self, trainer: Trainer, hook: str, step: int) -> None:
        stats = self._read(trainer)
        if stats and trainer.loggers:
            trainer.delivery.row({f"DeviceStatsMonitor.{hook}/{name}": value for name, value in stats.items()}, step)

    def _read(self, trainer: Trainer) -> dict[str, Any]:
        on_cpu = trainer.accelerator.name() == "cpu"
        if on_cpu and self._cpu_stats is False:
            return {}
        stats = trainer.accelerator.get_device_stats(trainer.strategy.root_device)
        return stats if on_cpu or not self._cpu_stats else {**stats, **host_stats()}

"""ThroughputMonitor: logs how many batches, samples, items and operations are done a second."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch

from gpulayer.fabric.utilities.throughput import Throughput, get_available_flops
from gpulayer.pytorch.callbacks.log_points import at_end, every_nth, require_logger, step_before
from gpulayer.pytorch.callbacks.meter import CudaClock, HostClock, Meter
from gpulayer.pytorch.core.callback import Callback
from gpulayer.pytorch.core.hooks import StepOutput

if TYPE_CHECKING:
    from gpulayer.pytorch.core.module import Module
    from gpulayer.pytorch.loops.progress import Evaluated
    from gpulayer.pytorch.trainer.trainer import Trainer


class ThroughputMonitor(Callback):
    """Log the rates of `gpulayer.fabric.utilities.throughput.Throughput` at log points.

    The names are `train/device/samples_per_sec` and so on, with `validate`, `test` and `predict` for the other calls;
    an evaluation's step is the number of its batches. Time spent in validation does not count as time of training.
    Rates appear after `window_size` batches.

    On CUDA the time is taken on the device, by an event after each batch, and the host waits for the last one at a log
    point only. On other devices it is the host's clock.

    For operations a second, the module has an attribute `flops_per_batch`, read after each batch:

        class MyModel(L.Module):
            def setup(self, stage):
                with torch.device("meta"):
                    model, x = Net(), torch.randn(32, 64)
                self.flops_per_batch = measure_flops(model, lambda: model(x), torch.Tensor.sum)

    Args:
        batch_size_fn: the number of samples in a batch, as a number or a tensor, which is read at a log point only.
        length_fn: likewise the number of items, such as tokens, in a batch.
        available_flops: the peak of one device in operations a second. Default: `get_available_flops`.
        world_size: the number of devices. Default: the Trainer's.
        window_size: over how many batches a rate is taken.
        separator: stands between the parts of a name.

    Raises:
        ValueError: an argument is below what makes sense.
        MisconfigurationException: in `setup`: the Trainer has no logger.
    """

    def __init__(
        self,
        batch_size_fn: Callable[[Any], Any],
        length_fn: Callable[[Any], Any] | None = None,
        *,
        available_flops: float | None = None,
        world_size: int | None = None,
        window_size: int = 100,
        separator: str = "/",
    ) -> None:
        super().__init__()
        self.batch_size_fn = batch_size_fn
        self.length_fn = length_fn
        self.available_flops = available_flops
        self.world_size = world_size
        self.window_size = window_size
        self.separator = separator
        Throughput(available_flops, 1 if world_size is None else world_size, window_size)  # which checks them
        self._meters: dict[str, Meter] = {}

    def setup(self, trainer: Trainer, pl_module: Module, stage: str) -> None:
        require_logger(trainer, self)
        self._meters.clear()

    # -- training ------------------------------------------------------------------------------------------------------

    def on_train_epoch_start(self, trainer: Trainer, pl_module: Module) -> None:
        if "train" not in self._meters:  # the first epoch that this callback sees
            self._meters["train"] = self._meter(trainer, pl_module)

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: Module, outputs: StepOutput, batch: Any, batch_idx: int
    ) -> None:
        if batch is not None:
            self._count("train", trainer, pl_module, batch)
            if at_end(trainer):
                self._log("train", trainer, step_before(trainer), {"epoch": trainer.current_epoch})

    # -- evaluation ----------------------------------------------------------------------------------------------------

    def on_validation_start(self, trainer: Trainer, pl_module: Module) -> None:
        if not trainer.sanity_checking:
            at = trainer.progress
            self._begin("validate", trainer, pl_module, at.validation if trainer.state.fn == "fit" else at.validate)

    def on_validation_batch_end(
        self,
        trainer: Trainer,
        pl_module: Module,
        outputs: StepOutput,
        batch: Any,
        batch_idx: int,
        dataloader_idx: int = 0,
    ) -> None:
        if not trainer.sanity_checking:
            self._evaluated("validate", trainer, pl_module, batch)

    def on_validation_end(self, trainer: Trainer, pl_module: Module) -> None:
        if not trainer.sanity_checking:
            self._meters["validate"].compute()  # it may have ended between two log points
        if "train" in self._meters:
            self._meters["train"].resume()

    def on_test_start(self, trainer: Trainer, pl_module: Module) -> None:
        self._begin("test", trainer, pl_module, trainer.progress.test)

    def on_test_batch_end(
        self,
        trainer: Trainer,
        pl_module: Module,
        outputs: StepOutput,
        batch: Any,
        batch_idx: int,
        dataloader_idx: int = 0,
    ) -> None:
        self._evaluated("test", trainer, pl_module, batch)

    def on_predict_start(self, trainer: Trainer, pl_module: Module) -> None:
        self._begin("predict", trainer, pl_module, trainer.progress.predict)

    def on_predict_batch_end(
        self, trainer: Trainer, pl_module: Module, outputs: Any, batch: Any, batch_idx: int, dataloader_idx: int = 0
    ) -> None:
        self._evaluated("predict", trainer, pl_module, batch)

    def _begin(self, stage: str, trainer: Trainer, module: Module, done: Evaluated) -> None:
        if stage not in self._meters:
            self._meters[stage] = self._meter(trainer, module)
        self._meters[stage].resume()
        self._before, self._batch = done.total, 0

    def _evaluated(self, stage: str, trainer: Trainer, module: Module, batch: Any) -> None:
        self._batch += 1
        self._count(stage, trainer, module, batch)
        if every_nth(trainer, self._batch):
            self._log(stage, trainer, self._before + self._batch, {})

    # -- both ----------------------------------------------------------------------------------------------------------

    def _meter(self, trainer: Trainer, module: Module) -> Meter:
        device, peak = trainer.strategy.root_device, self.available_flops
        if peak is None and hasattr(module, "flops_per_batch"):
            peak = get_available_flops(device, _dtype_of(trainer.precision))
        throughput = Throughput(peak, self.world_size or trainer.world_size, self.window_size, self.separator)
        return Meter(throughput, CudaClock() if device.type == "cuda" else HostClock())

    def _count(self, stage: str, trainer: Trainer, module: Module, batch: Any) -> None:
        if trainer.log_every_n_steps and trainer.loggers:
            lengths = self.length_fn(batch) if self.length_fn is not None else None
            self._meters[stage].count(self.batch_size_fn(batch), lengths, getattr(module, "flops_per_batch", None))

    def _log(self, stage: str, trainer: Trainer, step: int, more: dict[str, float]) -> None:
        if trainer.loggers:
            metrics = self._meters[stage].compute()
            named = {f"{stage}{self.separator}{name}": value for name, value in metrics.items()}
            trainer.results.metrics.logged.update(named)
            trainer.delivery.row(named | more, step)


def _dtype_of(precision: str) -> torch.dtype:
    """The numbers that matrix products multiply in a precision of the Trainer."""
    formats = {"64": torch.float64, "16": torch.float16, "bf16": torch.bfloat16}
    return formats.get(precision.split("-")[0], torch.float32)

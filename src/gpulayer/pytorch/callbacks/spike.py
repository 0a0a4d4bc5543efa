"""SpikeDetection: ends training when the loss jumps, and writes down which batches to leave out."""

from __future__ import annotations

import json
import os
from collections import deque
from collections.abc import Mapping
from math import isfinite
from numbers import Integral, Real
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, Literal

import torch
from torch import Tensor

from gpulayer.fabric.utilities.exceptions import MisconfigurationException
from gpulayer.fabric.utilities.files import copy_file, join
from gpulayer.fabric.utilities.rank_zero import log, rank_zero_info
from gpulayer.fabric.utilities.spike import TrainingSpikeException
from gpulayer.fabric.utilities.types import Path
from gpulayer.pytorch.callbacks.log_points import stepped
from gpulayer.pytorch.core.callback import Callback
from gpulayer.pytorch.core.hooks import StepOutput

if TYPE_CHECKING:
    from gpulayer.pytorch.core.module import Module
    from gpulayer.pytorch.trainer.trainer import Trainer

FILE = "skip_batches.json"


class SpikeDetection(Callback):
    """End training with a `TrainingSpikeException` when the loss jumps; the batches to leave out go to a JSON file.

    A loss is a spike if it is worse than the one before and lies off the mean of those before by `atol` and by `rtol`.
    The batch and the one before it are named, for it may be that one which spoilt the weights. Go on from a checkpoint
    of before, with data without them.

    Losses stay on the device until the next log point (`Trainer(log_every_n_steps)`), the epoch's end or a save: there
    they are read and judged, so that the device is never waited for in between, and no checkpoint to resume from holds
    the weights of after a spike.

    Args:
        mode: "min" if a lower loss is better, "max" if a higher is.
        window: how many losses the mean is of.
        warmup: how many batches of the run to let pass before looking for spikes.
        atol: least distance from the mean, in the loss's own unit; None: any.
        rtol: least distance from the mean, as a multiple of it; None: any.
        exclude_batches_path: the JSON file, or a folder for `skip_batches.json`. Default: the Trainer's
            `default_root_dir`.
        finite_only: whether a loss that is NaN or infinite is a spike; otherwise it is passed over.

    Attributes:
        bad_batches: the numbers of the batches to leave out, in their epoch.

    Raises:
        MisconfigurationException: a value that cannot be used.
    """

    def __init__(
        self,
        mode: Literal["min", "max"] = "min",
        window: int = 10,
        warmup: int = 1,
        atol: float | None = None,
        rtol: float | None = 2.0,
        exclude_batches_path: Path | None = None,
        finite_only: bool = True,
    ) -> None:
        super().__init__()
        _check_arguments(mode, {"window": (window, 1), "warmup": (warmup, 0)}, {"atol": atol, "rtol": rtol})
        _check_path(exclude_batches_path)
        self.mode = mode
        self.window = int(window)
        self.warmup = warmup
        self.atol = atol
        self.rtol = rtol
        self.exclude_batches_path = exclude_batches_path
        self.finite_only = finite_only
        self.bad_batches: list[int] = []
        self.last_val = 0.0  # of the newest batch that was no spike
        self._recent: deque[float] = deque(maxlen=self.window)
        # On the device still: the batch's number in the run and in the epoch, its loss, and what that was divided by.
        self._unread: list[tuple[int, int, Tensor, int]] = []

    def on_train_start(self, trainer: Trainer, pl_module: Module) -> None:
        """What an error left unread in a run before is not of this one."""
        self._unread.clear()

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: Module, outputs: StepOutput, batch: Any, batch_idx: int
    ) -> None:
        """Keep the loss, and look at those kept if this is a log point."""
        loss = outputs.get("loss") if isinstance(outputs, Mapping) else outputs
        if isinstance(loss, Tensor):
            accumulate = trainer.accumulate_grad_batches
            if accumulate > 1:  # the last optimizer step of an epoch may have fewer batches
                accumulate = int(min(accumulate, trainer.num_training_batches - batch_idx + batch_idx % accumulate))
            self._unread.append((trainer.progress.batch - 1, batch_idx, loss.detach(), accumulate))
        elif not pl_module.automatic_optimization:
            raise MisconfigurationException(
                "SpikeDetection needs the loss: in manual optimization return it from `training_step`, as a tensor or "
                "in a dict under 'loss'."
            )
        if stepped(trainer) and trainer.progress.window % (trainer.log_every_n_steps or 50) == 0:
            self._read(trainer)

    def on_train_epoch_end(self, trainer: Trainer, pl_module: Module) -> None:
        self._read(trainer)

    def on_save_checkpoint(self, trainer: Trainer, pl_module: Module, checkpoint: dict[str, Any]) -> None:
        """No checkpoint is written of a state after a spike."""
        if self._unread:
            self._read(trainer)
            checkpoint["callbacks"][self.state_key] = self.state_dict()

    def _read(self, trainer: Trainer) -> None:
        """Bring the losses to the host, in one copy, and judge each by those before it."""
        unread, self._unread = self._unread, []
        if not unread:
            return
        losses = torch.stack([loss.float() for _, _, loss, _ in unread]).tolist()
        for (count, batch_idx, _, accumulate), loss in zip(unread, losses, strict=True):
            value = loss * accumulate
            if count >= self.warmup and self._is_spike(value):
                self._write(trainer, batch_idx, value)
                raise TrainingSpikeException(batch_idx)
            if isfinite(value):
                self._recent.append(value)
                self.last_val = value

    def _is_spike(self, value: float) -> bool:
        if not isfinite(value):
            return self.finite_only
        if value <= self.last_val if self.mode == "min" else value >= self.last_val:
            return False
        if not self._recent:
            return False
        mean = sum(self._recent) / len(self._recent)
        off = abs(value - mean)
        return off >= (self.atol or 0) and off >= (self.rtol or 0) * abs(mean)

    def _write(self, trainer: Trainer, batch_idx: int, value: float) -> None:
        self.bad_batches += [batch_idx - 1, batch_idx] if batch_idx else [batch_idx]
        given = self.exclude_batches_path
        path = os.fspath(trainer.default_root_dir if given is None else given)
        if not path.endswith(".json"):
            path = join(path, FILE)
        if trainer.is_global_zero:
            try:
                with TemporaryDirectory() as folder:
                    local = os.path.join(folder, FILE)
                    with open(local, "w") as file:
                        json.dump(self.bad_batches, file, indent=4)
                    copy_file(local, path)
            except Exception as error:  # a disk that is full, for one: what ends the run is the spike
                log.warning("SpikeDetection could not write %s to %s (%s).", self.bad_batches, path, error)
        rank_zero_info("SpikeDetection: the loss jumped to %.5g in batch %d; see %s.", value, batch_idx, path)

    def state_dict(self) -> dict[str, Any]:
        return {"last_val": self.last_val, "recent": list(self._recent), "bad_batches": list(self.bad_batches)}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Take the losses back; the arguments stay those that it was made with."""
        self.last_val = float(state_dict["last_val"])
        self._recent = deque(state_dict.get("recent", []), maxlen=self.window)
        self.bad_batches = list(state_dict["bad_batches"])


def _check_arguments(mode: Any, counts: dict[str, tuple[Any, int]], distances: dict[str, Any]) -> None:
    if mode not in ("min", "max"):
        raise MisconfigurationException(f"`SpikeDetection(mode={mode!r})`: choose 'min' or 'max'.")
    for name, (count, least) in counts.items():
        if isinstance(count, bool) or not isinstance(count, Integral) or count < least:
            raise MisconfigurationException(
                f"`SpikeDetection({name}={count!r})`: give a number of batches from {least}."
            )
    for name, distance in distances.items():
        if distance is None:
            continue
        if isinstance(distance, bool) or not isinstance(distance, Real) or not 0 <= float(distance) < float("inf"):
            raise MisconfigurationException(f"`SpikeDetection({name}={distance!r})`: give a number from 0, or None.")
    if all(distance is None for distance in distances.values()):
        raise MisconfigurationException(
            "`SpikeDetection(atol=None, rtol=None)` takes every loss that is worse than the one before for a spike: "
            "give one of them, or both."
        )


def _check_path(path: Any) -> None:
    if path is not None and not isinstance(path, (str, os.PathLike)):
        raise MisconfigurationException(
            f"`SpikeDetection(exclude_batches_path={path!r})`: give a path, as a string or a `pathlib.Path`."
        )

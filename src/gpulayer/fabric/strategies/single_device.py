"""One process, one device."""

import torch

from gpulayer.fabric.accelerators import Accelerator
from gpulayer.fabric.checkpoint.io import CheckpointIO
from gpulayer.fabric.precision import Precision
from gpulayer.fabric.strategies.strategy import Strategy


class SingleDeviceStrategy(Strategy):
    """Everything on one device; nothing is wrapped, so a step is the module's own method.

    Args:
        device: the device.
        accelerator: its kind; left out, the Trainer's.
        precision: the number formats.
        checkpoint_io: how checkpoints are stored.
    """

    def __init__(
        self,
        device: torch.device | str = "cpu",
        accelerator: Accelerator | None = None,
        precision: Precision | None = None,
        checkpoint_io: CheckpointIO | None = None,
    ) -> None:
        super().__init__(accelerator, precision, checkpoint_io)
        self._device = torch.device(device)

    @property
    def root_device(self) -> torch.device:
        return self._device

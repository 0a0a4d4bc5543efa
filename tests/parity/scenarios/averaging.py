"""Averages of the weights that are equal bit for bit in both libraries; the others are in `test_averaging.py`."""

from __future__ import annotations

from pathlib import Path
from types import ModuleType
from typing import Any

from torch.optim.lr_scheduler import StepLR
from torch.optim.swa_utils import get_ema_avg_fn, get_ema_multi_avg_fn

from tests.parity.recorder import Lab, Outcome, loader
from tests.parity.scenarios.parts import fitted, scheduled
from tests.parity.scenarios.registry import variants


def late(lab: Lab) -> type:
    """An average that begins late, and is updated after some of the steps and one epoch."""

    class Late(lab.callbacks.WeightAveraging):  # type: ignore[misc, name-defined]
        def should_update(self, step_idx: int | None = None, epoch_idx: int | None = None) -> bool:
            return step_idx in (3, 5, 6) or epoch_idx == 1

    return Late


@variants(
    "averaged_{}",
    by_torch={"multi_avg_fn": get_ema_multi_avg_fn(0.8)},
    one_by_one={"avg_fn": get_ema_avg_fn(0.8)},
    without_buffers={"avg_fn": get_ema_avg_fn(0.8), "use_buffers": False},
    on_a_device={"avg_fn": get_ema_avg_fn(0.8), "device": "cpu"},
)
def averaged(L: ModuleType, folder: Path, **arguments: Any) -> Outcome:
    lab = Lab(L, folder)
    module = scheduled(lab, StepLR, "epoch", step_size=1)()
    callbacks = [lab.callback(), lab.callbacks.WeightAveraging(**arguments), lab.callback("after")]
    return fitted(lab, module, loader(4), loader(2, seed=1), callbacks=callbacks, max_epochs=3)


@variants("averaged_late_{}", plainly={}, accumulated={"accumulate_grad_batches": 2})
def averaged_late(L: ModuleType, folder: Path, **arguments: Any) -> Outcome:
    lab = Lab(L, folder)
    callbacks = [lab.callback(), late(lab)(avg_fn=get_ema_avg_fn(0.8))]
    return fitted(lab, lab.Net(), loader(4), callbacks=callbacks, max_epochs=4, **arguments)


@variants(
    "stochastic_averaging_{}",
    from_the_second_epoch={"swa_epoch_start": 2},
    of_the_second_half={"swa_epoch_start": 0.5, "annealing_epochs": 2},
    linear={"swa_epoch_start": 2, "annealing_epochs": 3, "annealing_strategy": "linear"},
    with_a_list={"swa_lrs": [0.02], "swa_epoch_start": 1},
    of_the_last={"swa_epoch_start": 5, "device": None},
)
def stochastic_averaging(L: ModuleType, folder: Path, **arguments: Any) -> Outcome:
    lab = Lab(L, folder)
    module = scheduled(lab, StepLR, "epoch", step_size=1)()
    callback = lab.callbacks.StochasticWeightAveraging(**{"swa_lrs": 0.05, **arguments})
    callbacks = [lab.callback(), callback]
    return fitted(lab, module, loader(3), loader(2, seed=1), callbacks=callbacks, max_epochs=5)

"""EarlyStopping, Timer, LambdaCallback, GradientAccumulationScheduler, SpikeDetection and BasePredictionWriter."""

from __future__ import annotations

import importlib
import inspect
import json
import time
from math import inf, nan
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from torch.optim.lr_scheduler import StepLR
from torch.utils.data import DataLoader

from tests.parity.recorder import Lab, Outcome, loader, rows
from tests.parity.scenarios.parts import fitted, scheduled
from tests.parity.scenarios.registry import scenario, variants

PLATEAU = [3.0, 2.0, 2.5, 2.0, 1.9, 2.0, 1.95, 1.0]


def scored(lab: Lab, scores: list[float]) -> type:
    """A network whose validation in epoch i logs the i-th score."""

    class Net(lab.Net):
        def validation_step(self, batch: Any, batch_idx: int, dataloader_idx: int = 0) -> None:
            super().validation_step(batch, batch_idx, dataloader_idx)
            self.log("score", scores[self.current_epoch], batch_size=1)

    return Net


@variants(
    "early_stopping_{}",
    patience={"patience": 2},
    patience_zero={"patience": 0},
    patience_one={"patience": 1},
    min_delta={"min_delta": 0.6, "patience": 3},
    max={"mode": "max", "patience": 4},
    never={"patience": 9},
    not_finite={"scores": [3.0, nan, 1.0]},
    infinite={"scores": [3.0, inf, 1.0]},
    not_finite_allowed={"scores": [3.0, nan, 1.0, nan], "check_finite": False},
    at_epoch_end={"patience": 2, "check_on_train_epoch_end": True},
    after_validation={"patience": 2, "check_on_train_epoch_end": False},
    after_validations={"patience": 3, "trainer": {"val_check_interval": 2}},
    every_second_epoch={"patience": 2, "trainer": {"check_val_every_n_epoch": 2}},
    min_steps={"patience": 1, "trainer": {"min_steps": 15}},
    min_epochs={"patience": 1, "mode": "max", "trainer": {"min_epochs": 6}},
)
def early_stopping(
    L: ModuleType, folder: Path, scores: list[float] = PLATEAU, trainer: Any = None, **settings: Any
) -> Outcome:
    lab = Lab(L, folder)
    stopper = lab.monitor("EarlyStopping", "early_stopping", monitor="score", **settings)
    module, run = scored(lab, scores)(), lab.trainer(max_epochs=len(scores), callbacks=[stopper], **trainer or {})
    run.fit(module, loader(4), loader(1, seed=1))
    return lab.outcome(
        run,
        module,
        reason=stopper.stopping_reason.name,
        wait_count=stopper.wait_count,
        stopped_epoch=stopper.stopped_epoch,
        best_score=float(stopper.best_score),
    )


@variants(
    "early_stopping_threshold_{}",
    reached={"stopping_threshold": 2.2},
    reached_max={"scores": [0.5, 0.9, 0.95], "mode": "max", "stopping_threshold": 0.8},
    not_reached={"stopping_threshold": 0.5, "patience": 9},
    equal={"stopping_threshold": 2.0, "patience": 9},
    diverged={"divergence_threshold": 2.4},
    diverged_max={"scores": [0.5, 0.2, 0.9], "mode": "max", "divergence_threshold": 0.3},
    divergence_equal={"divergence_threshold": 3.0, "patience": 9},
)
def early_stopping_threshold(L: ModuleType, folder: Path, scores: list[float] = PLATEAU, **settings: Any) -> Outcome:
    """When it stops and why; Lightning does not count that score itself."""
    lab = Lab(L, folder)
    stopper = lab.monitor("EarlyStopping", "early_stopping", monitor="score", **settings)
    module, trainer = scored(lab, scores)(), lab.trainer(max_epochs=len(scores), callbacks=[stopper])
    trainer.fit(module, loader(2), loader(1, seed=1))
    return lab.outcome(trainer, module, reason=stopper.stopping_reason.name, stopped_epoch=stopper.stopped_epoch)


@variants("timer_by_{}", step={"interval": "step"}, epoch={"interval": "epoch"}, max_time={"interval": None})
def timer_by(L: ModuleType, folder: Path, interval: str | None) -> Outcome:
    """Each batch takes longer than there is time."""
    lab = Lab(L, folder)

    class Net(lab.Net):
        def training_step(self, batch: Any, batch_idx: int) -> Any:
            time.sleep(0.06)
            return super().training_step(batch, batch_idx)

    given = {"milliseconds": 50}
    watch = lab.callbacks.Timer(given, interval) if interval else lab.callback()
    limits = {} if interval else {"max_time": given}
    return fitted(lab, Net(), loader(3), callbacks=[watch], max_epochs=3, **limits)


@scenario
def lambda_callback_of_all_hooks(L: ModuleType, folder: Path) -> Outcome:
    """Every hook that it takes, in the order in which it takes them, through fit, test and predict."""
    lab, seen = Lab(L, folder), []

    def noting(name: str) -> Any:
        return lambda *args, **kwargs: seen.append([name, len(args) + len(kwargs)])

    names = list(inspect.signature(lab.callbacks.LambdaCallback.__init__).parameters)[1:]
    callback = lab.callbacks.LambdaCallback(**{name: noting(name) for name in names})
    module = scheduled(lab, StepLR, "epoch", step_size=1)()
    trainer = lab.trainer(callbacks=[callback], num_sanity_val_steps=1)
    trainer.fit(module, loader(2), loader(1, seed=1))
    trainer.save_checkpoint(folder / "saved.ckpt")
    trainer.test(module, loader(1), verbose=False)
    trainer.predict(module, loader(1))
    return lab.outcome(trainer, module, names=names, seen=seen)


@variants(
    "accumulation_scheduled_{}",
    up={"scheduling": {1: 2}},
    down={"scheduling": {0: 4, 2: 1}},
    stairs={"scheduling": {0: 1, 1: 2, 2: 4}},
    late={"scheduling": {9: 2}},
    validating={"scheduling": {0: 2, 2: 4}, "val_check_interval": 2},
    clipping={"scheduling": {1: 2}, "gradient_clip_val": 0.1},
    max_steps={"scheduling": {1: 2}, "max_steps": 7},
)
def accumulation_scheduled(L: ModuleType, folder: Path, scheduling: dict[int, int], **arguments: Any) -> Outcome:
    lab, seen = Lab(L, folder), []

    class Notes(lab.callback_class()):
        def on_train_batch_end(self, trainer: Any, pl_module: Any, *args: Any) -> None:
            super().on_train_batch_end(trainer, pl_module, *args)
            seen.append([trainer.current_epoch, trainer.accumulate_grad_batches, trainer.global_step])

    plan = lab.callbacks.GradientAccumulationScheduler(dict(scheduling))
    module = scheduled(lab, StepLR, "step", step_size=2)()
    trainer = lab.trainer(callbacks=[plan, Notes()], **{"max_epochs": 4} | arguments)
    trainer.fit(module, loader(4), loader(1, seed=1))
    answers = [plan.get_accumulate_grad_batches(epoch) for epoch in range(6)]
    return lab.outcome(trainer, module, seen=seen, answers=answers, any=plan.going_to_accumulate_grad_batches())


STEADY = [1.0, 0.9, 1.1, 1.0, 0.95]


@variants(
    "spikes_{}",
    none={"values": STEADY},
    one={"values": [*STEADY, 5.0, 1.0]},
    small={"values": [*STEADY, 2.9, 1.0]},
    rtol={"values": [*STEADY, 1.6, 1.0], "rtol": 0.5},
    atol={"values": [*STEADY, 3.0, 1.0], "rtol": None, "atol": 1.5},
    both={"values": [*STEADY, 4.0, 9.0], "rtol": 2.0, "atol": 5.0},
    window={"values": [9.0, *STEADY, 4.0], "window": 3},
    long_window={"values": [9.0, *STEADY, 4.0], "window": 50},
    warmup={"values": [1.0, 9.0, 1.0, 9.0, 1.0, 40.0], "warmup": 4},
    max={"values": [10.0, 10.0, 10.0, 1.0, 10.0], "mode": "max", "rtol": 0.5},
    not_finite={"values": [1.0, 1.1, nan, 1.0]},
    not_finite_allowed={"values": [1.0, 1.1, nan, 1.0, 9.0], "finite_only": False},
)
def spikes(L: ModuleType, folder: Path, values: list[float], **settings: Any) -> Outcome:
    """Where it ends, and what it writes; `log_every_n_steps=1`, for Lightning reads each loss."""
    lab = Lab(L, folder)
    spike = importlib.import_module(f"{L.__name__}.callbacks.spike")
    errors = importlib.import_module(f"{L.__name__.partition('.')[0]}.fabric.utilities.spike")

    class Net(lab.Net):
        def training_step(self, batch: Any, batch_idx: int) -> Any:
            loss = super().training_step(batch, batch_idx)
            return loss - loss.detach() + values[batch_idx]

    detection = spike.SpikeDetection(exclude_batches_path=folder / "left.json", **settings)
    module = Net()
    trainer = lab.trainer(callbacks=[detection], max_epochs=1, log_every_n_steps=1)
    said = None
    try:
        trainer.fit(module, loader(len(values)))
    except errors.TrainingSpikeException as error:
        said = str(error)
    found = folder / "left.json"
    left = json.loads(found.read_text()) if found.exists() else None
    return lab.outcome(trainer, module, said=said, left=left, bad=detection.bad_batches)


LOADERS: dict[str, Any] = {
    "one": lambda: loader(3),
    "shorter": lambda: loader(2, extra_rows=1),
    "shuffled": lambda: DataLoader(rows(7), batch_size=2, shuffle=True, generator=torch.Generator().manual_seed(5)),
    "several": lambda: [loader(2), loader(1, seed=1)],
    "shuffled_several": lambda: [
        DataLoader(rows(5), batch_size=2, shuffle=True, generator=torch.Generator().manual_seed(seed))
        for seed in (1, 2)
    ],
    "without_length": lambda: loader(2, length=False),
}


@variants(
    "predictions_written_{}",
    **{
        f"{interval}_{name}": {"interval": interval, "name": name}
        for interval in ("batch", "epoch", "batch_and_epoch")
        for name in LOADERS
    },
    limited={"interval": "batch_and_epoch", "name": "one", "limit_predict_batches": 2},
    returned={"interval": "batch_and_epoch", "name": "one", "returns": True},
    returned_batch={"interval": "batch", "name": "several", "returns": True},
)
def predictions_written(
    L: ModuleType, folder: Path, interval: str, name: str, returns: bool = False, **arguments: Any
) -> Outcome:
    lab, batches, ends = Lab(L, folder), [], []

    class Writer(lab.callbacks.BasePredictionWriter):
        def write_on_batch_end(
            self, trainer: Any, module: Any, prediction: Any, indices: Any, batch: Any, batch_idx: int, loader_idx: int
        ) -> None:
            batches.append([prediction, indices, batch, batch_idx, loader_idx])

        def write_on_epoch_end(self, trainer: Any, module: Any, predictions: Any, indices: Any) -> None:
            ends.append([list(predictions), indices])

    trainer = lab.trainer(callbacks=[Writer(interval), lab.callback()], **arguments)
    module = lab.Net()
    returned = trainer.predict(module, LOADERS[name](), return_predictions=returns)
    return lab.outcome(trainer, module, returned, batches=batches, ends=ends)

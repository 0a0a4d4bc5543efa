"""Tuner: the finders before a run, without one."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from gpulayer.fabric.utilities.exceptions import MisconfigurationException
from gpulayer.pytorch.callbacks.batch_size_finder import BatchSizeFinder
from gpulayer.pytorch.callbacks.lr_finder import LearningRateFinder, _LRFinder
from gpulayer.pytorch.core.datamodule import DataModule
from gpulayer.pytorch.core.module import Module
from gpulayer.pytorch.loops.run import Run
from gpulayer.pytorch.trainer import Trainer, checks
from gpulayer.pytorch.trainer.attach import Sources, datamodule_first
from gpulayer.pytorch.trainer.running import running
from gpulayer.pytorch.trainer.states import TrainerFn
from gpulayer.pytorch.trainer.trial import set_aside

CALLS = {
    "fit": TrainerFn.FITTING,
    "validate": TrainerFn.VALIDATING,
    "test": TrainerFn.TESTING,
    "predict": TrainerFn.PREDICTING,
}


class Tuner:
    """Finds good values before a run. What it tries leaves no trace on the module, the Trainer and the disk.

    Args:
        trainer: the Trainer that is to train.
    """

    def __init__(self, trainer: Trainer) -> None:
        self._trainer = trainer

    def lr_find(
        self,
        model: Module,
        train_dataloaders: Any = None,
        val_dataloaders: Any = None,
        dataloaders: Any = None,
        datamodule: DataModule | None = None,
        method: str = "fit",
        min_lr: float = 1e-8,
        max_lr: float = 1,
        num_training: int = 100,
        mode: str = "exponential",
        early_stop_threshold: float | None = 4.0,
        update_attr: bool = True,
        attr_name: str = "",
    ) -> _LRFinder | None:
        """Train some steps while the learning rate rises, and set the one at which the loss falls fastest.

        Args:
            model: the module.
            train_dataloaders: as in `Trainer.fit`, and so are the next ones.
            val_dataloaders: not used, as nothing is validated.
            dataloaders: for the other methods; must be None.
            datamodule: in place of loaders.
            method: "fit".
            min_lr: as in `LearningRateFinder`, and so are all that follow.
            max_lr: the last learning rate.
            num_training: optimizer steps.
            mode: "exponential" or "linear".
            early_stop_threshold: end when the loss is above so many times the least one; None: never.
            update_attr: set the attribute.
            attr_name: its name; "" for `lr` or `learning_rate`.

        Returns:
            What was found, with `results`, `suggestion()` and `plot()`; None with `fast_dev_run`.

        Raises:
            MisconfigurationException: an argument cannot be used, the module has several optimizers, or the Trainer has
                a LearningRateFinder already.
        """
        if method != "fit":
            raise MisconfigurationException(f"`lr_find(method={method!r})`: a learning rate is of 'fit'.")
        self._has_none(LearningRateFinder, "lr_find")
        finder = LearningRateFinder(min_lr, max_lr, num_training, mode, early_stop_threshold, update_attr, attr_name)
        with self._in_call(model, method, train_dataloaders, val_dataloaders, dataloaders, datamodule) as run:
            finder.lr_find(self._trainer, run.module)
        return finder.optimal_lr

    def scale_batch_size(
        self,
        model: Module,
        train_dataloaders: Any = None,
        val_dataloaders: Any = None,
        dataloaders: Any = None,
        datamodule: DataModule | None = None,
        method: str = "fit",
        mode: str = "power",
        steps_per_trial: int = 3,
        init_val: int = 2,
        max_trials: int = 25,
        batch_arg_name: str = "batch_size",
        margin: float = 0.05,
        max_val: int = 8192,
    ) -> int | None:
        """Find the largest batch size that fits into memory, and set it.

        Args:
            model: the module.
            train_dataloaders: must be None: loaders that are made already keep their batch size.
            val_dataloaders: likewise.
            dataloaders: likewise.
            datamodule: where the loaders are made, if not on the module.
            method: "fit", "validate", "test" or "predict".
            mode: as in `BatchSizeFinder`, and so are all that follow.
            steps_per_trial: optimizer steps, or batches, of each trial.
            init_val: the first size.
            max_trials: how often to double.
            batch_arg_name: the attribute's name.
            margin: the part of the largest size that is left free, with `mode="binsearch"`.
            max_val: the largest size that is tried.

        Returns:
            The batch size; None with `fast_dev_run`.

        Raises:
            MisconfigurationException: an argument cannot be used, or the Trainer has a BatchSizeFinder already.
        """
        if method not in CALLS:
            raise MisconfigurationException(f"`method={method!r}`: choose one of {', '.join(map(repr, CALLS))}.")
        given = {"train_dataloaders": train_dataloaders, "val_dataloaders": val_dataloaders, "dataloaders": dataloaders}
        if any(loaders is not None and not isinstance(loaders, DataModule) for loaders in given.values()):
            raise MisconfigurationException(
                "`scale_batch_size` makes the loaders anew with each size, and was given some that are made already: "
                "make them in a `train_dataloader` method of the module or a datamodule, from `self.batch_size`."
            )
        self._has_none(BatchSizeFinder, "scale_batch_size")
        finder = BatchSizeFinder(mode, steps_per_trial, init_val, max_trials, batch_arg_name, margin, max_val)
        with self._in_call(model, method, train_dataloaders, val_dataloaders, dataloaders, datamodule) as run:
            finder.scale_batch_size(self._trainer, run.module)
        return finder.optimal_batch_size

    def _has_none(self, kind: type, call: str) -> None:
        if any(isinstance(callback, kind) for callback in self._trainer.callbacks):
            raise MisconfigurationException(
                f"The Trainer has a {kind.__name__}, which does by itself what `Tuner.{call}` does: leave one out."
            )

    @contextmanager
    def _in_call(
        self, model: Module, method: str, train: Any, val: Any, loaders: Any, datamodule: DataModule | None
    ) -> Iterator[Run]:
        """A call of the Trainer's up to its loop, without its callbacks and loggers."""
        trainer, model = self._trainer, checks.as_module(model, method)
        if method == "fit":
            if loaders is not None:
                raise MisconfigurationException(
                    "`dataloaders` is for 'validate', 'test' and 'predict': give `train_dataloaders`."
                )
            train, datamodule = datamodule_first(train, datamodule, val)
            sources = Sources.of(model, datamodule, train=train, val=val)
        else:
            if train is not None or val is not None:
                raise MisconfigurationException(f"`method={method!r}` takes `dataloaders`, not those of `fit`.")
            loaders, datamodule = datamodule_first(loaders, datamodule)
            sources = Sources.of(model, datamodule, **{"val" if method == "validate" else method: loaders})
        with set_aside(trainer), warnings.catch_warnings():
            warnings.filterwarnings("ignore", ".*there is no validation loader")  # nor does this call need one
            with running(trainer, CALLS[method], sources, None, None) as run:
                yield run

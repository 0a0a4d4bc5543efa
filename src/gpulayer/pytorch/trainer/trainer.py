"""Trainer: what the user asked for, and the four calls."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, nullcontext
from datetime import timedelta
from math import ceil, inf
from typing import Any, Literal

import torch
from torch import Tensor
from torch.optim import Optimizer

from gpulayer.fabric.accelerators import Accelerator
from gpulayer.fabric.precision import Precision
from gpulayer.fabric.resolve import resolve_strategy
from gpulayer.fabric.strategies import Strategy
from gpulayer.fabric.utilities.environment import arguments_from_environment
from gpulayer.fabric.utilities.exceptions import MisconfigurationException
from gpulayer.fabric.utilities.init import EmptyInit
from gpulayer.fabric.utilities.rank_zero import rank_zero_info
from gpulayer.fabric.utilities.types import Path
from gpulayer.pytorch.callbacks.early_stopping import EarlyStopping
from gpulayer.pytorch.callbacks.gradient_accumulation_scheduler import GradientAccumulationScheduler
from gpulayer.pytorch.callbacks.progress.progress_bar import ProgressBar
from gpulayer.pytorch.callbacks.timer import read_duration
from gpulayer.pytorch.core.callback import Callback, Checkpoint
from gpulayer.pytorch.core.datamodule import DataModule
from gpulayer.pytorch.core.hooks import overridden
from gpulayer.pytorch.core.module import Module
from gpulayer.pytorch.core.optimizer import LRSchedulerConfig
from gpulayer.pytorch.loggers.csv_logs import CSVLogger
from gpulayer.pytorch.loggers.delivery import Delivery
from gpulayer.pytorch.loggers.logger import DummyLogger, Logger
from gpulayer.pytorch.loops.evaluate import evaluate
from gpulayer.pytorch.loops.fit import fit
from gpulayer.pytorch.loops.predict import predict
from gpulayer.pytorch.loops.progress import Progress
from gpulayer.pytorch.loops.results import Results
from gpulayer.pytorch.loops.run import Run
from gpulayer.pytorch.loops.views import EvaluationLoopView, FitLoopView, PredictLoopView
from gpulayer.pytorch.profilers import Profiler
from gpulayer.pytorch.trainer import checkpoint, checks, report
from gpulayer.pytorch.trainer.attach import Sources, datamodule_first
from gpulayer.pytorch.trainer.defaults import all_callbacks
from gpulayer.pytorch.trainer.members import Brought
from gpulayer.pytorch.trainer.prepare import configure_optimizers, load_train, renew_loaders, take_optimizers
from gpulayer.pytorch.trainer.profiling import resolve_profiler
from gpulayer.pytorch.trainer.running import running
from gpulayer.pytorch.trainer.states import RunningStage, TrainerFn, TrainerState
from gpulayer.pytorch.trainer.trial import try_out
from gpulayer.pytorch.utilities.exceptions import SIGTERMException


class EvaluationResult(dict[str, float]):
    """The metrics of all loaders by name; `result[0]` is the dict of the first loader, as in Lightning's list."""

    def __init__(self, by_loader: list[dict[str, float]]) -> None:
        super().__init__()
        self.by_loader = by_loader
        for metrics in by_loader:
            self.update(metrics)

    def __getitem__(self, key: str | int) -> Any:
        return self.by_loader[key] if isinstance(key, int) else super().__getitem__(key)


class Trainer:
    """Runs a Module: training, validation, testing, prediction. All arguments are keywords, and all are optional.

    An argument that is not given is read from the environment: `PL_TRAINER_MAX_EPOCHS=5` is `max_epochs=5`.

    Args:
        accelerator: "auto" (a GPU if there is one), "cpu", "gpu", "cuda", "mps", or an Accelerator.
        strategy: "auto", or a Strategy.
        devices: how many, which ([0], "0,1"), -1 for all, or "auto".
        num_nodes: machines.
        precision: 32 or "32-true"; "bf16" or "bf16-mixed"; or a Precision.
        logger: None or True writes `metrics.csv`; False nothing; or a Logger or several.
        callbacks: a Callback or several.
        fast_dev_run: run one batch (True) or so many of each stage, to find errors; nothing is written.
        max_epochs: stop after so many epochs; -1 for no limit. Left out: one epoch, or no limit if `max_steps` or
            `max_time` is given; `min_epochs` raises it.
        min_epochs: do not stop early before so many epochs.
        max_steps: stop after so many optimizer steps; -1 for no limit.
        min_steps: do not stop early before so many optimizer steps.
        max_time: stop after this time: "DD:HH:MM:SS", a timedelta or a dict of its arguments.
        limit_train_batches: how many batches (int) or which fraction of them (float) an epoch has.
        limit_val_batches: likewise for a validation; 0 switches it off.
        limit_test_batches: likewise for a test.
        limit_predict_batches: likewise for a prediction.
        overfit_batches: train and validate on so many batches (int) or such a fraction (float), unshuffled, to see
            whether the model can learn them by heart; 0 for no.
        val_check_interval: validate every so many batches (int), such a fraction of an epoch (float), or each time so
            much time has gone by ("DD:HH:MM:SS", a timedelta or a dict of its arguments). Default: 1.0.
        check_val_every_n_epoch: validate every so many epochs; None: count `val_check_interval` across epochs.
        num_sanity_val_steps: validation batches to try before training; -1 for all. Default: 2.
        log_every_n_steps: step values reach the loggers every so many optimizer steps. Default: 50.
        enable_checkpointing: save a checkpoint each epoch if no ModelCheckpoint is given. Default: True.
        enable_progress_bar: a progress bar. Default: False; one line an epoch is logged in any case.
        enable_model_summary: a table of the layers before training. Default: False.
        accumulate_grad_batches: batches an optimizer step.
        gradient_clip_val: bound of the gradients.
        gradient_clip_algorithm: "norm" (default) or "value".
        deterministic: only algorithms whose results can be repeated: True, or "warn" where there is none.
        benchmark: let cuDNN time its algorithms and take the fastest. Default: torch's own setting is left alone.
        inference_mode: validate, test and predict in `torch.inference_mode` rather than `torch.no_grad`.
        use_distributed_sampler: split the data among processes.
        detect_anomaly: name the operation that made a NaN in the backward pass; slow.
        barebones: nothing but the loop: no loggers, checkpoints, sanity check, `self.log` or lines, to measure speed.
        profiler: tells where the time of a call goes: "simple", "advanced", "pytorch", or a Profiler. Default: none.
        plugins: a Precision, CheckpointIO or SLURMEnvironment of your own, or several in a list.
        sync_batchnorm: share batch statistics among processes; no effect on one device.
        reload_dataloaders_every_n_epochs: make the loaders anew every so many epochs; 0 for never.
        default_root_dir: where runs are written: `<here>/<name of the module>/version_N`. Default: `runs`.
        enable_autolog_hparams: give loggers the hyperparameters at the start.

    Raises:
        MisconfigurationException: a value that cannot be used; the message says what can.
        TypeError: an unknown argument.
    """

    @arguments_from_environment("PL_TRAINER_", texts=("default_root_dir",))
    def __init__(
        self,
        *,
        accelerator: str | Accelerator = "auto",
        strategy: str | Strategy = "auto",
        devices: int | str | list[int] = "auto",
        num_nodes: int = 1,
        precision: int | str | Precision | None = None,
        logger: Logger | list[Logger] | bool | None = None,
        callbacks: Callback | list[Callback] | None = None,
        fast_dev_run: int | bool = False,
        max_epochs: int | None = None,
        min_epochs: int | None = None,
        max_steps: int = -1,
        min_steps: int | None = None,
        max_time: str | timedelta | dict[str, int] | None = None,
        limit_train_batches: int | float | None = None,
        limit_val_batches: int | float | None = None,
        limit_test_batches: int | float | None = None,
        limit_predict_batches: int | float | None = None,
        overfit_batches: int | float = 0.0,
        val_check_interval: int | float | str | timedelta | dict[str, int] | None = None,
        check_val_every_n_epoch: int | None = 1,
        num_sanity_val_steps: int | None = None,
        log_every_n_steps: int | None = None,
        enable_checkpointing: bool | None = None,
        enable_progress_bar: bool | None = None,
        enable_model_summary: bool | None = None,
        accumulate_grad_batches: int = 1,
        gradient_clip_val: int | float | None = None,
        gradient_clip_algorithm: str | None = None,
        deterministic: bool | Literal["warn"] | None = None,
        benchmark: bool | None = None,
        inference_mode: bool = True,
        use_distributed_sampler: bool = True,
        detect_anomaly: bool = False,
        barebones: bool = False,
        profiler: Profiler | str | None = None,
        plugins: Any = None,
        sync_batchnorm: bool = False,
        reload_dataloaders_every_n_epochs: int = 0,
        default_root_dir: Path | None = None,
        enable_autolog_hparams: bool = True,
        **unknown: Any,
    ) -> None:
        checks.unknown_arguments(unknown, Trainer.__init__)
        for name, value, least, none in (
            ("max_epochs", max_epochs, -1, True),
            ("min_epochs", min_epochs, 0, True),
            ("max_steps", max_steps, -1, False),
            ("min_steps", min_steps, 0, True),
            ("check_val_every_n_epoch", check_val_every_n_epoch, 1, True),
            ("num_sanity_val_steps", num_sanity_val_steps, -1, True),
            ("log_every_n_steps", log_every_n_steps, 0, True),
            ("accumulate_grad_batches", accumulate_grad_batches, 1, False),
            ("reload_dataloaders_every_n_epochs", reload_dataloaders_every_n_epochs, 0, False),
        ):
            checks.whole_number(name, value, least, none)
        for name, limit in (
            ("limit_train_batches", limit_train_batches),
            ("limit_val_batches", limit_val_batches),
            ("limit_test_batches", limit_test_batches),
            ("limit_predict_batches", limit_predict_batches),
            ("overfit_batches", overfit_batches),
        ):
            checks.limit(name, limit)
        checks.validation_interval(val_check_interval, check_val_every_n_epoch)
        checks.clipping(gradient_clip_val, gradient_clip_algorithm)
        checks.trial(fast_dev_run)
        checks.yes_or_no(
            enable_checkpointing=enable_checkpointing,
            enable_progress_bar=enable_progress_bar,
            enable_model_summary=enable_model_summary,
            benchmark=benchmark,
            inference_mode=inference_mode,
            detect_anomaly=detect_anomaly,
            barebones=barebones,
        )
        if deterministic not in (None, True, False, "warn"):
            raise MisconfigurationException(
                f"`Trainer(deterministic={deterministic!r})`: choose True, False or 'warn'."
            )
        checks.path("default_root_dir", default_root_dir)
        if barebones:
            checks.nothing_beside_the_loop(
                enable_checkpointing=enable_checkpointing,
                logger=logger,
                enable_progress_bar=enable_progress_bar,
                enable_model_summary=enable_model_summary,
                num_sanity_val_steps=num_sanity_val_steps,
                log_every_n_steps=log_every_n_steps,
                fast_dev_run=fast_dev_run,
                detect_anomaly=detect_anomaly,
                profiler=profiler,
            )
            logger = enable_checkpointing = False
            num_sanity_val_steps = log_every_n_steps = 0

        self.profiler = resolve_profiler(profiler)
        self.state = TrainerState()
        self.progress = Progress()
        self.should_stop = False
        self.training_rng: dict[str, Any] | None = None  # set while a validation within `fit` draws random numbers
        self.ckpt_path: str | None = None
        self.reruns = False  # whether `ckpt_path="last"` was asked for: this is the same run, and not a branch of it
        self.results = Results(torch.device("cpu"))
        self.lightning_module: Any = None
        self.datamodule: DataModule | None = None
        self.sources: Sources | None = None
        self._run: Run | None = None  # what is running;
        self._last: Run | None = None  # what ran last;
        self._fitted: Run | None = None  # and the last `fit`, whose optimizers a later `save_checkpoint` needs

        self.strategy = resolve_strategy(strategy, accelerator, devices, num_nodes, precision, plugins)
        self.num_nodes = num_nodes
        self.use_distributed_sampler = use_distributed_sampler
        self.sync_batchnorm = sync_batchnorm
        if sync_batchnorm and self.strategy.world_size > 1:
            raise MisconfigurationException(
                "`Trainer(sync_batchnorm=True)` with several processes comes with a later version."
            )
        self.inference_mode = inference_mode
        self.detect_anomaly = detect_anomaly
        self.deterministic = deterministic
        if deterministic is not None:
            torch.use_deterministic_algorithms(bool(deterministic), warn_only=deterministic == "warn")
            if deterministic:
                os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
        self.benchmark = benchmark
        if benchmark is not None:
            torch.backends.cudnn.benchmark = benchmark

        unlimited = max_steps != -1 or max_time is not None
        if max_epochs is None:
            max_epochs = -1 if unlimited else max(1, min_epochs or 1)
        if min_epochs is None:
            min_epochs = 0 if min_steps is None else 1  # steps are counted in an epoch, so one is begun at least
        self.max_epochs, self.min_epochs = max_epochs, min_epochs
        self.max_steps, self.min_steps = max_steps, min_steps
        self.limit_train_batches = 1.0 if limit_train_batches is None else limit_train_batches
        self.limit_val_batches = 1.0 if limit_val_batches is None else limit_val_batches
        self.limit_test_batches = 1.0 if limit_test_batches is None else limit_test_batches
        self.limit_predict_batches = 1.0 if limit_predict_batches is None else limit_predict_batches
        self.overfit_batches = overfit_batches
        if overfit_batches:
            self.limit_train_batches = self.limit_val_batches = overfit_batches
        self.barebones = barebones
        self.val_check_interval = read_interval(val_check_interval)
        self.check_val_every_n_epoch = check_val_every_n_epoch
        self.num_sanity_val_steps = 2 if num_sanity_val_steps is None else num_sanity_val_steps
        self.log_every_n_steps = 50 if log_every_n_steps is None else log_every_n_steps
        self.accumulate_grad_batches = accumulate_grad_batches
        self._gradient_clip_val, self.gradient_clip_algorithm = gradient_clip_val, gradient_clip_algorithm
        self.reload_dataloaders_every_n_epochs = reload_dataloaders_every_n_epochs
        self.enable_autolog_hparams = enable_autolog_hparams
        self.fast_dev_run = fast_dev_run
        if fast_dev_run:
            self._try_only(int(fast_dev_run))
            logger = False if logger is False else DummyLogger()  # code that uses its logger runs as it is

        self.started_in = os.getcwd()  # relative folders are meant from here, wherever the program goes
        self._root_dir = None if default_root_dir is None else os.path.expanduser(os.fspath(default_root_dir))
        self._unnamed_logger: CSVLogger | None = None  # the default one, until a module gives it a name
        self.loggers = self._make_loggers(logger)
        self.delivery = Delivery(self)
        self.callbacks = all_callbacks(
            callbacks,
            max_time,
            checkpointing=enable_checkpointing,
            progress_bar=enable_progress_bar,
            model_summary=enable_model_summary,
            trial=bool(fast_dev_run),
            third_party=not barebones,
        )
        self.brought = Brought()  # callbacks that the module of the last call brought
        self.kept_states: dict[Any, Any] = {}  # of callbacks that a checkpoint had, and this Trainer lacks

    def _try_only(self, batches: int) -> None:
        """Set the limits of `fast_dev_run`."""
        self.max_epochs, self.max_steps = 1, batches
        self.min_epochs, self.min_steps = 0, None
        self.limit_train_batches = self.limit_val_batches = batches
        self.limit_test_batches = self.limit_predict_batches = batches
        self.val_check_interval, self.check_val_every_n_epoch = 1.0, 1
        self.num_sanity_val_steps = 0
        rank_zero_info("fast_dev_run: %d batch(es) of each stage; no logger, no checkpoints.", batches)

    def _make_loggers(self, logger: Any) -> list[Logger]:
        if logger is False:
            return []
        if logger is None or logger is True:
            self._unnamed_logger = CSVLogger(self._root_dir or "runs", name=None)
            return [self._unnamed_logger]
        loggers = list(logger) if isinstance(logger, (list, tuple)) else [logger]
        for item in loggers:
            if not callable(getattr(item, "log_metrics", None)):
                raise MisconfigurationException(
                    f"`Trainer(logger={item!r})`: give a Logger or a list of them, True for metrics.csv, or False "
                    "for none."
                )
        return loggers

    # -- the four calls ----------------------------------------------------------------------------------------------

    def fit(
        self,
        model: Module,
        train_dataloaders: Any = None,
        val_dataloaders: Any = None,
        datamodule: DataModule | None = None,
        ckpt_path: Path | None = None,
        weights_only: bool | None = None,
    ) -> None:
        """Train.

        Args:
            model: the Module.
            train_dataloaders: a DataLoader or any iterable of batches; or a DataModule.
            val_dataloaders: one or several.
            datamodule: in place of loaders.
            ckpt_path: a checkpoint to go on from: a path; "last" for the newest that this run's callbacks wrote; "hpc"
                for the newest that SLURM's notice wrote, which a job that is back in SLURM's queue takes anyway.
            weights_only: as in `torch.load`, for the checkpoint; None is True.

        Raises:
            MisconfigurationException: something is missing or does not fit; the message says what to do.
        """
        model = checks.as_module(model, "fit")
        train_dataloaders, datamodule = datamodule_first(train_dataloaders, datamodule, val_dataloaders)
        sources = Sources.of(model, datamodule, train=train_dataloaders, val=val_dataloaders)
        self.should_stop = False
        with running(self, TrainerFn.FITTING, sources, ckpt_path, weights_only) as run:
            fit(run)

    def validate(
        self,
        model: Module | None = None,
        dataloaders: Any = None,
        ckpt_path: Path | None = None,
        verbose: bool = True,
        datamodule: DataModule | None = None,
        weights_only: bool | None = None,
    ) -> EvaluationResult:
        """Run `validation_step` over the data, once.

        Args:
            model: the Module; None: the one of the last call, with the weights of its best checkpoint.
            dataloaders: one or several; or a DataModule.
            ckpt_path: weights to load: a path, "best" or "last". None: the module's as they are.
            verbose: log a line with the metrics.
            datamodule: in place of loaders.
            weights_only: as in `torch.load`.

        Returns:
            The metrics by name, which also answers `result[0]` with those of the first loader.

        Raises:
            MisconfigurationException: something is missing or does not fit.
        """
        module, given = self._module_for("validate", model)
        dataloaders, datamodule = datamodule_first(dataloaders, datamodule)
        sources = Sources.of(module, datamodule, val=dataloaders)
        with running(self, TrainerFn.VALIDATING, sources, ckpt_path, weights_only, given) as run:
            result = EvaluationResult(evaluate(run, run.evaluation))
        if verbose and not self.barebones:
            report.evaluated("validate", result)
        return result

    def test(
        self,
        model: Module | None = None,
        dataloaders: Any = None,
        ckpt_path: Path | None = None,
        verbose: bool = True,
        datamodule: DataModule | None = None,
        weights_only: bool | None = None,
    ) -> EvaluationResult:
        """Run `test_step` over the data, once. Arguments and result as in `validate`."""
        module, given = self._module_for("test", model)
        dataloaders, datamodule = datamodule_first(dataloaders, datamodule)
        sources = Sources.of(module, datamodule, test=dataloaders)
        with running(self, TrainerFn.TESTING, sources, ckpt_path, weights_only, given) as run:
            result = EvaluationResult(evaluate(run, run.evaluation))
        if verbose and not self.barebones:
            report.evaluated("test", result)
        return result

    def predict(
        self,
        model: Module | None = None,
        dataloaders: Any = None,
        datamodule: DataModule | None = None,
        return_predictions: bool | None = None,
        ckpt_path: Path | None = None,
        weights_only: bool | None = None,
    ) -> list[Any] | None:
        """Run `predict_step` over the data, once.

        Args:
            model: as in `validate`.
            dataloaders: one or several; or a DataModule.
            datamodule: in place of loaders.
            return_predictions: False keeps none, for data that does not fit into memory. Default: True.
            ckpt_path: as in `validate`.
            weights_only: as in `torch.load`.

        Returns:
            The predictions of all batches; with several loaders, one such list for each. None if they are not kept.

        Raises:
            MisconfigurationException: something is missing or does not fit.
        """
        module, given = self._module_for("predict", model)
        dataloaders, datamodule = datamodule_first(dataloaders, datamodule)
        sources = Sources.of(module, datamodule, predict=dataloaders)
        keep = return_predictions is not False
        with running(self, TrainerFn.PREDICTING, sources, ckpt_path, weights_only, given) as run:
            kept = predict(run, run.evaluation, keep)
        return None if not keep else kept[0] if len(kept) == 1 else kept

    def __getstate__(self) -> dict[str, Any]:
        # The next call makes anew what a run needs; the counters and metrics of the last one stay.
        results = Results(torch.device("cpu"))
        results.metrics = self.results.refresh()
        return {**self.__dict__, "results": results, "_run": None, "_last": None, "_fitted": None}

    def _module_for(self, call: str, model: Module | None) -> tuple[Module, bool]:
        if model is not None:
            return checks.as_module(model, call), True
        if self.lightning_module is None:
            raise TypeError(
                f"`trainer.{call}()` without a model uses that of the last call, and there was none: pass one."
            )
        return self.lightning_module, False

    def save_checkpoint(self, filepath: Path, weights_only: bool | None = None, storage_options: Any = None) -> None:
        """Write a checkpoint of this moment.

        Args:
            filepath: where.
            weights_only: leave out what only resuming needs.
            storage_options: for a CheckpointIO of your own.

        Raises:
            AttributeError: no module was run yet.
        """
        run = self._last
        if run is None:
            raise AttributeError("`trainer.save_checkpoint` needs a module: call `fit` or another method first.")
        if self._fitted is not None and self._fitted.module is run.module:
            run = self._fitted
        with self.profiler.profile("save_checkpoint"):
            state = checkpoint.dump(run, bool(weights_only))
            self.strategy.save(os.fspath(filepath), state, storage_options)
            self.strategy.barrier("save_checkpoint")

    def try_out(self, callbacks: Iterable[Callback] = (), max_steps: int = -1, batches: int | None = None) -> None:
        """From a hook: run the loop of the call that is under way, for some steps, and leave no trace of it.

        Afterwards weights, buffers, optimizers, metric objects, random states and the Trainer are what they were
        before, also after an error. What the module's own hooks wrote elsewhere stays.

        Args:
            callbacks: those that are called meanwhile, with the module's hooks; the Trainer's own are not.
            max_steps: how many optimizer steps a `fit` takes at most; -1 for no limit.
            batches: how many batches an evaluation takes at most, also the one at the end of a `fit`, which comes only
                if this is given.
        """
        try_out(self, callbacks, max_steps, batches)

    def renew_loaders(self) -> None:
        """From a hook before the first batch of a call or an epoch: make its loaders anew, as what they are made with
        has changed."""
        if self._run is not None:
            renew_loaders(self._run)

    def renew_optimizers(self) -> None:
        """From `on_fit_start`: ask the module for its optimizers again, when what they are made with has changed."""
        if self._fitted is not None:
            configure_optimizers(self._fitted)

    def print(self, *args: Any, **kwargs: Any) -> None:
        """`print`, on rank 0; above the progress bar, if there is one."""
        if self.is_global_zero:
            bar = self.progress_bar_callback
            (print if bar is None else bar.print)(*args, **kwargs)

    @contextmanager
    def init_module(self, empty_init: bool | None = None) -> Iterator[None]:
        """Make a module's tensors right on the device.

        Args:
            empty_init: leave the weights uninitialised, for those that load a checkpoint anyway.
        """
        weights = EmptyInit() if empty_init else nullcontext()
        with self.strategy.root_device, self.strategy.precision.init_context(), weights:
            yield

    # -- progress ----------------------------------------------------------------------------------------------------

    @property
    def current_epoch(self) -> int:
        """The number of the epoch, from 0; after `fit`, how many there were."""
        return self.progress.epoch

    @property
    def global_step(self) -> int:
        """Optimizer steps taken."""
        return self.progress.step

    @property
    def is_last_batch(self) -> bool:
        """Whether the training batch is the last of its epoch."""
        return self.progress.last_batch

    @property
    def estimated_stepping_batches(self) -> int | float:
        """Optimizer steps that the run will take; inf if that has no end or is not known.

        May be read in `configure_optimizers`, for schedulers that need it.
        """
        if self.max_epochs == -1:
            return inf if self.max_steps == -1 else self.max_steps
        if self._fitted is None:
            raise RuntimeError("`estimated_stepping_batches` needs the training data: it is known from `fit` on.")
        load_train(self._fitted)
        batches = self._fitted.train.count
        if batches == inf:
            return inf if self.max_steps == -1 else self.max_steps
        epochs = range(max(self.max_epochs, 1))
        plan = next((one for one in self.callbacks if isinstance(one, GradientAccumulationScheduler)), None)
        if plan is None:
            steps = ceil(batches / self.accumulate_grad_batches) * len(epochs)
        else:
            steps = sum(ceil(batches / plan.get_accumulate_grad_batches(epoch)) for epoch in epochs)
        return steps if self.max_steps == -1 else min(steps, self.max_steps)

    # -- data --------------------------------------------------------------------------------------------------------

    @property
    def num_training_batches(self) -> int | float:
        """Batches of a training epoch; inf if that is not known."""
        return inf if self._fitted is None or self._fitted.train.loader is None else self._fitted.train.count

    @property
    def val_check_batch(self) -> int | float | None:
        """Batches from one validation to the next; inf if an epoch's are not known, None if time decides."""
        interval = self.val_check_interval
        if self._fitted is None or self._fitted.train.loader is None or isinstance(interval, timedelta):
            return None
        count = self._fitted.train.count
        return interval if isinstance(interval, int) else count if count == inf else max(1, int(count * interval))

    @property
    def num_val_batches(self) -> list[int | float]:
        """Batches of each validation loader."""
        return self._counts("validation")

    @property
    def num_sanity_val_batches(self) -> list[int | float]:
        """Batches of each validation loader in the sanity check."""
        most = inf if self.num_sanity_val_steps == -1 else self.num_sanity_val_steps
        return [min(count, most) for count in self.num_val_batches]

    @property
    def num_test_batches(self) -> list[int | float]:
        """Batches of each test loader."""
        return self._counts("test")

    @property
    def num_predict_batches(self) -> list[int | float]:
        """Batches of each loader to predict."""
        return self._counts("predict")

    @property
    def train_dataloader(self) -> Any:
        """The training loader."""
        return None if self._fitted is None else self._fitted.train.loader

    @property
    def val_dataloaders(self) -> Any:
        """The validation loader, or a list if there are several."""
        return self._loaders("validation")

    @property
    def test_dataloaders(self) -> Any:
        """The test loader, or a list if there are several."""
        return self._loaders("test")

    @property
    def predict_dataloaders(self) -> Any:
        """The loader to predict, or a list if there are several."""
        return self._loaders("predict")

    def _evaluation(self, stage: str) -> Any:
        runs = [run for run in (self._last, self._fitted) if run is not None]
        for evaluation in (found for run in runs for found in (run.evaluation, run.validation)):
            if evaluation is not None and evaluation.stage == stage:
                return evaluation
        return None

    def _counts(self, stage: str) -> list[int | float]:
        evaluation = self._evaluation(stage)
        return [] if evaluation is None else [batches.count for batches in evaluation.loaders]

    def _loaders(self, stage: str) -> Any:
        evaluation = self._evaluation(stage)
        loaders = [] if evaluation is None else [batches.loader for batches in evaluation.loaders]
        return None if not loaders else loaders[0] if len(loaders) == 1 else loaders

    # -- metrics -----------------------------------------------------------------------------------------------------

    @property
    def callback_metrics(self) -> dict[str, Tensor]:
        """The newest value of everything logged, for callbacks to decide on."""
        return _as_tensors(self.results.refresh().callback)

    @property
    def logged_metrics(self) -> dict[str, Tensor]:
        """The newest value of what goes to loggers."""
        return _as_tensors(self.results.refresh().logged)

    @property
    def progress_bar_metrics(self) -> dict[str, float]:
        """The newest value of what was logged with `prog_bar=True`, as numbers."""
        metrics = self.results.refresh().progress_bar
        for name, value in metrics.items():
            metrics[name] = float(value)
        return metrics

    # -- the model and what trains it --------------------------------------------------------------------------------

    @property
    def model(self) -> Any:
        """The module, wrapped by the strategy."""
        return self.lightning_module

    @property
    def optimizers(self) -> list[Optimizer]:
        """The optimizers of the run."""
        return [] if self._fitted is None else self._fitted.optimizers

    @optimizers.setter
    def optimizers(self, optimizers: list[Optimizer]) -> None:
        run = self._fitted
        if run is None:
            raise MisconfigurationException(
                "`trainer.optimizers` can be set from `fit` on: return the first ones from `configure_optimizers`."
            )
        if run.module.automatic_optimization and len(optimizers) != 1:
            raise MisconfigurationException(
                f"`trainer.optimizers` was set to {len(optimizers)} optimizers: give a list of one, which the loop "
                "steps, or set `self.automatic_optimization = False` in the module's `__init__`."
            )
        take_optimizers(run, optimizers)
        self._bind_optimizer()

    @property
    def gradient_clip_val(self) -> int | float | None:
        """Bound of the gradients; one that is set during training holds from the next step on."""
        return self._gradient_clip_val

    @gradient_clip_val.setter
    def gradient_clip_val(self, value: int | float | None) -> None:
        checks.clipping(value, self.gradient_clip_algorithm)
        self._gradient_clip_val = value
        self._bind_optimizer()

    def _bind_optimizer(self) -> None:
        if self._run is not None:
            self._run.bind_optimizer()

    @property
    def lr_scheduler_configs(self) -> list[LRSchedulerConfig]:
        """The schedulers of the run, and when they move."""
        return [] if self._fitted is None else self._fitted.scheduler_configs

    @lr_scheduler_configs.setter
    def lr_scheduler_configs(self, configs: list[LRSchedulerConfig]) -> None:
        if self._fitted is not None:
            self._fitted.scheduler_configs = configs
            if not self._fitted.manual:
                self._fitted.schedulers.take(configs)

    # -- where it runs -----------------------------------------------------------------------------------------------

    @property
    def accelerator(self) -> Accelerator:
        """The kind of device."""
        accelerator: Accelerator = self.strategy.accelerator
        return accelerator

    @property
    def precision_plugin(self) -> Precision:
        """The number formats."""
        return self.strategy.precision

    @property
    def precision(self) -> str:
        """The name of the number formats, such as "bf16-mixed"."""
        return self.strategy.precision.name

    @property
    def scaler(self) -> Any:
        """The gradient scaler of fp16, or None."""
        return getattr(self.strategy.precision, "scaler", None)

    @property
    def device_ids(self) -> list[int]:
        """The indices of this machine's devices."""
        return [self.strategy.root_device.index or 0]

    @property
    def num_devices(self) -> int:
        """How many devices each machine uses."""
        return len(self.device_ids)

    @property
    def world_size(self) -> int:
        """How many processes train."""
        return self.strategy.world_size

    @property
    def global_rank(self) -> int:
        """This process's number among all."""
        return self.strategy.global_rank

    @property
    def local_rank(self) -> int:
        """This process's number on its machine."""
        return self.strategy.local_rank

    @property
    def node_rank(self) -> int:
        """This machine's number."""
        return self.strategy.node_rank

    @property
    def is_global_zero(self) -> bool:
        """Whether this is the process that writes."""
        return self.strategy.is_global_zero

    @property
    def distributed_sampler_kwargs(self) -> dict[str, int] | None:
        """`num_replicas` and `rank` for a sampler; None where data is not split."""
        return self.strategy.distributed_sampler_kwargs

    # -- files -------------------------------------------------------------------------------------------------------

    @property
    def logger(self) -> Logger | None:
        """The first logger. Setting it replaces all."""
        return self.loggers[0] if self.loggers else None

    @logger.setter
    def logger(self, logger: Logger | None) -> None:
        self.loggers = [] if logger is None else [logger]

    @property
    def default_root_dir(self) -> str:
        """Where files go that no logger has a place for."""
        return self._root_dir or self.started_in

    @property
    def log_dir(self) -> str | None:
        """The folder of this run."""
        if self.loggers:
            first = self.loggers[0]
            if first is self._unnamed_logger:
                return first.root_dir
            return getattr(first, "log_dir", None) or first.save_dir or self.default_root_dir
        return self.default_root_dir

    def name_default_logger(self, name: str) -> None:
        """Name the folder of a run after the module, if the user named none."""
        if self._unnamed_logger is not None:
            self._unnamed_logger.name = name
            self._unnamed_logger = None

    # -- callbacks ---------------------------------------------------------------------------------------------------

    @property
    def checkpoint_callbacks(self) -> list[Checkpoint]:
        """All callbacks that save checkpoints."""
        return [callback for callback in self.callbacks if isinstance(callback, Checkpoint)]

    @property
    def checkpoint_callback(self) -> Any:
        """The first callback that saves checkpoints."""
        return next(iter(self.checkpoint_callbacks), None)

    @property
    def early_stopping_callbacks(self) -> list[EarlyStopping]:
        """All EarlyStopping callbacks."""
        return [callback for callback in self.callbacks if isinstance(callback, EarlyStopping)]

    @property
    def early_stopping_callback(self) -> EarlyStopping | None:
        """The first EarlyStopping callback."""
        return next(iter(self.early_stopping_callbacks), None)

    @property
    def progress_bar_callback(self) -> ProgressBar | None:
        """The progress bar, or None."""
        return next((callback for callback in self.callbacks if isinstance(callback, ProgressBar)), None)

    # -- what is running ---------------------------------------------------------------------------------------------

    @property
    def training(self) -> bool:
        """Whether it trains at this moment."""
        return self.state.stage is RunningStage.TRAINING

    @property
    def validating(self) -> bool:
        """Whether it validates at this moment."""
        return self.state.stage is RunningStage.VALIDATING

    @property
    def testing(self) -> bool:
        """Whether it tests at this moment."""
        return self.state.stage is RunningStage.TESTING

    @property
    def predicting(self) -> bool:
        """Whether it predicts at this moment."""
        return self.state.stage is RunningStage.PREDICTING

    @property
    def sanity_checking(self) -> bool:
        """Whether the validation before training runs at this moment."""
        return self.state.stage is RunningStage.SANITY_CHECKING

    @property
    def evaluating(self) -> bool:
        """Whether it validates, tests or checks at this moment."""
        return self.state.stage is not None and self.state.stage.evaluating

    @property
    def interrupted(self) -> bool:
        """Whether the last call ended by an error or by Ctrl+C."""
        return self.state.status == "interrupted"

    @property
    def received_sigterm(self) -> bool:
        """Whether SIGTERM asked the process to end in the last call, or does so in this one."""
        return self._last is not None and isinstance(self._last.ending.error, SIGTERMException)

    @property
    def enable_validation(self) -> bool:
        """Whether there is something to validate."""
        sources = self.sources
        if sources is None or not sources.val.defined or self.limit_val_batches == 0:
            return False
        return overridden("validation_step", sources.module, Module)

    @property
    def fit_loop(self) -> FitLoopView:
        """Training's counters and limits, where code written for Lightning looks for them."""
        return FitLoopView(self)

    @property
    def validate_loop(self) -> EvaluationLoopView:
        """The counters of `validate`."""
        return EvaluationLoopView(self, "validate")

    @property
    def test_loop(self) -> EvaluationLoopView:
        """The counters of `test`."""
        return EvaluationLoopView(self, "test")

    @property
    def predict_loop(self) -> PredictLoopView:
        """The counters of `predict`, and its predictions while it runs."""
        return PredictLoopView(self, self._evaluation("predict"))


def read_interval(interval: Any) -> int | float | timedelta:
    """`val_check_interval` as a number of batches, a fraction of an epoch, or a time."""
    if interval is None:
        return 1.0
    return (
        interval if isinstance(interval, (int, float)) else read_duration(interval, "Trainer(val_check_interval={!r})")
    )


def _as_tensors(metrics: dict[str, Any]) -> dict[str, Tensor]:
    """The same dict, with its numbers made tensors in place: a callback may add to it, and others see that."""
    for name, value in metrics.items():
        if not isinstance(value, Tensor):
            metrics[name] = torch.tensor(value, dtype=torch.float64 if isinstance(value, float) else None)
    return metrics

"""Module: the model, its steps and its optimizers in one class."""

from __future__ import annotations

import io
import os
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from importlib.util import find_spec
from typing import IO, TYPE_CHECKING, Any, TypeVar

import fsspec
import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from gpulayer.fabric.utilities.apply import apply_to_collection, move_data_to_device
from gpulayer.fabric.utilities.exceptions import MisconfigurationException
from gpulayer.fabric.utilities.rank_zero import rank_zero_warn
from gpulayer.fabric.utilities.types import MapLocation, Path
from gpulayer.pytorch.core.callback import Callback
from gpulayer.pytorch.core.hooks import CheckpointHooks, DataHooks, ModelHooks, StepOutput
from gpulayer.pytorch.core.hparams import HyperparametersMixin
from gpulayer.pytorch.core.metrics import is_collection
from gpulayer.pytorch.core.optimizer import LightningOptimizer, unwrapped
from gpulayer.pytorch.core.saving import load_weights, make_from_checkpoint, on_the_class, weights_in

if TYPE_CHECKING:
    from gpulayer.pytorch.trainer.trainer import Trainer

T = TypeVar("T", bound="Module")


class Module(ModelHooks, DataHooks, CheckpointHooks, HyperparametersMixin, nn.Module):
    """A `torch.nn.Module` that also says how it is trained.

    Write `training_step` and `configure_optimizers`; the rest is optional::

        class Classifier(Module):
            def __init__(self):
                super().__init__()
                self.net = nn.Linear(64, 10)

            def training_step(self, batch, batch_idx):
                x, y = batch
                loss = nn.functional.cross_entropy(self.net(x), y)
                self.log("train_loss", loss)
                return loss

            def configure_optimizers(self):
                return torch.optim.Adam(self.parameters(), lr=1e-3)
    """

    # Defaults of the class, read by a plain look-up. TorchScript would take annotations that it finds at run time for
    # types of its own, and properties for code to compile.
    if TYPE_CHECKING:
        automatic_optimization: bool
        _trainer: Trainer | None
        _compiler: Callable[..., Any] | None
        _example_input_array: Any
        _strict_loading: bool | None
    _trainer = None
    _compiler = None  # set by a Trainer that was given torch.compile(self)
    _exporting = False
    _example_input_array = None
    _strict_loading = None
    __jit_unused_properties__ = (
        "trainer logger loggers current_epoch global_step global_rank local_rank device dtype on_gpu "
        "example_input_array strict_loading hparams hparams_initial"
    ).split()

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.automatic_optimization = True
        self.prepare_data_per_node = True
        # An empty tensor that goes wherever `.to()`, `.cuda()`, `.half()` send the module: its device and dtype are
        # the module's, also when it has no parameters, and reading them does not walk the parameters at each step.
        self._place = torch.empty(0)

    # -- the steps ---------------------------------------------------------------------------------------------------

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """What the model computes; as in any `nn.Module`."""
        return super().forward(*args, **kwargs)  # nn.Module's own error

    def training_step(self, *args: Any, **kwargs: Any) -> StepOutput:
        """One batch of training. Signature: `(batch)`, `(batch, batch_idx)` or `(dataloader_iter)`.

        Returns:
            The loss as a scalar tensor; a dict with it under "loss"; or None, to skip the batch.
        """
        raise NotImplementedError

    def validation_step(self, *args: Any, **kwargs: Any) -> StepOutput:
        """One batch of validation. Signature: `(batch)`, `(batch, batch_idx)` or, with several loaders,
        `(batch, batch_idx, dataloader_idx)`. What it returns goes to `on_validation_batch_end`."""
        raise NotImplementedError

    def test_step(self, *args: Any, **kwargs: Any) -> StepOutput:
        """One batch of a test; as `validation_step`."""
        raise NotImplementedError

    def predict_step(self, *args: Any, **kwargs: Any) -> Any:
        """One batch of a prediction. Not overridden: `self(batch)`.

        Returns:
            Anything; `Trainer.predict` returns a list of them.
        """
        return self(args[0] if args else kwargs["batch"])

    def configure_optimizers(self) -> Any:
        """The optimizers and schedulers.

        Returns:
            An optimizer; a list of optimizers; a dict with "optimizer" and perhaps "lr_scheduler"; a list of such
            dicts; two lists, of optimizers and of schedulers; or None. A scheduler is a torch scheduler, or a dict of
            `LRSchedulerConfig`'s fields.
        """
        raise NotImplementedError

    def configure_callbacks(self) -> Sequence[Callback] | Callback:
        """Callbacks of this model; one of the same type that the Trainer was given is replaced."""
        return []

    # -- automatic optimization, step by step ------------------------------------------------------------------------

    def backward(self, loss: Tensor, *args: Any, **kwargs: Any) -> None:
        """The backward pass. Not overridden: `loss.backward()`, without a detour through this method."""
        loss.backward(*args, **kwargs)

    def optimizer_step(
        self,
        epoch: int,
        batch_idx: int,
        optimizer: Optimizer | LightningOptimizer,
        optimizer_closure: Callable[[], Any] | None = None,
    ) -> None:
        """The optimizer's step. An override must call `optimizer_closure`, or pass it to `optimizer.step`: it runs
        `training_step` and the backward pass.

        Args:
            epoch: the epoch's number.
            batch_idx: the batch's number in the epoch.
            optimizer: the optimizer.
            optimizer_closure: computes the loss and the gradients.
        """
        optimizer.step(closure=optimizer_closure)

    def optimizer_zero_grad(self, epoch: int, batch_idx: int, optimizer: Optimizer) -> None:
        """Free the gradients. Not overridden: `optimizer.zero_grad()`."""
        optimizer.zero_grad()

    def configure_gradient_clipping(
        self,
        optimizer: Optimizer,
        gradient_clip_val: float | None = None,
        gradient_clip_algorithm: str | None = None,
    ) -> None:
        """Clip the gradients before a step; the values are the Trainer's arguments."""
        self.clip_gradients(optimizer, gradient_clip_val, gradient_clip_algorithm)

    def lr_scheduler_step(self, scheduler: Any, metric: Any | None) -> None:
        """Move a scheduler; `metric` is the value of its monitor, if it is one that watches a metric."""
        if metric is None:
            scheduler.step()
        else:
            scheduler.step(metric)

    # -- manual optimization -----------------------------------------------------------------------------------------

    def optimizers(self, use_pl_optimizer: bool = True) -> Any:
        """The optimizer, or a list if there are several.

        Args:
            use_pl_optimizer: wrapped, so that `step` runs the hooks and is counted; False: as they are.
        """
        run = self._trained("optimizers()")
        chosen = run.wrapped_optimizers if use_pl_optimizer else run.optimizers
        return chosen[0] if len(chosen) == 1 else list(chosen)

    def lr_schedulers(self) -> Any:
        """None, the scheduler, or a list if there are several. In manual optimization you step them yourself."""
        schedulers = [config.scheduler for config in self._trained("lr_schedulers()").scheduler_configs]
        return None if not schedulers else schedulers[0] if len(schedulers) == 1 else schedulers

    def manual_backward(self, loss: Tensor, *args: Any, **kwargs: Any) -> None:
        """The backward pass in manual optimization: in place of `loss.backward()`, so that hooks, precision and
        strategy have their part."""
        if self.automatic_optimization:
            raise MisconfigurationException(
                "`manual_backward` is for manual optimization: set `self.automatic_optimization = False` in `__init__`."
            )
        run = self._running("manual_backward()")
        if run.share_gradients is not None:
            loss = run.share_gradients(loss)
        run.hooks.on_before_backward(loss)
        run.backward(loss, *args, **kwargs)
        run.hooks.on_after_backward()

    def clip_gradients(
        self,
        optimizer: Optimizer,
        gradient_clip_val: float | None = None,
        gradient_clip_algorithm: str | None = None,
    ) -> None:
        """Clip the gradients of an optimizer's parameters, in place.

        Args:
            optimizer: whose parameters.
            gradient_clip_val: the bound; None: the Trainer's, and nothing is clipped if that is None too.
            gradient_clip_algorithm: "norm" (the default) scales all to a total 2-norm of at most the bound, "value"
                bounds each element.

        Raises:
            MisconfigurationException: a value was given here and another to the Trainer, or an unknown algorithm.
        """
        trainer = self._trainer or self.trainer  # the property says what is wrong where there is none
        value = trainer.gradient_clip_val
        for name, here, there in (
            ("gradient_clip_val", gradient_clip_val, value),
            ("gradient_clip_algorithm", gradient_clip_algorithm, trainer.gradient_clip_algorithm),
        ):
            if here is not None and there is not None and here != there:
                raise MisconfigurationException(
                    f"`Trainer({name}={there!r})` and `clip_gradients({name}={here!r})` were both given: give one."
                )
        value = gradient_clip_val if gradient_clip_val is not None else value
        algorithm = gradient_clip_algorithm or trainer.gradient_clip_algorithm or "norm"
        if algorithm not in ("norm", "value"):
            raise MisconfigurationException(f"`gradient_clip_algorithm={algorithm!r}` is unknown: 'norm' or 'value'.")
        if value is not None and value > 0:
            trainer.strategy.precision.unscale(unwrapped(optimizer))
            parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
            trainer.strategy.clip_gradients(parameters, float(value), algorithm)

    def toggle_optimizer(self, optimizer: Optimizer | LightningOptimizer) -> None:
        """Let only this optimizer's parameters require gradients, until `untoggle_optimizer`."""
        own = {parameter for group in optimizer.param_groups for parameter in group["params"]}
        others = [
            parameter
            for other in self._trained("toggle_optimizer()").optimizers
            for group in other.param_groups
            for parameter in group["params"]
            if parameter not in own and parameter.requires_grad
        ]
        for parameter in others:
            parameter.requires_grad = False
        self.__dict__.setdefault("_toggled_off", {})[id(unwrapped(optimizer))] = others

    def untoggle_optimizer(self, optimizer: Optimizer | LightningOptimizer) -> None:
        """Undo `toggle_optimizer`."""
        for parameter in self.__dict__.get("_toggled_off", {}).pop(id(unwrapped(optimizer)), []):
            parameter.requires_grad = True

    @contextmanager
    def toggled_optimizer(self, optimizer: Optimizer | LightningOptimizer) -> Iterator[None]:
        """`toggle_optimizer` for a block."""
        self.toggle_optimizer(optimizer)
        try:
            yield
        finally:
            self.untoggle_optimizer(optimizer)

    # -- logging -----------------------------------------------------------------------------------------------------

    def log(
        self,
        name: str,
        value: Any,
        prog_bar: bool = False,
        logger: bool | None = None,
        on_step: bool | None = None,
        on_epoch: bool | None = None,
        reduce_fx: str | Callable[[Any], Any] = "mean",
        enable_graph: bool = False,
        sync_dist: bool = False,
        sync_dist_group: Any | None = None,
        add_dataloader_idx: bool = True,
        batch_size: int | None = None,
        metric_attribute: str | None = None,
        rank_zero_only: bool = False,
    ) -> None:
        """Log a value; the host does not wait for the device.

        Args:
            name: the metric's name.
            value: a scalar tensor, a number, or a torchmetrics object: then the step's value is that of its last call,
                and the epoch's is computed once, at the end, after which it is reset.
            prog_bar: show it in the progress bar.
            logger: send it to the loggers (the default).
            on_step: log each step's value. Default: in `training_step` and the hooks around it.
            on_epoch: log the epoch's value, reduced by `reduce_fx`. Default: everywhere else.
            reduce_fx: "mean" (weighted by batch size), "sum", "min", "max", or a function of the stacked values.
            enable_graph: kept for Lightning's signature; what is logged never holds a graph.
            sync_dist: kept for Lightning's signature; epoch values are always those of all processes.
            sync_dist_group: as `sync_dist`.
            add_dataloader_idx: with several loaders, append `/dataloader_idx_N` to the name.
            batch_size: the weight of a mean; left out, it is read off the batch.
            metric_attribute: where the module holds the metric object, if it is not found by itself.
            rank_zero_only: logged on rank 0 alone.

        Raises:
            MisconfigurationException: the value is no scalar, the hook is no place to log, or the name was logged
                with other settings before.
        """
        trainer = self._trainer
        if trainer is None:
            rank_zero_warn(f"`self.log({name!r}, ...)` outside a Trainer's run is ignored.")
            return
        trainer.results.log(
            name,
            value,
            (prog_bar, logger, on_step, on_epoch, reduce_fx, add_dataloader_idx, rank_zero_only),
            batch_size,
            metric_attribute,
        )

    def log_dict(
        self,
        dictionary: Mapping[str, Any],
        prog_bar: bool = False,
        logger: bool | None = None,
        on_step: bool | None = None,
        on_epoch: bool | None = None,
        reduce_fx: str | Callable[[Any], Any] = "mean",
        enable_graph: bool = False,
        sync_dist: bool = False,
        sync_dist_group: Any | None = None,
        add_dataloader_idx: bool = True,
        batch_size: int | None = None,
        rank_zero_only: bool = False,
    ) -> None:
        """`log` for each item of a dict, or of a torchmetrics `MetricCollection`; arguments as there."""
        trainer = self._trainer
        if trainer is None:
            rank_zero_warn(f"`self.log_dict({list(dictionary)})` outside a Trainer's run is ignored.")
            return
        if is_collection(dictionary):
            dictionary = dict(dictionary.items(keep_base=False, copy_state=False))  # type: ignore[call-arg]
        if not isinstance(dictionary, Mapping):
            raise MisconfigurationException(f"`self.log_dict` takes a dict of names and values; got {dictionary!r}.")
        options = (prog_bar, logger, on_step, on_epoch, reduce_fx, add_dataloader_idx, rank_zero_only)
        for name, value in dictionary.items():
            trainer.results.log(name, value, options, batch_size)

    def print(self, *args: Any, **kwargs: Any) -> None:
        """`print` on rank 0."""
        self.trainer.print(*args, **kwargs) if self._trainer else print(*args, **kwargs)

    # -- the run it is part of ---------------------------------------------------------------------------------------

    @property
    def trainer(self) -> Trainer:
        """The Trainer that runs, or last ran, this module.

        Raises:
            RuntimeError: no Trainer has run it.
        """
        if self._trainer is None:
            if Module._exporting:  # TorchScript reads every attribute
                return None  # type: ignore[return-value]
            raise RuntimeError(
                f"{type(self).__qualname__} is not attached to a Trainer: pass it to `trainer.fit` first."
            )
        return self._trainer

    @trainer.setter
    def trainer(self, trainer: Trainer | None) -> None:
        for module in self.modules():
            if isinstance(module, Module):
                module.__dict__["_trainer"] = trainer

    def _running(self, what: str) -> Any:
        run = self._trainer._run if self._trainer else None
        if run is None:
            raise RuntimeError(f"`{what}` works only during a Trainer's run.")
        return run

    def _trained(self, what: str) -> Any:
        """The `fit` that runs or was the last, which has the optimizers; if there was none, the last call."""
        trainer = self._trainer
        run = None if trainer is None else trainer._fitted or trainer._last
        if run is None:
            raise RuntimeError(f"`{what}` works only during a Trainer's run, and after `trainer.fit`.")
        return run

    @property
    def current_epoch(self) -> int:
        """The Trainer's epoch; 0 without one."""
        return self._trainer.current_epoch if self._trainer else 0

    @property
    def global_step(self) -> int:
        """The Trainer's count of optimizer steps; 0 without one."""
        return self._trainer.global_step if self._trainer else 0

    @property
    def global_rank(self) -> int:
        """This process's number among all; 0 without a Trainer."""
        return self._trainer.global_rank if self._trainer else 0

    @property
    def local_rank(self) -> int:
        """This process's number on its machine; 0 without a Trainer."""
        return self._trainer.local_rank if self._trainer else 0

    @property
    def logger(self) -> Any:
        """The Trainer's first logger, or None."""
        return self._trainer.logger if self._trainer else None

    @property
    def loggers(self) -> list[Any]:
        """The Trainer's loggers."""
        return self._trainer.loggers if self._trainer else []

    @property
    def device(self) -> torch.device:
        """Where the module is."""
        return self._place.device

    @property
    def dtype(self) -> torch.dtype:
        """The floating-point type that the module was last converted to."""
        return self._place.dtype

    @property
    def on_gpu(self) -> bool:
        """Whether the module is on a CUDA device."""
        return self.device.type == "cuda"

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Any:
        self._place = fn(self._place)
        return super()._apply(fn, recurse)  # type: ignore[no-untyped-call]

    @property
    def example_input_array(self) -> Any:
        """A batch for tracing and summaries: a tensor, a tuple of positional or a dict of keyword arguments."""
        return self._example_input_array

    @example_input_array.setter
    def example_input_array(self, example: Any) -> None:
        self._example_input_array = example

    @property
    def strict_loading(self) -> bool:
        """Whether a checkpoint must hold exactly this module's weights; True unless set."""
        return True if self._strict_loading is None else self._strict_loading

    @strict_loading.setter
    def strict_loading(self, strict: bool) -> None:
        self._strict_loading = strict

    # -- odds and ends -----------------------------------------------------------------------------------------------

    def all_gather(self, data: Any, group: Any | None = None, sync_grads: bool = False) -> Any:
        """The tensors of all processes, stacked along a new first dimension (one process: as they are).

        Args:
            data: a tensor or a collection of tensors.
            group: the processes; None for all.
            sync_grads: let gradients flow through.
        """
        strategy = self.trainer.strategy
        return apply_to_collection(data, Tensor, lambda tensor: strategy.all_gather(tensor, sync_grads))

    def freeze(self) -> None:
        """No gradients for any parameter, and evaluation mode."""
        for parameter in self.parameters():
            parameter.requires_grad = False
        self.eval()

    def unfreeze(self) -> None:
        """Gradients for every parameter, and training mode."""
        for parameter in self.parameters():
            parameter.requires_grad = True
        self.train()

    def to_torchscript(
        self,
        file_path: Path | None = None,
        method: str | None = "script",
        example_inputs: Any = None,
        **kwargs: Any,
    ) -> Any:
        """The module as TorchScript, in evaluation mode and without gradients.

        Args:
            file_path: where to save it, too.
            method: "script", or "trace" with example inputs.
            example_inputs: what to trace with; None: `example_input_array`.
            **kwargs: for `torch.jit.script` or `torch.jit.trace`.

        Returns:
            The `torch.jit.ScriptModule`.

        Raises:
            ValueError: an unknown method, or nothing to trace with.
        """
        if method not in ("script", "trace"):
            raise ValueError(f"`to_torchscript(method={method!r})`: choose 'script' or 'trace'.")
        inputs = self._example_inputs(example_inputs, "to_torchscript(method='trace')") if method == "trace" else None
        with self._as_exported(), warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # torch's own, for all of TorchScript
            make = partial(torch.jit.script, self) if method == "script" else partial(torch.jit.trace, self, inputs)
            script = make(**kwargs)
        if file_path is not None:
            with fsspec.open(os.fspath(file_path), "wb") as file:
                torch.jit.save(script, file)
        return script

    def to_onnx(self, file_path: Path | io.BytesIO | None = None, input_sample: Any = None, **kwargs: Any) -> Any:
        """The module as ONNX, in evaluation mode; needs the packages onnx and onnxscript.

        Args:
            file_path: where to save it.
            input_sample: what to trace with; None: `example_input_array`.
            **kwargs: for `torch.onnx.export`.

        Returns:
            What `torch.onnx.export` returns.

        Raises:
            ValueError: there is nothing to trace with.
            ModuleNotFoundError: a package is missing.
        """
        missing = [name for name in ("onnx", "onnxscript") if find_spec(name) is None]
        if missing:
            raise ModuleNotFoundError(f"`to_onnx` needs {' and '.join(missing)}: pip install {' '.join(missing)}")
        inputs = self._example_inputs(input_sample, "to_onnx")
        path = file_path if file_path is None or isinstance(file_path, io.BytesIO) else os.fspath(file_path)
        with self._as_exported():
            arguments = inputs if isinstance(inputs, tuple) else (inputs,)
            return torch.onnx.export(self, arguments, path, **kwargs)  # type: ignore[arg-type]

    def _example_inputs(self, given: Any, call: str) -> Any:
        """What to trace with, on the module's device."""
        inputs = self.example_input_array if given is None else given
        if inputs is None:
            raise ValueError(
                f"`{call}` needs an example of the inputs: pass it, or set `self.example_input_array` in `__init__`."
            )
        return move_data_to_device(inputs, self.device)

    @contextmanager
    def _as_exported(self) -> Iterator[None]:
        """In evaluation mode, without gradients and without the Trainer, which an exporter would try to read."""
        modes, trainer = [(module, module.training) for module in self.modules()], self._trainer
        self.eval()
        self.trainer = None
        Module._exporting = True
        try:
            with torch.no_grad():
                yield
        finally:
            Module._exporting = False
            for module, training in modes:
                module.training = training
            self.trainer = trainer

    @on_the_class
    def load_from_checkpoint(
        cls: type[T],
        checkpoint_path: Path | IO[bytes],
        map_location: MapLocation = None,
        hparams_file: Path | None = None,
        strict: bool | None = None,
        weights_only: bool | None = None,
        **kwargs: Any,
    ) -> T:
        """A module with the weights of a checkpoint, made with the hyperparameters saved in it.

        Args:
            checkpoint_path: a path, a URL that fsspec reads, or an open binary file.
            map_location: as in `torch.load`.
            hparams_file: a .yaml or .csv file to use in place of the saved hyperparameters.
            strict: whether the weights must match exactly; None: the module's `strict_loading`.
            weights_only: as in `torch.load`; None is True.
            **kwargs: arguments of `__init__` that win over the saved ones.

        Raises:
            MisconfigurationException: the file is no checkpoint, or an argument of `__init__` is missing.
        """
        module, checkpoint = make_from_checkpoint(
            cls, checkpoint_path, map_location, hparams_file, weights_only, kwargs
        )
        weights = weights_in(checkpoint, str(checkpoint_path))
        module.configure_model()
        module.on_load_checkpoint(checkpoint)
        load_weights(module, weights, module.strict_loading if strict is None else strict, str(checkpoint_path))
        device = next((tensor.device for tensor in weights.values() if isinstance(tensor, Tensor)), None)
        return module if device is None or device.type == "meta" else module.to(device)

    def __getstate__(self) -> dict[str, Any]:
        # A copy or a pickle of the module must not drag the Trainer, its loaders and its loggers along.
        kept = {name: value for name, value in self.__dict__.items() if name not in ("_compiler", "log", "log_dict")}
        return {**kept, "_trainer": None}


LightningModule = Module

"""ModelPruning: sets the weights that matter least to zero, a share at a time, while the model trains."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from math import prod
from numbers import Integral
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.nn.utils import prune

from gpulayer.fabric.utilities.exceptions import MisconfigurationException
from gpulayer.fabric.utilities.rank_zero import rank_zero_info
from gpulayer.pytorch.callbacks.pruning_masks import (
    as_ordinary,
    drawn_anew,
    fit_weights,
    full_names,
    in_order,
    make_permanent,
    masks_of,
    original,
    put_masks_back,
)
from gpulayer.pytorch.callbacks.pruning_settings import check_amount, check_pairs, check_settings, method_of
from gpulayer.pytorch.callbacks.weight_averaging import WeightAveraging
from gpulayer.pytorch.core.callback import Callback
from gpulayer.pytorch.core.module import Module

if TYPE_CHECKING:
    from gpulayer.pytorch.trainer.trainer import Trainer

CONTAINERS = (Module, nn.Sequential, nn.ModuleList, nn.ModuleDict)


class ModelPruning(Callback):
    """Prune parameters with `torch.nn.utils.prune`, at the end of each epoch.

    Args:
        pruning_fn: "l1_unstructured", "random_unstructured", "ln_structured" or "random_structured", or a subclass of
            `torch.nn.utils.prune.BasePruningMethod`.
        parameters_to_prune: what to prune, as pairs of a module and a parameter's name. Default: all that have one of
            the names in `parameter_names`.
        parameter_names: "weight", "bias" or both, which is the default.
        use_global_unstructured: choose among all of the parameters together, so that some lose more than others; else
            each loses the same share. With "l1_unstructured", "random_unstructured" and unstructured classes.
        amount: what is pruned each time: a fraction in [0, 1] of what is left, or a number of entries (or of channels),
            or a function of the epoch that returns one of these.
        apply_pruning: whether to prune, or a function of the epoch that says so.
        make_pruning_permanent: checkpoints hold the pruned weights as ordinary ones, and so does the module when
            training ends. Otherwise both keep `weight_orig` and `weight_mask`.
        use_lottery_ticket_hypothesis: after pruning put what is left back to where it was before training; or a
            function of the epoch that says whether. Frankle and Carbin 2019, https://arxiv.org/abs/1803.03635.
        resample_parameters: draw new first values in place of that, where the module has `reset_parameters`.
        pruning_dim: the dimension along which the structured functions prune; they need it.
        pruning_norm: the norm by which "ln_structured" tells what matters; it needs one.
        verbose: 0 is silent, 1 logs how much is pruned, 2 for each parameter, too.
        prune_on_train_epoch_end: prune at the end of the training epoch, or else of each validation.

    Raises:
        MisconfigurationException: a value that cannot be used, or nothing to prune in the model.
    """

    PARAMETER_NAMES = ("weight", "bias")
    changes_saved_weights = True

    def __init__(
        self,
        pruning_fn: Callable[..., Any] | str,
        parameters_to_prune: Sequence[tuple[nn.Module, str]] | None = (),
        parameter_names: list[str] | None = None,
        use_global_unstructured: bool = True,
        amount: int | float | Callable[[int], int | float] = 0.5,
        apply_pruning: bool | Callable[[int], bool] = True,
        make_pruning_permanent: bool = True,
        use_lottery_ticket_hypothesis: bool | Callable[[int], bool] = True,
        resample_parameters: bool = False,
        pruning_dim: int | None = None,
        pruning_norm: int | None = None,
        verbose: int = 0,
        prune_on_train_epoch_end: bool = True,
    ) -> None:
        super().__init__()
        self._method = method_of(pruning_fn, use_global_unstructured)
        self._settings: dict[str, Any] = {}
        if isinstance(pruning_fn, str):
            if pruning_fn.endswith("_structured") and pruning_dim is None:
                raise MisconfigurationException(
                    f"`ModelPruning({pruning_fn!r})` needs `pruning_dim`, the dimension along which to prune: 0 for "
                    "the outputs of a layer, 1 for its inputs."
                )
            if pruning_fn == "ln_structured" and pruning_norm is None:
                raise MisconfigurationException(
                    "`ModelPruning('ln_structured')` needs `pruning_norm`, such as 1 or 2: by it channels are compared."
                )
            self._settings = {"n": pruning_norm, "dim": pruning_dim}
        if unknown := [name for name in parameter_names or () if name not in self.PARAMETER_NAMES]:
            raise MisconfigurationException(
                f"`ModelPruning(parameter_names={parameter_names!r})`: {unknown} cannot be pruned by name; choose from "
                f"{list(self.PARAMETER_NAMES)}, or give `parameters_to_prune=[(module, name), ...]`."
            )
        check_settings(
            pruning_dim,
            pruning_norm,
            flags={
                "use_global_unstructured": use_global_unstructured,
                "make_pruning_permanent": make_pruning_permanent,
                "resample_parameters": resample_parameters,
                "prune_on_train_epoch_end": prune_on_train_epoch_end,
            },
            choices={"apply_pruning": apply_pruning, "use_lottery_ticket_hypothesis": use_lottery_ticket_hypothesis},
        )
        self._given = () if parameters_to_prune is None else parameters_to_prune
        check_pairs(self._given)
        if not callable(amount):
            check_amount(amount)
        if isinstance(verbose, bool) or verbose not in (0, 1, 2):
            raise MisconfigurationException(f"`ModelPruning(verbose={verbose!r})`: choose 0, 1 or 2.")
        self.pruning_fn = pruning_fn
        self.amount = amount
        self._names = parameter_names or self.PARAMETER_NAMES
        self._global = use_global_unstructured
        self._apply_pruning = apply_pruning
        self._permanent = make_pruning_permanent
        self._lottery = use_lottery_ticket_hypothesis
        self._resample = resample_parameters
        self._verbose = verbose
        self._on_train_epoch_end = prune_on_train_epoch_end
        self._parameters: list[tuple[nn.Module, str]] = []
        self._initial: dict[str, Tensor] = {}  # values before training, by full name
        self._masks: dict[str, Tensor] = {}  # of a checkpoint, until the run starts
        self._hidden: dict[str, Tensor] = {}  # what lies below their zeros
        self._hook: Any = None

    def filter_parameters_to_prune(
        self, parameters_to_prune: Sequence[tuple[nn.Module, str]] = ()
    ) -> Sequence[tuple[nn.Module, str]]:
        """Override to leave some of them out."""
        return parameters_to_prune

    @staticmethod
    def sanitize_parameters_to_prune(
        pl_module: nn.Module,
        parameters_to_prune: Sequence[tuple[nn.Module, str]] = (),
        parameter_names: Sequence[str] = (),
    ) -> list[tuple[nn.Module, str]]:
        """What is pruned of a model.

        Args:
            pl_module: the model.
            parameters_to_prune: pairs of a module and a parameter's name. Default: all with one of the names.
            parameter_names: "weight", "bias" or both, which is the default.

        Returns:
            Pairs of a module and a parameter's name.

        Raises:
            MisconfigurationException: these are no pairs, or the model lacks one of them, or there are none.
        """
        check_pairs(parameters_to_prune)
        modules = list(pl_module.modules())
        for module, name in parameters_to_prune:
            if not any(module is one for one in modules):
                raise MisconfigurationException(
                    f"`ModelPruning(parameters_to_prune=...)`: {module!r} is no part of "
                    f"`{type(pl_module).__name__}`: give modules of the object that is trained, not of a copy."
                )
            if original(module, name) is None:
                raise MisconfigurationException(
                    f"`ModelPruning(parameters_to_prune=...)`: {module!r} has no parameter {name!r}; it has "
                    f"{[other for other, _ in module.named_parameters(recurse=False)]}."
                )
        found = list(parameters_to_prune) or [
            (module, name)
            for name in parameter_names or ModelPruning.PARAMETER_NAMES
            for module in modules
            if not isinstance(module, CONTAINERS) and original(module, name) is not None
        ]
        if not found:
            raise MisconfigurationException(
                f"ModelPruning found nothing to prune in `{type(pl_module).__name__}`: no module within it has a "
                f"parameter named {' or '.join(parameter_names or ModelPruning.PARAMETER_NAMES)}. Give "
                "`parameters_to_prune=[(module, name), ...]`."
            )
        return found

    # -- pruning -------------------------------------------------------------------------------------------------------

    def apply_pruning(self, amount: int | float) -> None:
        """Prune once: a fraction of what is left, or a number of entries."""
        before = self._zeros() if self._verbose else []
        taken = inspect.signature(self._method).parameters
        settings = {key: value for key, value in {**self._settings, "amount": amount}.items() if key in taken}
        for module, name in self._parameters:
            # torch judges by the product that the last forward pass made, which is older than the optimizer's step, and
            # which a resumed run has not.
            if name not in module._parameters:
                setattr(module, name, original(module, name) * getattr(module, f"{name}_mask"))
        with in_order(module for module, _ in self._parameters):
            if self._global:
                prune.global_unstructured(self._parameters, pruning_method=self._method, **settings)
            else:
                for module, name in self._parameters:
                    self._method.apply(module, name, **settings)
        if self._verbose:
            self._log(before, self._zeros(), amount)

    def apply_lottery_ticket_hypothesis(self) -> None:
        """Put what was not pruned back to where it was before training, or to new first values."""
        names = full_names(self._parameters, self._running_module("apply_lottery_ticket_hypothesis"))
        fresh: dict[nn.Module, nn.Module] = {}
        for (module, name), full_name in zip(self._parameters, names, strict=True):
            if self._resample and callable(getattr(module, "reset_parameters", None)):
                if module not in fresh:
                    fresh[module] = drawn_anew(module)
                value = getattr(fresh[module], name)
            else:
                value = self._initial[full_name]
            original(module, name).data.copy_(value)

    def make_pruning_permanent(self, module: nn.Module) -> None:
        """Make the pruned weights in a module ordinary ones."""
        make_permanent(module)

    def _prune(self, epoch: int) -> None:
        amount = self.amount(epoch) if callable(self.amount) else self.amount
        check_amount(amount)
        if not amount or not _answer(self._apply_pruning, epoch):
            return
        self.apply_pruning(amount)
        if _answer(self._lottery, epoch):
            self.apply_lottery_ticket_hypothesis()

    def _check_sizes(self, pl_module: Module) -> None:
        """Raise before training what torch would raise at the end of an epoch.

        Raises:
            MisconfigurationException: a parameter that cannot be pruned in this way, or fewer entries than `amount`.
        """
        if not self._parameters:
            raise MisconfigurationException(
                f"`{type(self).__name__}.filter_parameters_to_prune` left nothing to prune: return some of its pairs."
            )
        names = full_names(self._parameters, pl_module)
        shapes = [tuple(original(module, name).shape) for module, name in self._parameters]
        dim = self._settings.get("dim")
        if issubclass(self._method, (prune.LnStructured, prune.RandomStructured)) and dim is not None:
            flat = [name for name, shape in zip(names, shapes, strict=True) if not -len(shape) <= dim < len(shape) > 1]
            if flat:
                raise MisconfigurationException(
                    f"`ModelPruning({self.pruning_fn!r}, pruning_dim={dim})`: {flat} have one dimension only, or lack "
                    "this one. Leave them out with `parameter_names=['weight']` or `parameters_to_prune=[...]`."
                )
            left = min(shape[dim] for shape in shapes)
        else:
            counts = [prod(shape) for shape in shapes]
            left = sum(counts) if self._global else min(counts)
        if isinstance(self.amount, Integral) and self.amount > left:
            raise MisconfigurationException(
                f"`ModelPruning(amount={self.amount})`: there are {left} to prune. For a fraction give a float."
            )

    def _zeros(self) -> list[int]:
        """How many entries of each parameter are pruned; the host waits for the device."""
        counts = [
            (getattr(module, f"{name}_mask") == 0).sum() if hasattr(module, f"{name}_mask") else torch.zeros(())
            for module, name in self._parameters
        ]
        return [int(count) for count in counts]

    def _log(self, before: list[int], after: list[int], amount: int | float) -> None:
        sizes = [original(module, name).numel() for module, name in self._parameters]
        lines = [("all parameters", sum(before), sum(after), sum(sizes))]
        if self._verbose == 2:
            names = full_names(self._parameters, self._running_module("apply_pruning"))
            lines += list(zip(names, before, after, sizes, strict=True))
        for what, was, now, size in lines:
            rank_zero_info(
                "ModelPruning: %s with amount=%s, %s: %d (%.2f%%) of %d were pruned, now %d (%.2f%%).",
                self._method.__name__, amount, what, was, 100 * was / size, size, now, 100 * now / size,
            )  # fmt: skip

    # -- the run -------------------------------------------------------------------------------------------------------

    def setup(self, trainer: Trainer, pl_module: Module, stage: str) -> None:
        if stage == "fit":
            averages = [type(one).__name__ for one in trainer.callbacks if isinstance(one, WeightAveraging)]
            if averages and self._lottery and not self._on_train_epoch_end:
                raise MisconfigurationException(
                    "`ModelPruning(prune_on_train_epoch_end=False)` prunes while a validation uses the averages of "
                    f"`{averages[0]}`, so that `use_lottery_ticket_hypothesis` cannot put the trained weights back: "
                    "leave `prune_on_train_epoch_end` out, or give `use_lottery_ticket_hypothesis=False`."
                )
            self._masks, self._hidden, self._initial = {}, {}, {}
        self._stop_reading()
        self._hook = pl_module.register_load_state_dict_pre_hook(self._read)  # type: ignore[no-untyped-call]

    def on_fit_start(self, trainer: Trainer, pl_module: Module) -> None:
        """Here, for modules that `configure_model` makes can be pruned, too."""
        self._stop_reading()
        found = self.sanitize_parameters_to_prune(pl_module, self._given, self._names)
        self._parameters = list(self.filter_parameters_to_prune(found))
        self._check_sizes(pl_module)
        names = full_names(self._parameters, pl_module)
        if self._lottery:
            for (module, name), full_name in zip(self._parameters, names, strict=True):
                if full_name not in self._initial:
                    self._initial[full_name] = original(module, name).detach().clone().cpu()
        put_masks_back(pl_module, self._masks, self._hidden)  # now, for optimizers are made of the former names
        self._masks, self._hidden = {}, {}

    def on_train_epoch_end(self, trainer: Trainer, pl_module: Module) -> None:
        if self._on_train_epoch_end:
            self._prune(trainer.current_epoch)

    def on_validation_epoch_end(self, trainer: Trainer, pl_module: Module) -> None:
        if not self._on_train_epoch_end and trainer.state.fn == "fit" and not trainer.sanity_checking:
            self._prune(trainer.current_epoch)

    def on_train_end(self, trainer: Trainer, pl_module: Module) -> None:
        if self._permanent:
            self._masks, self._hidden = masks_of(pl_module)  # for a checkpoint of the end, from which a run may go on
            self.make_pruning_permanent(pl_module)

    def on_exception(self, trainer: Trainer, pl_module: Module, exception: BaseException) -> None:
        self._stop_reading()

    def teardown(self, trainer: Trainer, pl_module: Module, stage: str) -> None:
        self._stop_reading()

    # -- checkpoints ---------------------------------------------------------------------------------------------------

    def on_save_checkpoint(self, trainer: Trainer, pl_module: Module, checkpoint: dict[str, Any]) -> None:
        masks, hidden = masks_of(pl_module)
        if "callbacks" in checkpoint:  # not one of weights only
            # Several of these callbacks share a state, for it is that of the parameters.
            state = checkpoint["callbacks"].setdefault(self.state_key, {"masks": {}, "hidden": {}, "initial": {}})
            state["masks"].update(masks or self._masks)
            state["hidden"].update(hidden or self._hidden)
            state["initial"].update(self._initial)
        if self._permanent:
            checkpoint["state_dict"] = as_ordinary(pl_module, checkpoint["state_dict"])

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self._masks = dict(state_dict["masks"])
        self._hidden = dict(state_dict["hidden"])
        self._initial = dict(state_dict["initial"])

    def _read(self, module: nn.Module, weights: dict[str, Any], prefix: str, *_: Any) -> None:
        masks, hidden = fit_weights(module, weights)
        self._masks |= masks
        self._hidden |= hidden

    def _stop_reading(self) -> None:
        if self._hook is not None:
            self._hook.remove()
            self._hook = None


def _answer(choice: bool | Callable[[int], bool], epoch: int) -> bool:
    return choice(epoch) if callable(choice) else choice

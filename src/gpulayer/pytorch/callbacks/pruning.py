"""ModelPruning: sets the weights that matter least to zero, a share at a time, while the model trains."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from copy import deepcopy
from math import prod
from numbers import Integral, Real
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.nn.utils import prune

from gpulayer.fabric.utilities.exceptions import MisconfigurationException
from gpulayer.fabric.utilities.rank_zero import rank_zero_info
from gpulayer.pytorch.core.callback import Callback
from gpulayer.pytorch.core.module import Module

if TYPE_CHECKING:
    from gpulayer.pytorch.trainer.trainer import Trainer

METHODS: dict[str, type[prune.BasePruningMethod]] = {
    "l1_unstructured": prune.L1Unstructured,
    "random_unstructured": prune.RandomUnstructured,
    "ln_structured": prune.LnStructured,
    "random_structured": prune.RandomStructured,
}
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
        parameters_to_prune: Sequence[tuple[nn.Module, str]] = (),
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
        self._method = _method(pruning_fn, use_global_unstructured)
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
        if not callable(amount):
            _check_amount(amount)
        if isinstance(verbose, bool) or verbose not in (0, 1, 2):
            raise MisconfigurationException(f"`ModelPruning(verbose={verbose!r})`: choose 0, 1 or 2.")
        self.pruning_fn = pruning_fn
        self.amount = amount
        self._given = parameters_to_prune
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
        if not isinstance(parameters_to_prune, (list, tuple)) or not all(map(_is_pair, parameters_to_prune)):
            raise MisconfigurationException(
                f"`ModelPruning(parameters_to_prune={parameters_to_prune!r})`: give pairs of a module and a "
                'parameter\'s name, such as `[(model.layer, "weight")]`.'
            )
        modules = list(pl_module.modules())
        for module, name in parameters_to_prune:
            if not any(module is one for one in modules):
                raise MisconfigurationException(
                    f"`ModelPruning(parameters_to_prune=...)`: {module!r} is no part of "
                    f"`{type(pl_module).__name__}`: give modules of the object that is trained, not of a copy."
                )
            if not _has(module, name):
                raise MisconfigurationException(
                    f"`ModelPruning(parameters_to_prune=...)`: {module!r} has no parameter {name!r}; it has "
                    f"{[other for other, _ in module.named_parameters(recurse=False)]}."
                )
        found = list(parameters_to_prune) or [
            (module, name)
            for name in parameter_names or ModelPruning.PARAMETER_NAMES
            for module in modules
            if not isinstance(module, CONTAINERS) and _has(module, name)
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
            if name not in module._parameters:  # torch judges by the product that the last forward pass made, which is
                # older than the optimizer's step, and which a resumed run has not
                setattr(module, name, _original(module, name) * getattr(module, f"{name}_mask"))
        with _in_order(module for module, _ in self._parameters):
            if self._global:
                prune.global_unstructured(self._parameters, pruning_method=self._method, **settings)
            else:
                for module, name in self._parameters:
                    self._method.apply(module, name, **settings)
        if self._verbose:
            self._log(before, self._zeros(), amount)

    def apply_lottery_ticket_hypothesis(self) -> None:
        """Put what was not pruned back to where it was before training, or to new first values."""
        names = _full_names(self._parameters, self._running_module("apply_lottery_ticket_hypothesis"))
        fresh: dict[nn.Module, nn.Module] = {}
        for (module, name), full_name in zip(self._parameters, names, strict=True):
            if self._resample and callable(getattr(module, "reset_parameters", None)):
                if module not in fresh:
                    fresh[module] = _drawn_anew(module)
                value = getattr(fresh[module], name)
            else:
                value = self._initial[full_name]
            _original(module, name).data.copy_(value)

    def make_pruning_permanent(self, module: nn.Module) -> None:
        """Make the pruned weights in a module ordinary ones."""
        pruned = [(part, name) for _, part, name in _pruned(module)]
        with _in_order(part for part, _ in pruned):
            for part, name in pruned:
                prune.remove(part, name)

    def _prune(self, epoch: int) -> None:
        amount = self.amount(epoch) if callable(self.amount) else self.amount
        _check_amount(amount)
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
        names = _full_names(self._parameters, pl_module)
        shapes = [tuple(_original(module, name).shape) for module, name in self._parameters]
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
        sizes = [_original(module, name).numel() for module, name in self._parameters]
        lines = [("all parameters", sum(before), sum(after), sum(sizes))]
        if self._verbose == 2:
            names = _full_names(self._parameters, self._running_module("apply_pruning"))
            lines += list(zip(names, before, after, sizes, strict=True))
        for what, was, now, size in lines:
            rank_zero_info(
                "ModelPruning: %s with amount=%s, %s: %d (%.2f%%) of %d were pruned, now %d (%.2f%%).",
                self._method.__name__, amount, what, was, 100 * was / size, size, now, 100 * now / size,
            )  # fmt: skip

    # -- the run -------------------------------------------------------------------------------------------------------

    def setup(self, trainer: Trainer, pl_module: Module, stage: str) -> None:
        if stage == "fit":
            self._masks, self._hidden, self._initial = {}, {}, {}
        self._stop_reading()
        self._hook = pl_module.register_load_state_dict_pre_hook(self._read)  # type: ignore[no-untyped-call]

    def on_fit_start(self, trainer: Trainer, pl_module: Module) -> None:
        """Here, for modules that `configure_model` makes can be pruned, too."""
        self._stop_reading()
        found = self.sanitize_parameters_to_prune(pl_module, self._given, self._names)
        self._parameters = list(self.filter_parameters_to_prune(found))
        self._check_sizes(pl_module)
        names = _full_names(self._parameters, pl_module)
        if self._lottery:
            for (module, name), full_name in zip(self._parameters, names, strict=True):
                if full_name not in self._initial:
                    self._initial[full_name] = _original(module, name).detach().clone().cpu()
        self._put_masks_back(pl_module)

    def on_train_epoch_end(self, trainer: Trainer, pl_module: Module) -> None:
        if self._on_train_epoch_end:
            self._prune(trainer.current_epoch)

    def on_validation_epoch_end(self, trainer: Trainer, pl_module: Module) -> None:
        if not self._on_train_epoch_end and trainer.state.fn == "fit" and not trainer.sanity_checking:
            self._prune(trainer.current_epoch)

    def on_train_end(self, trainer: Trainer, pl_module: Module) -> None:
        if self._permanent:
            self._masks, self._hidden = _masks(pl_module)  # for a checkpoint of the end, from which a run may go on
            self.make_pruning_permanent(pl_module)

    def on_exception(self, trainer: Trainer, pl_module: Module, exception: BaseException) -> None:
        self._stop_reading()

    def teardown(self, trainer: Trainer, pl_module: Module, stage: str) -> None:
        self._stop_reading()

    # -- checkpoints ---------------------------------------------------------------------------------------------------

    def on_save_checkpoint(self, trainer: Trainer, pl_module: Module, checkpoint: dict[str, Any]) -> None:
        masks, hidden = _masks(pl_module)
        if "callbacks" in checkpoint:  # not one of weights only
            # Several of these callbacks share a state, for it is that of the parameters.
            state = checkpoint["callbacks"].setdefault(self.state_key, {"masks": {}, "hidden": {}, "initial": {}})
            state["masks"].update(masks or self._masks)
            state["hidden"].update(hidden or self._hidden)
            state["initial"].update(self._initial)
        if self._permanent:
            pruned = {name for name, _, _ in _pruned(pl_module, all_names=True)}
            weights: dict[str, Any] = {}
            for name, value in checkpoint["state_dict"].items():
                plain = name.removesuffix("_orig")
                if plain != name and plain in pruned:
                    weights[plain] = value * checkpoint["state_dict"][f"{plain}_mask"].to(value.dtype)
                elif not (name.endswith("_mask") and name.removesuffix("_mask") in pruned):
                    weights[name] = value
            checkpoint["state_dict"] = weights

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self._masks = dict(state_dict["masks"])
        self._hidden = dict(state_dict["hidden"])
        self._initial = dict(state_dict["initial"])

    def _read(self, module: nn.Module, weights: dict[str, Any], prefix: str, *_: Any) -> None:
        """Take masks out of the weights of a checkpoint, or put them in, so that they fit the module as it is."""
        pruned = {name for name, _, _ in _pruned(module, all_names=True)}
        for name in [key.removesuffix("_mask") for key in weights if key.endswith("_mask")]:
            if f"{name}_orig" in weights and name not in pruned:
                original, mask = weights.pop(f"{name}_orig"), weights.pop(f"{name}_mask")
                weights[name] = original * mask.to(original.dtype)
                self._masks[name], self._hidden[name] = mask.bool(), original[mask == 0]
        for name in pruned:
            if name in weights:
                weights[f"{name}_orig"] = weights.pop(name)
                weights[f"{name}_mask"] = torch.ones_like(weights[f"{name}_orig"])

    def _stop_reading(self) -> None:
        if self._hook is not None:
            self._hook.remove()
            self._hook = None

    def _put_masks_back(self, pl_module: Module) -> None:
        """After the optimizers were made, for pruning renames parameters."""
        parts = dict(pl_module.named_modules(remove_duplicate=False))
        with _in_order(parts.values()):
            for full_name, kept in self._masks.items():
                part, _, name = full_name.rpartition(".")
                module, original = parts[part], _original(parts[part], name)
                mask = kept.to(original.device)
                if name in module._parameters:
                    prune.custom_from_mask(module, name, mask)
                getattr(module, f"{name}_mask").copy_(mask)
                original.data[~mask] = self._hidden[full_name].to(original)
        self._masks, self._hidden = {}, {}


def _method(pruning_fn: Any, use_global: bool) -> Any:
    """The class that makes masks.

    Raises:
        MisconfigurationException: there is none of this name, or it cannot choose among several parameters.
    """
    method = METHODS.get(pruning_fn) if isinstance(pruning_fn, str) else pruning_fn
    if not inspect.isclass(method) or not issubclass(method, prune.BasePruningMethod):
        raise MisconfigurationException(
            f"`ModelPruning(pruning_fn={pruning_fn!r})`: choose one of {sorted(METHODS)}, or give a subclass of "
            "`torch.nn.utils.prune.BasePruningMethod`: the class, no instance."
        )
    kind = getattr(method, "PRUNING_TYPE", None)
    if use_global and kind != "unstructured":
        raise MisconfigurationException(
            f"`ModelPruning({pruning_fn!r})` prunes whole channels or the like (PRUNING_TYPE is {kind!r}), which "
            "cannot be chosen among several parameters together: give `use_global_unstructured=False`, or another."
        )
    return method


def _check_amount(amount: Any) -> None:
    """Raise unless it is a fraction in [0, 1] or a number of entries.

    Raises:
        MisconfigurationException: it is not.
    """
    number = isinstance(amount, Real) and not isinstance(amount, bool)
    if not number or not amount >= 0 or (not isinstance(amount, Integral) and amount > 1):
        raise MisconfigurationException(
            f"`ModelPruning(amount={amount!r})`: give a fraction from 0.0 to 1.0, a whole number of entries, or a "
            "function of the epoch that returns one of these."
        )


def _answer(choice: bool | Callable[[int], bool], epoch: int) -> bool:
    return choice(epoch) if callable(choice) else choice


def _is_pair(entry: Any) -> bool:
    return (
        isinstance(entry, (tuple, list))
        and len(entry) == 2
        and isinstance(entry[0], nn.Module)
        and isinstance(entry[1], str)
    )


def _has(module: nn.Module, name: str) -> bool:
    return any(module._parameters.get(key) is not None for key in (name, f"{name}_orig"))


def _original(module: nn.Module, name: str) -> Any:
    """The parameter itself, which lies below the mask if it is pruned."""
    return module._parameters.get(f"{name}_orig", module._parameters.get(name))


def _pruned(module: nn.Module, all_names: bool = False) -> list[tuple[str, nn.Module, str]]:
    """All pruned parameters within: full name, the module they belong to, name; shared modules once or by all names."""
    return [
        (f"{prefix}.{hook._tensor_name}".lstrip("."), part, hook._tensor_name)
        for prefix, part in module.named_modules(remove_duplicate=not all_names)
        for hook in part._forward_pre_hooks.values()
        if isinstance(hook, prune.BasePruningMethod)
    ]


def _masks(module: nn.Module) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """Of all pruned parameters by full name: where they are kept, and the values below the zeros of the mask."""
    masks, hidden = {}, {}
    for full_name, part, name in _pruned(module):
        masks[full_name] = mask = getattr(part, f"{name}_mask").bool()
        hidden[full_name] = _original(part, name).detach()[~mask]
    return masks, hidden


def _full_names(parameters: Iterable[tuple[nn.Module, str]], root: nn.Module) -> list[str]:
    """As in `root.named_parameters()`."""
    prefixes = {part: prefix for prefix, part in root.named_modules()}
    return [f"{prefixes[module]}.{name}".lstrip(".") for module, name in parameters]


def _drawn_anew(module: nn.Module) -> nn.Module:
    """A copy that is not pruned, with new first values."""
    products = [getattr(part, name) for _, part, name in _pruned(module)]  # of autograd, which cannot be copied
    fresh = deepcopy(module, {id(product): product.detach() for product in products})
    for _, part, name in _pruned(fresh):
        prune.remove(part, name)
    fresh.reset_parameters()  # type: ignore[operator]
    return fresh


@contextmanager
def _in_order(modules: Iterable[nn.Module]) -> Iterator[None]:
    """Keep the parameters' order, by which an optimizer's state is resumed; torch puts those that it renames last."""
    before = {module: list(module._parameters) for module in modules}
    yield
    for module, names in before.items():
        own = module._parameters
        for name in names:
            now = next(key for key in (name, f"{name}_orig", name.removesuffix("_orig")) if key in own)
            own[now] = own.pop(now)

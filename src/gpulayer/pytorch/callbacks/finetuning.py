"""Finetuning: parts of a model are frozen at first and trained from some epoch on."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable
from numbers import Integral, Real
from typing import TYPE_CHECKING, Any, TypeAlias

from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.optim import Optimizer

from gpulayer.fabric.utilities.exceptions import MisconfigurationException
from gpulayer.fabric.utilities.rank_zero import rank_zero_info, rank_zero_warn
from gpulayer.pytorch.core.callback import Callback

if TYPE_CHECKING:
    from gpulayer.pytorch.core.module import Module
    from gpulayer.pytorch.trainer.trainer import Trainer

Modules: TypeAlias = "nn.Module | Iterable[Modules]"


def multiplicative(epoch: int) -> float:
    """Doubles the backbone's learning rate in each epoch."""
    return 2.0


class BaseFinetuning(Callback):
    """Override `freeze_before_training` and `finetune_function` to say what is frozen, and what is trained when.

    The optimizer must be made of those parameters that train from the start: in `configure_optimizers`,
    `SGD(filter(lambda p: p.requires_grad, self.parameters()), lr=0.1)`. What is unfrozen later becomes a parameter
    group of its own. A checkpoint holds which parameter is in which group and which are frozen, so that a resumed run
    goes on with the same, also in mid-epoch.
    """

    def __init__(self) -> None:
        super().__init__()
        self._restored: dict[str, Any] = {}  # of a checkpoint, until there are optimizers
        self._epoch: int | None = None  # for which `finetune_function` was last called

    def freeze_before_training(self, pl_module: Module) -> None:
        """Freeze what is not to be trained at first; called before `configure_optimizers`."""
        raise NotImplementedError(
            f"`{type(self).__name__}` must override `freeze_before_training(self, pl_module)`, for example with "
            "`self.freeze(pl_module.backbone)`."
        )

    def finetune_function(self, pl_module: Module, epoch: int, optimizer: Optimizer) -> None:
        """Unfreeze what is to be trained from this epoch on; called for each optimizer at the start of each epoch."""
        raise NotImplementedError(
            f"`{type(self).__name__}` must override `finetune_function(self, pl_module, epoch, optimizer)`, for "
            "example with `self.unfreeze_and_add_param_group(pl_module.backbone, optimizer)` in some epoch."
        )

    # -- freezing ------------------------------------------------------------------------------------------------------

    @staticmethod
    def flatten_modules(modules: Modules) -> list[nn.Module]:
        """The modules within that have no children, or parameters of their own; each once."""
        parts = modules.modules() if isinstance(modules, nn.Module) else _within(modules)
        return [part for part in dict.fromkeys(parts) if part._parameters or not any(True for _ in part.children())]

    @staticmethod
    def filter_params(
        modules: Modules, train_bn: bool = True, requires_grad: bool = True
    ) -> Generator[nn.Parameter, None, None]:
        """The parameters that are trained, or those that are not; each once.

        Args:
            modules: one, or several, nested as you like.
            train_bn: whether those of BatchNorm layers are among them.
            requires_grad: which.

        Yields:
            The parameters.
        """
        seen: set[nn.Parameter] = set()
        for module in BaseFinetuning.flatten_modules(modules):
            if train_bn or not isinstance(module, _BatchNorm):
                for parameter in module.parameters(recurse=False):
                    if parameter.requires_grad == requires_grad and parameter not in seen:
                        seen.add(parameter)
                        yield parameter

    @staticmethod
    def make_trainable(modules: Modules) -> None:
        """Train the parameters, and let BatchNorm layers gather statistics."""
        for module in BaseFinetuning.flatten_modules(modules):
            _set_trainable(module, True)

    @staticmethod
    def freeze_module(module: nn.Module) -> None:
        """Freeze this module's own parameters, not those of modules within it; BatchNorm gathers no statistics."""
        _set_trainable(module, False)

    @staticmethod
    def freeze(modules: Modules, train_bn: bool = True) -> None:
        """Freeze the parameters.

        Args:
            modules: one, or several, nested as you like.
            train_bn: whether BatchNorm layers are trained all the same.
        """
        for module in BaseFinetuning.flatten_modules(modules):
            _set_trainable(module, train_bn and isinstance(module, _BatchNorm))

    @staticmethod
    def filter_on_optimizer(optimizer: Optimizer, params: Iterable[nn.Parameter]) -> list[nn.Parameter]:
        """Those of the parameters that the optimizer lacks; the others are left out with a warning."""
        held = _held(optimizer)
        given = list(params)
        lacking = [parameter for parameter in given if parameter not in held]
        if len(lacking) < len(given):
            rank_zero_warn(
                f"{len(given) - len(lacking)} of {len(given)} parameters that are unfrozen are in a group of the "
                f"{type(optimizer).__name__} already and stay there, with its learning rate. To give them a group of "
                "their own make the optimizer of what trains from the start: in `configure_optimizers`, "
                f"`{type(optimizer).__name__}(filter(lambda p: p.requires_grad, self.parameters()), ...)`."
            )
        return lacking

    @staticmethod
    def unfreeze_and_add_param_group(
        modules: Modules,
        optimizer: Optimizer,
        lr: float | None = None,
        initial_denom_lr: float = 10.0,
        train_bn: bool = True,
    ) -> None:
        """Train the parameters from now on, as a new group of the optimizer.

        Args:
            modules: one, or several, nested as you like.
            optimizer: what trains them.
            lr: the group's learning rate. Default: that of the first group divided by `initial_denom_lr`.
            initial_denom_lr: see `lr`.
            train_bn: whether BatchNorm layers are among them; if not, they stay as they are.
        """
        parts = BaseFinetuning.flatten_modules(modules)  # first, for `module.children()` can be read once only
        trained = set(BaseFinetuning.filter_params(parts)) & _held(optimizer)  # as BatchNorm may have been all along
        for module in parts:
            if train_bn or not isinstance(module, _BatchNorm):
                _set_trainable(module, True)
        parameters = [one for one in BaseFinetuning.filter_params(parts, train_bn=train_bn) if one not in trained]
        new = BaseFinetuning.filter_on_optimizer(optimizer, parameters)
        if new:
            rate = optimizer.param_groups[0]["lr"] / initial_denom_lr if lr is None else float(lr)
            optimizer.add_param_group({"params": new, "lr": rate})

    # -- the run -------------------------------------------------------------------------------------------------------

    def setup(self, trainer: Trainer, pl_module: Module, stage: str) -> None:
        self._restored = {}
        if stage == "fit":
            self._epoch = None
            self.freeze_before_training(pl_module)

    def on_fit_start(self, trainer: Trainer, pl_module: Module) -> None:
        state, self._restored = self._restored, {}
        if not state:
            return
        parameters = _by_name(pl_module)
        groups_of = state.get("internal_optimizer_metadata", state)  # before Lightning 1.6 they were all of the state
        for i, optimizer in enumerate(trainer.optimizers):
            if i in groups_of:
                before = _held(optimizer)
                optimizer.param_groups[:] = [_with_parameters(group, parameters) for group in groups_of[i]]
                if "frozen" not in state:  # a file of Lightning's: what had been added to the optimizer is trained
                    for group in optimizer.param_groups:
                        for parameter in set(group["params"]) - before:
                            parameter.requires_grad = True
        if "frozen" in state:
            for name, parameter in parameters.items():
                parameter.requires_grad = name not in state["frozen"]
            for name, module in pl_module.named_modules():
                if isinstance(module, _BatchNorm):
                    module.track_running_stats = name not in state["untracked"]

    def on_train_epoch_start(self, trainer: Trainer, pl_module: Module) -> None:
        # Called again in an epoch that is resumed, whose share is done.
        if self._epoch == trainer.current_epoch or trainer.progress.batch_in_epoch > 0:
            return
        for optimizer in trainer.optimizers:
            self.finetune_function(pl_module, trainer.current_epoch, optimizer)
        self._epoch = trainer.current_epoch

    def state_dict(self) -> dict[str, Any]:
        module = self._module_of_run
        if module is None:
            return {}
        names = {parameter: name for name, parameter in _by_name(module).items()}
        return {
            "internal_optimizer_metadata": {
                i: [_with_names(group, names) for group in optimizer.param_groups]
                for i, optimizer in enumerate(module.trainer.optimizers)
            },
            "frozen": [name for parameter, name in names.items() if not parameter.requires_grad],
            "untracked": [
                name
                for name, part in module.named_modules()
                if isinstance(part, _BatchNorm) and not part.track_running_stats
            ],
            "epoch": self._epoch,
        }

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self._restored = dict(state_dict)
        self._epoch = state_dict.get("epoch")


class BackboneFinetuning(BaseFinetuning):
    """Train `pl_module.backbone` from some epoch on, with a learning rate that rises to that of the rest.

    Args:
        unfreeze_backbone_at_epoch: the epoch, counted from 0.
        lambda_func: given the number of an epoch, counted from 1, by how much to multiply the backbone's learning rate
            in it; asked from the second epoch of its training on.
        backbone_initial_ratio_lr: its first learning rate as a fraction of that of the first parameter group.
        backbone_initial_lr: its first learning rate, in place of a fraction.
        should_align: never let it rise above that of the first parameter group.
        initial_denom_lr: kept for Lightning's sake; the first learning rate is decided by the arguments above.
        train_bn: whether the BatchNorm layers that are frozen are trained, too.
        verbose: log a line with both learning rates each time that the backbone's changes.
        rounding: decimals in that line.

    Raises:
        MisconfigurationException: a value that cannot be used, or a module without `backbone`.
    """

    def __init__(
        self,
        unfreeze_backbone_at_epoch: int = 10,
        lambda_func: Callable[[int], float] = multiplicative,
        backbone_initial_ratio_lr: float = 10e-2,
        backbone_initial_lr: float | None = None,
        should_align: bool = True,
        initial_denom_lr: float = 10.0,
        train_bn: bool = True,
        verbose: bool = False,
        rounding: int = 12,
    ) -> None:
        super().__init__()
        for name, whole in (("unfreeze_backbone_at_epoch", unfreeze_backbone_at_epoch), ("rounding", rounding)):
            if isinstance(whole, bool) or not isinstance(whole, Integral) or whole < 0:
                raise MisconfigurationException(f"`BackboneFinetuning({name}={whole!r})`: give a whole number from 0.")
        for name, value in (
            ("backbone_initial_ratio_lr", backbone_initial_ratio_lr),
            ("backbone_initial_lr", backbone_initial_lr),
            ("initial_denom_lr", initial_denom_lr),
        ):
            optional = value is None and name == "backbone_initial_lr"
            number = isinstance(value, Real) and not isinstance(value, bool) and 0 < value < float("inf")
            if not number and not optional:
                raise MisconfigurationException(f"`BackboneFinetuning({name}={value!r})`: give a number above 0.")
        for name, flag in (("should_align", should_align), ("train_bn", train_bn), ("verbose", verbose)):
            if not isinstance(flag, bool):
                raise MisconfigurationException(f"`BackboneFinetuning({name}={flag!r})`: choose True or False.")
        if not callable(lambda_func):
            raise MisconfigurationException(
                f"`BackboneFinetuning(lambda_func={lambda_func!r})`: give a function of the epoch's number that "
                "returns by how much to multiply the backbone's learning rate, such as `lambda epoch: 1.5`."
            )
        self.unfreeze_backbone_at_epoch = unfreeze_backbone_at_epoch
        self.lambda_func = lambda_func
        self.backbone_initial_ratio_lr = backbone_initial_ratio_lr
        self.backbone_initial_lr = backbone_initial_lr
        self.should_align = should_align
        self.initial_denom_lr = initial_denom_lr
        self.train_bn = train_bn
        self.verbose = verbose
        self.rounding = rounding
        self.previous_backbone_lr: float | None = None

    def state_dict(self) -> dict[str, Any]:
        return {"previous_backbone_lr": self.previous_backbone_lr, **super().state_dict()}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.previous_backbone_lr = state_dict.get("previous_backbone_lr")
        super().load_state_dict(state_dict)

    def setup(self, trainer: Trainer, pl_module: Module, stage: str) -> None:
        if not isinstance(getattr(pl_module, "backbone", None), nn.Module):
            raise MisconfigurationException(
                f"BackboneFinetuning trains `{type(pl_module).__name__}.backbone`, which is no `nn.Module`: call the "
                "part that is frozen at first `self.backbone` in `__init__`, or subclass BaseFinetuning."
            )
        super().setup(trainer, pl_module, stage)

    def freeze_before_training(self, pl_module: Module) -> None:
        self.freeze(pl_module.backbone)

    def finetune_function(self, pl_module: Module, epoch: int, optimizer: Optimizer) -> None:
        if epoch < self.unfreeze_backbone_at_epoch:
            return
        rate = optimizer.param_groups[0]["lr"]
        part: Any = pl_module.backbone
        backbone = set(part.parameters())
        trained = set(self.filter_params(part, train_bn=False))  # BatchNorm trains before the rest does
        groups = [group for group in optimizer.param_groups if trained.intersection(group["params"])]
        if epoch == self.unfreeze_backbone_at_epoch or not groups:  # or a `fit` that begins in a later epoch
            new = self.backbone_initial_lr or rate * self.backbone_initial_ratio_lr
            self.unfreeze_and_add_param_group(part, optimizer, new, self.initial_denom_lr, train_bn=self.train_bn)
        else:
            new = self.lambda_func(epoch + 1) * (self.previous_backbone_lr or rate)
            new = min(new, rate) if self.should_align else new
            for group in groups:
                if backbone.issuperset(group["params"]):  # not where it shares a group with the rest
                    group["lr"] = new
        self.previous_backbone_lr = new
        if self.verbose:
            rank_zero_info(
                "BackboneFinetuning: in epoch %s the backbone's learning rate is %s, that of the rest %s.",
                epoch,
                round(float(new), self.rounding),
                round(float(rate), self.rounding),
            )


def _within(modules: Iterable[Modules]) -> Generator[nn.Module, None, None]:
    for module in modules:
        yield from module.modules() if isinstance(module, nn.Module) else _within(module)


def _by_name(module: nn.Module) -> dict[str, nn.Parameter]:
    """Its parameters; one that is pruned, which torch renames, by its former name, for a resumed run makes it anew."""
    named = dict(module.named_parameters())
    return {
        name if name.removesuffix("_orig") in named else name.removesuffix("_orig"): parameter
        for name, parameter in named.items()
    }


def _held(optimizer: Optimizer) -> set[nn.Parameter]:
    """The parameters that it steps."""
    return {parameter for group in optimizer.param_groups for parameter in group["params"]}


def _set_trainable(module: nn.Module, trainable: bool) -> None:
    """Its own parameters, not those of modules within it."""
    if isinstance(module, _BatchNorm):
        module.track_running_stats = trainable
    for parameter in module.parameters(recurse=False):
        parameter.requires_grad = trainable


def _with_names(group: dict[str, Any], names: dict[nn.Parameter, str]) -> dict[str, Any]:
    """An optimizer's group with the names of its parameters in their place."""
    if any(parameter not in names for parameter in group["params"]):
        raise MisconfigurationException(
            "An optimizer holds parameters that are not part of the module, so that a finetuning callback cannot save "
            "which they are: make them attributes of the module, or of a module within it."
        )
    return {**group, "params": [names[parameter] for parameter in group["params"]]}


def _with_parameters(group: dict[str, Any], parameters: dict[str, nn.Parameter]) -> dict[str, Any]:
    """The other way round."""
    if missing := [name for name in group["params"] if name not in parameters]:
        raise MisconfigurationException(
            f"The checkpoint's optimizer trains parameters that the module lacks: {missing[:5]}. Resume with the "
            "module that it was saved with."
        )
    return {**group, "params": [parameters[name] for name in group["params"]]}

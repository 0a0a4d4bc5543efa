"""Hyperparameters: the arguments an object was made with, kept for checkpoints and loggers."""

import inspect
from argparse import Namespace
from collections.abc import Mapping, MutableMapping, Sequence
from copy import deepcopy
from dataclasses import asdict, fields, is_dataclass
from types import FrameType
from typing import TYPE_CHECKING, Any

from gpulayer.fabric.utilities.exceptions import MisconfigurationException

INIT_ARGUMENTS = "kwargs"  # what a checkpoint says when the hyperparameters are the arguments of `__init__`


class AttributeDict(dict[str, Any]):
    """A dict whose items are attributes, too."""

    def __getattr__(self, name: str) -> Any:
        try:
            return self[name]
        except KeyError:
            raise AttributeError(f"no hyperparameter {name!r}; there are {sorted(self)}") from None

    def __setattr__(self, name: str, value: Any) -> None:
        self[name] = value

    def __delattr__(self, name: str) -> None:
        try:
            del self[name]
        except KeyError:
            raise AttributeError(f"no hyperparameter {name!r}; there are {sorted(self)}") from None

    def __repr__(self) -> str:
        width = max((len(str(key)) for key in self), default=0)
        return "\n".join(f'"{key}":{" " * (width - len(str(key)) + 1)}{value}' for key, value in sorted(self.items()))


class HyperparametersMixin:
    """`save_hyperparameters` and `hparams`, for modules and datamodules."""

    CHECKPOINT_HYPER_PARAMS_KEY = "hyper_parameters"
    CHECKPOINT_HYPER_PARAMS_NAME = "hparams_name"
    CHECKPOINT_HYPER_PARAMS_TYPE = "hparams_type"

    if TYPE_CHECKING:  # TorchScript would take annotations that it finds at run time for types of its own
        _hparams: Any
        _hparams_initial: Any
        _hparams_name: str | None
    _hparams = None
    _hparams_initial = None
    _hparams_name = None
    _log_hyperparams = False

    def save_hyperparameters(
        self,
        *args: Any,
        ignore: Sequence[str] | str | None = None,
        frame: FrameType | None = None,
        logger: bool = True,
    ) -> None:
        """Keep the arguments that the object was made with; call it in `__init__`.

        Args:
            *args: nothing for all arguments; names of some; or one object to keep instead: a dict, a Namespace or a
                dataclass.
            ignore: names to leave out.
            frame: the frame of `__init__`, if it is not the caller's.
            logger: whether loggers get them.

        Raises:
            MisconfigurationException: `args` is neither names nor one such object, or a name is no argument.
        """
        if frame is None:
            current = inspect.currentframe()
            frame = current.f_back if current else None
        ignored = {ignore} if isinstance(ignore, str) else set(ignore or ())
        given = _init_arguments(self, frame)
        self._log_hyperparams = logger
        if not args:
            self._hparams_name = INIT_ARGUMENTS
            kept: Any = {name: value for name, value in given.items() if name not in ignored}
        elif all(isinstance(name, str) for name in args):
            missing = [name for name in args if name not in given]
            if missing:
                raise MisconfigurationException(
                    f"save_hyperparameters({', '.join(map(repr, args))}): {missing} are no arguments of "
                    f"`{type(self).__name__}.__init__`, which has {sorted(given)}."
                )
            self._hparams_name = INIT_ARGUMENTS
            kept = {name: given[name] for name in args if name not in ignored}
        elif len(args) == 1:
            kept = args[0]
            self._hparams_name = next((name for name, value in given.items() if value is kept), None)
            if self._hparams_name is None:
                self._hparams_name = _variable_name(kept, frame) or INIT_ARGUMENTS
            if ignored:
                kept = {name: value for name, value in _as_dict(kept).items() if name not in ignored}
        else:
            raise MisconfigurationException(
                "save_hyperparameters takes names of arguments, or one dict, Namespace or dataclass; "
                f"got {', '.join(type(argument).__name__ for argument in args)}."
            )
        self._set_hparams(kept)
        self._hparams_initial = deepcopy(self._hparams)

    def _set_hparams(self, hparams: Any) -> None:
        values = AttributeDict(_as_dict(hparams))
        if isinstance(self._hparams, dict):
            self._hparams.update(values)
        else:
            self._hparams = values

    @property
    def hparams(self) -> AttributeDict | MutableMapping[str, Any]:
        """What `save_hyperparameters` kept; it can be changed."""
        if self._hparams is None:
            self._hparams = AttributeDict()
        hparams: AttributeDict = self._hparams
        return hparams

    @property
    def hparams_initial(self) -> AttributeDict:
        """What `save_hyperparameters` kept, as it was then."""
        return deepcopy(self._hparams_initial) if self._hparams_initial is not None else AttributeDict()


def _as_dict(hparams: Any) -> dict[str, Any]:
    if isinstance(hparams, Namespace):
        return vars(hparams)
    if is_dataclass(hparams) and not isinstance(hparams, type):
        return asdict(hparams)
    if isinstance(hparams, Mapping):
        return dict(hparams)
    raise MisconfigurationException(
        f"Hyperparameters are a dict, a Namespace or a dataclass; got {type(hparams).__name__}: {hparams!r}."
    )


def _init_arguments(instance: object, frame: FrameType | None) -> dict[str, Any]:
    """The arguments of the `__init__` at `frame`, and of those of subclasses that called it (theirs win)."""
    if is_dataclass(instance) and not isinstance(instance, type) and frame and frame.f_code.co_name != "__init__":
        return {field.name: getattr(instance, field.name) for field in fields(instance) if field.init}
    while frame is not None and frame.f_code.co_name != "__init__":  # a method that `__init__` calls
        frame = frame.f_back
    arguments: dict[str, Any] = {}
    while frame is not None and frame.f_code.co_name == "__init__":
        code, values = frame.f_code, frame.f_locals
        names = code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]
        if not names or values.get(names[0]) is not instance:
            break
        arguments.update({name: values[name] for name in names[1:] if name in values})
        if code.co_flags & inspect.CO_VARKEYWORDS:
            position = code.co_argcount + code.co_kwonlyargcount + bool(code.co_flags & inspect.CO_VARARGS)
            arguments.update(values.get(code.co_varnames[position], {}))
        frame = frame.f_back
    return arguments


def _variable_name(value: Any, frame: FrameType | None) -> str | None:
    """The name of the local variable that holds `value`."""
    return next((name for name, local in frame.f_locals.items() if local is value), None) if frame else None


def accepted_arguments(cls: type, arguments: dict[str, Any]) -> dict[str, Any]:
    """Those of `arguments` that `cls.__init__` takes; all, if it takes any keyword."""
    parameters = inspect.signature(cls.__init__).parameters.values()  # type: ignore[misc]
    if any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters):
        return arguments
    names = {parameter.name for parameter in parameters}
    return {name: value for name, value in arguments.items() if name in names}

"""Arguments from environment variables."""

import ast
import inspect
import os
from collections.abc import Callable, Collection
from functools import wraps
from typing import Any, TypeVar

F = TypeVar("F", bound=Callable[..., Any])


def arguments_from_environment(prefix: str, texts: Collection[str] = ()) -> Callable[[F], F]:
    """Decorator of an `__init__`: a keyword that is not given is taken from the variable `<prefix><NAME>`, if set.

    The text is read as a Python literal where it is one (5, 0.5, True, None, [0, 1], {"hours": 2}), else as it stands.

    Args:
        prefix: such as "PL_TRAINER_".
        texts: arguments that are always text, such as a folder whose name may be a number.
    """

    def decorate(function: F) -> F:
        names = [
            name
            for name, parameter in inspect.signature(function).parameters.items()
            if parameter.kind is parameter.KEYWORD_ONLY
        ]

        @wraps(function)
        def with_environment(self: Any, *args: Any, **kwargs: Any) -> Any:
            found = {name: os.environ[variable] for name in names if (variable := prefix + name.upper()) in os.environ}
            read = {name: text if name in texts else read_literal(text) for name, text in found.items()}
            return function(self, *args, **{**read, **kwargs})

        return with_environment  # type: ignore[return-value]

    return decorate


def read_literal(text: str) -> Any:
    """A Python literal from its text; the text itself if it is none."""
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError):
        return text

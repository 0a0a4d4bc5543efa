"""Names of accelerators and strategies; packages of others may add theirs."""

from collections.abc import Callable
from typing import Any

from gpulayer.fabric.utilities.exceptions import InvalidValueError


class Registry(dict[str, dict[str, Any]]):
    """Classes by name, each with the arguments that an object of it is made with.

    Args:
        kind: what the names are of, such as "strategy"; `register` takes the class under this name, too.
    """

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.kind = kind

    def register(
        self,
        name: str,
        registered: Callable[..., Any] | None = None,
        description: str | None = None,
        override: bool = False,
        **init_params: Any,
    ) -> Callable[..., Any]:
        """Add a name. Without a class this is a decorator of one.

        Args:
            name: what users write, such as `Trainer(accelerator=name)`.
            registered: the class, or a function that makes an object.
            description: in a few words.
            override: whether the name may have been there before.
            **init_params: arguments for the class.

        Returns:
            The class.

        Raises:
            TypeError: the name is not a string.
            InvalidValueError: the name is there already.
        """
        if not isinstance(name, str):
            raise TypeError(f"`name={name!r}`: give a string.")
        if name in self and not override:
            raise InvalidValueError(
                f"There is already {_a(self.kind)} {name!r}: take another name, or `override=True` to replace it."
            )
        registered = init_params.pop(self.kind, registered)

        def add(found: Callable[..., Any]) -> Callable[..., Any]:
            self[name] = {
                "description": description or "",
                "init_params": init_params,
                self.kind: found,
                f"{self.kind}_name": name,
            }
            return found

        return add if registered is None else add(registered)

    def get(self, name: str, default: Any = None) -> Any:
        """A new object of the class that `name` stands for.

        Args:
            name: the name.
            default: returned for an unknown name, unless it is None.

        Raises:
            KeyError: the name is unknown, and there is no default.
        """
        if name in self:
            entry = self[name]
            return entry[self.kind](**entry["init_params"])
        if default is not None:
            return default
        raise KeyError(f"There is no {self.kind} {name!r}; there are {', '.join(map(repr, self.available_names()))}.")

    def remove(self, name: str) -> None:
        """Forget a name.

        Raises:
            KeyError: it is not there.
        """
        del self[name]

    def available_names(self) -> list[str]:
        """All names, sorted."""
        return sorted(self)

    def available_accelerators(self) -> set[str]:
        """All names of accelerators."""
        return set(self)

    def available_strategies(self) -> list[str]:
        """All names of strategies, sorted."""
        return sorted(self)

    def __str__(self) -> str:
        return f"Registered {self.kind}: {', '.join(self)}"


def _a(kind: str) -> str:
    return f"an {kind}" if kind[0] in "aeiou" else f"a {kind}"


AcceleratorRegistry = Registry("accelerator")
StrategyRegistry = Registry("strategy")

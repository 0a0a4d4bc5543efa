"""CombinedLoader: several loaders as one."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from itertools import islice, zip_longest
from typing import Any, Literal

from torch import Tensor

from gpulayer.fabric.utilities.exceptions import MisconfigurationException
from gpulayer.fabric.utilities.rank_zero import rank_zero_warn
from gpulayer.pytorch.core.resume import Resumable

Mode = Literal["min_size", "max_size_cycle", "max_size", "sequential"]
MODES = ("min_size", "max_size_cycle", "max_size", "sequential")
_PLAIN = (Tensor, str, bytes, int, float, bool, type(None))


class CombinedLoader(Iterable[tuple[Any, int, int]]):
    """Iterates several loaders together, or one after another.

    It yields `(batch, batch_idx, dataloader_idx)`. Together, a batch has the structure of `iterables`, with a batch of
    each loader in its part, and `dataloader_idx` is 0.

    Args:
        iterables: a list, tuple or dict of loaders, nested as you like. A list of tensors or numbers is a loader.
        mode: "min_size" stops with the shortest; "max_size_cycle" starts the shorter ones anew until the longest is
            through; "max_size" gives None for those that are; "sequential" takes one loader after another.

    Raises:
        ValueError: an unknown mode.
    """

    def __init__(self, iterables: Any, mode: Mode = "min_size") -> None:
        if mode not in MODES:
            raise ValueError(f"CombinedLoader(mode={mode!r}): choose one of {', '.join(map(repr, MODES))}.")
        self._iterables = iterables
        self.mode = mode
        self._flattened = list(_leaves(iterables))
        self.parts = [Resumable(loader) for loader in self._flattened]
        self._limits: list[int | float | None] | None = None

    @property
    def iterables(self) -> Any:
        """What it was made of."""
        return self._iterables

    @property
    def flattened(self) -> list[Any]:
        """The loaders, in order."""
        return self._flattened

    @property
    def sampler(self) -> Any:
        """The samplers, in the structure of `iterables`."""
        return self.rebuild([getattr(loader, "sampler", None) for loader in self._flattened])

    @property
    def batch_sampler(self) -> Any:
        """The batch samplers, in the structure of `iterables`."""
        return self.rebuild([getattr(loader, "batch_sampler", None) for loader in self._flattened])

    @property
    def limits(self) -> list[int | float | None] | None:
        """How many batches each loader counts for at most; None for all.

        One after another, each is cut off there. Together, the number of batches follows from them, as from lengths; a
        loader that is begun anew is still gone through whole.
        """
        return self._limits

    @limits.setter
    def limits(self, limits: int | float | list[int | float | None] | None) -> None:
        if not isinstance(limits, list) and limits is not None:
            limits = [limits] * len(self._flattened)
        if limits is not None and len(limits) != len(self._flattened):
            raise MisconfigurationException(
                f"CombinedLoader has {len(self._flattened)} loaders, but {len(limits)} limits were given."
            )
        self._limits = limits

    def rebuild(self, values: list[Any]) -> Any:
        """`values`, one for each loader, in the structure of `iterables`."""
        remaining = iter(values)
        return _replace_leaves(self._iterables, lambda _: next(remaining))

    def sizes(self) -> list[int | None]:
        """How many batches each loader has under its limit; None if that is not known."""
        sizes: list[int | None] = []
        for number, loader in enumerate(self._flattened):
            limit = self._limit(number)
            try:
                size: int | None = len(loader)
            except (TypeError, NotImplementedError):
                size = None
            sizes.append(size if limit is None else limit if size is None and limit == 0 else _least(size, limit))
        return sizes

    def bound(self) -> int | None:
        """How many batches there are at most, though not every length is known; None if there may be any number."""
        known = [size for size in self.sizes() if size is not None]
        return min(known, default=None) if self.mode == "min_size" else None

    def _limit(self, number: int) -> int | None:
        limit = None if self._limits is None else self._limits[number]
        return None if limit is None or limit == float("inf") else int(limit)

    def __len__(self) -> int:
        count = self._count(self.sizes())
        if count is None:
            kinds = sorted({type(loader).__name__ for loader in self._flattened})
            raise NotImplementedError(f"not every loader has a length; there are {', '.join(kinds)}.")
        return count

    def _count(self, sizes: list[int | None]) -> int | None:
        known = [size for size in sizes if size is not None]
        if len(known) < len(sizes):
            return None
        if self.mode == "sequential":
            return sum(known)
        return (min if self.mode == "min_size" else max)(known, default=0)

    def __iter__(self) -> Iterator[tuple[Any, int, int]]:
        for part in self.parts:
            part.restart()
        if self.mode == "sequential":
            return self._one_after_another()
        return ((batch, index, 0) for index, batch in enumerate(self._together()))

    def batches(self, done: int = 0) -> Iterator[Any]:
        """The batches alone, of an epoch of which `done` are done."""
        if done and not any(part.in_mid_pass for part in self.parts):
            return islice(self.batches(), done, None)
        if not done:
            for part in self.parts:
                part.restart()
        if self.mode == "sequential":
            return (batch for batch, _, _ in self._one_after_another(done))
        return self._together(done)

    def _one_after_another(self, done: int = 0) -> Iterator[tuple[Any, int, int]]:
        begun = max((number for number, part in enumerate(self.parts) if part.in_mid_pass), default=0)
        for number, part in enumerate(self.parts[begun:], begun):
            iterator = part.begin(done, watched=True)
            first = done - part.began_at
            limit = self._limit(number)
            for index, batch in enumerate(islice(iterator, None if limit is None else limit - first), first):
                done += 1
                yield batch, index, number

    def _together(self, done: int = 0) -> Iterator[Any]:
        if self.mode == "max_size_cycle":
            rows: Iterator[Any] = _cycle(self.parts, done)
        elif self.mode == "max_size":
            rows = zip_longest(*(part.begin(done, watched=True) for part in self.parts))
        else:
            rows = zip(*(part.begin(done, watched=True) for part in self.parts), strict=False)
        most = None if self._limits is None else self._count(self.sizes())
        return (self.rebuild(list(row)) for row in islice(rows, None if most is None else most - done))


def _least(size: int | None, limit: int) -> int | None:
    return None if size is None else min(size, limit)


_END = object()


def _cycle(parts: list[Resumable], done: int) -> Iterator[list[Any]]:
    """One item of each, until all have been through once; those that are begin again. An empty one gives None."""
    iterators = [part.begin(done, watched=True) for part in parts]
    through, empty = [part.times > 1 for part in parts], [False] * len(parts)
    while parts:
        row: list[Any] = []
        for number, part in enumerate(parts):
            item = next(iterators[number], _END)
            if item is _END:
                through[number] = True
                if all(through):
                    return
                iterators[number] = part.begin(done, watched=True)
                item = next(iterators[number], None)
                if item is None and not empty[number]:
                    empty[number] = True
                    rank_zero_warn(
                        f"Loader {number} of those that go together gave no batch when it was begun anew, so that its "
                        "part in the batch holds None: it is empty, or can be gone through only once."
                    )
            row.append(item)
        yield row
        done += 1


def is_collection(value: Any) -> bool:
    """Whether a list, tuple or dict holds loaders, rather than being one: a list of ready-made batches."""
    if isinstance(value, dict):
        return not all(isinstance(item, _PLAIN) for item in value.values())
    return isinstance(value, (list, tuple)) and not all(isinstance(item, _PLAIN) for item in value)


def _leaves(value: Any) -> Iterator[Any]:
    if is_collection(value):
        for item in value.values() if isinstance(value, dict) else value:
            yield from _leaves(item)
    else:
        yield value


def _replace_leaves(value: Any, replace: Callable[[Any], Any]) -> Any:
    if not is_collection(value):
        return replace(value)
    if isinstance(value, dict):
        replaced = {key: _replace_leaves(item, replace) for key, item in value.items()}
        return replaced if type(value) is dict else type(value)(replaced)
    items = [_replace_leaves(item, replace) for item in value]
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return type(value)(*items)
    return type(value)(items)

"""Going on in the middle of an epoch: with the very next batch of a loader, and with the random numbers it would have.

A loader is iterated anew from the random state that it began with, so that it shuffles as it did; the samples that are
done are passed over as indices, without being loaded; and the random state of the moment is put back.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import islice
from typing import Any

import torch
from torch.utils.data import BatchSampler, DataLoader, IterableDataset

from gpulayer.fabric.utilities.rank_zero import rank_zero_warn
from gpulayer.fabric.utilities.seed import collect_rng_states, set_rng_states


class Resumable:
    """A loader that can be begun where it was when a checkpoint was written, in another process.

    Args:
        loader: any iterable of batches.
    """

    def __init__(self, loader: Any) -> None:
        self.loader = loader
        self.times = 0  # how often it was begun in this epoch; the shorter of several loaders are begun anew
        self.began_at = 0  # how many batches of the epoch were done then
        self._begun: dict[str, Any] | None = None  # the random states then, and at its first batch
        self._loaded: dict[str, Any] | None = None  # what a checkpoint said
        self._kept = False  # whether an earlier process had its workers already

    def begin(self, done: int, skip: int = 0, one_of_several: bool = False) -> Iterator[Any]:
        """Iterate the loader, from its first batch, or from where a checkpoint said that it was.

        Args:
            done: how many batches of the epoch are done.
            skip: how many of its batches to pass over if no checkpoint said anything.
            one_of_several: others are begun before its first batch is fetched.
        """
        loaded, self._loaded = self._loaded, None
        if loaded is not None:
            self.times, self.began_at, self._begun = loaded["times"], loaded["began_at"], loaded["begun"]
            return go_on(self.loader, done - self.began_at, self._begun, loaded["own"])
        kept, self._kept = self._kept, False
        had_workers = kept or (isinstance(self.loader, DataLoader) and self.loader._iterator is not None)
        self.times, self.began_at = self.times + 1, done - skip
        self._begun = {"iter": random_states(self.loader), "next": None, "kept": had_workers}
        if skip:
            return go_on(self.loader, skip)
        with quiet_start(self.loader, kept):
            iterator = iter(self.loader)
        return self._noting(iterator, self._begun) if one_of_several else iterator

    def _noting(self, iterator: Iterator[Any], begun: dict[str, Any]) -> Iterator[Any]:
        begun["next"] = random_states(self.loader)
        yield from iterator

    @property
    def is_loaded(self) -> bool:
        """Whether a checkpoint said where it is."""
        return self._loaded is not None

    def restart(self) -> None:
        """An epoch begins."""
        self.times, self._loaded = 0, None

    def state_dict(self) -> dict[str, Any]:
        """For a checkpoint."""
        owner = stateful(self.loader)
        return {
            "times": self.times,
            "began_at": self.began_at,
            "begun": self._begun,
            "own": None if owner is None else owner.state_dict(),
            "generators": [one.get_state() for one in generators(self.loader)],
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """The next `begin` goes on from what `state_dict` returned."""
        self._loaded = state if state["times"] else None
        self._kept = bool(state["times"]) and isinstance(self.loader, DataLoader) and self.loader.persistent_workers
        for generator, own in zip(generators(self.loader), state["generators"], strict=False):
            generator.set_state(own.cpu())


def stateful(loader: Any) -> Any:
    """What knows by itself where it is: the loader, as torchdata's StatefulDataLoader does, or its dataset."""
    for owner in (loader, getattr(loader, "dataset", None)):
        if callable(getattr(owner, "state_dict", None)) and callable(getattr(owner, "load_state_dict", None)):
            if owner is not loader and (loader.num_workers or not isinstance(owner, IterableDataset)):
                return None  # the copies that workers iterate cannot be asked; one with indices has no place
            return owner
    return None


def generators(loader: Any) -> list[torch.Generator]:
    """The random generators of a loader's own, if it was given any."""
    batch_sampler = getattr(loader, "batch_sampler", None)
    owners = (loader, getattr(loader, "sampler", None), batch_sampler, getattr(batch_sampler, "sampler", None))
    found = {id(one): one for one in (getattr(owner, "generator", None) for owner in owners)}
    return [one for one in found.values() if isinstance(one, torch.Generator)]


def random_states(loader: Any) -> dict[str, Any]:
    """The states that decide in which order a loader that is begun now gives its data."""
    return {"global": collect_rng_states(include_cuda=False), "own": [one.get_state() for one in generators(loader)]}


def set_random_states(loader: Any, states: dict[str, Any]) -> None:
    """Put back what `random_states` returned."""
    set_rng_states(states["global"])
    for generator, state in zip(generators(loader), states["own"], strict=False):
        generator.set_state(state.cpu())


@contextmanager
def quiet_start(loader: Any, kept: bool) -> Iterator[None]:
    """Begin a loader without drawing a seed for workers, if those of the process before had theirs and were kept."""
    if not kept:
        yield
        return
    generator = loader.generator
    loader.generator = torch.Generator()
    try:
        yield
    finally:
        loader.generator = generator


def go_on(
    loader: Any, skip: int, begun: dict[str, Any] | None = None, own: dict[str, Any] | None = None
) -> Iterator[Any]:
    """Iterate a loader from its batch number `skip` on. Afterwards the random states are those of before.

    Args:
        loader: any iterable of batches.
        skip: how many batches to pass over; of a DataLoader with a dataset that has indices none of them is loaded.
        begun: the random states when it was begun: at `iter`, and at its first batch if that came later.
        own: what the loader or its dataset says of its place itself.
    """
    now = random_states(loader)
    owner = stateful(loader) if own is not None else None
    try:
        if begun is not None:
            set_random_states(loader, begun["iter"])
        with quiet_start(loader, begun is not None and begun["kept"]):
            if owner is not None:
                owner.load_state_dict(own)
                iterator: Iterator[Any] = iter(loader)
                return iterator
            if isinstance(loader, DataLoader) and not isinstance(loader.dataset, IterableDataset):
                iterator, later = _without_first(loader, skip)
                if begun is not None and begun["next"] is not None:
                    set_random_states(loader, begun["next"])
                later.advance()
                return iterator
            return _passed_over(loader, skip)
    finally:
        set_random_states(loader, now)


def _without_first(loader: DataLoader[Any], skip: int) -> tuple[Iterator[Any], Later]:
    name = "sampler" if loader.batch_sampler is None else "batch_sampler"
    original = getattr(loader, name)
    later = Later(original, skip)
    object.__setattr__(loader, name, later)  # DataLoader itself refuses another sampler
    try:
        return iter(loader), later
    finally:
        object.__setattr__(loader, name, original)


def _passed_over(loader: Any, skip: int) -> Iterator[Any]:
    if isinstance(loader, Sequence):  # ready-made batches
        return islice(loader, skip, None)
    rank_zero_warn(
        f"The run goes on in mid-epoch with a {type(loader).__name__} that cannot be told where to begin: its first "
        f"{skip} batches are loaded once more and passed over. Give the loader or its dataset `state_dict` and "
        "`load_state_dict` (torchdata's StatefulDataLoader has them), or use a dataset with indices."
    )
    iterator: Iterator[Any] = iter(loader)
    _pass_over(iterator, skip)
    return iterator


class Later:
    """The indices of a sampler without the first ones, once; from then on all."""

    def __init__(self, sampler: Any, skip: int) -> None:
        self.sampler = sampler
        self.skip = skip
        self._rest: Iterator[Any] | None = None

    def __len__(self) -> int:
        return len(self.sampler)

    def __iter__(self) -> Iterator[Any]:
        if not self.skip:
            return iter(self.sampler)
        return self

    def advance(self) -> None:
        """Pass over the first ones now, if that has not happened: it draws the random numbers of the order."""
        if self._rest is not None:
            return
        if type(self.sampler) is BatchSampler:  # by samples, which takes no time
            samples = iter(self.sampler.sampler)
            _pass_over(samples, self.skip * self.sampler.batch_size)
            self._rest = iter(BatchSampler(samples, self.sampler.batch_size, self.sampler.drop_last))
        else:
            self._rest = iter(self.sampler)
            _pass_over(self._rest, self.skip)
        self.skip = 0

    def __next__(self) -> Any:
        self.advance()
        assert self._rest is not None
        return next(self._rest)


def _pass_over(iterator: Iterator[Any], count: int) -> None:
    deque(islice(iterator, count), maxlen=0)

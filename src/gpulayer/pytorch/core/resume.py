"""Going on in the middle of an epoch: with the very next batch of a loader, and with the random numbers it would have.

A loader is iterated anew from the random state that it began with, so that it shuffles as it did; the samples that are
done are passed over as indices, without being loaded; and the random state of the moment is put back.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from copy import deepcopy
from itertools import islice
from typing import Any

import torch
from torch.utils.data import BatchSampler, DataLoader, IterableDataset

from gpulayer.fabric.utilities.generators import held_by, set_states, states_of
from gpulayer.fabric.utilities.rank_zero import rank_zero_warn
from gpulayer.fabric.utilities.seed import collect_rng_states, isolate_rng, set_rng_states


class Resumable:
    """A loader that can be begun where it was when a checkpoint was written, in another process.

    Args:
        loader: any iterable of batches.
    """

    def __init__(self, loader: Any) -> None:
        self.loader = loader
        self.times = 0  # how often it was begun in this epoch; the shorter of several loaders are begun anew
        self.began_at = 0  # how many batches of the epoch were done then
        self.finished = False  # whether it was asked for a batch and had no more; known where a pass is watched
        self._pass: Iterator[Any] = iter(())
        self._begun: dict[str, Any] | None = None  # what decided on the order of the pass
        self._loaded: dict[str, Any] | None = None  # what a checkpoint said
        self._kept = False  # whether an earlier process had its workers already
        self._generators: list[Any] = []
        self._moves = True  # whether a batch changes more than the random states of the process
        self.before: dict[str, Any] | None = None  # the state when a batch was fetched before its turn

    def begin(self, done: int, skip: int = 0, watched: bool = False) -> Iterator[Any]:
        """Iterate the loader, from its first batch, or from where a checkpoint said that it was.

        Args:
            done: how many batches of the epoch are done.
            skip: how many of its batches to pass over if no checkpoint said anything.
            watched: note when the first batch is fetched, for others may be begun before, and when the last one was.
        """
        in_mid_pass, (loaded, self._loaded) = self.in_mid_pass, (self._loaded, None)
        self._generators, self.before = held_by(self.loader), None
        owners = [*self._generators, *samplers_of(self.loader), stream_of(self.loader)]
        self._moves = knows_its_place(self.loader) or any(owner is not None for owner in owners)
        if in_mid_pass and loaded is not None:
            self.began_at, self._begun, self.finished = loaded["began_at"], loaded["begun"], loaded["finished"]
            if self.finished:
                self.before, iterator = loaded, iter(())
            else:
                iterator = go_on(self.loader, done - self.began_at, self._begun, loaded["place"])
        else:
            iterator = self._anew(done, skip, loaded)
        self._pass = iterator
        return self._watched(iterator) if watched else iterator

    def _anew(self, done: int, skip: int, loaded: dict[str, Any] | None) -> Iterator[Any]:
        kept, self._kept = self._kept, False
        self.times, self.began_at, self.finished = self.times + 1, done - skip, False
        self._begun = start_of(self.loader, kept)
        if loaded is not None and loaded["place"] is not None:
            self._to_the_end(loaded)
        if skip:
            return go_on(self.loader, skip)
        with quiet_start(self.loader, kept):
            return iter(self.loader)

    def _to_the_end(self, loaded: dict[str, Any]) -> None:
        """Bring a loader that knows its place to the end of the pass before, as it is in a run that was not cut off.

        A batch is asked for, as many do nothing before. There is none, unless the Trainer's limit ended the pass.
        """
        with isolate_rng():
            self.loader.load_state_dict(loaded["place"])
            next(iter(self.loader), None)
        self._set_objects(loaded)

    def _watched(self, iterator: Iterator[Any]) -> Iterator[Any]:
        if self._begun is not None and self._begun["next"] is None:
            self._begun["next"] = random_states(self.loader)
        yield from iterator
        self.finished = True

    @property
    def in_mid_pass(self) -> bool:
        """Whether a checkpoint said where it is, in a pass that goes on."""
        return self._loaded is not None and self.times > 0

    def restart(self) -> None:
        """An epoch begins."""
        self.times = 0

    def note(self) -> dict[str, Any]:
        """The state before a batch is fetched that may not be worked on any more: as `state_dict` gives it."""
        if self._moves or self.before is None:
            self.before = self.state_dict()
        return self.before

    def state_dict(self) -> dict[str, Any]:
        """For a checkpoint."""
        if self._loaded is not None:
            return {**self._loaded, "times": self.times}
        dataset = stream_of(self.loader)
        return {
            "times": self.times,
            "began_at": self.began_at,
            "finished": self.finished or (dataset is not None and has_run_out(self._pass)),
            "begun": self._begun,
            "place": self._place(),
            "dataset": None if dataset is None else dataset.state_dict(),
            "samplers": [sampler.state_dict() for sampler in samplers_of(self.loader)],
            "generators": states_of(held_by(self.loader) if self._begun is None else self._generators),
        }

    def _place(self) -> Any:
        if self._begun is None or not knows_its_place(self.loader):
            return None  # StatefulDataLoader would start its workers to answer before it is begun
        if self.finished and self.before is not None:
            return self.before["place"]  # from there the end is reached again; at the end some begin the next pass
        return self.loader.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """The next `begin` goes on from what `state_dict` returned."""
        self._set_objects(state)
        if state["begun"] is None:
            return  # it was not begun yet
        self.times, self._loaded = state["times"], state
        self._kept = getattr(self.loader, "persistent_workers", False) is True

    def load_place(self, place: Any) -> None:
        """As `load_state_dict`, where a checkpoint of Lightning's has nothing but what the loader itself said."""
        own = {"place": place, "dataset": None, "samplers": [], "generators": []}
        self.load_state_dict({"times": 1, "began_at": 0, "finished": False, "begun": start_of(self.loader), **own})

    def _set_objects(self, state: dict[str, Any]) -> None:
        set_states(held_by(self.loader), state["generators"])
        if state["dataset"] is not None and (dataset := stream_of(self.loader)) is not None:
            dataset.load_state_dict(state["dataset"])
        load_all(samplers_of(self.loader), state["samplers"])


# -- what a loader is made of ------------------------------------------------------------------------------------------


def knows_its_place(loader: Any) -> bool:
    """Whether an object can be asked where it is, and told, as torchdata's StatefulDataLoader can."""
    return all(callable(getattr(loader, name, None)) for name in ("state_dict", "load_state_dict"))


def stream_of(loader: Any) -> Any:
    """The dataset of a loader, if it knows its place and is iterated in this process.

    One with indices has no place, and the copies that workers iterate cannot be asked.
    """
    dataset = getattr(loader, "dataset", None)
    in_workers = getattr(loader, "num_workers", 0)
    return dataset if isinstance(dataset, IterableDataset) and knows_its_place(dataset) and not in_workers else None


def has_run_out(iterator: Any) -> bool:
    """Whether a DataLoader's pass found the end of its dataset while it looked for more samples of a shorter batch.

    The dataset's state is then that of the next pass already.
    """
    return bool(getattr(getattr(iterator, "_dataset_fetcher", None), "ended", False))


def samplers_of(loader: Any) -> list[Any]:
    """The samplers of a loader that have a state of their own."""
    batch_sampler = getattr(loader, "batch_sampler", None)
    samplers = (getattr(loader, "sampler", None), batch_sampler, getattr(batch_sampler, "sampler", None))
    return [one for one in {id(sampler): sampler for sampler in samplers}.values() if knows_its_place(one)]


def load_all(owners: list[Any], states: list[Any]) -> None:
    """Give each its state, if there are as many."""
    if len(owners) == len(states):
        for owner, state in zip(owners, states, strict=True):
            owner.load_state_dict(state)


def random_states(loader: Any) -> dict[str, Any]:
    """The states that decide in which order a loader that is begun now gives its data."""
    return {"global": collect_rng_states(), "own": states_of(held_by(loader))}


def set_random_states(loader: Any, states: dict[str, Any]) -> None:
    """Put back what `random_states` returned."""
    set_rng_states(states["global"])
    set_states(held_by(loader), states["own"])


def start_of(loader: Any, kept: bool = False) -> dict[str, Any]:
    """What decides on the order of a pass that begins now.

    Args:
        loader: the loader.
        kept: whether the process before had its workers already, and kept them.

    Returns:
        Its random states now and, once they are noted, at its first batch; whether there are workers already; the
        states of its samplers.
    """
    return {
        "iter": random_states(loader),
        "next": None,
        "kept": kept or (isinstance(loader, DataLoader) and loader._iterator is not None),
        "samplers": deepcopy([sampler.state_dict() for sampler in samplers_of(loader)]),
    }


@contextmanager
def quiet_start(loader: Any, kept: bool) -> Iterator[None]:
    """Begin a loader without drawing a seed for workers, if those of the process before had theirs and were kept."""
    if not kept or not isinstance(loader, DataLoader):
        yield
        return
    generator = loader.generator
    loader.generator = torch.Generator()
    try:
        yield
    finally:
        loader.generator = generator


# -- in mid-pass -------------------------------------------------------------------------------------------------------


def go_on(loader: Any, skip: int, begun: dict[str, Any] | None = None, place: Any = None) -> Iterator[Any]:
    """Iterate a loader from its batch number `skip` on. Afterwards the random states are those of before.

    Args:
        loader: any iterable of batches.
        skip: how many batches to pass over; of a DataLoader with a dataset that has indices none of them is loaded.
        begun: what `start_of` said when the pass began.
        place: what the loader said of its place itself.
    """
    now = random_states(loader)
    try:
        if begun is not None:
            set_random_states(loader, begun["iter"])
            load_all(samplers_of(loader), begun["samplers"])
        with quiet_start(loader, begun is not None and begun["kept"]):
            if place is not None:
                loader.load_state_dict(place)
                return iter(loader)
            if stream_of(loader) is not None and begun is not None:
                return iter(loader)  # the dataset has been told its place
            first = None if begun is None else begun["next"]
            if isinstance(loader, DataLoader) and not isinstance(loader.dataset, IterableDataset):
                iterator, later = _without_first(loader, skip)
                if first is not None:
                    set_random_states(loader, first)
                later.advance()
                return iterator
            return _passed_over(loader, skip, first)
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


def _passed_over(loader: Any, skip: int, first: dict[str, Any] | None) -> Iterator[Any]:
    if isinstance(loader, Sequence):  # ready-made batches
        return islice(loader, skip, None)
    rank_zero_warn(
        f"The run goes on in mid-epoch with a {type(loader).__name__} that cannot be told where to begin: its first "
        f"{skip} batches are loaded once more and passed over. Give the loader or its dataset `state_dict` and "
        "`load_state_dict` (torchdata's StatefulDataLoader has them), or use a dataset with indices."
    )
    iterator: Iterator[Any] = iter(loader)
    if first is not None:
        set_random_states(loader, first)
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

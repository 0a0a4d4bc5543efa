"""Batches: what a loader gives, limited, moved to the device, and known to be the last one when it is."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import nullcontext
from functools import partial
from itertools import islice
from typing import Any

from gpulayer.fabric.utilities.rank_zero import rank_zero_warn
from gpulayer.fabric.utilities.seed import HostStates, isolate_rng, set_rng_states
from gpulayer.pytorch.core.combined_loader import CombinedLoader
from gpulayer.pytorch.core.indices import Indices
from gpulayer.pytorch.core.resume import Resumable, knows_its_place

END = object()


class Batches:
    """The batches of one loader.

    Iterating gives `(batch, batch_idx)`; meanwhile `is_last` tells whether the batch is the last. With a known length
    that is a comparison, and a batch is fetched only when it is asked for, so that random numbers are drawn in the
    order of a hand-written loop. Without one it is known by fetching one batch ahead.

    Args:
        loader: any iterable of batches.
        length: how many there will be, if that is known.
        limit: how many to take at most.
        move: puts a batch on the device; None where it is there already.
        as_iterator: the step takes the iterator and fetches from it itself.
        stream: what to iterate, if that is not the loader itself: several loaders combined.
        measure: gives `length` and `limit` anew, which may change with the epoch.
    """

    def __init__(
        self,
        loader: Any,
        length: int | None,
        limit: int | None = None,
        move: Callable[[Any], Any] | None = None,
        as_iterator: bool = False,
        stream: CombinedLoader | None = None,
        measure: Callable[[], tuple[int | None, int | None]] | None = None,
    ) -> None:
        self.loader = loader
        self.stream = stream
        self.length = length
        self.limit = limit
        self.move = move
        self.as_iterator = as_iterator
        self.measure = measure
        self.resumable = Resumable(loader)
        self.indices: Indices | None = None  # of each batch, where someone asked for them; nobody resumes such a pass
        # What a profiler makes of the iterator, given the function that begins it.
        self.watch: Callable[[Callable[[], Iterator[Any]]], Iterator[Any]] | None = None
        self.start = 0  # how many to skip, once: those that a checkpoint counts as done
        self.is_last = False
        self._handed: HandedOver | None = None  # the iterator, where the step takes it
        self._loaded: dict[str, Any] | None = None  # what a checkpoint said, until the next pass
        self._fetched = 0  # how many batches of the epoch were fetched, without the one before its turn
        self._before_this: dict[str, Any] | None = None  # the state when the last of them was fetched,
        self._before: dict[str, Any] | None = None  # and when the one before its turn was

    @property
    def count(self) -> int | float:
        """How many batches there will be, as `trainer.num_training_batches` tells it: inf if that is not known."""
        if self.length is not None:
            return self.length
        return float("inf") if self.limit is None else self.limit

    def samplers(self) -> list[Any]:
        """The samplers of all loaders."""
        samplers: dict[int, Any] = {}
        for loader in [self.loader] if self.stream is None else self.stream.flattened:
            batch_sampler = getattr(loader, "batch_sampler", None)
            for sampler in (getattr(loader, "sampler", None), getattr(batch_sampler, "sampler", None), batch_sampler):
                samplers[id(sampler)] = sampler
        return list(samplers.values())

    def set_epoch(self, epoch: int) -> None:
        """Tell the samplers the epoch, as distributed ones need it to shuffle anew; some change their length, too."""
        for sampler in self.samplers():
            if callable(getattr(sampler, "set_epoch", None)):
                sampler.set_epoch(epoch)
        if self.measure is not None:
            self.length, self.limit = self.measure()

    def _from(self, start: int) -> Iterator[Any]:
        """The batches from number `start` on."""
        begin = partial(self._begin, start)
        return begin() if self.watch is None else self.watch(begin)

    def _begin(self, start: int) -> Iterator[Any]:
        if self.indices is not None:
            return self.indices.begin()
        if self.stream is not None:
            return self.stream.batches(start)
        if not start:
            self.resumable.restart()
        return self.resumable.begin(start, skip=start, watched=self.length is None)

    def state_dict(self, done: int) -> dict[str, Any]:
        """How far the pass is and where each loader is in it, for a checkpoint.

        A batch that was fetched before its turn, or that an error broke off, is not kept: it is fetched again, from the
        states of the moment in which it was.

        Args:
            done: how many batches of the epoch are done.
        """
        if self._loaded is not None:
            return self._loaded
        taken = None if self._handed is None else self._handed.taken
        broken_off = self._handed is None and done < self._fetched
        if noted := self._before_this if broken_off else self._before:
            return {**noted, "taken": taken}
        return {"taken": taken, "before": None, "parts": [part.state_dict() for part in self._parts()]}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """The next pass goes on from what `state_dict` returned."""
        parts = self._parts()
        if len(state["parts"]) == len(parts):
            self._loaded = state
            for part, own in zip(parts, state["parts"], strict=True):
                part.load_state_dict(own)

    def load_places(self, places: list[Any]) -> None:
        """The next pass goes on from what the loaders themselves said, in a checkpoint of Lightning's."""
        parts = [part for part in self._parts() if knows_its_place(part.loader)]
        if len(places) == len(parts):
            for part, place in zip(parts, places, strict=True):
                part.load_place(place)

    def leave(self) -> None:
        """The pass is over, though there may be batches left."""
        self._before = self._before_this = None
        self._fetched = 0

    def _parts(self) -> list[Resumable]:
        return [self.resumable] if self.stream is None else self.stream.parts

    def __iter__(self) -> Iterator[tuple[Any, int]]:
        start, self.start = self.start, 0
        loaded, self._loaded = self._loaded, None
        before = loaded["before"] if start and loaded is not None else None
        if not self.as_iterator:
            return self._ahead(start, before) if self.length is None else self._known(start, self.length)
        taken = loaded["taken"] if start and loaded is not None else None
        return self._by_handing_over(start, start if taken is None else taken, before)

    def _known(self, start: int, length: int) -> Iterator[tuple[Any, int]]:
        move, last, i = self.move, length - 1, start - 1
        for i, batch in enumerate(islice(self._from(start), length - start), start):
            self.is_last = i == last
            yield (batch if move is None else move(batch)), i
        if i < last and last >= start:
            rank_zero_warn(
                f"A {type(self.loader).__name__} said that it has {length} batches and gave {i + 1}. What comes "
                "after the last batch (validation, schedulers, the rest of an accumulated step) was left out: give its "
                "dataset "
                "the right `__len__`, or none."
            )

    def _ahead(self, start: int, before: dict[str, Any] | None) -> Iterator[tuple[Any, int]]:
        """Fetch one batch before its turn.

        Args:
            start: how many batches are done.
            before: the random states from which the first of the others was fetched, if it was.
        """
        with isolate_rng() if before is not None else nullcontext():
            if before is not None:
                set_rng_states(before)
            most = None if self.limit is None else self.limit - start
            states, parts = HostStates(), self._parts()
            self._before = {"before": states.take(), "parts": [part.state_dict() for part in parts]}
            source, move, i = islice(self._from(start), most), self.move, start
            ahead = next(source, END)
        while ahead is not END:
            self._before_this = self._before
            self._before = {"before": states.take(), "parts": [part.note() for part in parts]}
            batch, ahead = ahead, next(source, END)
            self._fetched, self.is_last = i + 1, ahead is END
            if self.is_last:
                self._before = None
            yield (batch if move is None else move(batch)), i
            i += 1

    def _by_handing_over(
        self, start: int, taken: int, before: dict[str, Any] | None
    ) -> Iterator[tuple[HandedOver, int]]:
        """Give the step the iterator itself, as often as it has batches left; one step may take several.

        Args:
            start: how many steps are done.
            taken: how many batches these took.
            before: as in `_ahead`.
        """
        inner = self._ahead(taken, before) if self.length is None else self._known(taken, self.length)
        handed = self._handed = HandedOver(inner, taken=taken)
        i = start
        while handed.has_more():
            yield handed, i
            i += 1


class HandedOver:
    """What a step that takes `dataloader_iter` gets: `batch, batch_idx, dataloader_idx = next(dataloader_iter)`."""

    def __init__(self, inner: Iterator[tuple[Any, int]], dataloader_idx: int = 0, taken: int = 0) -> None:
        self.taken = taken  # how many batches of the pass
        self._inner = inner
        self._dataloader_idx = dataloader_idx
        self._ahead: Any = None
        self.batch: Any = None  # the one that was last taken

    def has_more(self) -> bool:
        """Whether there is another batch; it is fetched to know."""
        if self._ahead is None:
            self._ahead = next(self._inner, END)
        return self._ahead is not END

    def __iter__(self) -> HandedOver:
        return self

    def __next__(self) -> tuple[Any, int, int]:
        if not self.has_more():
            raise StopIteration
        (self.batch, i), self._ahead = self._ahead, None
        self.taken += 1
        return self.batch, i, self._dataloader_idx

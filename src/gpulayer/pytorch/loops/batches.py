"""Batches: what a loader gives, limited, moved to the device, and known to be the last one when it is."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import islice
from typing import Any

from gpulayer.fabric.utilities.rank_zero import rank_zero_warn
from gpulayer.pytorch.core.combined_loader import CombinedLoader
from gpulayer.pytorch.core.resume import Resumable

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
        self.start = 0  # how many to skip, once: those that a checkpoint counts as done
        self.is_last = False

    @property
    def count(self) -> int | float:
        """How many batches there will be, as `trainer.num_training_batches` tells it: inf if that is not known."""
        if self.length is not None:
            return self.length
        return float("inf") if self.limit is None else self.limit

    def set_epoch(self, epoch: int) -> None:
        """Tell the samplers the epoch, as distributed ones need it to shuffle anew; some change their length, too."""
        samplers: dict[int, Any] = {}
        for loader in [self.loader] if self.stream is None else self.stream.flattened:
            batch_sampler = getattr(loader, "batch_sampler", None)
            for sampler in (getattr(loader, "sampler", None), getattr(batch_sampler, "sampler", None), batch_sampler):
                samplers[id(sampler)] = sampler
        for sampler in samplers.values():
            if callable(getattr(sampler, "set_epoch", None)):
                sampler.set_epoch(epoch)
        if self.measure is not None:
            self.length, self.limit = self.measure()

    def _from(self, start: int) -> Iterator[Any]:
        """The batches from number `start` on."""
        if self.stream is not None:
            return self.stream.batches(start)
        if not start:
            self.resumable.restart()
        return self.resumable.begin(start, skip=start)

    def state_dict(self) -> list[dict[str, Any]]:
        """Where each loader is in its pass, for a checkpoint."""
        return [part.state_dict() for part in self._parts()]

    def load_state_dict(self, states: list[dict[str, Any]]) -> None:
        """The next pass goes on from what `state_dict` returned."""
        parts = self._parts()
        if len(states) == len(parts):
            for part, state in zip(parts, states, strict=True):
                part.load_state_dict(state)

    def _parts(self) -> list[Resumable]:
        return [self.resumable] if self.stream is None else self.stream.parts

    def __iter__(self) -> Iterator[tuple[Any, int]]:
        start, self.start = self.start, 0
        if self.as_iterator:
            return self._by_handing_over(start)
        return self._ahead(start) if self.length is None else self._known(start, self.length)

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

    def _ahead(self, start: int) -> Iterator[tuple[Any, int]]:
        most = None if self.limit is None else self.limit - start
        source, move, i = islice(self._from(start), most), self.move, start
        ahead = next(source, END)
        while ahead is not END:
            batch, ahead = ahead, next(source, END)
            self.is_last = ahead is END
            yield (batch if move is None else move(batch)), i
            i += 1

    def _by_handing_over(self, start: int) -> Iterator[tuple[Any, int]]:
        """Give the step the iterator itself, as often as it has batches left; one step may take several."""
        inner = self._ahead(start) if self.length is None else self._known(start, self.length)
        handed = HandedOver(inner)
        i = start
        while handed.has_more():
            yield handed, i
            i += 1


class HandedOver:
    """What a step that takes `dataloader_iter` gets: `batch, batch_idx, dataloader_idx = next(dataloader_iter)`."""

    def __init__(self, inner: Iterator[tuple[Any, int]], dataloader_idx: int = 0) -> None:
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
        return self.batch, i, self._dataloader_idx

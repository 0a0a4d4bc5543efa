"""Samplers that give each of several processes its part of the data."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import islice
from math import ceil
from typing import Any

from torch.utils.data import Sampler

from gpulayer.fabric.utilities.generators import held_by, set_states, states_of
from gpulayer.fabric.utilities.seed import collect_rng_states, set_rng_states


class Shard(Sampler[int]):
    """Every `world_size`-th of the indices that another sampler gives, from the `rank`-th on.

    Batches of all processes together are then those that one process would have with `world_size` times the batch size.

    Args:
        sampler: the user's sampler, of all samples.
        world_size: how many processes there are.
        rank: this process's number.
        same_order: given the random states here, returns those of rank 0, with which all draw the same order.
        batch_size: how many samples make a batch.
        equal: whether all processes need the same number of batches, as training does. One that lacks the last batch is
            then given a sample of its own again, for `last_weight` to leave out.
        drop_last: whether the last batch is dropped where it would not be full.
    """

    def __init__(
        self,
        sampler: Any,
        world_size: int,
        rank: int,
        same_order: Callable[[Any], Any],
        batch_size: int = 1,
        equal: bool = False,
        drop_last: bool = False,
    ) -> None:
        self.sampler = sampler
        self.world_size = world_size
        self.rank = rank
        self.same_order = same_order
        self.batch_size = batch_size
        self.equal = equal
        self.drop_last = drop_last

    def set_epoch(self, epoch: int) -> None:
        """Tell the user's sampler the epoch."""
        if callable(getattr(self.sampler, "set_epoch", None)):
            self.sampler.set_epoch(epoch)

    @property
    def total(self) -> int:
        """How many samples all processes have."""
        total = len(self.sampler)
        return total - total % (self.world_size * self.batch_size) if self.drop_last else total

    def own(self, rank: int) -> int:
        """How many different samples a process has."""
        return max(ceil((self.total - rank) / self.world_size), 0)

    @property
    def lacks_a_batch(self) -> bool:
        """Whether this process has a batch less than the first one."""
        return ceil(self.own(self.rank) / self.batch_size) < ceil(self.own(0) / self.batch_size)

    @property
    def last_weight(self) -> float:
        """What the loss of the last batch counts, for the average of all processes to be that of all samples."""
        before = (ceil(self.own(0) / self.batch_size) - 1) * self.batch_size
        here, everywhere = max(self.own(self.rank) - before, 0), self.total - before * self.world_size
        return here * self.world_size / everywhere if everywhere > 0 else 1.0

    def __len__(self) -> int:
        return self.own(self.rank) + (self.equal and self.lacks_a_batch)

    def __iter__(self) -> Iterator[int]:
        indices = in_order_of_rank_zero(self.sampler, self.rank, self.same_order)[: self.total]
        yield from indices[self.rank :: self.world_size]
        if self.equal and self.lacks_a_batch:
            yield indices[self.rank % len(indices)]


class BatchShard(Sampler[Any]):
    """Every `world_size`-th of the batches that a batch sampler of the user's gives.

    Args:
        batch_sampler: the user's.
        world_size: how many processes there are.
        rank: this process's number.
        same_order: as in `Shard`.
        equal: whether all processes need the same number of batches: the first ones are then given again at the end.
    """

    def __init__(
        self, batch_sampler: Any, world_size: int, rank: int, same_order: Callable[[Any], Any], equal: bool = False
    ) -> None:
        self.batch_sampler = batch_sampler
        self.world_size = world_size
        self.rank = rank
        self.same_order = same_order
        self.equal = equal
        # What DataLoader and others ask a batch sampler for.
        self.batch_size = getattr(batch_sampler, "batch_size", None)
        self.drop_last = getattr(batch_sampler, "drop_last", False)
        self.sampler = getattr(batch_sampler, "sampler", None)

    def set_epoch(self, epoch: int) -> None:
        """Tell the user's sampler the epoch."""
        if callable(getattr(self.batch_sampler, "set_epoch", None)):
            self.batch_sampler.set_epoch(epoch)

    def __len__(self) -> int:
        share = len(self.batch_sampler) / self.world_size
        return ceil(share) if self.equal else ceil(max(len(self.batch_sampler) - self.rank, 0) / self.world_size)

    def __iter__(self) -> Iterator[Any]:
        if not hasattr(self.batch_sampler, "__len__"):  # it may never end
            yield from islice(self.batch_sampler, self.rank, None, self.world_size)
            return
        batches = in_order_of_rank_zero(self.batch_sampler, self.rank, self.same_order)
        yield from batches[self.rank :: self.world_size]
        if self.equal and batches and self.rank >= (len(batches) % self.world_size or self.world_size):
            yield batches[self.rank % len(batches)]


def in_order_of_rank_zero(sampler: Any, rank: int, same_order: Callable[[Any], Any]) -> list[Any]:
    """All that a sampler gives, drawn with the random states of rank 0; those of the other processes do not move."""
    generators = held_by(sampler)
    own = collect_rng_states(include_cuda=False)
    of_process, of_sampler = same_order((own, states_of(generators)))
    if rank:
        set_rng_states(of_process)
        set_states(generators, of_sampler)
    drawn = list(sampler)
    if rank:
        set_rng_states(own)
    return drawn

"""Indices: which samples of its dataset each batch of a loader is made of."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from typing import Any

from torch.utils.data import DataLoader, IterableDataset
from torch.utils.data.dataloader import _BaseDataLoaderIter

from gpulayer.fabric.utilities.rank_zero import rank_zero_warn
from gpulayer.fabric.utilities.warnings import PossibleUserWarning


class Indices:
    """Notes what a loader's sampler gives out, and forgets it when the next batch is asked about.

    Workers load ahead, so several batches may be noted before the first of them comes.

    Args:
        loader: a DataLoader of which `are_known` holds.
    """

    def __init__(self, loader: DataLoader[Any]) -> None:
        self.loader = loader
        self._noted: deque[Sequence[Any]] = deque()
        self._first = 0  # the batch that the first of them is of

    @staticmethod
    def are_known(loader: Any) -> bool:
        """Whether batches are made of samples with indices, and come in the order in which the sampler gives them."""
        if not isinstance(loader, DataLoader) or isinstance(loader.dataset, IterableDataset):
            return False
        return loader.in_order or not loader.num_workers

    def begin(self) -> Iterator[Any]:
        """Iterate the loader."""
        self._noted.clear()
        self._first = 0
        loader, name = self.loader, "sampler" if self.loader.batch_sampler is None else "batch_sampler"
        sampler = getattr(loader, name)
        noting = _Noting(sampler, self._noted, batched=name == "batch_sampler")
        kept: Any = loader._iterator  # of workers that live on: it has the sampler of its first pass
        if kept is not None:
            kept._index_sampler = noting
        object.__setattr__(loader, name, noting)  # DataLoader itself refuses another sampler
        try:
            iterator = iter(loader)
        finally:
            object.__setattr__(loader, name, sampler)
            if (kept := loader._iterator) is not None:
                kept._index_sampler = sampler
        if not isinstance(iterator, _BaseDataLoaderIter):  # it may leave batches out, or change their order
            self._noted = deque()
            rank_zero_warn(
                f"`{type(loader).__name__}.__iter__` is not that of DataLoader, so nobody knows which samples its "
                "batches are made of: prediction writers get no `batch_indices`.",
                PossibleUserWarning,
            )
        return iterator

    def of(self, batch_idx: int) -> Sequence[Any]:
        """The indices of a batch; empty if the loader does not use its sampler."""
        while self._noted and self._first < batch_idx:
            self._noted.popleft()
            self._first += 1
        return self._noted[0] if self._noted else []


class _Noting:
    """A sampler whose every answer is noted."""

    def __init__(self, sampler: Any, noted: deque[Sequence[Any]], batched: bool) -> None:
        self.sampler = sampler
        self.noted = noted
        self.batched = batched

    def __len__(self) -> int:
        return len(self.sampler)

    def __iter__(self) -> Iterator[Any]:
        return self._note(iter(self.sampler))

    def _note(self, given: Iterator[Any]) -> Iterator[Any]:
        for indices in given:
            self.noted.append(plain(indices, self.batched))
            yield indices


def plain(indices: Any, batched: bool) -> list[Any]:
    """What a sampler gave for a batch, as a list; tensors and arrays become numbers.

    Args:
        indices: what it gave.
        batched: whether that is several indices in any case; otherwise only a list, a tensor or an array is.
    """
    if hasattr(indices, "tolist"):
        numbers = indices.tolist()
        return numbers if isinstance(numbers, list) else [numbers]
    if not batched and not isinstance(indices, list):
        return [indices]
    return [index.tolist() if hasattr(index, "tolist") else index for index in indices]

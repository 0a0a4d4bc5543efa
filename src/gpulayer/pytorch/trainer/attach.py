"""From the user's model, loaders and datamodule to the run's data sources."""

from __future__ import annotations

from collections.abc import Callable
from copy import copy
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils.data import BatchSampler, DataLoader, IterableDataset, SequentialSampler

from gpulayer.fabric.precision import Precision
from gpulayer.fabric.samplers import BatchShard, Shard
from gpulayer.fabric.strategies import Strategy
from gpulayer.fabric.utilities.apply import all_plain_tensors, move_data_to_device
from gpulayer.fabric.utilities.exceptions import MisconfigurationException
from gpulayer.fabric.utilities.rank_zero import rank_zero_info, rank_zero_warn
from gpulayer.pytorch.core.combined_loader import CombinedLoader
from gpulayer.pytorch.core.datamodule import DataModule
from gpulayer.pytorch.core.hooks import DataHooks, overridden
from gpulayer.pytorch.core.module import Module
from gpulayer.pytorch.loops.batches import Batches
from gpulayer.pytorch.trainer import checks


@dataclass
class Source:
    """Where the loaders of one stage come from: given by the user, or a method to call.

    Args:
        name: the method's name, such as "train_dataloader".
        given: the user's loaders, or None.
        owner: the datamodule or module that has the method, or None.
    """

    name: str
    given: Any
    owner: DataHooks | None

    @property
    def defined(self) -> bool:
        """Whether there is anything."""
        return self.given is not None or self.owner is not None

    def request(self) -> Any:
        """The loaders: as given, or made anew by the method."""
        if self.owner is None:
            return self.given
        return getattr(self.owner, self.name)()


@dataclass
class Sources:
    """The sources of a call, and who moves batches to the device."""

    module: Module
    datamodule: DataModule | None
    train: Source
    val: Source
    test: Source
    predict: Source

    @classmethod
    def of(
        cls,
        module: Module,
        datamodule: DataModule | None = None,
        train: Any = None,
        val: Any = None,
        test: Any = None,
        predict: Any = None,
    ) -> Sources:
        """Loaders given to the call come first, then the datamodule's methods, then the module's."""

        def source(name: str, given: Any) -> Source:
            owners = (datamodule, module)
            owner = next((owner for owner in owners if owner is not None and overridden(name, owner, DataHooks)), None)
            return Source(name, given, None if given is not None else owner)

        return cls(
            module,
            datamodule,
            source("train_dataloader", train),
            source("val_dataloader", val),
            source("test_dataloader", test),
            source("predict_dataloader", predict),
        )

    def of_call(self, call: str) -> Source:
        """The source of a Trainer's call: "fit", "validate", "test" or "predict"."""
        return {"fit": self.train, "validate": self.val, "test": self.test, "predict": self.predict}[call]

    def mover(self, device: torch.device, precision: Precision, dataloader_idx: int = 0) -> Callable[[Any], Any] | None:
        """What puts a batch on the device: the user's hooks where there are any, else the plain move."""

        def owner(name: str) -> DataHooks | None:
            owners = (self.datamodule, self.module)
            return next((owner for owner in owners if owner is not None and overridden(name, owner, DataHooks)), None)

        before, transfer, after = map(
            owner, ("on_before_batch_transfer", "transfer_batch_to_device", "on_after_batch_transfer")
        )
        on_host = device.type == "cpu"
        convert = precision.convert_input if precision.does("convert_input") else None

        def move(batch: Any) -> Any:
            return batch if on_host and all_plain_tensors(batch) else move_data_to_device(batch, device)

        if before is None and transfer is None and after is None and convert is None:
            return move

        def with_hooks(batch: Any) -> Any:
            if convert is not None:
                batch = convert(batch)
            if before is not None:
                batch = before.on_before_batch_transfer(batch, dataloader_idx)
            if transfer is not None:
                batch = transfer.transfer_batch_to_device(batch, device, dataloader_idx)
            else:
                batch = move(batch)
            if after is not None:
                batch = after.on_after_batch_transfer(batch, dataloader_idx)
            return batch

        return with_hooks


def length_of(loader: Any) -> int | None:
    """A loader's length, None if it has none."""
    try:
        return len(loader)
    except (TypeError, NotImplementedError):
        return None


def make_batches(
    loader: Any, limit: int | float | None, argument: str, what: str, move: Any, as_iterator: bool = False
) -> Batches:
    """The batches of a loader under a Trainer's limit.

    Args:
        loader: the loader.
        limit: how much of it.
        argument: the name of the Trainer's argument that gave the limit.
        what: what to call the loader in an error.
        move: what puts a batch on the device.
        as_iterator: whether the step takes the iterator.

    Raises:
        MisconfigurationException: it is no loader, or the limit cannot be applied.
    """
    if not hasattr(loader, "__iter__") and not hasattr(loader, "__getitem__"):
        raise MisconfigurationException(
            f"{what} is a {type(loader).__name__}: give a DataLoader or another iterable of batches."
        )
    combined = loader if isinstance(loader, CombinedLoader) else None

    def measure() -> tuple[int | None, int | None]:
        if combined is None:
            return checks.batch_limit(argument, limit, length_of(loader), what)
        limits = [checks.batch_limit(argument, limit, length_of(part), what) for part in combined.flattened]
        combined.limits = [most for _, most in limits]
        bounds = [combined.bound(), limit if isinstance(limit, int) and combined.mode != "sequential" else None]
        return length_of(combined), min((bound for bound in bounds if bound is not None), default=None)

    length, most = measure()
    if combined is not None:
        return Batches(combined.iterables, length, most, move, as_iterator, combined, measure)
    if length == 0 and limit not in (0, 0.0):
        rank_zero_warn(f"{what} has no batches.")
    return Batches(loader, length, most, move, as_iterator, measure=measure)


def together(loaders: Any) -> Any:
    """Training's loader: a list, tuple or dict of several is combined, the shorter ones starting anew."""
    return CombinedLoader(loaders, "max_size_cycle") if holds_loaders(loaders) else loaders


def one_after_another(loaders: Any) -> list[Any]:
    """An evaluation's loaders, from one, a list, tuple or dict of them, or a CombinedLoader."""
    if isinstance(loaders, CombinedLoader):
        return loaders.flattened if loaders.mode == "sequential" else [loaders]
    return CombinedLoader(loaders, "sequential").flattened if holds_loaders(loaders) else [loaders]


def unshuffled(loader: Any) -> Any:
    """The same loader in the dataset's own order, so that its first batches are the same ones each epoch."""
    if isinstance(loader, CombinedLoader):
        parts = [unshuffled(part) for part in loader.flattened]
        return CombinedLoader(loader.rebuild(parts), loader.mode)
    if not isinstance(loader, DataLoader) or isinstance(loader.dataset, IterableDataset):
        return loader
    if isinstance(loader.sampler, SequentialSampler) or type(loader.batch_sampler) not in (BatchSampler, type(None)):
        return loader
    rank_zero_info("`overfit_batches`: the loader's shuffling is left out, so that the batches stay the same.")
    sampler = SequentialSampler(loader.dataset)  # type: ignore[arg-type]
    if loader.batch_sampler is None:
        return with_samplers(loader, sampler, None)
    assert loader.batch_size is not None
    return with_samplers(loader, sampler, BatchSampler(sampler, loader.batch_size, loader.drop_last))


def with_samplers(loader: DataLoader[Any], sampler: Any, batch_sampler: Any) -> DataLoader[Any]:
    """The same loader, of the user's class and with all its settings, with other samplers."""
    same = copy(loader)
    object.__setattr__(same, "sampler", sampler)  # DataLoader itself refuses another one
    object.__setattr__(same, "batch_sampler", batch_sampler)
    object.__setattr__(same, "_iterator", None)
    return same


def split(loader: Any, strategy: Strategy, equal: bool) -> Any:
    """The part of a loader's data that is this process's.

    Args:
        loader: a loader, or a CombinedLoader. Only a DataLoader of a dataset with indices is split, and not one whose
            sampler the user has made for several processes.
        strategy: which processes there are.
        equal: whether all processes need the same number of batches, as training does.
    """
    place = strategy.distributed_sampler_kwargs
    if place is None:
        return loader
    if isinstance(loader, CombinedLoader):
        parts = [split(part, strategy, equal) for part in loader.flattened]
        return CombinedLoader(loader.rebuild(parts), loader.mode)
    if not isinstance(loader, DataLoader) or isinstance(loader.dataset, IterableDataset):
        return loader
    batch_sampler = loader.batch_sampler
    if any(
        hasattr(one, "num_replicas") for one in (loader.sampler, batch_sampler, getattr(batch_sampler, "sampler", 0))
    ):
        return loader
    size, rank, same_order = place["num_replicas"], place["rank"], strategy.broadcast
    if batch_sampler is not None and (type(batch_sampler) is not BatchSampler or loader.batch_size is None):
        return with_samplers(loader, loader.sampler, BatchShard(batch_sampler, size, rank, same_order, equal))
    batch_size, drop_last = loader.batch_size or 1, loader.drop_last
    shard = Shard(loader.sampler, size, rank, same_order, batch_size, equal, drop_last)
    if batch_sampler is None:
        return with_samplers(loader, shard, None)
    return with_samplers(loader, shard, BatchSampler(shard, batch_size, drop_last))


def shard_of(loader: Any) -> Shard | None:
    """The sampler of a loader of batches that `split` made; None for any other."""
    sampler = getattr(loader, "sampler", None)
    return sampler if isinstance(sampler, Shard) and loader.batch_sampler is not None else None


def holds_loaders(value: Any) -> bool:
    """Whether it is a list, tuple or dict of loaders. A list of ready-made batches is a loader itself."""
    if isinstance(value, (list, tuple, dict)):
        return any(
            _is_loader(item) or holds_loaders(item) for item in (value.values() if isinstance(value, dict) else value)
        )
    return False


def _is_loader(value: Any) -> bool:
    """A DataLoader, or something else that is iterated rather than a batch: not a tensor, not a plain container."""
    if isinstance(value, DataLoader):
        return True
    plain = (torch.Tensor, str, bytes, dict, list, tuple, int, float)
    return hasattr(value, "__iter__") and not isinstance(value, plain)


def datamodule_first(loaders: Any, datamodule: DataModule | None, *others: Any) -> tuple[Any, DataModule | None]:
    """A DataModule passed in the place of the loaders is the datamodule.

    Raises:
        MisconfigurationException: both loaders and a datamodule were given.
    """
    if isinstance(loaders, DataModule):
        loaders, datamodule = None, loaders
    if datamodule is not None and not isinstance(datamodule, DataModule):
        raise MisconfigurationException(
            f"`datamodule={datamodule!r}`: give an object of a subclass of `gpulayer.pytorch.DataModule`."
        )
    if datamodule is not None and any(given is not None for given in (loaders, *others)):
        raise MisconfigurationException("Loaders and a datamodule were both given: give one of them.")
    return loaders, datamodule

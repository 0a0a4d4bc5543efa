"""Where batches come from: several loaders at once, limits, kinds of batches, who moves them, reloading, no data."""

from __future__ import annotations

import importlib
from collections import OrderedDict, namedtuple
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, fields, is_dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from torch.optim.lr_scheduler import StepLR
from torch.utils.data import DataLoader, RandomSampler, SequentialSampler

from tests.parity.recorder import FEATURES, Lab, Outcome, loader, loss_of, network, rows
from tests.parity.scenarios.parts import Evaluated, data_of, fitted
from tests.parity.scenarios.registry import scenario, variants

Pair = namedtuple("Pair", ["left", "right"])
Make = Callable[[ModuleType], Any]


def combined(L: ModuleType, iterables: Any, mode: str) -> Any:
    return importlib.import_module(f"{L.__name__}.utilities.combined_loader").CombinedLoader(iterables, mode)


def leaves(batch: Any) -> Iterator[torch.Tensor]:
    """The tensors in a batch, however nested."""
    if isinstance(batch, torch.Tensor):
        yield batch
    elif isinstance(batch, Mapping):
        for item in batch.values():
            yield from leaves(item)
    elif isinstance(batch, list | tuple):
        for item in batch:
            yield from leaves(item)
    elif is_dataclass(batch):
        for entry in fields(batch):
            yield from leaves(getattr(batch, entry.name))
    elif hasattr(batch, "x"):
        yield from leaves(batch.x)


def shape(batch: Any) -> str:
    """The structure of a batch and a check sum of each tensor."""
    if isinstance(batch, torch.Tensor):
        return f"{batch.double().sum().item():.4f}"
    if isinstance(batch, Mapping):
        return f"{type(batch).__name__}({', '.join(f'{key}={shape(item)}' for key, item in batch.items())})"
    if isinstance(batch, list | tuple):
        return f"{type(batch).__name__}({', '.join(map(shape, batch))})"
    if is_dataclass(batch):
        inside = ", ".join(f"{entry.name}={shape(getattr(batch, entry.name))}" for entry in fields(batch))
        return f"{type(batch).__name__}({inside})"
    return f"{type(batch).__name__}({shape(batch.x)})" if hasattr(batch, "x") else repr(batch)


def any_batch(lab: Lab, base: type | None = None) -> type:
    """A network that takes a batch of any structure and notes it."""

    class Net(base or lab.Net):
        def loss(self, batch: Any) -> torch.Tensor:
            parts = [leaf for leaf in leaves(batch) if leaf.dim() == 2 and leaf.shape[1] == FEATURES + 1]
            return torch.stack([loss_of(self.net, part) for part in parts]).sum()

        def training_step(self, batch: Any, batch_idx: int) -> Any:
            self.note(f"training_step(batch_idx={batch_idx}) {shape(batch)}")
            return self.loss(batch)

        def validation_step(self, batch: Any, batch_idx: int, dataloader_idx: int = 0) -> None:
            self.note(f"validation_step(batch_idx={batch_idx}, dataloader_idx={dataloader_idx}) {shape(batch)}")
            self.log("val_loss", self.loss(batch), batch_size=2)

        def test_step(self, batch: Any, batch_idx: int, dataloader_idx: int = 0) -> None:
            self.note(f"test_step(batch_idx={batch_idx}, dataloader_idx={dataloader_idx}) {shape(batch)}")
            self.log("test_loss", self.loss(batch), batch_size=2)

        def predict_step(self, batch: Any, batch_idx: int, dataloader_idx: int = 0) -> Any:
            self.note(f"predict_step(batch_idx={batch_idx}, dataloader_idx={dataloader_idx}) {shape(batch)}")
            return self.loss(batch)

    return Net


# ---- several training loaders ----------------------------------------------------------------------------------------


def two_loaders(length: bool = True) -> dict[str, DataLoader]:
    return {"a": loader(2), "b": loader(4, seed=1, length=length)}


COLLECTIONS: dict[str, Make] = {
    "dict": lambda L: two_loaders(),
    "list": lambda L: [loader(2), loader(4, seed=1)],
    "tuple": lambda L: (loader(2), loader(4, seed=1)),
    "list_of_one": lambda L: [loader(3)],
    "dict_of_one": lambda L: {"only": loader(3)},
    "nested": lambda L: {"x": [loader(2), (loader(3, seed=1), loader(1, seed=2))], "y": loader(4, seed=3)},
    "ordered_dict": lambda L: OrderedDict(b=loader(4, seed=1), a=loader(2)),
    "named": lambda L: Pair(loader(2), loader(4, seed=1)),
    "three_equal": lambda L: [loader(3, seed=seed) for seed in range(3)],
    "with_stream": lambda L: two_loaders(length=False),
    "of_streams": lambda L: {"a": loader(2, length=False), "b": loader(4, seed=1, length=False)},
    "min_size": lambda L: combined(L, two_loaders(), "min_size"),
    "max_size": lambda L: combined(L, two_loaders(), "max_size"),
    "max_size_cycle": lambda L: combined(L, two_loaders(), "max_size_cycle"),
    "min_size_nested": lambda L: combined(L, {"x": [loader(2), loader(3, seed=1)], "y": loader(4, seed=2)}, "min_size"),
    "max_size_list": lambda L: combined(L, [loader(2), loader(4, seed=1)], "max_size"),
    "min_size_with_stream": lambda L: combined(L, two_loaders(length=False), "min_size"),
    "max_size_with_stream": lambda L: combined(L, two_loaders(length=False), "max_size"),
    "min_size_of_one": lambda L: combined(L, loader(3), "min_size"),
    "max_size_cycle_of_equal": lambda L: combined(L, [loader(3), loader(3, seed=1)], "max_size_cycle"),
}
LIMITED: dict[str, dict[str, Any]] = {
    "int": {"limit_train_batches": 3},
    "one": {"limit_train_batches": 1},
    "more": {"limit_train_batches": 10},
    "float": {"limit_train_batches": 0.5},
    "zero": {"limit_train_batches": 0},
    "accumulation": {"accumulate_grad_batches": 2},
    "val_check_interval": {"val_check_interval": 2},
    "max_steps": {"max_steps": 5, "max_epochs": -1},
}
STREAMS = ("with_stream", "of_streams", "min_size_with_stream", "max_size_with_stream")
WITH_LIMITS = ("dict", "min_size", "max_size", "max_size_cycle", *STREAMS)


@variants("loaders_{}", **{name: {"make": make} for name, make in COLLECTIONS.items()})
@variants(
    "loaders_{}",
    **{
        f"{name}_limited_{limit}": {"make": COLLECTIONS[name], **arguments}
        for name in WITH_LIMITS
        for limit, arguments in LIMITED.items()
        if not (limit == "float" and name in STREAMS) and not (limit == "val_check_interval" and "min" in name)
    },
)
def train_loaders(L: ModuleType, folder: Path, make: Make, **arguments: Any) -> Outcome:
    """Which batches a step gets, and what the trainer tells of the loaders."""
    lab, read = Lab(L, folder), []

    class Net(any_batch(lab)):
        def on_train_start(self) -> None:
            super().on_train_start()
            read.append(self.trainer.num_training_batches)

        def configure_optimizers(self) -> Any:
            optimizer = lab.optimizer(self)
            return [optimizer], [{"scheduler": lab.scheduler(StepLR, optimizer, step_size=2), "interval": "step"}]

    module, trainer = Net(), lab.trainer(**arguments)
    trainer.fit(module, make(L), loader(1, seed=9))
    if arguments.get("limit_train_batches") != 0:
        read.append(type(trainer.train_dataloader).__name__)
    return lab.outcome(trainer, module, read=read)


# ---- several validation, test and prediction loaders -----------------------------------------------------------------

EVALUATED: dict[str, Make] = {
    "list": lambda L: [loader(1), loader(3, seed=1)],
    "dict": lambda L: {"a": loader(1), "b": loader(3, seed=1)},
    "nested": lambda L: {"a": loader(1), "b": [loader(2, seed=1), loader(1, seed=2)]},
    "sequential": lambda L: combined(L, {"a": loader(1), "b": loader(3, seed=1)}, "sequential"),
    "min_size": lambda L: combined(L, {"a": loader(1), "b": loader(3, seed=1)}, "min_size"),
    "max_size": lambda L: combined(L, {"a": loader(1), "b": loader(3, seed=1)}, "max_size"),
    "max_size_cycle": lambda L: combined(L, [loader(1), loader(3, seed=1)], "max_size_cycle"),
    "max_size_of_streams": lambda L: combined(L, [loader(1), loader(3, seed=1, length=False)], "max_size"),
    "sequential_of_streams": lambda L: combined(L, [loader(2, length=False), loader(1, length=False)], "sequential"),
    "list_with_an_empty_one": lambda L: [loader(0), loader(2, seed=1)],
    "list_of_one": lambda L: [loader(2)],
}
LIMITS_VAL: dict[str, dict[str, Any]] = {
    "": {},
    "_limited": {"limit_val_batches": 2, "limit_test_batches": 2, "limit_predict_batches": 2},
    "_limited_one": {"limit_val_batches": 1, "limit_test_batches": 1, "limit_predict_batches": 1},
    "_sanity": {"num_sanity_val_steps": 1},
    "_sanity_all": {"num_sanity_val_steps": -1},
}


@variants(
    "validation_loaders_{}",
    **{
        f"{name}{limit}": {"make": make, **arguments}
        for name, make in EVALUATED.items()
        for limit, arguments in LIMITS_VAL.items()
        if limit in ("", "_limited", "_sanity") or name in ("dict", "sequential", "max_size")
    },
)
def validation_loaders(L: ModuleType, folder: Path, make: Make, **arguments: Any) -> Outcome:
    """Within fit, and alone afterwards."""
    lab = Lab(L, folder)
    module, trainer = any_batch(lab)(), lab.trainer(**arguments)
    trainer.fit(module, loader(2), make(L))
    returned = [trainer.validate(module, make(L), verbose=False), trainer.test(module, make(L), verbose=False)]
    return lab.outcome(trainer, module, returned)


@variants(
    "validation_batches_{}",
    one_after_another={"make": EVALUATED["list"]},
    sequential={"make": EVALUATED["sequential"]},
    sequential_of_streams={"make": EVALUATED["sequential_of_streams"]},
    sequential_limited={"make": EVALUATED["sequential"], "limit_val_batches": 2},
    together={"make": EVALUATED["max_size"]},
)
def validation_batches(L: ModuleType, folder: Path, make: Make, **arguments: Any) -> Outcome:
    """What `trainer.num_val_batches` tells, within fit and alone."""
    lab, read = Lab(L, folder), []

    class Net(any_batch(lab)):
        def on_validation_start(self) -> None:
            super().on_validation_start()
            read.append(list(self.trainer.num_val_batches))

    module, trainer = Net(), lab.trainer(num_sanity_val_steps=1, **arguments)
    trainer.fit(module, loader(2), make(L))
    trainer.validate(module, make(L), verbose=False)
    return lab.outcome(trainer, module, read=read)


@variants(
    "predict_loaders_{}",
    **{
        f"{name}{limit}": {"make": make, **LIMITS_VAL[limit]}
        for name, make in EVALUATED.items()
        for limit in ("", "_limited")
        if "size" not in name
    },
)
def predict_loaders(L: ModuleType, folder: Path, make: Make, **arguments: Any) -> Outcome:
    lab = Lab(L, folder)
    module, trainer = any_batch(lab)(), lab.trainer(**arguments)
    kept = trainer.predict(module, make(L))
    none = trainer.predict(module, make(L), return_predictions=False)
    return lab.outcome(trainer, module, kept, none=none, batches=list(trainer.num_predict_batches))


# ---- overfit_batches and reloading -----------------------------------------------------------------------------------


def shuffled(batches: int, seed: int = 0, **options: Any) -> DataLoader:
    generator = torch.Generator().manual_seed(5)
    return DataLoader(rows(2 * batches, seed), batch_size=2, shuffle=True, generator=generator, **options)


@variants(
    "overfit_{}",
    int={"overfit_batches": 2},
    float={"overfit_batches": 0.5},
    all={"overfit_batches": 1.0},
    one={"overfit_batches": 1, "max_epochs": 3},
    accumulation={"overfit_batches": 2, "accumulate_grad_batches": 2},
    val_check_interval={"overfit_batches": 2, "val_check_interval": 1},
    shuffled={"overfit_batches": 2, "shuffle": True},
    shuffled_float={"overfit_batches": 0.5, "shuffle": True},
    several={"overfit_batches": 2, "several": True},
    with_sanity_check={"overfit_batches": 2, "num_sanity_val_steps": 1},
)
def overfit(L: ModuleType, folder: Path, shuffle: bool = False, several: bool = False, **arguments: Any) -> Outcome:
    lab = Lab(L, folder)
    make = shuffled if shuffle else loader
    train = {"a": make(4), "b": make(3, seed=1)} if several else make(4)
    val = [make(4, seed=2), make(2, seed=3)] if several else make(4, seed=2)
    return fitted(lab, any_batch(lab)(), train, val, **arguments)


@scenario
def shuffled_epochs(L: ModuleType, folder: Path) -> Outcome:
    """A generator of one's own: another order each epoch, the same in both libraries."""
    lab = Lab(L, folder)
    return fitted(lab, any_batch(lab)(), shuffled(4), shuffled(2, seed=1), max_epochs=3)


def changing(lab: Lab, base: type, sizes: Any = (2, 3, 4, 5, 6)) -> type:
    """Each training loader that it makes has another length; by default one batch more than the last."""

    class Net(base):
        made = 0

        def train_dataloader(self) -> Any:
            self.note("train_dataloader")
            self.made += 1
            return loader(sizes[self.made - 1])

        def val_dataloader(self) -> Any:
            self.note("val_dataloader")
            return loader(self.made, seed=1)

    return Net


@variants(
    "reload_every_{}",
    one={"reload_dataloaders_every_n_epochs": 1},
    two={"reload_dataloaders_every_n_epochs": 2, "max_epochs": 5},
    three={"reload_dataloaders_every_n_epochs": 3, "max_epochs": 4},
    one_accumulation={"reload_dataloaders_every_n_epochs": 1, "accumulate_grad_batches": 2, "max_epochs": 1},
    one_val_check_interval={"reload_dataloaders_every_n_epochs": 1, "val_check_interval": 2},
    one_val_fraction={"reload_dataloaders_every_n_epochs": 1, "val_check_interval": 0.5, "max_epochs": 4},
    one_val_fraction_shrinking={
        "reload_dataloaders_every_n_epochs": 1,
        "val_check_interval": 0.5,
        "max_epochs": 4,
        "sizes": (6, 4, 2, 5),
    },
    one_shrinking={"reload_dataloaders_every_n_epochs": 1, "max_epochs": 4, "sizes": (4, 2, 3, 1)},
    one_every_second_epoch={"reload_dataloaders_every_n_epochs": 1, "check_val_every_n_epoch": 2, "max_epochs": 4},
    two_every_second_epoch={"reload_dataloaders_every_n_epochs": 2, "check_val_every_n_epoch": 2, "max_epochs": 5},
    one_sanity_check={"reload_dataloaders_every_n_epochs": 1, "num_sanity_val_steps": 1},
    one_max_steps={"reload_dataloaders_every_n_epochs": 1, "max_steps": 7, "max_epochs": -1},
    one_fraction={"reload_dataloaders_every_n_epochs": 1, "limit_train_batches": 0.5, "max_epochs": 4},
    one_across_epochs={
        "reload_dataloaders_every_n_epochs": 1,
        "val_check_interval": 3,
        "check_val_every_n_epoch": None,
    },
)
def reload_every(L: ModuleType, folder: Path, sizes: Any = (2, 3, 4, 5, 6), **arguments: Any) -> Outcome:
    lab = Lab(L, folder)
    module = changing(lab, any_batch(lab), sizes)()
    trainer = lab.trainer(**{"max_epochs": 3} | arguments)
    trainer.fit(module)
    return lab.outcome(trainer, module, made=module.made)


# ---- validation by batches -------------------------------------------------------------------------------------------


@variants(
    "validated_{}",
    across_epochs_accumulation={"val_check_interval": 3, "accumulate_grad_batches": 2},
    across_epochs_accumulation_misaligned={"val_check_interval": 5, "accumulate_grad_batches": 2},
    across_epochs_longer_than_one={"val_check_interval": 7},
    across_epochs_max_steps={"val_check_interval": 3, "max_steps": 7, "max_epochs": -1},
    across_epochs_limited={"val_check_interval": 3, "limit_train_batches": 2, "max_epochs": 4},
    across_epochs_stream={"val_check_interval": 3, "length": False},
    across_epochs_every_batch={"val_check_interval": 1},
    by_interval_of_an_epoch={"val_check_interval": 4, "check_val_every_n_epoch": 1},
    by_interval_accumulation_misaligned={
        "val_check_interval": 3,
        "accumulate_grad_batches": 2,
        "check_val_every_n_epoch": 1,
    },
    by_fraction_small={"val_check_interval": 0.1, "check_val_every_n_epoch": 1},
    by_fraction_large={"val_check_interval": 0.75, "check_val_every_n_epoch": 1},
    by_fraction_limited={"val_check_interval": 0.5, "limit_train_batches": 3, "check_val_every_n_epoch": 1},
    by_interval_every_second_epoch={"val_check_interval": 2, "check_val_every_n_epoch": 2, "max_epochs": 4},
    by_interval_stream={"val_check_interval": 3, "check_val_every_n_epoch": 1, "length": False},
    by_interval_stream_limited={
        "val_check_interval": 2,
        "check_val_every_n_epoch": 1,
        "length": False,
        "limit_train_batches": 3,
    },
    at_end_stream={"check_val_every_n_epoch": 1, "length": False},
    at_end_stream_limited={"check_val_every_n_epoch": 1, "length": False, "limit_train_batches": 3},
    at_end_stream_limited_more={"check_val_every_n_epoch": 1, "length": False, "limit_train_batches": 6},
)
def validated(L: ModuleType, folder: Path, length: bool = True, **arguments: Any) -> Outcome:
    lab = Lab(L, folder)
    train = loader(4, length=length)
    return fitted(lab, None, train, loader(1, seed=1), **{"max_epochs": 3, "check_val_every_n_epoch": None} | arguments)


@variants(
    "loaders_made_when_{}",
    validated_each_epoch={},
    validated_each_second_epoch={"check_val_every_n_epoch": 2, "max_epochs": 4},
    validated_across_epochs={"val_check_interval": 3, "check_val_every_n_epoch": None, "max_epochs": 4},
    validated_each_second_epoch_sanity={"check_val_every_n_epoch": 2, "max_epochs": 4, "num_sanity_val_steps": 1},
    never_validated={"limit_val_batches": 0},
    never_trained={"max_epochs": 0},
)
def loaders_made_when(L: ModuleType, folder: Path, **arguments: Any) -> Outcome:
    """The DataModule's methods are called once, when their loaders are first needed."""
    lab = Lab(L, folder)
    module, trainer = any_batch(lab)(), lab.trainer(**arguments)
    trainer.fit(module, datamodule=data_of(lab)())
    return lab.outcome(trainer, module)


# ---- no data ---------------------------------------------------------------------------------------------------------


@variants(
    "nothing_{}",
    to_train={"train": 0},
    to_train_stream={"train": 0, "length": False},
    to_train_limit={"limit_train_batches": 0},
    to_train_limit_float={"limit_train_batches": 0.0},
    to_validate={"val": 0},
    to_validate_stream={"val": 0, "val_length": False},
    to_validate_sanity={"val": 0, "num_sanity_val_steps": 2},
    to_validate_limit={"limit_val_batches": 0, "num_sanity_val_steps": 2},
    to_validate_limit_float={"limit_val_batches": 0.0},
    to_validate_stopper={"limit_val_batches": 0, "num_sanity_val_steps": -1},
    at_all={"train": 0, "val": 0},
)
def nothing(
    L: ModuleType,
    folder: Path,
    train: int = 2,
    val: int = 2,
    length: bool = True,
    val_length: bool = True,
    **arguments: Any,
) -> Outcome:
    lab = Lab(L, folder)
    return fitted(lab, Evaluated.of(lab)(), empty_or(train, length), empty_or(val, val_length, seed=1), **arguments)


def empty_or(batches: int, length: bool, seed: int = 0) -> Any:
    if batches:
        return loader(batches, seed=seed, length=length)
    return DataLoader([], batch_size=2) if length else loader(0, length=False)


@variants("nothing_evaluated_{}", empty={"length": True}, stream={"length": False})
def nothing_evaluated(L: ModuleType, folder: Path, length: bool) -> Outcome:
    lab = Lab(L, folder)
    module, trainer = Evaluated.of(lab)(), lab.trainer()
    trainer.validate(module, empty_or(0, length), verbose=False)
    trainer.test(module, empty_or(0, length), verbose=False)
    trainer.predict(module, empty_or(0, length))
    return lab.outcome(trainer, module)


class Sometimes:
    """A loader whose collate function gives up on the second batch."""

    def __len__(self) -> int:
        return 4

    def __iter__(self) -> Iterator[Any]:
        for i, batch in enumerate(loader(4)):
            yield None if i == 1 else batch


@scenario
def none_as_a_batch(L: ModuleType, folder: Path) -> Outcome:
    """What a collate function gives that found nothing usable: the batch is passed over."""
    lab = Lab(L, folder)
    return fitted(lab, any_batch(lab)(), Sometimes())


# ---- kinds of loaders and batches ------------------------------------------------------------------------------------


class Sized:
    """Not a DataLoader: an iterable with a length."""

    def __init__(self, batches: int) -> None:
        self.batches = batches

    def __len__(self) -> int:
        return self.batches

    def __iter__(self) -> Iterator[torch.Tensor]:
        yield from loader(self.batches)


class Unsized:
    def __iter__(self) -> Iterator[torch.Tensor]:
        yield from loader(3)


class OfSampler:
    """Told the epoch, as distributed samplers are."""

    def __init__(self) -> None:
        self.epochs: list[int] = []

    def __iter__(self) -> Iterator[int]:
        return iter(range(4))

    def __len__(self) -> int:
        return 4

    def set_epoch(self, epoch: int) -> None:
        self.epochs.append(epoch)


@variants("loader_{}", sized={"make": lambda: Sized(3)}, unsized={"make": Unsized})
def loader_of_a_kind(L: ModuleType, folder: Path, make: Callable[[], Any]) -> Outcome:
    lab = Lab(L, folder)
    return fitted(lab, any_batch(lab)(), make(), make(), accumulate_grad_batches=3)


@scenario
def sampler_is_told_the_epoch(L: ModuleType, folder: Path) -> Outcome:
    lab, train, val = Lab(L, folder), OfSampler(), OfSampler()
    module, trainer = any_batch(lab)(), lab.trainer(max_epochs=3, val_check_interval=1)
    trainer.fit(
        module, DataLoader(rows(4), batch_size=2, sampler=train), DataLoader(rows(4), batch_size=2, sampler=val)
    )
    return lab.outcome(trainer, module, train=train.epochs, val=val.epochs)


@scenario
def loader_keeps_its_sampler(L: ModuleType, folder: Path) -> Outcome:
    """One device: nobody exchanges the samplers."""
    lab, kinds = Lab(L, folder), []

    class Net(any_batch(lab)):
        def on_train_start(self) -> None:
            super().on_train_start()
            kinds.append(type(self.trainer.train_dataloader.sampler).__name__)
            kinds.append(type(self.trainer.val_dataloaders.sampler).__name__)

    data = rows(8)
    train = DataLoader(data, batch_size=2, sampler=RandomSampler(data, generator=torch.Generator().manual_seed(3)))
    module, trainer = Net(), lab.trainer()
    trainer.fit(module, train, DataLoader(data, batch_size=2, sampler=SequentialSampler(data)))
    return lab.outcome(trainer, module, kinds=kinds)


@dataclass
class Record:
    x: torch.Tensor
    name: str
    more: list[torch.Tensor]


class WithTo:
    """A batch of one's own that knows how to move."""

    def __init__(self, x: torch.Tensor) -> None:
        self.x, self.moved = x, 0

    def to(self, device: Any, **options: Any) -> WithTo:
        new = WithTo(self.x.to(device, **options))
        new.moved = self.moved + 1
        return new


class WithoutTo:
    def __init__(self, x: torch.Tensor) -> None:
        self.x = x


BATCHES: dict[str, Callable[[torch.Tensor], Any]] = {
    "tuple": lambda t: (t, t * 2),
    "list": lambda t: [t, "text", 3],
    "dict": lambda t: {"x": t, "y": {"z": t}},
    "ordered_dict": lambda t: OrderedDict(x=t, n=1),
    "namedtuple": lambda t: Pair(t, [t]),
    "dataclass": lambda t: Record(t, "name", [t, t]),
    "with_to": WithTo,
    "without_to": WithoutTo,
    "nested": lambda t: [{"a": (t, Pair(t, Record(t, "n", [t])))}, WithTo(t)],
    "none_inside": lambda t: {"x": t, "y": None},
}


@variants("batches_of_{}", **{name: {"wrap": wrap} for name, wrap in BATCHES.items()})
def batches_of(L: ModuleType, folder: Path, wrap: Callable[[torch.Tensor], Any]) -> Outcome:
    """In training, validation, test and prediction."""
    lab = Lab(L, folder)

    def of(seed: int) -> DataLoader:
        return DataLoader(list(rows(4, seed)), batch_size=2, collate_fn=lambda items: wrap(torch.stack(items)))

    module, trainer = any_batch(lab)(), lab.trainer()
    trainer.fit(module, of(0), of(1))
    returned = [
        trainer.validate(module, of(1), verbose=False),
        trainer.test(module, of(1), verbose=False),
        trainer.predict(module, of(2)),
    ]
    return lab.outcome(trainer, module, returned)


# ---- who moves a batch -----------------------------------------------------------------------------------------------

TRANSFER = ("on_before_batch_transfer", "transfer_batch_to_device", "on_after_batch_transfer")


def transferring(journal: Any, base: type, who: str, names: Any, factor: float) -> type:
    """A subclass whose transfer hooks change the batch, so that it shows which were called and in which order."""

    def hook_of(name: str) -> Any:
        def hook(self: Any, batch: Any, *args: Any) -> Any:
            index = args[-1]
            journal.note(f"{who}.{name}({index}) training={getattr(self.trainer, 'training', None)}")
            return batch * factor + TRANSFER.index(name)

        return hook

    return type(who, (base,), {name: hook_of(name) for name in names})


WHO = {
    "module": (TRANSFER, ()),
    "datamodule": ((), TRANSFER),
    "both": (TRANSFER, TRANSFER),
    "neither": ((), ()),
    "mixed": (TRANSFER[:1], TRANSFER[1:]),
    "mixed_the_other_way": (TRANSFER[1:], TRANSFER[:1]),
    "module_after": (TRANSFER[2:], ()),
    "datamodule_before": ((), TRANSFER[:1]),
    "both_after": (TRANSFER[2:], TRANSFER[2:]),
}


@variants("transfer_in_{}", **{name: {"of_module": one, "of_data": other} for name, (one, other) in WHO.items()})
def transfer_in(L: ModuleType, folder: Path, of_module: Any, of_data: Any) -> Outcome:
    """Hooks of the DataModule win over those of the module; in all four calls."""
    lab = Lab(L, folder)

    class Plain(L.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.net = network()

        def note(self, event: str) -> None:
            lab.journal.note(f"module.{event}")

        def configure_optimizers(self) -> Any:
            return lab.optimizer(self)

    class Plainly(L.LightningDataModule):
        def train_dataloader(self) -> Any:
            return loader(2)

        def val_dataloader(self) -> Any:
            return [loader(1, seed=1), loader(1, seed=2)]

        def test_dataloader(self) -> Any:
            return loader(1, seed=2)

        def predict_dataloader(self) -> Any:
            return [loader(1, seed=3), loader(1, seed=4)]

    module = transferring(lab.journal, any_batch(lab, Plain), "module", of_module, 0.5)()
    data = transferring(lab.journal, Plainly, "datamodule", of_data, 0.25)()
    trainer = lab.trainer(callbacks=[], num_sanity_val_steps=1)
    trainer.fit(module, datamodule=data)
    returned = [
        trainer.validate(module, datamodule=data, verbose=False),
        trainer.test(module, datamodule=data, verbose=False),
        trainer.predict(module, datamodule=data),
    ]
    return lab.outcome(trainer, module, returned)


# ---- DataModules -----------------------------------------------------------------------------------------------------


@scenario
def datamodule_state(L: ModuleType, folder: Path) -> Outcome:
    """What a DataModule keeps is in the checkpoint, and is there again before its loaders are asked for."""

    def data_class(lab: Lab) -> type:
        class Data(data_of(lab)):
            seen, loaded = 0, None

            def train_dataloader(self) -> Any:
                self.note(f"train_dataloader seen={self.seen}")
                self.seen += 1
                return loader(2)

            def state_dict(self) -> dict[str, Any]:
                super().state_dict()
                return {"seen": self.seen}

            def load_state_dict(self, state_dict: dict[str, Any]) -> None:
                super().load_state_dict(state_dict)
                self.seen = state_dict["seen"]

        Data.__qualname__ = "Data"
        return Data

    first = Lab(L, folder)
    trainer, data = first.trainer(max_epochs=1), data_class(first)()
    trainer.fit(first.Net(), datamodule=data)
    trainer.save_checkpoint(folder / "saved.ckpt")
    lab = Lab(L, folder)
    module, again = lab.Net(), data_class(lab)()
    trainer = lab.trainer(max_epochs=2)
    trainer.fit(module, datamodule=again, ckpt_path=str(folder / "saved.ckpt"), weights_only=False)
    return lab.outcome(trainer, module, seen=again.seen, before=data.seen)


@variants(
    "loaders_given_as_{}",
    datamodule_by_position={"form": 0},
    datamodule_and_module={"form": 1},
    module_only={"form": 2},
    loaders_over_module={"form": 3},
)
def loaders_given_as(L: ModuleType, folder: Path, form: int) -> Outcome:
    """Which of several sources counts."""
    lab = Lab(L, folder)
    module = changing(lab, any_batch(lab))()
    trainer, data = lab.trainer(), data_of(lab)()
    calls: list[tuple[tuple[Any, ...], dict[str, Any]]] = [
        ((data,), {}),
        ((), {"datamodule": data}),
        ((), {}),
        ((loader(3), loader(2, seed=1)), {}),
    ]
    args, kwargs = calls[form]
    trainer.fit(module, *args, **kwargs)
    validated = trainer.validate(module, data, verbose=False) if form == 0 else None
    return lab.outcome(trainer, module, validated, made=module.made, attached=data.trainer is trainer)


@scenario
def datamodule_knows_the_trainer(L: ModuleType, folder: Path) -> Outcome:
    """Its hooks may look at the trainer."""
    lab, seen = Lab(L, folder), []

    class Data(data_of(lab)):
        def setup(self, stage: str) -> None:
            super().setup(stage)
            stage = getattr(stage, "value", stage)
            seen.append((stage, self.trainer.max_epochs, self.trainer.datamodule is self, self.trainer.state.fn.value))

        def train_dataloader(self) -> Any:
            seen.append((self.trainer.current_epoch, self.trainer.world_size, self.trainer.accumulate_grad_batches))
            return super().train_dataloader()

    module, trainer = lab.Net(), lab.trainer(reload_dataloaders_every_n_epochs=1)
    trainer.fit(module, datamodule=Data())
    return lab.outcome(trainer, module, seen=seen)

"""Several loaders at once: to train with, and to evaluate."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils.data import DataLoader, DistributedSampler

import gpulayer.pytorch as L
from gpulayer.fabric.utilities.exceptions import MisconfigurationException
from gpulayer.pytorch.utilities.combined_loader import CombinedLoader
from tests.pytorch.models import Line, dataset, loader, same, stream, trainer, weights

MODES = ["min_size", "max_size", "max_size_cycle", "sequential"]


def pairs(batch: Any) -> list[Any]:
    """The (x, y) of each loader in a batch, however nested; those of loaders that are through are left out."""
    if isinstance(batch, dict):
        return [pair for item in batch.values() for pair in pairs(item)]
    if isinstance(batch, (list, tuple)):
        if batch and isinstance(batch[0], Tensor):
            return [batch]
        return [pair for item in batch for pair in pairs(item)]
    return []


class Sums(Line):
    """Trains on all loaders at once, and notes how many took part in each batch."""

    def __init__(self) -> None:
        super().__init__()
        self.parts: list[int] = []
        self.keys: list[Any] = []

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        self.parts.append(len(pairs(batch)))
        self.keys.append(list(batch) if isinstance(batch, dict) else type(batch))
        return torch.stack([self.loss(pair) for pair in pairs(batch)]).sum()


class Checked(Sums):
    """The same with a validation."""

    def validation_step(self, batch: Any, batch_idx: int, dataloader_idx: int = 0) -> None:
        self.parts.append(len(pairs(batch)))
        self.log("v", float(len(pairs(batch))), batch_size=1)


# -- training ---------------------------------------------------------------------------------------------------------

TRAINED: dict[str, tuple[Callable[[], Any], list[int]]] = {
    "list": (lambda: [loader(2), loader(3)], [2, 2, 2]),
    "tuple": (lambda: (loader(2), loader(3)), [2, 2, 2]),
    "dict": (lambda: {"a": loader(2), "b": loader(3)}, [2, 2, 2]),
    "nested": (lambda: {"a": [loader(2), {"b": loader(1)}], "c": (loader(3),)}, [3, 3, 3]),
    "one in a list": (lambda: [loader(3)], [1, 1, 1]),
    "min_size": (lambda: CombinedLoader([loader(2), loader(3)], "min_size"), [2, 2]),
    "max_size": (lambda: CombinedLoader([loader(2), loader(3)], "max_size"), [2, 2, 1]),
    "max_size_cycle": (lambda: CombinedLoader([loader(2), loader(3)], "max_size_cycle"), [2, 2, 2]),
    "sequential": (lambda: CombinedLoader([loader(2), loader(3)], "sequential"), [1, 1, 1, 1, 1]),
    "with a stream": (lambda: [loader(2), stream(3)], [2, 2, 2]),
    "streams": (lambda: {"a": stream(2), "b": stream(3)}, [2, 2, 2]),
}


@pytest.mark.parametrize("kind", TRAINED)
def test_collections_to_train_with(kind: str) -> None:
    make, parts = TRAINED[kind]
    model, used = Sums(), trainer(max_epochs=2, accumulate_grad_batches=2)
    used.fit(model, make())
    assert model.parts == parts * 2
    assert used.global_step == 2 * -(-len(parts) // 2)
    known = "stream" not in kind
    assert used.num_training_batches == (len(parts) if known else float("inf"))


def test_the_keys_are_those_that_were_given() -> None:
    model = Sums()
    trainer().fit(model, {"a": loader(1), "b": [loader(1)]})
    assert model.keys == [["a", "b"]]


@pytest.mark.parametrize(
    ("mode", "limit", "parts"),
    [("max_size_cycle", 2, [2, 2]), ("max_size_cycle", 0.5, [2, 2]), ("min_size", 1, [2]), ("max_size", 3, [2, 2, 1]),
     ("sequential", 1, [1, 1]), ("sequential", 0.5, [1, 1, 1]), ("sequential", 9, [1] * 6)],
)  # fmt: skip
def test_limits(mode: Any, limit: Any, parts: list[int]) -> None:
    """Of a loader with two batches and one with four; a fraction, and in "sequential" a number, is of each loader."""
    model, used = Sums(), trainer(limit_train_batches=limit)
    used.fit(model, CombinedLoader([loader(2), loader(4)], mode))
    assert model.parts == parts
    assert used.num_training_batches == len(parts)


def test_a_limit_of_streams() -> None:
    model, used = Sums(), trainer(limit_train_batches=2, max_epochs=2)
    used.fit(model, [stream(3), stream(4)])
    assert (model.parts, used.global_step) == ([2] * 4, 4)
    with pytest.raises(MisconfigurationException, match=r"limit_train_batches=0\.5"):
        trainer(limit_train_batches=0.5).fit(Sums(), [stream(3), loader(4)])


def test_the_weights_are_those_of_a_loop_by_hand() -> None:
    model, plain = Sums(), Sums()
    plain.load_state_dict(model.state_dict())
    trainer().fit(model, [loader(2), loader(2)])
    optimizer = plain.configure_optimizers()
    for one, other in zip(loader(2), loader(2), strict=True):
        optimizer.zero_grad()
        (plain.loss(one) + plain.loss(other)).backward()
        optimizer.step()
    assert same(weights(model), weights(plain))


def test_each_sampler_is_told_the_epoch() -> None:
    """Nested ones, too; without that a distributed sampler would give the same order in each epoch."""

    class Tells(DistributedSampler[Any]):
        def set_epoch(self, epoch: int) -> None:
            super().set_epoch(epoch)
            told.append(epoch)

    told: list[int] = []
    data = dataset(4)
    loaders = [DataLoader(data, batch_size=2, sampler=Tells(data, num_replicas=1, rank=0)) for _ in range(2)]
    trainer(max_epochs=2).fit(Sums(), {"a": loaders[0], "b": [loaders[1]]})
    assert told == [0, 0, 1, 1]


def test_a_datamodule_may_give_a_dict() -> None:
    class Data(L.DataModule):
        def train_dataloader(self) -> Any:
            return {"a": loader(2), "b": loader(3)}

        def val_dataloader(self) -> Any:
            return [loader(1), loader(2)]

    model, used = Checked(), trainer()
    used.fit(model, datamodule=Data())
    assert model.parts == [2, 2, 2, 1, 1, 1]
    assert used.num_val_batches == [1, 2]
    assert set(used.train_dataloader) == {"a", "b"}


def test_validation_at_a_fraction_of_all_of_them() -> None:
    model, used = Checked(), trainer(val_check_interval=0.5)
    used.fit(model, [loader(2), loader(4)], loader(1))
    assert model.parts == [2, 2, 1, 2, 2, 1]


def test_going_on_in_the_middle() -> None:
    """The batches that were done are skipped in all loaders."""

    class Saves(Sums):
        def on_train_batch_start(self, batch: Any, batch_idx: int) -> None:
            if batch_idx == 2:
                self.trainer.save_checkpoint("model.ckpt")

    data = [loader(2), loader(4)]
    whole, resumed = Saves(), Sums()
    trainer().fit(whole, data)
    trainer().fit(resumed, data, ckpt_path="model.ckpt")
    assert resumed.parts == [2, 2]
    assert same(weights(resumed), weights(whole))


# -- evaluation -------------------------------------------------------------------------------------------------------

EVALUATED: dict[str, tuple[Callable[[], Any], list[int], list[int]]] = {
    "list": (lambda: [loader(1), loader(2)], [1, 1, 1], [1, 2]),
    "dict": (lambda: {"a": loader(1), "b": loader(2)}, [1, 1, 1], [1, 2]),
    "nested": (lambda: {"a": [loader(1), loader(2)], "b": loader(1)}, [1] * 4, [1, 2, 1]),
    "sequential": (lambda: CombinedLoader([loader(1), loader(2)], "sequential"), [1, 1, 1], [1, 2]),
    "min_size": (lambda: CombinedLoader([loader(1), loader(2)], "min_size"), [2], [1]),
    "max_size": (lambda: CombinedLoader([loader(1), loader(2)], "max_size"), [2, 1], [2]),
    "max_size_cycle": (lambda: CombinedLoader([loader(1), loader(2)], "max_size_cycle"), [2, 2], [2]),
}


@pytest.mark.parametrize("within_fit", [False, True])
@pytest.mark.parametrize("kind", EVALUATED)
def test_collections_to_validate_with(kind: str, within_fit: bool) -> None:
    """One after another, each with metrics of its own; unless they were combined to go together."""
    make, parts, counts = EVALUATED[kind]
    model, used = Checked(), trainer(limit_train_batches=1)
    if within_fit:
        used.fit(model, loader(1), make())
        assert model.parts == [1, *parts]
    else:
        result = used.validate(model, make())
        assert model.parts == parts
        assert len(result.by_loader) == len(counts)
    assert used.num_val_batches == counts
    names = {"v"} if len(counts) == 1 else {f"v/dataloader_idx_{index}" for index in range(len(counts))}
    assert names <= set(used.callback_metrics) <= names | {"v", "train_loss"}


@pytest.mark.parametrize("mode", MODES)
def test_a_limit_of_a_combined_validation(mode: Any) -> None:
    """One after another it is of each loader, together of all."""
    model, used = Checked(), trainer(limit_val_batches=1)
    used.validate(model, CombinedLoader([loader(2), loader(3)], mode))
    assert model.parts == ([1, 1] if mode == "sequential" else [2])
    assert used.num_val_batches == ([1, 1] if mode == "sequential" else [1])


def test_the_sanity_check_takes_its_first_batches() -> None:
    model = Checked()
    data = CombinedLoader({"a": loader(4), "b": loader(3)}, "max_size")
    trainer(num_sanity_val_steps=1, limit_train_batches=0).fit(model, loader(1), data)
    assert model.parts == [2]


def test_predictions_of_loaders_that_go_together() -> None:
    class Predicts(Line):
        def predict_step(self, batch: Any, batch_idx: int) -> Any:
            return {key: self(x).shape for key, (x, _) in batch.items()}

    data = CombinedLoader({"a": loader(1, 2), "b": loader(1, 3)}, "min_size")
    assert trainer().predict(Predicts(), data) == [{"a": (2, 1), "b": (3, 1)}]


def test_batches_of_all_of_them_are_moved_and_converted() -> None:
    """They pass the transfer hooks whole, as one batch."""

    class Transfers(Sums):
        def on_after_batch_transfer(self, batch: Any, dataloader_idx: int) -> Any:
            seen.append((sorted(batch), dataloader_idx, batch["a"][0].dtype))
            return batch

    seen: list[Any] = []
    trainer(precision="64-true").fit(Transfers(), {"a": loader(1), "b": loader(1)})
    assert seen == [(["a", "b"], 0, torch.float64)]

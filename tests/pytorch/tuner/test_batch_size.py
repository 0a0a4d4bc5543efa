"""BatchSizeFinder and Tuner.scale_batch_size."""

from __future__ import annotations

import gc
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset, IterableDataset

import gpulayer.pytorch as L
from gpulayer.fabric.utilities.exceptions import MisconfigurationException
from gpulayer.pytorch.callbacks import BatchSizeFinder, LambdaCallback, ModelCheckpoint
from gpulayer.pytorch.callbacks.batch_size_finder import samples_in, sizes_to_try, with_margin
from gpulayer.pytorch.tuner import Tuner
from gpulayer.pytorch.utilities.memory import is_oom_error
from tests.pytorch.models import FEATURES, dataset, trainer, weights

TOO_MUCH = 2**50  # floats, which no machine has memory for


@pytest.fixture(scope="module", autouse=True)
def quick_collection() -> Iterator[None]:
    """A search collects garbage again and again; what was imported before need not be looked through each time."""
    gc.freeze()
    yield
    gc.unfreeze()


class Greedy(L.Module):
    """Asks for more memory than there is when a batch has more than `room` rows. Dropout draws random numbers."""

    def __init__(self, room: int = 10, batch_size: int = 4, samples: int = 64) -> None:
        super().__init__()
        self.room, self.batch_size, self.samples = room, batch_size, samples
        self.net = nn.Sequential(nn.Linear(FEATURES, 8), nn.BatchNorm1d(8), nn.Dropout(0.5), nn.Linear(8, 1))
        self.tried: list[int] = []  # sizes of the training's batches

    def loss(self, batch: Any) -> Tensor:
        x, y = batch
        if len(x) > self.room:
            torch.empty(TOO_MUCH)
        return nn.functional.mse_loss(self.net(x), y)

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        self.tried.append(len(batch[0]))
        loss = self.loss(batch)
        self.log("train_loss", loss)
        return loss

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        self.log("val_loss", self.loss(batch))

    test_step = validation_step

    def predict_step(self, batch: Any, batch_idx: int) -> Any:
        self.loss(batch)
        return len(batch[0])

    def configure_optimizers(self) -> Any:
        return torch.optim.Adam(self.parameters(), lr=0.05)

    def train_dataloader(self) -> Any:
        return DataLoader(dataset(self.samples), batch_size=self.batch_size, shuffle=True)

    def val_dataloader(self) -> Any:
        return DataLoader(dataset(self.samples, seed=1), batch_size=self.batch_size)

    test_dataloader = predict_dataloader = val_dataloader


def fresh(kind: type[Greedy] = Greedy, **arguments: Any) -> Greedy:
    torch.manual_seed(0)
    return kind(**arguments)


def outcome(search: Any, room: int) -> tuple[int, list[int]]:
    """What a search finds where sizes up to `room` fit, and what it tried."""
    tried: list[int] = []
    try:
        tried.append(next(search))
        while True:
            tried.append(search.send(tried[-1] <= room))
    except StopIteration as end:
        return end.value, tried


@pytest.mark.parametrize("first", [1, 2, 3, 7, 64, 100])
@pytest.mark.parametrize("most", [1, 6, 64, 100])
def test_every_search_ends_at_a_size_that_was_tried(first: int, most: int) -> None:
    for room in range(110):
        found, tried = outcome(sizes_to_try("binsearch", first, most, 25), room)
        assert found == min(room, most)
        assert len(tried) == len(set(tried)) <= 15
        found, tried = outcome(sizes_to_try("power", first, most, 25), room)
        assert found == max((size for size in tried if size <= room), default=0)
        assert (found == 0) == (room == 0)
        assert found == most or 2 * found >= min(room, most)
        assert max(tried) <= most
        for trials in (1, 2, 3):
            found, tried = outcome(sizes_to_try("binsearch", first, most, trials), room)
            assert sum(size <= room for size in tried) <= trials
            assert found == max((size for size in tried if size <= room), default=0)


def test_a_margin_leaves_one_sample_at_least() -> None:
    assert [with_margin(size, 0.05) for size in (1, 2, 10, 100)] == [1, 1, 9, 95]
    assert with_margin(10, 0) == 10


@pytest.mark.parametrize(("mode", "margin", "size"), [("power", 0.5, 8), ("binsearch", 0.0, 10), ("binsearch", 0.2, 8)])
@pytest.mark.parametrize("method", ["fit", "validate", "test", "predict"])
def test_a_real_allocation_that_fails_ends_the_search(method: str, mode: str, margin: float, size: int) -> None:
    module = fresh()
    assert Tuner(trainer()).scale_batch_size(module, method=method, mode=mode, margin=margin) == size
    assert module.batch_size == size


def test_a_validation_that_does_not_fit_counts() -> None:
    class Validating(Greedy):
        def validation_step(self, batch: Any, batch_idx: int) -> None:
            torch.empty(TOO_MUCH if len(batch[0]) > 4 else 1)

    assert Tuner(trainer()).scale_batch_size(fresh(Validating)) == 4
    assert Tuner(trainer(limit_val_batches=0)).scale_batch_size(fresh(Validating)) == 8


def test_the_first_size_may_be_too_large_and_one_sample_too_much() -> None:
    module = fresh(samples=1000)
    assert Tuner(trainer()).scale_batch_size(module, init_val=512, max_trials=2) == 8
    assert set(module.tried) == {512, 256, 128, 64, 32, 16, 8}
    before = weights(module)
    module.room = 0
    with pytest.raises(RuntimeError, match=r"one sample .*DefaultCPUAllocator: can't allocate memory"):
        Tuner(trainer()).scale_batch_size(module)
    assert module.batch_size == 8
    assert all(torch.equal(before[name], value) for name, value in weights(module).items())


def test_no_size_is_larger_than_the_data() -> None:
    """Which with `drop_last` would give no batch at all."""

    class Dropping(Greedy):
        def train_dataloader(self) -> Any:
            return DataLoader(dataset(10), batch_size=self.batch_size, drop_last=True)

    for mode in ("power", "binsearch"):
        module = fresh(Dropping, room=1000)
        assert Tuner(trainer()).scale_batch_size(module, mode=mode, init_val=16) == 10
        assert set(module.tried) == {10}


def test_max_val_is_tried_too() -> None:
    module = fresh(room=1000, samples=500)
    assert Tuner(trainer()).scale_batch_size(module, max_val=50) == 50
    assert max(module.tried) == 50


def test_a_fraction_of_the_batches_stays_at_least_one() -> None:
    module, run = fresh(room=1000), trainer(limit_train_batches=0.25)
    assert Tuner(run).scale_batch_size(module) == 16
    run.fit(module)
    assert run.num_training_batches == 1


def test_samples_of_several_loaders() -> None:
    loaders = [DataLoader(dataset(6)), DataLoader(dataset(9), sampler=range(4))]
    assert samples_in(loaders, 1.0) == 6
    assert samples_in(loaders[1], 1.0) == 4
    assert samples_in({"a": loaders[0], "b": [1, 2]}, 1.0) is None


class Endless(IterableDataset[Any]):
    def __iter__(self) -> Any:
        return iter([dataset(1)[0]] * 5000)


def test_a_stream_is_bounded_by_max_val() -> None:
    class Streaming(Greedy):
        def train_dataloader(self) -> Any:
            return DataLoader(Endless(), batch_size=self.batch_size)

    assert Tuner(trainer()).scale_batch_size(fresh(Streaming, room=1000), max_val=32, steps_per_trial=1) == 32


class MemoryOfWorkers(Dataset[Any]):
    """A worker that fails in one of the ways of a worker, in batches of more than four rows."""

    def __init__(self, how: str) -> None:
        self.how = how

    def __len__(self) -> int:
        return 16

    def __getitems__(self, indices: list[int]) -> list[Any]:
        if len(indices) > 4:
            if self.how == "killed":
                os.kill(os.getpid(), signal.SIGKILL)
            bytearray(2**60) if self.how == "python" else torch.empty(TOO_MUCH)
        return [dataset(16)[index] for index in indices]


@pytest.mark.parametrize("how", ["torch", "python", "killed"])
def test_memory_that_a_loaders_worker_lacks(how: str) -> None:
    class Working(Greedy):
        def train_dataloader(self) -> Any:
            return DataLoader(MemoryOfWorkers(how), batch_size=self.batch_size, num_workers=1)

    module = fresh(Working, batch_size=1)
    assert Tuner(trainer(limit_val_batches=0)).scale_batch_size(module, steps_per_trial=1, init_val=4) == 4


@pytest.mark.parametrize(
    ("error", "memory"),
    [
        (torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB."), True),
        (RuntimeError("MPS backend out of memory (MPS allocated: 8.89 GB)"), True),
        (RuntimeError("cuDNN error: CUDNN_STATUS_NOT_SUPPORTED. This error may appear"), True),
        (RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"), True),
        (RuntimeError("CUDA error: device-side assert triggered"), False),
        (ValueError("out of memory"), False),
    ],
)
def test_which_errors_are_of_memory(error: Exception, memory: bool) -> None:
    assert is_oom_error(error) == memory


def test_another_error_goes_through_with_all_as_before() -> None:
    class Failing(Greedy):
        def training_step(self, batch: Any, batch_idx: int) -> Tensor:
            if len(batch[0]) == 8:
                raise RuntimeError("mat1 and mat2 shapes cannot be multiplied")
            return super().training_step(batch, batch_idx)

    module, run = fresh(Failing), trainer()
    before, callbacks = weights(module), list(run.callbacks)
    state = torch.get_rng_state()
    with pytest.raises(RuntimeError, match="mat1 and mat2"):
        Tuner(run).scale_batch_size(module)
    assert module.batch_size == 4
    assert all(torch.equal(before[name], value) for name, value in weights(module).items())
    assert run.callbacks == callbacks
    assert torch.equal(torch.get_rng_state(), state)
    assert run.global_step == 0


class Scheduled(Greedy):
    """A schedule as long as the training, which depends on the batch size."""

    def configure_optimizers(self) -> Any:
        optimizer = torch.optim.Adam(self.parameters(), lr=0.05)
        steps = int(self.trainer.estimated_stepping_batches)
        schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.1, total_steps=steps)
        return [optimizer], [{"scheduler": schedule, "interval": "step"}]


@pytest.mark.parametrize("kind", [Greedy, Scheduled])
@pytest.mark.parametrize("how", ["tuner", "callback"])
def test_training_is_that_of_the_size_without_a_search(kind: type[Greedy], how: str, fresh_folder: Path) -> None:
    plain = fresh(kind, batch_size=8)
    trainer(max_epochs=3).fit(plain)
    module = fresh(kind)
    finder = BatchSizeFinder()
    run = trainer(max_epochs=3, callbacks=[finder] if how == "callback" else [])
    if how == "tuner":
        assert Tuner(run).scale_batch_size(module) == 8
        assert list(fresh_folder.iterdir()) == []
    run.fit(module)
    assert module.batch_size == 8
    assert module.tried[-24:] == plain.tried
    assert all(torch.equal(weights(plain)[name], value) for name, value in weights(module).items())
    if how == "callback":
        assert finder.optimal_batch_size == 8


def test_loggers_and_callbacks_hear_nothing_of_the_trials() -> None:
    heard: list[int] = []

    noting = LambdaCallback(on_train_batch_end=lambda trainer, *_: heard.append(trainer.global_step))
    trainer(max_epochs=1, callbacks=[noting, BatchSizeFinder()]).fit(fresh())
    assert heard == list(range(1, 9))


@pytest.mark.parametrize("stage", ["validate", "test", "predict"])
def test_an_evaluation_goes_on_with_the_size(stage: str) -> None:
    module, finder = fresh(batch_size=1), BatchSizeFinder()
    sizes: list[int] = []
    name = "validation" if stage == "validate" else stage
    hook = {f"on_{name}_batch_start": lambda trainer, module, batch, *_: sizes.append(len(batch[0]))}
    getattr(trainer(callbacks=[finder, LambdaCallback(**hook)]), stage)(module)
    assert finder.optimal_batch_size == 8
    assert sizes == [8] * 8


class Milestones(BatchSizeFinder):
    """As documented: in chosen epochs, and not at the start."""

    def on_fit_start(self, *args: Any) -> None:
        return

    def on_train_epoch_start(self, trainer: Any, pl_module: Any) -> None:
        if trainer.current_epoch == 1:
            pl_module.room = 40
            self.scale_batch_size(trainer, pl_module)


def test_a_subclass_may_search_between_epochs() -> None:
    module = fresh()
    run = trainer(max_epochs=2, callbacks=[Milestones()])
    run.fit(module)
    assert module.tried[:16] == [4] * 16
    assert module.tried[-2:] == [32, 32]
    assert run.global_step == 18


@pytest.mark.parametrize("kind", [BatchSizeFinder, Milestones])
def test_a_resumed_run_goes_on_with_the_size(kind: type[BatchSizeFinder], tmp_path: Path) -> None:
    def run(path: Path | None = None) -> tuple[Greedy, Any]:
        module = fresh()
        if path is not None:
            module.room = 40  # where a search would find another size
        saver = ModelCheckpoint(tmp_path / "saved", "{step}", every_n_train_steps=1, save_top_k=-1)
        module.tried.clear()
        one = trainer(max_epochs=3, callbacks=[kind(), saver], enable_checkpointing=True)
        one.fit(module, ckpt_path=path)
        return module, one

    whole, first = run()
    for step in (first.global_step - 3, first.global_step - 1):
        again, second = run(tmp_path / f"saved/step={step}.ckpt")
        assert second.global_step == first.global_step
        assert again.tried == whole.tried[-(first.global_step - step) :]
        assert all(torch.equal(weights(whole)[name], value) for name, value in weights(again).items())


class Data(L.DataModule):
    def __init__(self, batch_size: int = 4) -> None:
        super().__init__()
        self.save_hyperparameters()
        self.batch_size = batch_size

    def train_dataloader(self) -> Any:
        return DataLoader(dataset(64), batch_size=self.batch_size)


def test_where_the_attribute_may_be() -> None:
    class Bare(Greedy):
        def __init__(self, batch_size: int = 4) -> None:
            super().__init__()
            del self.batch_size
            self.save_hyperparameters()

        def train_dataloader(self) -> Any:
            return DataLoader(dataset(64), batch_size=self.hparams.batch_size)

    module = Bare()
    assert Tuner(trainer(limit_val_batches=0)).scale_batch_size(module) == 8
    assert module.hparams.batch_size == 8
    data = Data()
    module = Bare()
    assert Tuner(trainer(limit_val_batches=0)).scale_batch_size(module, datamodule=data) == 8
    assert (data.batch_size, data.hparams.batch_size, module.hparams.batch_size) == (8, 8, 8)
    greedy = fresh()
    greedy.data = Data()
    greedy.train_dataloader = greedy.data.train_dataloader  # type: ignore[method-assign]
    found = Tuner(trainer(limit_val_batches=0)).scale_batch_size(greedy, batch_arg_name="data.batch_size")
    assert (found, greedy.data.batch_size, greedy.batch_size) == (8, 8, 4)


def test_an_attribute_and_a_hyperparameter() -> None:
    class Both(Greedy):
        def __init__(self, batch_size: int = 4) -> None:
            super().__init__(batch_size=batch_size)
            self.save_hyperparameters()

    module = Both()
    with pytest.warns(UserWarning, match=r"Both `model.batch_size` and `model.hparams.batch_size`"):
        trainer(callbacks=[BatchSizeFinder()]).fit(module)
    assert (module.batch_size, module.hparams.batch_size) == (8, 8)


def test_a_module_that_never_steps_its_optimizer() -> None:
    class Manual(Greedy):
        def __init__(self) -> None:
            super().__init__()
            self.automatic_optimization = False

        def training_step(self, batch: Any, batch_idx: int) -> None:
            self.loss(batch)

    assert Tuner(trainer()).scale_batch_size(fresh(Manual)) == 8


def test_nothing_to_try_is_an_error() -> None:
    with pytest.raises(MisconfigurationException, match="no batch to try"):
        Tuner(trainer(limit_train_batches=0, limit_val_batches=0)).scale_batch_size(fresh())


def test_fast_dev_run_skips_it() -> None:
    finder, module = BatchSizeFinder(), fresh()
    with pytest.warns(UserWarning, match="skipped with `fast_dev_run`"):
        trainer(fast_dev_run=True, callbacks=[finder]).fit(module)
    assert finder.optimal_batch_size is None
    assert module.batch_size == 4


@pytest.mark.parametrize(
    "argument",
    [
        {"mode": "linear"},
        {"steps_per_trial": 0},
        {"init_val": 0},
        {"init_val": 2.5},
        {"max_trials": 0},
        {"max_val": True},
        {"margin": 1.0},
        {"margin": -0.1},
        {"batch_arg_name": ""},
    ],
)
def test_wrong_values(argument: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=next(iter(argument))) as caught:
        BatchSizeFinder(**argument)
    assert isinstance(caught.value, MisconfigurationException)


def test_errors_before_anything_runs() -> None:
    module = fresh()
    for finder, arguments, message in (
        (BatchSizeFinder(batch_arg_name="size"), {}, "'size'"),
        (BatchSizeFinder(), {"train_dataloaders": DataLoader(dataset())}, "train_dataloader` method"),
    ):
        with pytest.raises(MisconfigurationException, match=message):
            trainer(callbacks=[finder]).fit(module, **arguments)
    with pytest.raises(MisconfigurationException, match="state key 'BatchSizeFinder'"):
        trainer(callbacks=[BatchSizeFinder(), BatchSizeFinder()]).fit(module)
    with pytest.raises(MisconfigurationException, match="has a BatchSizeFinder"):
        Tuner(trainer(callbacks=[BatchSizeFinder()])).scale_batch_size(module)
    assert module.tried == []

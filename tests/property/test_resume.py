"""Whatever the settings: a run resumed from a checkpoint of any of its moments ends as if it had not been cut off.

Equal bit for bit are the batches, what loggers got, learning rates, metrics, the best checkpoint, weights, the state of
optimizers, and the random states.
"""

from __future__ import annotations

import random
import shutil
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torchmetrics
from hypothesis import HealthCheck, Phase, example, given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.utils.data import BatchSampler, DataLoader, Dataset, DistributedSampler, IterableDataset, RandomSampler

import gpulayer.pytorch as L
from gpulayer.pytorch.callbacks import EarlyStopping, ModelCheckpoint
from gpulayer.pytorch.core.callback import Checkpoint
from gpulayer.pytorch.loggers import Logger
from gpulayer.pytorch.utilities import CombinedLoader

pytestmark = [
    pytest.mark.filterwarnings("ignore:The run goes on in mid-epoch with"),
    pytest.mark.filterwarnings("ignore:The checkpoint holds the state of callbacks"),
    pytest.mark.filterwarnings("ignore:The training loader gave None"),
    pytest.mark.filterwarnings("ignore:`training_step` returned None"),
    pytest.mark.filterwarnings("ignore:.*Checkpoint directory .* exists and is not empty"),
]


# ---- data ------------------------------------------------------------------------------------------------------------


class Rows(Dataset[Tensor]):
    """Each tells its index, and has noise of every kind, drawn in this process."""

    def __init__(self, samples: int) -> None:
        self.samples = samples
        self.rng = np.random.default_rng(7)

    def __len__(self) -> int:
        return self.samples

    def __getitem__(self, index: int) -> Tensor:
        return float(index) + noise() + float(self.rng.normal())


def noise() -> Tensor:
    return torch.rand(3) + random.random() + random.gauss(0, 1) + float(np.random.randn())


class Stream(IterableDataset[Tensor]):
    """Has no length and no place."""

    def __init__(self, samples: int) -> None:
        self.samples = samples
        self.generator = torch.Generator().manual_seed(4)

    def __iter__(self) -> Iterator[Tensor]:
        for index in range(self.samples):
            yield float(index) + noise() + torch.rand(3, generator=self.generator)


class Stateful(Stream):
    """Knows its place, which it keeps from epoch to epoch where a limit ends these."""

    at = 0
    passes = 0

    def __iter__(self) -> Iterator[Tensor]:
        while self.at < self.samples:
            self.at += 1
            yield self.at + 100.0 * self.passes + noise()
        self.at, self.passes = 0, self.passes + 1

    def state_dict(self) -> dict[str, int]:
        return {"at": self.at, "passes": self.passes}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.at, self.passes = state["at"], state["passes"]


class Counting(RandomSampler):
    """A sampler with a state of its own, on which its order depends."""

    passes = 0

    def __iter__(self) -> Iterator[int]:
        self.passes += 1
        return iter(torch.randperm(len(self), generator=torch.Generator().manual_seed(self.passes)).tolist())

    def state_dict(self) -> dict[str, int]:
        return {"passes": self.passes}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.passes = state["passes"]


class Lazy(BatchSampler):
    """A batch sampler that draws as it goes, from a generator of its own."""

    def __init__(self, samples: int) -> None:
        self.samples, self.rng = samples, random.Random(8)

    def __iter__(self) -> Iterator[list[int]]:
        for _ in range(len(self)):
            yield [self.rng.randrange(self.samples) for _ in range(2)]

    def __len__(self) -> int:
        return (self.samples + 1) // 2


class Growing(BatchSampler):
    """Has a batch more in each epoch."""

    epoch = 0

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def __len__(self) -> int:
        return super().__len__() + self.epoch

    def __iter__(self) -> Iterator[list[int]]:
        yield from super().__iter__()
        yield from [[0]] * self.epoch


def batches_or_none(rows: list[Tensor]) -> Tensor | None:
    """A collate function that now and then finds nothing usable."""
    return None if random.random() < 0.2 else torch.stack(rows)


def generated(samples: int) -> Callable[[], Any]:
    class Generated:
        def __iter__(self) -> Iterator[Tensor]:
            return (index + torch.stack([noise(), noise()]) for index in range((samples + 1) // 2))

    return Generated


LOADERS: dict[str, Callable[[int], Any]] = {
    "shuffled": lambda n: DataLoader(Rows(n), 2, shuffle=True),
    "dropping the last": lambda n: DataLoader(Rows(n), 2, shuffle=True, drop_last=n > 1),
    "own generator": lambda n: DataLoader(Rows(n), 2, shuffle=True, generator=torch.Generator().manual_seed(2)),
    "replacement": lambda n: DataLoader(Rows(n), 2, sampler=RandomSampler(range(n), replacement=True, num_samples=n)),
    "not batched": lambda n: DataLoader(Rows(n), batch_size=None, shuffle=True),
    "distributed": lambda n: DataLoader(Rows(n), 2, sampler=DistributedSampler(Rows(n), 1, 0)),
    "stateful sampler": lambda n: DataLoader(Rows(n), 2, sampler=Counting(Rows(n))),
    "lazy batch sampler": lambda n: DataLoader(Rows(n), batch_sampler=Lazy(n)),
    "growing": lambda n: DataLoader(Rows(n), batch_sampler=Growing(RandomSampler(Rows(n)), 2, False)),
    "none among them": lambda n: DataLoader(Rows(n), 2, shuffle=True, collate_fn=batches_or_none),
    "ready-made": lambda n: [torch.full((2, 3), float(i)) for i in range(n)],
    "several": lambda n: [DataLoader(Rows(n), 2, shuffle=True), DataLoader(Rows(3), 2, shuffle=True)],
    "one after another": lambda n: CombinedLoader(
        [DataLoader(Rows(n), 2, shuffle=True), DataLoader(Rows(3), 2, shuffle=True)], "sequential"
    ),
    "stream": lambda n: DataLoader(Stream(n), 2),
    "stateful stream": lambda n: DataLoader(Stateful(n), 2),
    "generated": lambda n: generated(n)(),
    "several streams": lambda n: [DataLoader(Stateful(n), 2), DataLoader(Stateful(3), 2), DataLoader(Rows(5), 2)],
    "the longest stream": lambda n: CombinedLoader(
        [DataLoader(Stateful(n), 2), DataLoader(Stateful(3), 2)], "max_size"
    ),
    "streams in turn": lambda n: CombinedLoader([DataLoader(Stateful(n), 2), DataLoader(Stateful(3), 2)], "sequential"),
}
WITHOUT_LENGTH = {
    "stream", "stateful stream", "generated", "several streams", "the longest stream", "streams in turn"
}  # fmt: skip


# ---- a run -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Case:
    """What is drawn."""

    loader: str = "shuffled"
    samples: int = 7
    accumulate: int = 1
    manual: str | None = (
        None  # when the module zeroes its gradients: "before", "after" or "never"; it steps each second
    )
    takes: int = 0  # how many batches a step takes that is given the iterator
    limit: int | None = None
    overfit: bool = False
    interval: int | float | None = None  # val_check_interval
    every: int | None = 1  # check_val_every_n_epoch
    validates: bool = True
    max_epochs: int = 2
    max_steps: int = -1
    scheduler: str = "step"  # "step", "epoch", "plateau" or "plateau by step"
    reload: int = 0
    clip: float | None = None
    log_every: int = 1
    stops: bool = False  # with EarlyStopping
    losses: bool = True  # whether each step returns one


class Noted(L.LightningModule):
    """Dropout, BatchNorm, running means, metric objects that are logged, only updated, or logged at the end."""

    def __init__(self, case: Case) -> None:
        super().__init__()
        self.case = case
        self.automatic_optimization = case.manual is None
        self.net = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Dropout(0.4), nn.Linear(4, 1))
        self.register_buffer("average", torch.zeros(3))
        self.logged, self.updated = torchmetrics.MeanMetric(), torchmetrics.MeanMetric()
        self.val_metric = torchmetrics.MaxMetric()
        self.seen: list[Any] = []
        self.rates: list[float] = []

    def loss(self, batch: Any) -> Tensor:
        parts = [part for part in (batch if isinstance(batch, (list, tuple)) else [batch]) if part is not None]
        self.seen.append([part.tolist() for part in parts])
        rows = torch.cat([part.reshape(-1, 3).float() for part in parts])
        return self.net(torch.cat([rows, rows + 1])).square().mean()  # BatchNorm wants more than one

    def on_train_start(self) -> None:
        noise()  # what a resumed run draws here is not counted

    def on_train_epoch_start(self) -> None:
        noise()

    def one_step(self, batch: Any, i: int) -> Tensor | None:
        loss = self.loss(batch)
        self.log("loss", loss, on_step=True, on_epoch=True, batch_size=1)
        self.logged(loss.detach())
        self.updated.update(loss.detach() + random.random())
        self.log("metric", self.logged, on_step=True, on_epoch=True)
        self.log("greatest", loss, on_step=False, on_epoch=True, reduce_fx="max", batch_size=1)
        if i == 2:
            self.log("seldom", float(i), on_step=True, on_epoch=True, batch_size=1)
        if self.case.manual is None:
            return loss if self.case.losses or random.random() < 0.7 else None
        optimizer = self.optimizers()
        if self.case.manual == "before" and i % 2 == 0:
            optimizer.zero_grad()
        self.manual_backward(loss)
        if i % 2:
            optimizer.step()
            if self.case.manual == "after":
                optimizer.zero_grad()
        return None

    def on_train_batch_end(self, outputs: Any, batch: Any, batch_idx: int) -> None:
        self.average.lerp_(self.net[0].weight.detach()[0], 0.3)
        self.rates.append(self.trainer.optimizers[0].param_groups[0]["lr"])
        if self.case.manual is not None and batch_idx == 1:
            self.lr_schedulers().step()

    def on_train_epoch_end(self) -> None:
        self.log("updated", self.updated.compute())
        self.updated.reset()
        noise()

    def validation_step(self, batch: Tensor, batch_idx: int) -> None:
        self.log("val_loss", self.net(batch).square().mean() + noise().sum())
        self.val_metric.update(batch.sum())
        self.log("val_metric", self.val_metric)

    def configure_optimizers(self) -> Any:
        optimizer = torch.optim.AdamW(self.parameters(), lr=0.1)
        if self.case.manual is not None:
            return [optimizer], [torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.9)]
        if self.case.scheduler.startswith("plateau"):
            scheduler: Any = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, patience=0)
        else:
            scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 2, 0.9)
        interval = "step" if self.case.scheduler.endswith("step") else "epoch"
        plan = {"scheduler": scheduler, "interval": interval, "monitor": "loss", "strict": False}
        return {"optimizer": optimizer, "lr_scheduler": plan}


class Stepwise(Noted):
    def training_step(self, batch: Any, batch_idx: int) -> Tensor | None:
        return self.one_step(batch, batch_idx)


class Taking(Noted):
    """Takes several batches for a step."""

    def training_step(self, dataloader_iter: Any) -> Tensor | None:
        batch, i, _ = next(dataloader_iter)
        for _ in range(self.case.takes - 1):
            more = next(dataloader_iter, None)
            if more is not None:
                self.seen.append(more[0].tolist() if isinstance(more[0], Tensor) else None)
        return self.one_step(batch, i)


class Kept(Logger):
    """Keeps the rows."""

    def __init__(self) -> None:
        self.rows: list[Any] = []

    name = "kept"
    version = 0

    def log_hyperparams(self, params: Any, *args: Any, **kwargs: Any) -> None: ...

    def log_metrics(self, metrics: dict[str, float], step: int | None = None) -> None:
        self.rows.append((step, {name: repr(value) for name, value in metrics.items()}))


@dataclass(frozen=True)
class Moment:
    """One in which a checkpoint was saved."""

    folder: Path
    seen: int  # how many batches were seen then,
    rows: int  # and how many rows sent


class Saver(Checkpoint):
    """Saves at each moment of a run, with the folder of the best checkpoints as it was then."""

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self.folder = folder
        self.moments: list[Moment] = []

    def save(self, trainer: L.Trainer, module: Any) -> None:
        if trainer.should_stop:  # a resumed run does not know that it was asked to stop
            return
        where = Path(tempfile.mkdtemp(dir=self.folder))
        trainer.save_checkpoint(where / "saved.ckpt")
        if (self.folder / "best").exists():
            shutil.copytree(self.folder / "best", where / "best")
        self.moments.append(Moment(where, len(module.seen), len(trainer.logger.rows)))

    def on_train_batch_end(self, trainer: L.Trainer, pl_module: Any, *_: Any) -> None:
        self.save(trainer, pl_module)

    def on_validation_end(self, trainer: L.Trainer, pl_module: Any) -> None:
        if not trainer.sanity_checking:
            self.save(trainer, pl_module)

    def on_train_epoch_end(self, trainer: L.Trainer, pl_module: Any) -> None:
        self.save(trainer, pl_module)


def trained(case: Case, folder: Path, path: Path | None = None) -> tuple[Noted, Saver]:
    """A run from its start, or from a checkpoint."""
    L.seed_everything(3 if path is None else 4, verbose=False)
    module = (Taking if case.takes else Stepwise)(case)
    saver = Saver(folder)
    monitor = "val_loss" if case.validates or case.overfit else "loss_epoch"  # overfit_batches validates, too
    callbacks: list[L.Callback] = [ModelCheckpoint(folder / "best", "{epoch}-{step}", monitor=monitor, save_top_k=2)]
    if case.stops:
        callbacks.append(EarlyStopping("loss_epoch", patience=0, check_on_train_epoch_end=True, verbose=False))
    trainer = L.Trainer(
        accelerator="cpu",
        logger=Kept(),
        callbacks=[*callbacks, saver],
        enable_progress_bar=False,
        enable_model_summary=False,
        num_sanity_val_steps=1,
        max_epochs=case.max_epochs,
        max_steps=case.max_steps,
        accumulate_grad_batches=case.accumulate,
        limit_train_batches=case.limit,
        limit_val_batches=1.0 if case.validates else 0,
        overfit_batches=2 if case.overfit else 0,
        val_check_interval=case.interval,
        check_val_every_n_epoch=case.every,
        reload_dataloaders_every_n_epochs=case.reload,
        gradient_clip_val=case.clip,
        log_every_n_steps=case.log_every,
    )

    class Data(L.DataModule):
        def train_dataloader(self) -> Any:
            return LOADERS[case.loader](case.samples + (int(torch.randint(3, ())) if case.reload else 0))

        def val_dataloader(self) -> Any:
            return DataLoader(torch.arange(12.0).reshape(4, 3), 2, shuffle=True)  # type: ignore[arg-type]

    trainer.fit(module, datamodule=Data(), ckpt_path=path)
    return module, saver


def ending(module: Noted) -> dict[str, Any]:
    """All that must be equal at the end."""
    trainer = module.trainer
    saver = trainer.checkpoint_callback
    version, words, gauss = random.getstate()
    return {
        "weights": {name: value.tolist() for name, value in module.state_dict().items()},
        "optimizer": repr(trainer.optimizers[0].state_dict()),
        "metrics": {name: repr(float(value)) for name, value in trainer.callback_metrics.items()},
        "best": (saver.best_model_path, repr(saver.best_model_score), sorted(saver.best_k_models)),
        "files": sorted(path.name for path in Path(saver.dirpath).glob("*")),
        "counts": (trainer.global_step, trainer.current_epoch),
        "random": (torch.get_rng_state().tolist(), version, words, gauss, repr(np.random.get_state())),
    }


# ---- what is drawn ---------------------------------------------------------------------------------------------------


@st.composite
def cases(draw: st.DrawFn) -> Case:
    loader = draw(st.sampled_from(sorted(LOADERS)))
    known = loader not in WITHOUT_LENGTH
    manual = draw(st.none() | st.sampled_from(["before", "after", "never"]))
    takes = draw(st.sampled_from([0, 0, 0, 2, 3])) if loader != "none among them" and manual is None else 0
    every = draw(st.sampled_from([1, 1, 2, None]))
    intervals = st.none() | st.just(1) | (st.sampled_from([0.5, 1.0]) if known else st.just(1.0))
    return Case(
        loader,
        draw(st.integers(3, 9)),
        1 if manual else draw(st.integers(1, 3)),
        manual,
        takes,
        limit=draw(st.none() | st.integers(2, 3)),
        overfit=draw(st.sampled_from([False, False, False, known])),
        interval=draw(st.integers(1, 4) if every is None else intervals),
        every=every,
        validates=draw(st.booleans()),
        max_epochs=draw(st.integers(1, 3)),
        max_steps=draw(st.just(-1) | st.integers(1, 5)),
        scheduler=draw(st.sampled_from(["step", "epoch", "plateau", "plateau by step"])),
        reload=draw(st.sampled_from([0, 0, 1, 2])),
        clip=None if manual else draw(st.none() | st.just(0.1)),
        log_every=draw(st.integers(1, 3)),
        stops=draw(st.sampled_from([False, False, True])),
        losses=draw(st.sampled_from([True, True, False])),
    )


FIXED = settings(
    phases=[Phase.explicit, Phase.generate],  # to make a failing case smaller would take minutes
    derandomize=True,
    deadline=None,
    database=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)


@dataclass
class Expected:
    """What a whole run gave, of which a resumed one must give the rest."""

    seen: list[Any]
    rows: list[Any]
    rates: list[float]
    end: dict[str, Any]


def go_on(case: Case, folder: Path, moment: Moment, expected: Expected) -> list[Moment]:
    """Resume from a moment; the moments of the resumed run, counted from the start of the whole one."""
    shutil.rmtree(folder / "best", ignore_errors=True)
    if (moment.folder / "best").exists():
        shutil.copytree(moment.folder / "best", folder / "best")
    resumed, saver = trained(case, folder, moment.folder / "saved.ckpt")
    assert resumed.seen == expected.seen[moment.seen :], moment
    assert resumed.trainer.logger.rows == expected.rows[moment.rows :], moment
    assert resumed.rates == expected.rates[len(expected.rates) - len(resumed.rates) :], moment
    for what, value in ending(resumed).items():
        assert value == expected.end[what], (moment, what)
    return [replace(later, seen=later.seen + moment.seen, rows=later.rows + moment.rows) for later in saver.moments]


def check(case: Case, choose: Callable[[list[Moment]], list[Moment]], again: bool = True) -> None:
    """Resume from some of the moments of a run, and from some of those of a run that was resumed."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        whole, saver = trained(case, folder)
        expected = Expected(whole.seen, whole.trainer.logger.rows, whole.rates, ending(whole))
        for moment in choose(saver.moments):
            moments = go_on(case, folder, moment, expected)
            for later in choose(moments)[:1] if again and moments else []:
                go_on(case, folder, later, expected)


@settings(FIXED, max_examples=30)
@example(Case(manual="after", samples=9), [3, 8])
@example(Case("none among them", accumulate=3, losses=False), [2, 5])
@example(Case("generated", takes=2, samples=9), [1, 4])
@given(cases(), st.lists(st.integers(0, 40), min_size=2, max_size=2))
def test_a_resumed_run_ends_as_a_whole_one(case: Case, numbers: list[int]) -> None:
    check(case, lambda moments: [moments[number % len(moments)] for number in numbers])


@pytest.mark.parametrize("loader", LOADERS)
def test_from_each_moment(loader: str) -> None:
    check(Case(loader, 5, accumulate=2, validates=False), lambda moments: moments, again=False)

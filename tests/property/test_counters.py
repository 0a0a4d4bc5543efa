"""For any settings: optimizer steps, validations and scheduler moves come where a model of 30 lines puts them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import ceil
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

Event = tuple[str, int, int]  # what, in which epoch, at which batch


@dataclass(frozen=True)
class Settings:
    """What is drawn."""

    batches: int = 4
    length: bool = True  # whether the loader tells its length
    limit: int | float | None = None
    accumulate: int = 1
    interval: int | float | None = None  # val_check_interval
    every: int | None = 1  # check_val_every_n_epoch
    max_epochs: int | None = 2
    max_steps: int = -1
    by_step: bool = True  # the scheduler's interval
    frequency: int = 1
    watches: bool = False  # whether the scheduler watches a metric
    val_batches: int = 1  # 0: no validation
    stop: int | None = None  # should_stop is set at the end of this batch, counted over all epochs
    min_epochs: int | None = None
    min_steps: int | None = None
    skip: int | None = None  # on_train_batch_start returns -1 at this batch of each epoch

    @property
    def per_epoch(self) -> int:
        if self.limit is None:
            return self.batches
        return min(self.limit, self.batches) if isinstance(self.limit, int) else int(self.batches * self.limit)

    @property
    def most_epochs(self) -> float:
        if self.max_epochs is None:
            return float("inf") if self.max_steps != -1 else max(1, self.min_epochs or 1)
        return float("inf") if self.max_epochs == -1 else self.max_epochs

    @property
    def most_steps(self) -> float:
        return float("inf") if self.max_steps == -1 else self.max_steps


# ---- the model -------------------------------------------------------------------------------------------------------


def expected(s: Settings) -> tuple[list[Event], int, int]:
    """The events, global_step and current_epoch."""
    events: list[Event] = []
    epoch = step = total = 0
    asked = False
    while s.per_epoch and epoch < s.most_epochs and step < s.most_steps and not (asked and free(s, epoch, step)):
        before, ended, skipped = step, False, False
        for i in range(s.per_epoch):
            if skipped := i == s.skip:
                break
            ended, total = i == s.per_epoch - 1, total + 1
            if due := ended or (i + 1) % s.accumulate == 0:
                step += 1
                events.append(("step", epoch, i))
            if not s.watches and moves(s, i, ended, due, step, epoch):
                events.append(("move", epoch, i))
            asked = asked or total == s.stop
            if validates(s, epoch, i, total, asked and free(s, epoch, step)):
                events.append(("validation", epoch, i))
            if s.watches and s.by_step and due and step % s.frequency == 0:
                events.append(("move", epoch, i))
            if step >= s.most_steps or (asked and free(s, epoch, step)):
                break
        over = (s.watches and ended) or (skipped and step > before)  # the epoch's schedulers that did not move above
        if not s.by_step and over and (epoch + 1) % s.frequency == 0:
            events.append(("move", epoch, i - skipped))
        epoch += 1
    return events, step, epoch


def moves(s: Settings, i: int, ended: bool, due: bool, step: int, epoch: int) -> bool:
    return due and step % s.frequency == 0 if s.by_step else ended and (epoch + 1) % s.frequency == 0


def free(s: Settings, epoch: int, step: int) -> bool:
    """Whether a wish to stop is granted. A least number of steps implies an epoch, unless one is given."""
    least = s.min_epochs if s.min_epochs is not None else int(s.min_steps is not None)
    return epoch >= least and step >= (s.min_steps or 0)


def validates(s: Settings, epoch: int, i: int, total: int, stops: bool) -> bool:
    if not s.val_batches or (s.every is not None and (epoch + 1) % s.every):
        return False
    if s.interval is None or (s.interval == 1.0 and isinstance(s.interval, float)):
        return stops or i == s.per_epoch - 1
    every = s.interval if isinstance(s.interval, int) else max(1, int(s.per_epoch * s.interval))
    return stops or (total if s.every is None else i + 1) % every == 0


# ---- the library -----------------------------------------------------------------------------------------------------


class Stream(torch.utils.data.IterableDataset):
    def __init__(self, rows: torch.Tensor) -> None:
        self.rows = rows

    def __iter__(self) -> Iterator[torch.Tensor]:
        return iter(self.rows)


def loader(batches: int, length: bool = True) -> Any:
    rows = torch.arange(float(batches)).reshape(-1, 1)
    return torch.utils.data.DataLoader(rows if length else Stream(rows))  # type: ignore[arg-type]


class Scheduler:
    """Only notes that it is moved."""

    def __init__(self, module: Any, optimizer: torch.optim.Optimizer) -> None:
        self.module, self.optimizer = module, optimizer

    def step(self, *metric: Any) -> None:
        assert len(metric) == self.module.s.watches
        self.module.note("move")

    def state_dict(self) -> dict[str, Any]:
        return {}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None: ...


def noting(L: Any, s: Settings) -> Any:
    """A module that notes each event where it happens, and checks the counters that it can see there."""

    class Noting(L.LightningModule):
        steps_before = 0  # those of the run that it goes on from
        save: tuple[str, int, Any] | None = None  # where to save a checkpoint, at the how-manieth time, and the path
        saved: tuple[int, int, int] | None = None  # how many events there were then, in which epoch, at which batch

        def __init__(self) -> None:
            super().__init__()
            self.weight = torch.nn.Parameter(torch.zeros(1))
            self.s, self.events, self.batch, self.epoch, self.total, self.seen = s, [], 0, 0, 0, 0
            self.moments: list[str] = []

        def note(self, what: str) -> None:
            self.events.append((what, self.epoch, self.batch))

        def steps(self) -> int:
            return self.steps_before + sum(event[0] == "step" for event in self.events)

        def moment(self, where: str) -> None:
            self.moments.append(where)
            if self.save is not None and (where, self.moments.count(where)) == self.save[:2]:
                self.saved = (len(self.events), self.epoch, self.batch)
                self.trainer.save_checkpoint(self.save[2])

        def on_train_batch_start(self, batch: Any, batch_idx: int) -> int | None:
            assert self.trainer.global_step == self.steps()
            return -1 if batch_idx == s.skip else None

        def training_step(self, batch: Any, batch_idx: int) -> Any:
            self.epoch, self.batch = self.current_epoch, batch_idx
            assert self.trainer.is_last_batch == (batch_idx == s.per_epoch - 1)
            self.log("loss", 1.0)
            return (self.weight * batch).sum()

        def on_train_batch_end(self, outputs: Any, batch: Any, batch_idx: int) -> None:
            self.total += 1
            assert (self.trainer.current_epoch, batch_idx) == (self.epoch, self.batch)
            assert self.trainer.global_step == self.steps()
            if self.total == s.stop:
                self.trainer.should_stop = True
            self.moment("batch")

        def on_validation_epoch_start(self) -> None:
            self.note("validation")
            self.seen = 0
            assert self.trainer.global_step == self.steps()

        def validation_step(self, batch: Any, batch_idx: int) -> None:
            assert batch_idx == self.seen
            self.seen += 1

        def on_validation_epoch_end(self) -> None:
            assert self.seen == s.val_batches

        def on_validation_end(self) -> None:
            self.moment("validation")

        def on_train_epoch_end(self) -> None:
            self.moment("epoch")

        def lr_scheduler_step(self, scheduler: Any, metric: Any) -> None:
            scheduler.step(*[] if metric is None else [metric])

        def configure_optimizers(self) -> Any:
            optimizer = torch.optim.SGD(self.parameters(), lr=0.1)
            optimizer.register_step_post_hook(lambda *_: self.note("step"))
            plan = {
                "scheduler": Scheduler(self, optimizer),
                "interval": "step" if s.by_step else "epoch",
                "frequency": s.frequency,
                "reduce_on_plateau": s.watches,
                "monitor": "loss",
            }
            return {"optimizer": optimizer, "lr_scheduler": plan}

    return Noting()


def trained(L: Any, s: Settings, module: Any, ckpt_path: Any = None) -> Any:
    """The Trainer after `fit`."""
    trainer = L.Trainer(
        accelerator="cpu",
        devices=1,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        num_sanity_val_steps=0,
        max_epochs=s.max_epochs,
        max_steps=s.max_steps,
        min_epochs=s.min_epochs,
        min_steps=s.min_steps,
        limit_train_batches=s.limit,
        limit_val_batches=s.val_batches,
        accumulate_grad_batches=s.accumulate,
        val_check_interval=s.interval,
        check_val_every_n_epoch=s.every,
    )
    trainer.fit(module, loader(s.batches, s.length), loader(5), ckpt_path=ckpt_path)
    return trainer


# ---- what is drawn ---------------------------------------------------------------------------------------------------


@st.composite
def drawn(draw: st.DrawFn, ends: bool = False, skips: bool = False) -> Settings:
    """Settings that the Trainer accepts; some end training before its time (`ends`), or epochs (`skips`)."""
    batches, length = draw(st.integers(1, 9)), draw(st.booleans())
    limit = draw(st.none() | st.integers(0, 10) | (st.sampled_from([0.34, 0.5, 0.75, 1.0]) if length else st.none()))
    if isinstance(limit, float) and batches * limit < 1:
        limit = None  # less than a batch is refused
    per_epoch = Settings(batches, limit=limit).per_epoch
    every = draw(st.sampled_from([1, 1, 2, 3, None]))
    known = per_epoch if length else limit  # an interval that no epoch can reach is refused
    whole = st.integers(1, 12 if every is None or known is None else max(known, 1))
    fractions = st.sampled_from([0.1, 0.25, 0.5, 0.67, 1.0] if length else [1.0])
    interval = draw(whole if every is None else st.none() | whole | fractions)
    max_steps = draw(st.just(-1) | st.integers(0, 20))
    max_epochs = draw(st.none() | st.integers(0, 4) | (st.just(-1) if max_steps != -1 else st.none()))
    accumulate = draw(st.integers(1, 5))
    early: dict[str, Any] = {}
    if ends:
        early["stop"] = draw(st.none() | st.integers(1, 12))
        early["min_epochs"] = draw(st.none() | st.integers(0, 3))
        early["min_steps"] = draw(st.none() | st.integers(0, 9))
    if skips and max_epochs not in (None, -1):  # else it might never come to an end
        early["skip"] = draw(st.none() | st.integers(0, 9))
    return Settings(
        batches,
        length,
        limit,
        accumulate,
        interval,
        every,
        max_epochs,
        max_steps,
        by_step=draw(st.booleans()),
        frequency=draw(st.integers(1, 4)),
        watches=draw(st.booleans()),
        val_batches=draw(st.integers(0, 3)),
        **early,
    )


FIXED = settings(
    derandomize=True,
    deadline=None,
    database=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)


def check(s: Settings) -> None:
    import gpulayer.pytorch as L

    module = noting(L, s)
    trainer = trained(L, s, module)
    foreseen, step = trainer.estimated_stepping_batches, trainer.global_step
    assert (module.events, step, trainer.current_epoch) == expected(s)
    if s.length and s.per_epoch and s.stop is None and s.skip is None and s.max_epochs != 0:
        assert foreseen == step
    if s.length and s.per_epoch and s.most_epochs < float("inf"):
        assert foreseen == min(ceil(s.per_epoch / s.accumulate) * max(s.most_epochs, 1), s.most_steps)


@settings(FIXED, max_examples=150)
@example(Settings())
@example(Settings(5, accumulate=2, interval=3, every=None, max_epochs=3, frequency=2))
@example(Settings(5, length=False, limit=8, accumulate=2, max_steps=4, max_epochs=-1, by_step=False))
@given(drawn())
def test_steps_validations_and_moves(s: Settings) -> None:
    check(s)


@settings(FIXED, max_examples=100)
@example(Settings(stop=1, min_epochs=2, interval=2))
@example(Settings(max_epochs=3, skip=2, by_step=False))
@given(drawn(ends=True, skips=True))
def test_ends_before_its_time(s: Settings) -> None:
    """should_stop, min_epochs, min_steps, and epochs whose rest is skipped."""
    check(s)


@pytest.mark.filterwarnings("ignore:The run goes on in mid-epoch with a DataLoader that cannot be told where to begin")
@settings(FIXED, max_examples=60)
@example(Settings(5, accumulate=2, interval=3, every=None), "batch", 3)
@example(Settings(4, watches=True, by_step=False), "validation", 1)
@example(Settings(4, skip=2, by_step=False), "epoch", 1)
@given(drawn(skips=True), st.sampled_from(["batch", "batch", "validation", "epoch"]), st.integers(1, 8))
def test_a_resumed_run_goes_on_where_the_checkpoint_was_saved(
    tmp_path_factory: pytest.TempPathFactory, s: Settings, where: str, time: int
) -> None:
    """What happened after the save happens again, once, and nothing else."""
    check_resume(s, where, time, tmp_path_factory.mktemp("saved") / "saved.ckpt")


def check_resume(s: Settings, where: str, time: int, path: Any) -> None:
    import gpulayer.pytorch as L

    first = noting(L, s)
    first.save = (where, time, path)
    whole = trained(L, s, first)
    if first.saved is None:  # it did not get that far
        return
    second = noting(L, s)
    events, second.epoch, second.batch = first.saved
    second.steps_before = sum(event[0] == "step" for event in first.events[:events])
    resumed = trained(L, s, second, path)
    assert second.events == first.events[events:]
    assert (resumed.global_step, resumed.current_epoch) == (whole.global_step, whole.current_epoch)


@pytest.mark.parametrize("ends", [False, True])
def test_the_draws_are_of_all_kinds(ends: bool) -> None:
    """A strategy that draws little of a kind would find little: here each kind is at least one in forty."""
    found: list[Settings] = []

    @settings(FIXED, max_examples=200)
    @given(drawn(ends, ends))
    def collect(s: Settings) -> None:
        found.append(s)

    collect()
    kinds = {
        "without length": lambda s: not s.length,
        "limited": lambda s: s.limit is not None,
        "accumulated": lambda s: s.accumulate > 1 and s.per_epoch % s.accumulate,
        "across epochs": lambda s: s.every is None,
        "fraction": lambda s: isinstance(s.interval, float) and s.interval < 1,
        "by steps": lambda s: s.max_steps > 0,
        "watching": lambda s: s.watches,
        "several epochs": lambda s: expected(s)[2] > 1,
        "nothing": lambda s: not expected(s)[0],
        "moves": lambda s: any(event[0] == "move" for event in expected(s)[0]),
        "validations": lambda s: any(event[0] == "validation" for event in expected(s)[0]),
    }
    rare = {kind: n for kind, holds in kinds.items() if (n := sum(map(bool, map(holds, found)))) < len(found) / 40}
    assert not rare

"""What all loggers have, and those that stand in for them."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import pytest

import gpulayer.pytorch as L
from gpulayer.fabric.utilities.rank_zero import rank_zero_only
from gpulayer.pytorch.loggers import CSVLogger, Logger
from gpulayer.pytorch.loggers.logger import DummyExperiment, DummyLogger, rank_zero_experiment
from tests.pytorch.models import Line, loader


class Least(Logger):
    """Has what must be there, and no more."""

    name, version = "least", 0  # type: ignore[assignment]

    def __init__(self) -> None:
        super().__init__()
        self.rows: list[tuple[int | None, dict[str, float]]] = []

    @property
    @rank_zero_experiment
    def experiment(self) -> Any:
        return self.rows

    def log_metrics(self, metrics: dict[str, float], step: int | None = None) -> None:
        self.rows.append((step, metrics))

    def log_hyperparams(self, params: Any, *args: Any, **kwargs: Any) -> None:
        pass


def test_the_least_that_a_logger_needs() -> None:
    logger = Least()
    used = L.Trainer(accelerator="cpu", logger=logger, log_every_n_steps=2)
    used.fit(Line(), loader())
    assert [step for step, _ in logger.rows] == [1, 3]
    assert (logger.save_dir, logger.root_dir, logger.log_dir, logger.group_separator) == (None, None, None, "/")


@pytest.mark.parametrize("missing", ["name", "version", "log_metrics", "log_hyperparams"])
def test_what_is_missing_is_said_at_once(missing: str) -> None:
    kind = type("Lacks", (Least,), {missing: getattr(Logger, missing)})
    with pytest.raises(TypeError, match=missing):
        kind()


def test_the_experiment_of_other_ranks(monkeypatch: pytest.MonkeyPatch) -> None:
    assert Least().experiment == []
    monkeypatch.setattr(rank_zero_only, "rank", 1)
    experiment = Least().experiment
    assert isinstance(experiment, DummyExperiment)
    experiment[0] = "anything"
    assert experiment[0].add_image("x", 1, step=2) is None


def test_a_logger_that_stands_in() -> None:
    logger = DummyLogger()
    assert isinstance(logger, Logger)
    assert (logger.name, logger.version) == ("", "")
    assert logger[0].experiment.add_scalar("x", 1) is None
    assert logger.watch(Line(), log="all") is None
    logger.log_metrics({"loss": 1.0}, step=0)
    logger.log_hyperparams({"lr": 0.1})
    logger.finalize("success")


@pytest.mark.parametrize("kind", [DummyLogger, DummyExperiment])
def test_it_can_be_copied_and_pickled(kind: type) -> None:
    for again in (copy.copy(kind()), copy.deepcopy(kind()), pickle.loads(pickle.dumps(kind()))):
        assert type(again) is kind


class Talks(Line):
    """Uses its logger, as people do."""

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        self.logger.experiment.add_image("batch", batch[0])
        self.logger.log_metrics({"extra": 1.0}, step=batch_idx)
        return super().training_step(batch, batch_idx)


@pytest.mark.parametrize("logger", [None, True, CSVLogger("logs"), [CSVLogger("logs"), Least()]])
def test_a_trial_run_of_code_that_uses_its_logger(logger: Any) -> None:
    """fast_dev_run writes nothing, and the code runs."""
    used = L.Trainer(accelerator="cpu", fast_dev_run=True, logger=logger)
    used.fit(Talks(), loader())
    assert used.global_step == 1
    assert isinstance(used.logger, DummyLogger)


def test_a_trial_run_without_a_logger() -> None:
    assert L.Trainer(accelerator="cpu", fast_dev_run=True, logger=False).logger is None

"""For any batches, loaders, limits and accumulation: what is logged is the float64 number computed directly."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch.utils.data import DataLoader

import gpulayer.pytorch as L

Batches = list[list[float]]

numbers = st.floats(-1e6, 1e6, width=32)
batches = st.lists(st.lists(numbers, min_size=1, max_size=5), min_size=1, max_size=7)


class Logs(L.Module):
    """Logs the mean of each batch, and its number of rows, in both stages."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.zeros(()))

    def log_all(self, stage: str, batch: torch.Tensor) -> None:
        value = batch.mean()
        self.log(f"{stage}_mean", value, on_step=False, on_epoch=True)
        self.log(f"{stage}_given", value, on_step=True, on_epoch=True, batch_size=3)
        for kind in ("sum", "min", "max"):
            self.log(f"{stage}_{kind}", value, on_step=False, on_epoch=True, reduce_fx=kind)
        self.log(f"{stage}_function", value, on_step=False, on_epoch=True, reduce_fx=torch.median)
        self.log(f"{stage}_number", float(len(batch)), on_step=False, on_epoch=True)

    def training_step(self, batch: torch.Tensor, batch_idx: int) -> torch.Tensor:
        self.log_all("train", batch)
        return self.weight * batch.mean()

    def validation_step(self, batch: torch.Tensor, batch_idx: int, dataloader_idx: int = 0) -> None:
        self.log_all("val", batch)

    def configure_optimizers(self) -> Any:
        return torch.optim.SGD(self.parameters(), lr=0.0)


def expected(stage: str, given: Batches) -> dict[str, float]:
    """The numbers, from float32 means of each batch, in float64."""
    means = [torch.tensor(batch).mean().item() for batch in given]
    sizes = [len(batch) for batch in given]
    return {
        f"{stage}_mean": math.fsum(m * n for m, n in zip(means, sizes, strict=True)) / sum(sizes),
        f"{stage}_given_epoch": math.fsum(means) / len(means),
        f"{stage}_sum": math.fsum(means),
        f"{stage}_min": min(means),
        f"{stage}_max": max(means),
        f"{stage}_function": torch.tensor(means).median().item(),
        f"{stage}_number": math.fsum(n * n for n in sizes) / sum(sizes),
    }


def as_loader(given: Batches) -> DataLoader[torch.Tensor]:
    return DataLoader([torch.tensor(batch) for batch in given], batch_size=None)  # type: ignore[arg-type]


def close(logged: dict[str, Any], wanted: dict[str, float], given: Batches) -> bool:
    """To the last bits of a float64 sum of terms of this size."""
    scale = max(1.0, *(abs(value) for batch in given for value in batch))
    return all(abs(float(logged[name]) - value) <= 1e-13 * scale * len(given) for name, value in wanted.items())


@pytest.mark.usefixtures("tmp_path")
@given(
    train=batches,
    validated=st.lists(batches, min_size=1, max_size=3),
    limit=st.one_of(st.integers(1, 7), st.just(1.0)),
    accumulate=st.integers(1, 3),
    interval=st.sampled_from([1.0, 0.5]),
)
@settings(max_examples=40, deadline=None, suppress_health_check=list(HealthCheck))
def test_logged_numbers_are_those_of_a_direct_computation(
    train: Batches, validated: list[Batches], limit: int | float, accumulate: int, interval: float
) -> None:
    trainer = L.Trainer(
        accelerator="cpu",
        max_epochs=2,
        logger=False,
        enable_checkpointing=False,
        limit_train_batches=limit,
        limit_val_batches=limit,
        accumulate_grad_batches=accumulate,
        val_check_interval=interval if len(train[: limit if isinstance(limit, int) else None]) > 1 else 1.0,
        num_sanity_val_steps=1,
    )
    trainer.fit(Logs(), as_loader(train), [as_loader(each) for each in validated])
    cut = limit if isinstance(limit, int) else None
    logged = trainer.callback_metrics
    assert close(logged, expected("train", train[:cut]), train[:cut])
    for index, each in enumerate(validated):
        wanted = expected("val", each[:cut])
        if len(validated) > 1:
            wanted = {f"{name}/dataloader_idx_{index}": value for name, value in wanted.items()}
        assert close(logged, wanted, each[:cut])

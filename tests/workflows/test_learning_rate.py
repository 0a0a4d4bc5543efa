"""Workflow "learning rate scheduling"."""

from __future__ import annotations

from math import cos, pi

import pytest

from tests.workflows.guide import Classifier, block, execute, loader


def test_learning_rate_scheduling() -> None:
    """The block says "training_step, etc." of its model; here those are workflow 2's, by inheritance."""
    complete = execute(block("Workflow 2: validation and testing, the model"), MyModel=Classifier)["LitModel"]
    scheduled = execute(block("Workflow 5: learning rate scheduling, the model"))["LitModel"]
    rates: list[float] = []

    class Watched(scheduled, complete):
        def on_train_epoch_start(self) -> None:
            rates.append(self.optimizers().param_groups[0]["lr"])

    model = Watched()
    # Validation is workflow 2's; this block passes no loader for it, and is told so.
    with pytest.warns(UserWarning, match="no validation loader"):
        names = execute(block("Workflow 5: learning rate scheduling, the run"), model=model, train_loader=loader(0, 96))

    assert names["trainer"].current_epoch == 100
    assert rates == pytest.approx([1e-5 + (1e-3 - 1e-5) * (1 + cos(pi * epoch / 100)) / 2 for epoch in range(100)])
    assert names["trainer"].optimizers[0].param_groups[0]["lr"] == pytest.approx(1e-5)

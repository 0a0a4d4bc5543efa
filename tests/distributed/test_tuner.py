"""A search in several processes finds what it finds in one, and all of them set the same."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from tests.distributed.programs import run

BODY = """
from gpulayer.pytorch.callbacks import LearningRateFinder


class Searched(Net):
    lr = 0.05

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), self.lr)


processes = int(os.environ["PROCESSES"])
model, finder = Searched(), LearningRateFinder(num_training_steps=40, max_lr=100.0)
trainer = trainer(processes, callbacks=[finder])
trainer.fit(model, DataLoader(rows(48), 12 // processes, shuffle=True))
weights = torch.cat([parameter.detach().flatten() for parameter in model.parameters()])
torch.save({"weights": weights, "rate": model.lr, **finder.optimal_lr.results}, f"{processes}-{trainer.global_rank}.pt")
"""


def test_learning_rate(tmp_path: Path) -> None:
    for processes in (1, 2):
        ended = run(tmp_path, BODY, PROCESSES=str(processes))
        assert ended.code == 0, ended.errors
    alone: Any = torch.load(tmp_path / "1-0.pt")
    for rank in range(2):
        together = torch.load(tmp_path / f"2-{rank}.pt")
        assert together["lr"] == alone["lr"]
        assert together["loss"] == pytest.approx(alone["loss"], rel=1e-12)
        assert together["rate"] == alone["rate"]
        torch.testing.assert_close(together["weights"], alone["weights"], rtol=0, atol=1e-12)

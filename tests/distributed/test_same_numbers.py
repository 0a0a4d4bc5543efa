"""Several processes end with the weights and the metrics that one process has."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from tests.distributed.programs import run

BODY = """
processes, samples, accumulate = map(int, (os.environ["PROCESSES"], os.environ["SAMPLES"], os.environ["ACCUMULATE"]))
model, data = Net(), rows(samples)
trainer = trainer(processes, accumulate_grad_batches=accumulate, gradient_clip_val=1.0, max_epochs=3)
trainer.fit(model, DataLoader(data, 12 // processes, shuffle=True), DataLoader(data, 12 // processes))
metrics = {name: float(value) for name, value in trainer.callback_metrics.items() if name != "loss_step"}
validated = trainer.validate(model, DataLoader(data, 5), verbose=False)
if trainer.is_global_zero:
    weights = torch.cat([parameter.detach().flatten() for parameter in model.parameters()])
    metrics["validated"] = validated["val"]
    torch.save({"weights": weights, "steps": trainer.global_step, **metrics}, f"{processes}.pt")
"""


def outcome(folder: Path, processes: int, samples: int, accumulate: int) -> Any:
    ended = run(folder, BODY, PROCESSES=str(processes), SAMPLES=str(samples), ACCUMULATE=str(accumulate))
    assert ended.code == 0, ended.errors
    return torch.load(folder / f"{processes}.pt")


# The last batch has one sample, which one process has; or two, which are for two of three processes.
@pytest.mark.parametrize(("samples", "accumulate"), [(61, 2), (50, 1)])
def test_weights_and_metrics_are_those_of_one_process(tmp_path: Path, samples: int, accumulate: int) -> None:
    alone = outcome(tmp_path, 1, samples, accumulate)
    for processes in (2, 3):
        together = outcome(tmp_path, processes, samples, accumulate)
        assert together["steps"] == alone["steps"]
        torch.testing.assert_close(together["weights"], alone["weights"], rtol=0, atol=1e-12)
        for name in ("validated", "val", "loss", "loss_epoch"):
            assert together[name] == pytest.approx(alone[name], rel=1e-13, abs=1e-15), name

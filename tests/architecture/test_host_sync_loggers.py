"""With every logger and every monitor attached, nothing is read from the device between two log points."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = """
from pathlib import Path

from gpulayer.pytorch.loggers import (
    CometLogger, CSVLogger, MLFlowLogger, TensorBoardLogger, TrackioLogger, WandbLogger
)
from tests.architecture.test_host_sync import ScalarReads
from tests.architecture.test_host_sync_monitors import EVERY, Steps, monitors
from tests.architecture.workload import batches, trainer

loggers = [
    CSVLogger("csv"),
    TensorBoardLogger("tensorboard", log_graph=False),
    WandbLogger(save_dir="wandb", offline=True),
    MLFlowLogger(save_dir="mlflow"),
    CometLogger(online=False, offline_directory="comet"),
    TrackioLogger(project="reads", auto_log_cpu=False),
]
with ScalarReads() as mode:
    model = Steps(mode)
    fit = trainer(Path.cwd(), logger=loggers, log_every_n_steps=EVERY, callbacks=monitors())
    fit.fit(model, batches(23))
read = [after - before for before, after in zip(model.counts, model.counts[1:], strict=False)]
print("READ AT", [step for step, count in enumerate(read) if count])
"""


@pytest.mark.timeout(300)
def test_nothing_is_read_with_every_logger(tmp_path: Path) -> None:
    """A process of its own: these packages set variables and threads up for the whole program."""
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
        env=environment(tmp_path),
    )
    assert "READ AT [4, 9, 14, 19]" in done.stdout, done.stdout + done.stderr
    left = {path.name for path in tmp_path.iterdir()}
    assert {"csv", "tensorboard", "wandb", "mlflow", "comet", "trackio"} <= left


def environment(folder: Path) -> dict[str, str]:
    """No account, no variable of the caller's, and this checkout."""
    kept = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("COMET", "WANDB", "MLFLOW", "TRACKIO"))
    }
    root = Path(__file__).resolve().parents[2]
    path = os.pathsep.join([str(root), str(root / "src"), kept.get("PYTHONPATH", "")])
    return {**kept, "PYTHONPATH": path, "TRACKIO_DIR": str(folder / "trackio")}

"""metrics.csv of a run that was killed, and of a machine that knows no umlauts."""

from __future__ import annotations

import csv
import os
import subprocess
import sys
from pathlib import Path
from textwrap import dedent

import pytest
import yaml

from gpulayer.pytorch.loggers import CSVLogger

FILE = Path("logs/a/version_0/metrics.csv")


def rows() -> list[list[str]]:
    """The cells of all rows after the header."""
    with FILE.open(newline="", encoding="utf-8") as file:
        return list(csv.reader(file))[1:]


def append(metrics: dict[str, float], step: int) -> None:
    """One row, by a logger that goes on with the file."""
    logger = CSVLogger("logs", "a", version=0)
    logger.log_metrics(metrics, step)
    logger.finalize("success")


TORN = {
    "in a number": b"0,1,0.2",
    "after a comma": b"0,",
    "after a cell": b"0,1",
    "between the ends of a line": b"0,1,0.25\r",
}


@pytest.mark.parametrize("new_column", [False, True])
@pytest.mark.parametrize("torn", TORN)
def test_a_row_that_was_being_written(torn: str, new_column: bool) -> None:
    """Whatever there is of it stays a row by itself; the whole rows before and after it are as they were written."""
    FILE.parent.mkdir(parents=True)
    FILE.write_bytes(b"epoch,step,loss\r\n0,0,0.5\r\n" + TORN[torn])
    append({"epoch": 1, "loss": 0.125, **({"acc": 0.75} if new_column else {})}, step=2)
    append({"epoch": 1, "loss": 0.0625}, step=3)
    found = [row for row in rows() if row]
    assert found[0] == ["0", "0", "0.5"]
    assert found[1] == TORN[torn].decode().strip().split(",")
    assert found[2:] == [["1", "2", "0.125", *["0.75"] * new_column], ["1", "3", "0.0625", *[""] * new_column]]


def test_a_whole_file_is_not_touched() -> None:
    append({"loss": 0.5}, step=0)
    before = FILE.read_bytes()
    CSVLogger("logs", "a", version=0).experiment.close()
    assert FILE.read_bytes() == before
    append({"loss": 0.25}, step=1)
    assert FILE.read_bytes() == before + b"1,0.25\r\n"


def test_an_empty_file() -> None:
    FILE.parent.mkdir(parents=True)
    FILE.touch()
    append({"loss": 0.5}, step=0)
    assert FILE.read_bytes() == b"step,loss\r\n0,0.5\r\n"


SCRIPT = dedent("""
    import torch
    import gpulayer.pytorch as L

    class Model(L.LightningModule):
        def __init__(self, straße="weiß"):
            super().__init__()
            self.save_hyperparameters()
            self.net = torch.nn.Linear(1, 1)

        def training_step(self, batch, batch_idx):
            loss = self.net(batch).sum()
            self.log("größe", loss, on_epoch=True)
            self.log("損失", 1.0)
            if batch_idx == 1:
                self.log("später", 2.0)
            return loss

        def configure_optimizers(self):
            return torch.optim.SGD(self.parameters(), lr=0.1)

    logger = L.loggers.CSVLogger("logs", "a", version=0)
    trainer = L.Trainer(accelerator="cpu", logger=logger, log_every_n_steps=1)
    trainer.fit(Model(), [torch.ones(1, 1)] * 2)
    """)


def test_names_beyond_ascii_where_the_locale_is_plain_c(tmp_path: Path) -> None:
    """As in a container: Python would write files as ASCII there."""
    (tmp_path / "train.py").write_text(SCRIPT, encoding="utf-8")
    plain = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    environment = {name: value for name, value in os.environ.items() if name not in ("LANG", "PYTHONIOENCODING")}
    done = subprocess.run(
        [sys.executable, "train.py"], env={**environment, **plain}, capture_output=True, cwd=tmp_path, timeout=100
    )
    assert done.returncode == 0, done.stderr.decode()
    with FILE.open(newline="", encoding="utf-8") as file:
        header, *_ = found = list(csv.reader(file))
    assert set(header) == {"epoch", "step", "größe_step", "größe_epoch", "später", "損失"}
    assert len(found) == 1 + 2 + 1
    hparams = (FILE.parent / "hparams.yaml").read_text(encoding="utf-8")
    assert yaml.safe_load(hparams) == {"straße": "weiß"}

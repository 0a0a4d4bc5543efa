"""What a progress bar adds to a training step of a millisecond, drawn on a pseudo-terminal.

    python benchmarks/progress_bar.py --write                  # 2 rounds, about 2 minutes; into results/
    python benchmarks/progress_bar.py --contestants tqdm       # with no bar alone
    python benchmarks/progress_bar.py --child rich             # one alone, as JSON

Each step computes for a millisecond of the processor's time, trains a layer of 8 numbers, and logs its loss with
prog_bar=True. Contestants, on the CPU with one thread:

    none       no bar
    control    the same once more: what it shows instead of 0 is the error of the others
    tqdm       TQDMProgressBar
    rich       RichProgressBar

The bar is drawn on a pseudo-terminal of 100 columns, which another process reads. Each round starts a fresh process for
every contestant. They take turns, 520 steps at a time, with all but one asleep; 500 steps of a turn are timed, half a
second, in which a bar is drawn up to five times. The ratio is the median over the turns of the quotient with no bar in
the same turn; of the rounds, the median is reported, and their range. The time is that of the processor, as in
compile.py.
"""

from __future__ import annotations

import argparse
import fcntl
import functools
import json
import os
import pty
import statistics
import struct
import subprocess
import sys
import termios
import time
from typing import TYPE_CHECKING, Any

import common

if TYPE_CHECKING:
    from collections.abc import Callable

CONTESTANTS = ("none", "control", "tqdm", "rich")
STEP = 1e-3  # seconds of the processor's time
LEAD = 20  # steps of a turn that are not timed
TIMED = 500  # steps of a turn that are


def terminal() -> None:
    """Let standard output be a terminal whose other end is read and forgotten."""
    master, slave = pty.openpty()
    fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 25, 100, 0, 0))
    subprocess.Popen(["cat"], stdin=master, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    os.environ["TERM"] = "xterm-256color"
    os.close(master)
    sys.stdout = os.fdopen(slave, "w", encoding="utf-8")


def measure(name: str, turns: int, pause: Callable[[], object] = lambda: None) -> dict[str, Any]:
    """Train; `pause` returns when it is this process's turn."""
    import torch
    from torch.utils.data import DataLoader

    import gpulayer.pytorch as L
    from gpulayer.pytorch.callbacks import RichProgressBar, TQDMProgressBar

    class Model(L.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.layer = torch.nn.Linear(8, 1)

        def training_step(self, batch: torch.Tensor, batch_idx: int) -> torch.Tensor:
            until = time.process_time() + STEP
            loss = self.layer(batch).square().mean()
            self.log("loss", loss, prog_bar=True)
            while time.process_time() < until:
                pass
            return loss

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return torch.optim.SGD(self.parameters(), 0.01)

    torch.set_num_threads(1)
    output = sys.stdout
    terminal()
    clock = common.Clock(torch.ones(4, 8), turns, LEAD, TIMED, pause, now=time.process_time)
    bars = {"tqdm": [TQDMProgressBar()], "rich": [RichProgressBar()]}
    trainer = L.Trainer(
        accelerator="cpu", devices=1, max_epochs=1, logger=False, enable_checkpointing=False, callbacks=bars.get(name)
    )
    trainer.fit(Model(), DataLoader(clock, batch_size=None))
    sys.stdout = output
    return {"microseconds_a_step": clock.microseconds}


def ratios(rounds: list[dict[str, Any]], name: str) -> list[float]:
    """For each round, the median over the turns of the quotient with no bar in the same turn."""
    pairs = [(each[name]["microseconds_a_step"], each["none"]["microseconds_a_step"]) for each in rounds]
    return [statistics.median(a / b for a, b in zip(ours, theirs, strict=True)) for ours, theirs in pairs]


def report(rounds: list[dict[str, Any]]) -> str:
    rows = []
    for name in rounds[0]:
        step = statistics.median(statistics.median(each[name]["microseconds_a_step"]) for each in rounds)
        row = [name, f"{step / 1000:.3f}", "", ""]
        if name != "none":
            each = ratios(rounds, name)
            row[2:] = f"{statistics.median(each) - 1:+.1%}", f"{min(each) - 1:+.1%} to {max(each) - 1:+.1%}"
        rows.append(row)
    return common.table(("bar", "CPU ms a step", "above no bar", "range of the rounds"), rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--contestants", nargs="+", choices=CONTESTANTS, default=list(CONTESTANTS), metavar="NAME")
    parser.add_argument("--rounds", type=int, default=2, help="how often fresh processes are started")
    parser.add_argument("--turns", type=int, default=20, help="of each process, after two that warm up")
    parser.add_argument("--write", action="store_true", help="write the results into benchmarks/results")
    parser.add_argument("--child", choices=CONTESTANTS, metavar="NAME", help="take one measurement, print JSON")
    options = parser.parse_args()
    if options.rounds < 1 or options.turns < 1:
        parser.error("at least --rounds 1 and --turns 1 are needed")
    if options.child:
        print(json.dumps(measure(options.child, options.turns)))
        return

    chosen = ["none", *(name for name in options.contestants if name != "none")]
    jobs = {name: functools.partial(measure, name, options.turns) for name in chosen}
    rounds = [common.take_turns(jobs, f"{i + 1}/{options.rounds}") for i in range(options.rounds)]
    table = report(rounds)
    print(table)
    if options.write:
        common.write("progress_bar", table, {"rounds": options.rounds, "turns": options.turns, "measurements": rounds})


if __name__ == "__main__":
    main()

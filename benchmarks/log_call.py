"""What one call of self.log costs in a training step, in GPUlayer and in Lightning.

    python benchmarks/log_call.py                      # about 2 minutes
    python benchmarks/log_call.py --rounds 5 --write

A step of one linear layer logs its loss CALLS times, each under another name, with on_step, with on_epoch, or with
both. The time above that of the same framework's step that logs nothing, divided by CALLS, is a call's. It includes the
call's part of the rows that reach metrics.csv every 50 steps; "no rows" leaves them out.

Fresh processes for every contestant take turns, all but one asleep; medians over the turns, and over the rounds.
"""

from __future__ import annotations

import argparse
import functools
import importlib
import statistics
from typing import TYPE_CHECKING, Any

import common

if TYPE_CHECKING:
    from collections.abc import Callable

CALLS = 4
LEAD, TIMED = 50, 150  # steps of a turn that are not timed, and that are: whole log intervals
KINDS: dict[str, dict[str, Any] | None] = {
    "nothing": None,
    "on_step": {"on_step": True, "on_epoch": False},
    "on_step, no rows": {"on_step": True, "on_epoch": False, "logger": False},
    "on_epoch": {"on_step": False, "on_epoch": True},
    "both": {"on_step": True, "on_epoch": True},
}
FRAMEWORKS = ("gpulayer", "lightning")


def measure(framework: str, kind: str, turns: int, pause: Callable[[], object]) -> list[float]:
    """Microseconds a step, one number for each turn."""
    import torch
    from torch.utils.data import DataLoader

    L = importlib.import_module(f"{framework}.pytorch")
    CSVLogger = importlib.import_module(f"{framework}.pytorch.loggers").CSVLogger
    torch.set_num_threads(1)
    options = KINDS[kind]

    class Model(L.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.network = torch.nn.Linear(4, 1)

        def training_step(self, batch: torch.Tensor, batch_idx: int) -> torch.Tensor:
            return self.network(batch).square().mean()

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return torch.optim.SGD(self.parameters(), lr=0.01)

    class Logs(Model):
        def training_step(self, batch: torch.Tensor, batch_idx: int) -> torch.Tensor:
            loss = self.network(batch).square().mean()
            self.log("a", loss, **options)
            self.log("b", loss, **options)
            self.log("c", loss, **options)
            self.log("d", loss, **options)
            return loss

    clock = common.Clock(torch.ones(2, 4), turns, LEAD, TIMED, pause)
    L.Trainer(
        accelerator="cpu",
        devices=1,
        max_epochs=1,
        logger=CSVLogger("."),
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    ).fit((Model if options is None else Logs)(), DataLoader(clock, batch_size=None))
    return clock.microseconds


def report(rounds: list[dict[str, list[float]]]) -> str:
    rows = []
    for kind in KINDS:
        row = [kind]
        for framework in FRAMEWORKS:
            ours, base = (f"{framework} {name}" for name in (kind, "nothing"))
            if ours not in rounds[0]:
                row += ["", ""]
                continue
            step = statistics.median(statistics.median(r[ours]) for r in rounds)
            calls = [statistics.median(a - b for a, b in zip(r[ours], r[base], strict=True)) / CALLS for r in rounds]
            row += [f"{step:.1f}", "" if kind == "nothing" else f"{statistics.median(calls):.1f}"]
        rows.append(row)
    return common.table(
        ("self.log", "GPUlayer, us a step", "us a call", "Lightning, us a step", "us a call"),
        rows,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--frameworks", nargs="+", choices=FRAMEWORKS, default=list(FRAMEWORKS), metavar="NAME")
    parser.add_argument("--rounds", type=int, default=3, help="how often fresh processes are started")
    parser.add_argument("--turns", type=int, default=12, help=f"of {TIMED} timed steps each")
    parser.add_argument("--write", action="store_true", help="write the results into benchmarks/results")
    options = parser.parse_args()
    jobs = {f"{f} {k}": functools.partial(measure, f, k, options.turns) for f in options.frameworks for k in KINDS}
    rounds = [common.take_turns(jobs, f"{i + 1}/{options.rounds}") for i in range(options.rounds)]
    table = report(rounds)
    print(table)
    if options.write:
        common.write("log_call", table, {"rounds": options.rounds, "calls": CALLS, "microseconds_a_step": rounds})


if __name__ == "__main__":
    main()

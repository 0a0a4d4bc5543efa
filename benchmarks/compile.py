"""What GPUlayer adds to a step that torch.compile made, and to the same step in eager mode: a small transformer.

    python benchmarks/compile.py --rounds 6 --write                # about 6 minutes; into results/
    python benchmarks/compile.py                                   # 2 rounds, about 2 minutes
    python benchmarks/compile.py --contestants module+log          # with its bare loop alone
    python benchmarks/compile.py --child network+log               # one alone, as JSON: for TORCH_LOGS=recompiles

A model of 2 layers learns the next token, with AdamW, on the CPU with one thread. torch.compile builds C++ code, so a
compiler must be there. Contestants, by mode, the first of each a bare loop that the others are compared with:

    eager       bare       loss = network(batch), backward, step
                control    the same once more: what it shows instead of 0 is the error of the others
                gpulayer   the same network in a module
    compiled    compiled           the bare loop of torch.compile(network)
                compiled control   the same once more
                module             GPUlayer: trainer.fit(torch.compile(module)), which compiles training_step
                network            GPUlayer: a module that holds torch.compile(network)

With `+log`, the step calls self.log("loss", loss), which GPUlayer leaves out of what is compiled: the graph ends there.
`graphs` counts what torch.compile made in the whole run; more than the bare loop's would be recompilations.

Each round starts a fresh process for every contestant. They take turns, 15 steps at a time, with all but one asleep; 10
steps of a turn are timed. The ratio is the median over the turns of the quotient with the mode's bare loop in the same
turn; of the rounds, the median is reported, and their range. Processes that run the same code differ by a per cent or
two, so it takes several rounds to see less. Few turns write a row of metrics.csv, so the median leaves that out:
step_overhead.py counts it.

The time is that of the processor, which is the same as the clock's for one thread that never waits, but does not count
what other programs take from it: per cents drown in that. torch.compile keeps its C++ code in a cache on the disk:
only the first run on a machine waits for the compiler, half a minute, and all contestants run the same code.
"""

from __future__ import annotations

import argparse
import functools
import json
import os
import statistics
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import common

if TYPE_CHECKING:
    from collections.abc import Callable

    import torch
    from torch.utils.data import DataLoader

os.environ["TORCHINDUCTOR_COMPILE_THREADS"] = "1"  # in the process itself: no pool of workers beside it

LAYERS, WIDTH, HEADS, TOKENS, LENGTH, BATCH = 2, 64, 4, 64, 16, 4
LEAD = 5  # steps of a turn that are not timed
TIMED = 10  # steps of a turn that are: short, so that those compared are close in time


@dataclass(frozen=True)
class Contestant:
    mode: str  # "eager" or "compiled"
    in_module: bool = False  # GPUlayer, or a bare loop
    compiles: str | None = None  # what torch.compile is given: "network" or "module"
    logs: bool = False


CONTESTANTS = {
    "bare": Contestant("eager"),
    "control": Contestant("eager"),
    "gpulayer": Contestant("eager", in_module=True),
    "gpulayer+log": Contestant("eager", in_module=True, logs=True),
    "compiled": Contestant("compiled", compiles="network"),
    "compiled control": Contestant("compiled", compiles="network"),
    "module": Contestant("compiled", in_module=True, compiles="module"),
    "module+log": Contestant("compiled", in_module=True, compiles="module", logs=True),
    "network": Contestant("compiled", in_module=True, compiles="network"),
    "network+log": Contestant("compiled", in_module=True, compiles="network", logs=True),
}
BASES = {"eager": "bare", "compiled": "compiled"}


# ---- the work --------------------------------------------------------------------------------------------------------


def transformer() -> torch.nn.Module:
    """A causal language model; called with tokens, it returns the loss of predicting each from those before it."""
    import torch
    from torch import nn

    class Transformer(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            layer = nn.TransformerEncoderLayer(WIDTH, HEADS, 4 * WIDTH, dropout=0.0, batch_first=True, norm_first=True)
            self.tokens = nn.Embedding(TOKENS, WIDTH)
            self.positions = nn.Parameter(torch.zeros(LENGTH, WIDTH))
            self.layers = nn.TransformerEncoder(layer, LAYERS, enable_nested_tensor=False)
            self.head = nn.Linear(WIDTH, TOKENS)
            self.register_buffer("mask", nn.Transformer.generate_square_subsequent_mask(LENGTH))

        def forward(self, batch: torch.Tensor) -> torch.Tensor:
            hidden = self.tokens(batch[:, :-1]) + self.positions
            hidden = self.layers(hidden, mask=self.mask, is_causal=True)
            return nn.functional.cross_entropy(self.head(hidden).flatten(0, 1), batch[:, 1:].flatten())

    torch.manual_seed(0)
    return Transformer()


def adamw(module: torch.nn.Module) -> torch.optim.Optimizer:
    import torch

    return torch.optim.AdamW(module.parameters(), lr=1e-3)


def bare(contestant: Contestant, loader: DataLoader) -> None:
    import torch

    network = transformer()
    optimizer = adamw(network)
    if contestant.compiles:
        network = torch.compile(network)
    for batch in loader:
        optimizer.zero_grad()
        loss = network(batch)
        loss.backward()
        optimizer.step()


def gpulayer(contestant: Contestant, loader: DataLoader) -> None:
    import torch

    import gpulayer.pytorch as L
    from gpulayer.pytorch.loggers import CSVLogger

    class Model(L.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            network = transformer()
            self.network = torch.compile(network) if contestant.compiles == "network" else network

        def training_step(self, batch: torch.Tensor, batch_idx: int) -> torch.Tensor:
            return self.network(batch)

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return adamw(self)

    class Logs(Model):
        def training_step(self, batch: torch.Tensor, batch_idx: int) -> torch.Tensor:
            loss = self.network(batch)
            self.log("loss", loss)
            return loss

    module = Logs() if contestant.logs else Model()
    trainer = L.Trainer(
        accelerator="cpu",
        devices=1,
        max_epochs=1,
        logger=CSVLogger("."),
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(torch.compile(module) if contestant.compiles == "module" else module, loader)


# ---- one measurement, and all of them --------------------------------------------------------------------------------

Measured = dict[str, Any]  # "microseconds_a_step": a number for each turn; "graphs": how many were compiled


def measure(name: str, turns: int, pause: Callable[[], object] = lambda: None) -> Measured:
    """Train; `pause` returns when it is this process's turn."""
    import torch
    from torch._dynamo.utils import counters
    from torch.utils.data import DataLoader

    torch.set_num_threads(1)
    tokens = torch.randint(TOKENS, (BATCH, LENGTH + 1), generator=torch.Generator().manual_seed(0))
    clock = common.Clock(tokens, turns, LEAD, TIMED, pause, now=time.process_time)
    contestant = CONTESTANTS[name]
    (gpulayer if contestant.in_module else bare)(contestant, DataLoader(clock, batch_size=None))
    return {"microseconds_a_step": clock.microseconds, "graphs": counters["stats"]["unique_graphs"]}


def ratios(rounds: list[dict[str, Measured]], name: str, base: str) -> list[float]:
    """For each round, the median over the turns of the quotient with the bare loop in the same turn."""
    pairs = [(r[name]["microseconds_a_step"], r[base]["microseconds_a_step"]) for r in rounds]
    return [statistics.median(a / b for a, b in zip(ours, theirs, strict=True)) for ours, theirs in pairs]


def report(rounds: list[dict[str, Measured]]) -> str:
    rows = []
    for name in rounds[0]:
        step = statistics.median(statistics.median(r[name]["microseconds_a_step"]) for r in rounds)
        graphs = max(r[name]["graphs"] for r in rounds)
        row = [name, f"{step / 1000:.3f}", "", "", str(graphs)]
        base = BASES[CONTESTANTS[name].mode]
        if name != base:
            each = ratios(rounds, name, base)
            row[2:4] = f"{statistics.median(each) - 1:+.1%}", f"{min(each) - 1:+.1%} to {max(each) - 1:+.1%}"
        rows.append(row)
    return common.table(("contestant", "CPU ms a step", "above the bare loop", "range of the rounds", "graphs"), rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--contestants", nargs="+", choices=CONTESTANTS, default=list(CONTESTANTS), metavar="NAME")
    parser.add_argument("--rounds", type=int, default=2, help="how often fresh processes are started")
    parser.add_argument("--steps", type=int, default=400, help="timed steps of each process, after the warm-up")
    parser.add_argument("--write", action="store_true", help="write the results into benchmarks/results")
    parser.add_argument("--child", choices=CONTESTANTS, metavar="NAME", help="take one measurement, print JSON")
    options = parser.parse_args()
    if options.rounds < 1 or options.steps < TIMED:
        parser.error(f"at least --rounds 1 and --steps {TIMED}, which is one turn, are needed")
    turns = options.steps // TIMED
    if options.child:
        print(json.dumps(measure(options.child, turns)))
        return

    chosen = {*options.contestants, *(BASES[CONTESTANTS[name].mode] for name in options.contestants)}
    jobs = {name: functools.partial(measure, name, turns) for name in CONTESTANTS if name in chosen}
    rounds = [common.take_turns(jobs, f"{i + 1}/{options.rounds}") for i in range(options.rounds)]
    table = report(rounds)
    print(table)
    if options.write:
        common.write("compile", table, {"rounds": options.rounds, "steps": options.steps, "measurements": rounds})


if __name__ == "__main__":
    main()

"""What a step costs beyond PyTorch itself: a bare loop, GPUlayer, Lightning, Ignite and Accelerate on the same work.

    python benchmarks/step_overhead.py                                          # everything, about 10 minutes
    python benchmarks/step_overhead.py --frameworks gpulayer --cases one_log    # two processes, half a minute
    python benchmarks/step_overhead.py --write                                  # also into results/
    python benchmarks/step_overhead.py --child gpulayer one_log                 # one alone, as JSON: for a profiler

The model is one `Linear(4, 1)` trained with SGD on the CPU with one thread, so that nearly all the time is Python.

Each round starts a fresh process for every framework. They take turns, 150 steps at a time, with all but one asleep,
because a machine's speed drifts by more in a second than the differences sought here. The first 50 steps of a turn warm
the caches again, the other 100 are timed. An overhead is the median over the turns of the difference to the bare loop
in the same turn; of the rounds, the median is reported, and their range. `control` is the bare loop once more: what it
shows instead of 0.0 is the error of all the numbers.

One clock for all: the dataset looks at the time when it is asked for a batch. What is timed is the framework's own
loop, whatever it does between two batches; set-up, the end of the epoch and teardown lie outside.

Left on, because a user has it on: the garbage collector, and each library's own logging. Every 50 steps, what was
logged goes to a metrics.csv, which is the default of GPUlayer, and of Lightning where tensorboard is not installed (the
logger is named here, so that the result does not depend on that). Off: progress bar, model summary, checkpoints. Ignite
and Accelerate leave logging to the user: they get the few lines that keep the same numbers and write the same rows. The
bare loop logs nothing in any case.

The bare loop does all the arithmetic of its case: it divides and accumulates, clips, or runs in autocast, as the others
do, so that only what a framework adds to it is counted. A step is one batch, also where four share an optimizer step.
Some cases leave out a framework that gives the user nothing for them: its numbers are those of `nothing`.

A new case is a line in CASES, and a branch in each framework where it differs.
"""

from __future__ import annotations

import argparse
import csv
import functools
import importlib
import json
import statistics
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import common

if TYPE_CHECKING:
    from collections.abc import Callable

    import torch
    from torch.utils.data import DataLoader

LEAD = 50  # steps of a turn that are not timed
TIMED = 100  # steps of a turn that are: always two log points, and one flush of Lightning's CSVLogger
LOG_EVERY = 50  # steps; the default of GPUlayer and of Lightning


@dataclass(frozen=True)
class Case:
    about: str
    logs: int = 0  # calls of self.log in a step; the second is a mean over the epoch, too, and shown in the bar
    validate: bool = False  # measure batches of the validation loop instead of training steps
    manual: bool = False  # the module steps its optimizer itself
    accumulate: int = 1  # batches that share an optimizer step
    clip: float | None = None  # the norm that gradients are clipped to
    precision: str = "32-true"
    without: tuple[str, ...] = ()  # frameworks that are left out


CASES = {
    "nothing": Case("training step, nothing logged"),
    "one_log": Case('training step, self.log("loss", loss)', logs=1),
    "two_logs": Case("training step, two logs, one of them on_step, on_epoch and prog_bar", logs=2),
    "validation": Case("validation batch, one self.log", logs=1, validate=True),
    "manual": Case("training step, manual optimization", manual=True, without=("ignite", "accelerate")),
    "accumulation": Case("training batch, accumulate_grad_batches=4", accumulate=4, without=("ignite",)),
    "clipping": Case("training step, gradient_clip_val=1.0", clip=1.0, without=("ignite",)),
    "bf16_mixed": Case('training step, precision="bf16-mixed"', precision="bf16-mixed", without=("ignite",)),
}


# ---- the work: the same for everyone ---------------------------------------------------------------------------------


def model() -> torch.nn.Module:
    import torch

    torch.manual_seed(0)
    return torch.nn.Linear(4, 1)


def sgd(module: torch.nn.Module) -> torch.optim.Optimizer:
    import torch

    return torch.optim.SGD(module.parameters(), lr=0.01)


def loss_of(network: torch.nn.Module, batch: torch.Tensor) -> torch.Tensor:
    return network(batch).square().mean()


class Rows:
    """The logging that Ignite and Accelerate leave to the user: a row of metrics.csv at every log point."""

    def __init__(self) -> None:
        self.file = Path("metrics.csv").open("w", newline="")  # noqa: SIM115 - closed with the process
        self.writer = csv.writer(self.file)

    def write(self, step: int, *tensors: torch.Tensor) -> None:
        self.writer.writerow([step, *(tensor.item() for tensor in tensors)])
        self.file.flush()


# ---- the frameworks --------------------------------------------------------------------------------------------------


def bare(case: Case, loader: DataLoader) -> None:
    import torch

    network = model()
    optimizer = sgd(network)
    if case.validate:
        network.eval()
        with torch.no_grad():
            for batch in loader:
                loss = loss_of(network, batch)
    elif case.accumulate > 1:
        for i, batch in enumerate(loader, start=1):
            loss = loss_of(network, batch) / case.accumulate
            loss.backward()
            if i % case.accumulate == 0:
                optimizer.step()
                optimizer.zero_grad()
    elif case.clip is not None:
        for batch in loader:
            optimizer.zero_grad()
            loss = loss_of(network, batch)
            loss.backward()
            torch.nn.utils.clip_grad_norm_(network.parameters(), case.clip)
            optimizer.step()
    elif case.precision == "bf16-mixed":
        for batch in loader:
            optimizer.zero_grad()
            with torch.autocast("cpu", dtype=torch.bfloat16, cache_enabled=False):
                loss = loss_of(network, batch)
            loss.backward()
            optimizer.step()
    else:  # manual optimization has the same lines
        for batch in loader:
            optimizer.zero_grad()
            loss = loss_of(network, batch)
            loss.backward()
            optimizer.step()


def trainer(library: str, case: Case, loader: DataLoader) -> None:
    """GPUlayer and Lightning: the same lines, as the import is the only difference."""
    L = importlib.import_module(f"{library}.pytorch")
    CSVLogger = importlib.import_module(f"{library}.pytorch.loggers").CSVLogger

    class Nothing(L.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.network = model()

        def training_step(self, batch: torch.Tensor, batch_idx: int) -> torch.Tensor:
            return loss_of(self.network, batch)

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return sgd(self)

    class OneLog(Nothing):
        def training_step(self, batch: torch.Tensor, batch_idx: int) -> torch.Tensor:
            loss = loss_of(self.network, batch)
            self.log("loss", loss)
            return loss

        def validation_step(self, batch: torch.Tensor, batch_idx: int) -> None:
            self.log("val_loss", loss_of(self.network, batch))

    class TwoLogs(Nothing):
        def training_step(self, batch: torch.Tensor, batch_idx: int) -> torch.Tensor:
            loss = loss_of(self.network, batch)
            self.log("loss", loss)
            self.log("mean_loss", loss, on_step=True, on_epoch=True, prog_bar=True)
            return loss

    class Manual(Nothing):
        def __init__(self) -> None:
            super().__init__()
            self.automatic_optimization = False

        def training_step(self, batch: torch.Tensor, batch_idx: int) -> None:
            optimizer = self.optimizers()
            optimizer.zero_grad()
            loss = loss_of(self.network, batch)
            self.manual_backward(loss)
            optimizer.step()

    module = Manual() if case.manual else (Nothing, OneLog, TwoLogs)[case.logs]()
    run = L.Trainer(
        accelerator="cpu",
        devices=1,
        max_epochs=1,
        precision=case.precision,
        accumulate_grad_batches=case.accumulate,
        gradient_clip_val=case.clip,
        logger=CSVLogger("."),
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    if case.validate:
        run.validate(module, loader, verbose=False)
    else:
        run.fit(module, loader)


def gpulayer(case: Case, loader: DataLoader) -> None:
    trainer("gpulayer", case, loader)


def lightning(case: Case, loader: DataLoader) -> None:
    trainer("lightning", case, loader)


def ignite(case: Case, loader: DataLoader) -> None:
    import torch
    from ignite.engine import Engine, Events
    from ignite.metrics import Average

    network = model()
    optimizer = sgd(network)

    def train_step(engine: Engine, batch: torch.Tensor) -> torch.Tensor:
        network.train()
        optimizer.zero_grad()
        loss = loss_of(network, batch)
        loss.backward()
        optimizer.step()
        return loss.detach()

    def validation_step(engine: Engine, batch: torch.Tensor) -> torch.Tensor:
        network.eval()
        with torch.no_grad():
            return loss_of(network, batch)

    engine = Engine(validation_step if case.validate else train_step)
    if case.logs == 2 or case.validate:
        Average().attach(engine, "mean_loss")
    if case.logs and not case.validate:
        rows = Rows()

        @engine.on(Events.ITERATION_COMPLETED(every=LOG_EVERY))
        def log(engine: Engine) -> None:
            rows.write(engine.state.iteration, *[engine.state.output] * case.logs)

    engine.run(loader, max_epochs=1)


def accelerate(case: Case, loader: DataLoader) -> None:
    import torch
    from accelerate import Accelerator

    precision = "bf16" if case.precision == "bf16-mixed" else "no"
    accelerator = Accelerator(cpu=True, mixed_precision=precision, gradient_accumulation_steps=case.accumulate)
    network = model()
    network, optimizer, loader = accelerator.prepare(network, sgd(network), loader)
    total = torch.zeros(())
    if case.validate:
        network.eval()
        for batch in loader:
            with torch.no_grad():
                total += loss_of(network, batch)
        return
    rows = Rows()
    network.train()
    if case.accumulate > 1:
        for batch in loader:
            with accelerator.accumulate(network):  # it skips the step, and divides the loss
                loss = loss_of(network, batch)
                accelerator.backward(loss)
                optimizer.step()
                optimizer.zero_grad()
        return
    for step, batch in enumerate(loader, start=1):
        optimizer.zero_grad()
        loss = loss_of(network, batch)
        accelerator.backward(loss)
        if case.clip is not None:
            accelerator.clip_grad_norm_(network.parameters(), case.clip)
        optimizer.step()
        if case.logs == 2:
            total += loss.detach()
        if case.logs and step % LOG_EVERY == 0:
            rows.write(step, *[loss] * case.logs)


FRAMEWORKS = {f.__name__: f for f in (bare, gpulayer, lightning, ignite, accelerate)} | {"control": bare}


# ---- one measurement, and all of them --------------------------------------------------------------------------------


def measure(framework: str, case: str, turns: int, pause: Callable[[], object] = lambda: None) -> list[float]:
    """Microseconds a step in each turn; `pause` returns when it is this process's turn."""
    import torch
    from torch.utils.data import DataLoader

    torch.set_num_threads(1)
    clock = common.Clock(torch.ones(2, 4), turns, LEAD, TIMED, pause)
    FRAMEWORKS[framework](CASES[case], DataLoader(clock, batch_size=None))
    return clock.microseconds


Rounds = list[dict[str, list[float]]]  # for each round: framework -> microseconds a step in each turn


def overheads(rounds: Rounds, name: str) -> list[float]:
    """For each round, the median over the turns of the difference to the bare loop in the same turn."""
    return [statistics.median(a - b for a, b in zip(r[name], r["bare"], strict=True)) for r in rounds]


def report(case: str, rounds: Rounds) -> str:
    above = {name: statistics.median(overheads(rounds, name)) for name in rounds[0]}
    rows = []
    for name in rounds[0]:
        step = statistics.median(statistics.median(r[name]) for r in rounds)
        row = [name, f"{step:.1f}", "", "", ""]
        if name != "bare":
            each = overheads(rounds, name)
            row[2:4] = f"{above[name]:+.1f}", f"{min(each):+.1f} to {max(each):+.1f}"
            if "lightning" in above and name not in ("lightning", "control"):
                row[4] = f"1/{above['lightning'] / above[name]:.1f}" if above[name] > 0 else "0"
        rows.append(row)
    header = ("framework", "us a step", "above the bare loop", "range of the rounds", "of Lightning's")
    return f"## {case}: {CASES[case].about}\n\n{common.table(header, rows)}\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--frameworks", nargs="+", choices=FRAMEWORKS, default=list(FRAMEWORKS), metavar="NAME")
    parser.add_argument("--cases", nargs="+", choices=CASES, default=list(CASES), metavar="NAME")
    parser.add_argument("--rounds", type=int, default=3, help="how often fresh processes are started")
    parser.add_argument("--steps", type=int, default=3000, help="timed steps of each process, after the warm-up")
    parser.add_argument("--write", action="store_true", help="write the results into benchmarks/results")
    parser.add_argument("--child", nargs=2, metavar=("FRAMEWORK", "CASE"), help="take one measurement, print JSON")
    options = parser.parse_args()
    if options.rounds < 1 or options.steps < TIMED:
        parser.error(f"at least --rounds 1 and --steps {TIMED}, which is one turn, are needed")
    turns = options.steps // TIMED
    if options.child:
        print(json.dumps(measure(*options.child, turns)))
        return

    names = common.frameworks(options.frameworks)
    raw: dict[str, Rounds] = {}
    reports = []
    for case in options.cases:
        taking_part = [name for name in names if name not in CASES[case].without]
        jobs = {name: functools.partial(measure, name, case, turns) for name in taking_part}
        raw[case] = [common.take_turns(jobs, f"{case} {i + 1}/{options.rounds}") for i in range(options.rounds)]
        reports.append(report(case, raw[case]))
        print(reports[-1], flush=True)
    if options.write:
        subset = "" if options.cases == list(CASES) else "-" + "-".join(options.cases)
        settings = {"rounds": options.rounds, "steps": options.steps, "microseconds_a_step": raw}
        common.write(f"step_overhead{subset}", "\n".join(reports), settings)


if __name__ == "__main__":
    main()

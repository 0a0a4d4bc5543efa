"""How long a run that goes on late in a shuffled epoch takes to get there, beyond what any run takes to begin.

    python benchmarks/resume.py                       # about 3 minutes
    python benchmarks/resume.py --rounds 10 --write

The dataset has ten million samples, shuffled, in batches of 32; by the checkpoint 100,000 batches are done, which
is 3.2 million samples. `begin` is the time from the call of `fit` to the first training step of a run from the start,
in which the order of the ten million is drawn, too; `go on` is the same time of a resumed run, with loading the
checkpoint; `passing over` is the difference in the same round. `samples loaded` are those that the dataset was asked
for in this process before the first step: one batch, or none where workers load. `batches` is a batch sampler of the
user's own, of which nothing but its batches is known. Each is the second run of its process, for the first one loads
parts of torch. Fresh processes in alternating rounds; medians.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import common

CASES = ("shuffled", "workers", "batches")
SAMPLES, SIZE, DONE = 10_000_000, 32, 100_000


def child(contestant: str) -> common.Measurement:
    case, kind = contestant.split()
    resumed = kind == "resumed"

    import torch
    from torch.utils.data import DataLoader, Dataset

    import gpulayer.pytorch as L

    class Counted(Dataset):
        loaded = 0

        def __len__(self) -> int:
            return SAMPLES

        def __getitem__(self, index: int) -> torch.Tensor:
            self.loaded += 1
            return torch.zeros(4)

    class Batches:
        def __len__(self) -> int:
            return SAMPLES // SIZE

        def __iter__(self) -> Iterator[list[int]]:
            order = torch.randperm(SAMPLES)
            return (batch.tolist() for batch in order.split(SIZE))

    class Model(L.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net = torch.nn.Linear(4, 1)

        def training_step(self, batch: torch.Tensor, batch_idx: int) -> torch.Tensor:
            if not first:
                first.append(time.perf_counter())
                loaded.append(dataset.loaded)
            return self.net(batch).square().mean()

        def on_train_batch_end(self, *_: Any) -> None:
            if not Path("saved.ckpt").exists():
                self.trainer.save_checkpoint("saved.ckpt")
            self.trainer.should_stop = True

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return torch.optim.SGD(self.parameters(), lr=0.1)

    def run(path: str | None = None) -> float:
        first.clear()
        dataset.loaded = 0
        L.seed_everything(0, verbose=False)
        arguments: dict[str, Any] = {"batch_size": SIZE, "shuffle": True, "num_workers": 2 * (case == "workers")}
        loader = DataLoader(dataset, batch_sampler=Batches()) if case == "batches" else DataLoader(dataset, **arguments)
        trainer = L.Trainer(accelerator="cpu", logger=False, enable_checkpointing=False, enable_model_summary=False)
        start = time.perf_counter()
        trainer.fit(Model(), loader, ckpt_path=path)
        return first[0] - start

    first: list[float] = []
    loaded: list[int] = []
    dataset = Counted()
    torch.set_num_threads(1)
    run()
    late(Path("saved.ckpt"))
    seconds = run("saved.ckpt" if resumed else None)
    return {"seconds": seconds, "loaded": loaded[-1]}


def late(path: Path) -> None:
    """Make a checkpoint of the first batch say that it is that of batch DONE."""
    import torch

    checkpoint = torch.load(path)
    loop = checkpoint["loops"]["fit_loop"]
    for counts in (loop["epoch_loop.batch_progress"][kind] for kind in ("total", "current")):
        counts.update(dict.fromkeys(("ready", "completed", "started", "processed"), DONE))
    torch.save(checkpoint, path)


def report(results: dict[str, list[common.Measurement]]) -> str:
    rows = []
    for case in CASES:
        begun, gone_on = results[f"{case} begun"], results[f"{case} resumed"]
        rows.append(
            (
                case,
                f"{common.median(begun, 'seconds'):.2f}",
                f"{common.median(gone_on, 'seconds'):.2f}",
                f"{common.above(gone_on, begun, 'seconds'):+.2f}",
                f"{common.median(gone_on, 'loaded'):.0f}",
            )
        )
    return common.table(("loader", "begin, s", "go on, s", "passing over, s", "samples loaded"), rows)


if __name__ == "__main__":
    both = [f"{case} {kind}" for case in CASES for kind in ("begun", "resumed")]
    common.compare("resume", child, report, __file__, __doc__.splitlines()[0], rounds=5, contestants=both)

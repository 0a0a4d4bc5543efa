"""How long a training step waits for a checkpoint: 25 million parameters with Adam, 300 MB, saved every 5 steps.

    python benchmarks/checkpoint_stall.py                                              # about 20 minutes
    python benchmarks/checkpoint_stall.py --contestants torch.save gpulayer-async      # about 7 minutes
    python benchmarks/checkpoint_stall.py --rounds 5 --write

Each process trains by turns without saving and with: the newest checkpoint is kept, the one before deleted. A step is
the time from the start of its forward pass to that of the next. `torch.save` is a bare loop that calls it; `durable` is
one whose file is flushed to the disk and renamed, which is what GPUlayer does. Fresh processes in alternating rounds;
medians over the turns and rounds, each in comparison with the steps without saving of its own turn.
"""

from __future__ import annotations

import importlib
import itertools
import os
import statistics
import time
from typing import Any

import common

CONTESTANTS = ("torch.save", "durable", "gpulayer", "gpulayer-async", "lightning", "lightning-async")
WIDTH, LAYERS, BATCH = 1000, 25, 96  # 25.025 million parameters; a step of about 0.3 s
TURNS, WARM_UP, WITHOUT, SAVES, EVERY = 3, 2, 8, 4, 5  # of a process; of a turn, in steps, checkpoints, steps


def child(contestant: str) -> common.Measurement:
    import torch
    from torch import nn

    torch.set_num_threads(1)
    torch.manual_seed(0)
    network = nn.Sequential(*(nn.Linear(WIDTH, WIDTH) for _ in range(LAYERS)))
    data = torch.randn(BATCH, WIDTH)
    starts: list[float] = []

    def loss_of(batch: Any) -> Any:
        starts.append(time.perf_counter())
        return network(batch).square().mean()

    train = bare if contestant in ("torch.save", "durable") else trainer
    turns = []
    for _ in range(TURNS):
        starts.clear()
        train(contestant, network, loss_of, [data] * (WARM_UP + WITHOUT + 1), saving=False)
        without = statistics.mean(steps(starts)[WARM_UP:])
        starts.clear()
        train(contestant, network, loss_of, [data] * (SAVES * EVERY + 1), saving=True)
        taken = steps(starts)
        saves = taken[EVERY - 1 :: EVERY]
        others = [step for number, step in enumerate(taken) if number >= WARM_UP and (number + 1) % EVERY]
        turns.append(
            {
                "without": without,
                "longest": max(saves) - without,
                "typical": statistics.median(saves) - without,
                "others": statistics.mean(others) / without,
                "longest_other": max(others) - without,
            }
        )
    return {name: statistics.median(turn[name] for turn in turns) for name in turns[0]}


def steps(starts: list[float]) -> list[float]:
    return [after - before for before, after in itertools.pairwise(starts)]


def bare(contestant: str, network: Any, loss_of: Any, batches: list[Any], saving: bool) -> None:
    import torch

    optimizer = torch.optim.Adam(network.parameters(), lr=1e-4)
    previous = ""
    for number, batch in enumerate(batches, 1):
        optimizer.zero_grad()
        loss_of(batch).backward()
        optimizer.step()
        if saving and number % EVERY == 0:
            path = f"step={number}.ckpt"
            state = {"state_dict": network.state_dict(), "optimizer_states": [optimizer.state_dict()]}
            if contestant == "durable":
                torch.save(state, "part")
                flush("part")
                os.replace("part", path)
                flush(".")
            else:
                torch.save(state, path)
            if previous:
                os.remove(previous)
            previous = path


def flush(path: str) -> None:
    handle = os.open(path, os.O_RDONLY)
    os.fsync(handle)
    os.close(handle)


def trainer(contestant: str, network: Any, loss_of: Any, batches: list[Any], saving: bool) -> None:
    import torch
    from torch.utils.data import DataLoader

    library, _, background = contestant.partition("-")
    pl = importlib.import_module(f"{library}.pytorch")
    plugins = importlib.import_module(f"{library}.pytorch.plugins")

    class Model(pl.LightningModule):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.network = network

        def training_step(self, batch: Any, batch_idx: int) -> Any:
            return loss_of(batch)

        def configure_optimizers(self) -> Any:
            return torch.optim.Adam(self.parameters(), lr=1e-4)

    saver = pl.callbacks.ModelCheckpoint("checkpoints", "{step}", every_n_train_steps=EVERY)
    pl.Trainer(
        max_epochs=1,
        accelerator="cpu",
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        enable_checkpointing=saving,
        callbacks=[saver] if saving else [],
        plugins=[plugins.AsyncCheckpointIO()] if background else [],
    ).fit(Model(), DataLoader(batches, batch_size=None))  # type: ignore[arg-type]


COLUMNS = {  # how each is written, and what it is
    "without": ("{:.3f}", "a step without, s"),
    "longest": ("{:+.3f}", "longest with a save, s"),
    "typical": ("{:+.3f}", "typical with a save, s"),
    "others": ("{:.2f}", "other steps, times as long"),
    "longest_other": ("{:+.3f}", "longest of them, s"),
}


def report(results: dict[str, list[common.Measurement]]) -> str:
    rows = [
        [name, *(text.format(common.median(own, key)) for key, (text, _) in COLUMNS.items())]
        for name, own in results.items()
    ]
    return common.table(["", *(title for _, title in COLUMNS.values())], rows)


if __name__ == "__main__":
    common.compare(
        "checkpoint_stall", child, report, __file__, __doc__.splitlines()[0], rounds=5, contestants=CONTESTANTS
    )

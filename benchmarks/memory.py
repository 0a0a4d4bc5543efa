"""What a run needs in memory at its peak beyond a bare loop: 25 million parameters, Adam, a few steps on the CPU.

    python benchmarks/memory.py                        # about 2 minutes
    python benchmarks/memory.py --rounds 5 --write

The peak resident set of the whole process is measured, so the modules that a library imports count, too. `fit` runs
metrics.csv as its log, without a progress bar, model summary and checkpoints. Fresh processes in alternating rounds;
medians.
"""

from __future__ import annotations

import importlib
import resource
import sys

import common

# 2 x (3535 x 3535 + 3535) = 25.0 million parameters. A weight is 50 MB: glibc gives what is larger than 32 MB back at
# once, while smaller ones stay in its heap now and then, which moved the bare loop between 720 and 800 MB.
WIDTH, LAYERS, STEPS = 3535, 2, 5


def child(framework: str) -> common.Measurement:
    import torch
    from torch import nn
    from torch.utils.data import DataLoader

    torch.set_num_threads(1)
    torch.manual_seed(0)
    loader = DataLoader([torch.ones(8, WIDTH)] * STEPS, batch_size=None)

    def stack() -> nn.Module:
        return nn.Sequential(*(nn.Linear(WIDTH, WIDTH) for _ in range(LAYERS)))

    def adam(module: nn.Module) -> torch.optim.Optimizer:
        return torch.optim.Adam(module.parameters(), lr=1e-4)

    if framework == "bare":
        network = stack()
        optimizer = adam(network)
        for batch in loader:
            optimizer.zero_grad()
            loss = network(batch).square().mean()
            loss.backward()
            optimizer.step()
    else:
        L = importlib.import_module(f"{framework}.pytorch")
        CSVLogger = importlib.import_module(f"{framework}.pytorch.loggers").CSVLogger

        class Model(L.LightningModule):
            def __init__(self) -> None:
                super().__init__()
                self.network = stack()

            def training_step(self, batch: torch.Tensor, batch_idx: int) -> torch.Tensor:
                loss = self.network(batch).square().mean()
                self.log("loss", loss)
                return loss

            def configure_optimizers(self) -> torch.optim.Optimizer:
                return adam(self)

        L.Trainer(
            accelerator="cpu",
            max_epochs=1,
            logger=CSVLogger("."),
            enable_checkpointing=False,
            enable_progress_bar=False,
            enable_model_summary=False,
        ).fit(Model(), loader)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss  # kilobytes; on macOS bytes
    return {"peak_mb": peak / (1024**2 if sys.platform == "darwin" else 1024)}


def report(results: dict[str, list[common.Measurement]]) -> str:
    base = common.median(results["bare"], "peak_mb")
    rows = [
        (
            name,
            f"{common.median(r, 'peak_mb'):.0f}",
            "" if name == "bare" else f"{(more := common.above(r, results['bare'], 'peak_mb')):+.0f}",
            "" if name == "bare" else f"{more / base:+.1%}",
        )
        for name, r in results.items()
    ]
    return common.table(("framework", "peak, MB", "above the bare loop, MB", "in per cent"), rows)


if __name__ == "__main__":
    common.compare("memory", child, report, __file__, __doc__.splitlines()[0], rounds=5)

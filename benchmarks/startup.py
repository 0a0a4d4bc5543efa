"""What a user waits for before the first step is done: the import, and the set-up of a run.

    python benchmarks/startup.py                       # about 2 minutes
    python benchmarks/startup.py --rounds 20 --write

`import`: seconds for `import gpulayer.pytorch` (or `lightning.pytorch`) in a process that has imported torch.
`first step`: milliseconds from there to the end of the first optimizer step: model, loader, Trainer and `fit`, with
metrics.csv as its log and a checkpoint each epoch, as is the default, but without a progress bar and model summary. It
is compared with a bare loop in the same round. Constructing the first optimizer of a process loads torch._dynamo (about
a second in torch 2.13): every contestant does it before the clock starts, or its noise would hide everything else.

Fresh processes in alternating rounds; medians.
"""

from __future__ import annotations

import importlib
import time

import common


def child(framework: str) -> common.Measurement:
    import torch
    from torch.utils.data import DataLoader

    start = time.perf_counter()
    if framework != "bare":
        L = importlib.import_module(f"{framework}.pytorch")
        CSVLogger = importlib.import_module(f"{framework}.pytorch.loggers").CSVLogger
    imported = time.perf_counter() - start

    torch.optim.SGD([torch.zeros(1)])
    torch.set_num_threads(1)
    ends: list[float] = []

    def sgd(module: torch.nn.Module) -> torch.optim.Optimizer:
        optimizer = torch.optim.SGD(module.parameters(), lr=0.01)
        optimizer.register_step_post_hook(lambda *_: ends.append(time.perf_counter()))
        return optimizer

    start = time.perf_counter()
    loader = DataLoader([torch.ones(2, 4)] * 3, batch_size=None)
    if framework == "bare":
        network = torch.nn.Linear(4, 1)
        optimizer = sgd(network)
        for batch in loader:
            optimizer.zero_grad()
            loss = network(batch).square().mean()
            loss.backward()
            optimizer.step()
    else:

        class Model(L.LightningModule):
            def __init__(self) -> None:
                super().__init__()
                self.network = torch.nn.Linear(4, 1)

            def training_step(self, batch: torch.Tensor, batch_idx: int) -> torch.Tensor:
                return self.network(batch).square().mean()

            def configure_optimizers(self) -> torch.optim.Optimizer:
                return sgd(self)

        L.Trainer(
            accelerator="cpu",
            max_epochs=1,
            logger=CSVLogger("."),
            enable_progress_bar=False,
            enable_model_summary=False,
        ).fit(Model(), loader)
    return {"import_s": imported, "first_step_ms": 1e3 * (ends[0] - start)}


def report(results: dict[str, list[common.Measurement]]) -> str:
    rows = [
        (
            name,
            "" if name == "bare" else f"{common.median(r, 'import_s'):.2f}",
            f"{common.median(r, 'first_step_ms'):.1f}",
            "" if name == "bare" else f"{common.above(r, results['bare'], 'first_step_ms'):+.1f}",
        )
        for name, r in results.items()
    ]
    return common.table(("framework", "import, s above torch", "first step, ms", "above the bare loop, ms"), rows)


if __name__ == "__main__":
    common.compare("startup", child, report, __file__, __doc__.splitlines()[0], rounds=10)

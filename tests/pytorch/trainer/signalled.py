"""Programs in processes of their own, to be sent signals, and a model whose runs can be compared bit for bit.

Programs start from a process that has torch loaded already, and end as any script does: exit codes are real.
"""

from __future__ import annotations

import gc
import hashlib
import io
import json
import os
import signal
import subprocess
import sys
import time
import traceback
import warnings
from collections.abc import Mapping
from contextlib import redirect_stderr, redirect_stdout
from functools import cache, partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NoReturn

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset, get_worker_info

import gpulayer.pytorch as L
from gpulayer.pytorch.callbacks import ModelCheckpoint
from gpulayer.pytorch.plugins import AsyncCheckpointIO

ROOT = Path(__file__).parents[3]
PATH = f"{ROOT}{os.pathsep}{ROOT / 'src'}"

# -- the processes ----------------------------------------------------------------------------------------------------


def serve() -> str:
    """Start the programs that are asked for, one after the other, and tell their process ids and exit statuses.

    Returns:
        In the process of a program its code; elsewhere nothing, at the end.
    """
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    with TemporaryDirectory() as folder, redirect_stdout(io.StringIO()), redirect_stderr(io.StringIO()):
        # What training imports late, it would import in each program.
        a_trainer(max_epochs=1, callbacks=[ModelCheckpoint(folder)]).fit(Model(), data())
    gc.freeze()  # or each program would copy it all at its end, to look through it
    for line in sys.stdin:
        child = os.fork()
        if not child:
            request = json.loads(line)
            os.setsid()
            place = os.open(request["output"], os.O_RDWR | os.O_CREAT)  # a terminal becomes that of this process
            for descriptor in range(3):
                os.dup2(place, descriptor)
            sys.stdin, sys.stdout = os.fdopen(0), os.fdopen(1, "w", buffering=1)
            sys.stderr = os.fdopen(2, "w", buffering=1)
            os.environ.update(request["environment"])
            os.chdir(request["folder"])
            code = f"from {__name__} import *\n{request['code']}"
            if not request["at_once"]:
                return code
            end_at_once(code)
        print(child, flush=True)
        print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
    return ""


def end_at_once(code: str) -> NoReturn:
    """Run a program, and leave out what Python does at its end, which takes four times as long as a short training."""
    status: Any = 0
    try:
        exec(compile(code, "program.py", "exec"), {})
    except SystemExit as error:
        status = error.code
    except BaseException:
        traceback.print_exc()
        status = 1
    os._exit(status)


@cache
def server() -> subprocess.Popen[str]:
    """The process that starts programs."""
    code = f"from {__name__} import serve\nexec(compile(serve(), 'program.py', 'exec'))"
    environment = {name: value for name, value in os.environ.items() if not name.startswith("SLURM_")}
    return subprocess.Popen(
        [sys.executable, "-c", code],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env={**environment, "PYTHONPATH": PATH},
    )  # fmt: skip


class Program:
    """A program that runs in `folder`, with its output in a file there or on a terminal.

    Args:
        code: the program; it has the names of this module.
        folder: where it runs.
        terminal: the terminal to run in.
        environment: variables beside those of this process.
        at_once: see `end_at_once`.
    """

    def __init__(
        self,
        code: str,
        folder: Path,
        terminal: str | None = None,
        environment: Mapping[str, str] | None = None,
        at_once: bool = False,
    ) -> None:
        self.file = folder / f"output{time.monotonic_ns()}.txt"
        self.file.touch()
        request = {
            "code": code,
            "folder": str(folder),
            "output": terminal or str(self.file),
            "environment": dict(environment or {}),
            "at_once": at_once,
        }
        requests, self.answers = server().stdin, server().stdout
        assert requests is not None
        assert self.answers is not None
        requests.write(json.dumps(request) + "\n")
        requests.flush()
        self.process = int(self.answers.readline())

    @property
    def output(self) -> str:
        """What it has written so far."""
        return self.file.read_text()

    def wait_for(self, text: str, seconds: float = 30) -> None:
        """Until it has written this."""
        until = time.monotonic() + seconds
        while text not in self.output:
            if time.monotonic() > until:
                os.killpg(self.process, signal.SIGKILL)
                raise AssertionError(f"{text!r} was never written:\n{self.output}")
            time.sleep(0.02)

    def end(self) -> int:
        """Wait for its end; its exit status."""
        assert self.answers is not None
        return int(self.answers.readline())


def run(
    code: str, folder: Path, environment: Mapping[str, str] | None = None, at_once: bool = False
) -> tuple[int, str]:
    """A program's exit status and what it wrote."""
    program = Program(code, folder, environment=environment, at_once=at_once)
    return program.end(), program.output


# -- what the programs run --------------------------------------------------------------------------------------------

BATCHES, SIZE = 5, 2


class Noisy(Dataset[Tensor]):
    """Rows, with noise where they are made in the main process; a batch takes `seconds`."""

    def __init__(self, seconds: float = 0.0) -> None:
        self.seconds = seconds

    def __len__(self) -> int:
        return BATCHES * SIZE

    def __getitem__(self, index: int) -> Tensor:
        time.sleep(self.seconds / SIZE)
        noise = torch.rand(4) if get_worker_info() is None else torch.zeros(4)  # a new worker draws anew
        return torch.full((4,), float(index)) / 10 + noise


class Model(L.Module):
    """Dropout, BatchNorm, a scheduler, a validation that draws random numbers; tells each finished step."""

    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Dropout(0.5), nn.Linear(8, 1))

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        loss: Tensor = self.net(batch).square().mean()
        self.log("loss", loss, on_step=True, on_epoch=True)
        print("batch", self.current_epoch, batch_idx)
        return loss

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        self.log("val_loss", self.net(batch).square().mean() + torch.rand(()))
        print("evaluated", batch_idx)

    test_step = validation_step

    def predict_step(self, batch: Any, batch_idx: int) -> Any:
        print("evaluated", batch_idx)
        return batch

    def configure_optimizers(self) -> Any:
        optimizer = torch.optim.AdamW(self.parameters(), lr=0.01)
        return [optimizer], [{"scheduler": torch.optim.lr_scheduler.StepLR(optimizer, 3), "interval": "step"}]


class Ends(L.Callback):
    """Tells how the run ended."""

    def on_exception(self, trainer: Any, pl_module: Any, exception: BaseException) -> None:
        print("on_exception", type(exception).__name__)

    def teardown(self, trainer: Any, pl_module: Any, stage: str) -> None:
        print("teardown")


def send(number: int, group: bool = False) -> None:
    """Send a signal to this process, or to all of its group, as a terminal and SLURM do."""
    print("signal", number)
    (partial(os.killpg, 0) if group else partial(os.kill, os.getpid()))(number)


def at(model: L.Module, hook: str, epoch: int, batch: int | None, do: Any) -> None:
    """Let a hook of the model do something first, in one batch of one epoch."""
    original = getattr(model, hook)

    def call(*args: Any) -> Any:
        if not model.trainer.sanity_checking and model.current_epoch == epoch and (batch is None or args[-1] == batch):
            do()
        return original(*args)

    setattr(model, hook, call)


def data(seconds: float = 0.0, **arguments: Any) -> DataLoader[Tensor]:
    """A loader of five batches."""
    return DataLoader(Noisy(seconds), batch_size=SIZE, **arguments)


def a_trainer(**arguments: Any) -> L.Trainer:
    """A Trainer on the CPU that saves in `saved`."""
    arguments.setdefault("callbacks", [ModelCheckpoint("saved"), Ends()])
    given = {"max_epochs": 3, "accelerator": "cpu", "logger": False, "num_sanity_val_steps": 0, **arguments}
    return L.Trainer(**given)


def train(
    moment: tuple[str, int, int | None] | None = None,
    number: int = signal.SIGTERM,
    group: bool = False,
    loader: Mapping[str, Any] | None = None,
    background: bool = False,
    **arguments: Any,
) -> L.Trainer:
    """A script that trains; the first time that it runs, it gets a signal at a moment; run again, it goes on.

    Args:
        moment: the hook, the epoch and the batch.
        number: the signal.
        group: whether all processes of the group get it.
        loader: arguments of the training loader.
        background: whether to save in the background.
        arguments: of the Trainer.
    """
    L.seed_everything(1, verbose=False)
    plugins = [AsyncCheckpointIO()] if background else None
    model, trainer, first = Model(), a_trainer(plugins=plugins, **arguments), Path("first")
    if moment is not None and not first.exists():
        first.touch()
        at(model, *moment, partial(send, number, group))
    trainer.fit(model, data(shuffle=True, **(loader or {})), data(), ckpt_path="last")
    digest = hashlib.sha256(b"".join(value.numpy().tobytes() for value in model.state_dict().values())).hexdigest()
    metrics = {name: value.item() for name, value in trainer.callback_metrics.items()}
    print("ended", trainer.global_step, digest, metrics)
    return trainer

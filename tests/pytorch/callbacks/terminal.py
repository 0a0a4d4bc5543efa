"""A program in a real pseudo-terminal, and the screen that a person would see.

Programs start from a process that has torch loaded already, or a hundredth of this would take as long.
"""

from __future__ import annotations

import errno
import fcntl
import itertools
import json
import logging
import os
import pty
import re
import select
import struct
import subprocess
import sys
import termios
import time
import traceback
import warnings
from collections.abc import Callable, Mapping
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any

import pyte
import torch

from gpulayer.pytorch.callbacks import RichProgressBar, TQDMProgressBar
from tests.pytorch.models import Line, loader, stream, trainer


class Model(Line):
    """Logs to the bar; each batch takes `seconds`."""

    seconds = 0.0

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        time.sleep(self.seconds)
        loss = self.loss(batch)
        self.log("loss", loss.detach() * 0 + 0.25, prog_bar=True)
        return loss

    def validation_step(self, batch: Any, batch_idx: int, dataloader_idx: int = 0) -> None:
        time.sleep(self.seconds)
        self.log(f"score{dataloader_idx or ''}", 1.5, prog_bar=True, add_dataloader_idx=False)

    test_step = validation_step

    def predict_step(self, batch: Any, batch_idx: int, dataloader_idx: int = 0) -> None:
        time.sleep(self.seconds)


NAMES = {
    **{used.__name__: used for used in (RichProgressBar, TQDMProgressBar, Model, loader, stream, trainer)},
    **{used.__name__: used for used in (logging, sys, time, torch)},
}


def program(code: str, output: str, folder: str, environment: Mapping[str, str]) -> None:
    """What a started process does: run `code` with its input and output on a terminal or a file."""
    os.setsid()
    place = os.open(output, os.O_RDWR | os.O_CREAT)  # a terminal becomes that of this process
    for descriptor in range(3):
        os.dup2(place, descriptor)
    sys.stdin, sys.stdout = os.fdopen(0), os.fdopen(1, "w", encoding="utf-8")
    sys.stderr = os.fdopen(2, "w", buffering=1, encoding="utf-8")
    warnings.simplefilter("error")
    os.environ.update({"TERM": "xterm-256color", **environment})
    os.chdir(folder)
    status = 0
    try:
        exec(compile(code, "program.py", "exec"), dict(NAMES))
    except BaseException:
        traceback.print_exc()
        status = 1
    sys.stdout.flush()
    os._exit(status)


def serve() -> None:
    """Start the programs that are asked for, one after the other, and tell the exit status of each."""
    torch.set_num_threads(1)
    for name in ("torch._dynamo", "rich.progress"):  # seconds, otherwise spent in each program
        import_module(name)
    for name in ("FORCE_COLOR", "NO_COLOR", "COLUMNS", "LINES", "TQDM_MINITERS"):
        os.environ.pop(name, None)
    for number, request in enumerate(sys.stdin, 1):
        child = os.fork()
        if not child:
            program(**json.loads(request))
        print(number, os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)


@cache
def server() -> subprocess.Popen[str]:
    """The process that starts programs."""
    root = Path(__file__).parents[3]
    return subprocess.Popen(
        [sys.executable, "-W", "ignore", "-c", f"from {__name__} import serve; serve()"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": f"{root}{os.pathsep}{root / 'src'}"},
    )


NUMBERS = itertools.count(1)


def start(code: str, output: str, folder: Path, environment: Mapping[str, str] | None) -> int:
    """Ask for a program; its number."""
    requests = server().stdin
    assert requests is not None
    request = {"code": code, "output": output, "folder": str(folder), "environment": dict(environment or {})}
    requests.write(json.dumps(request) + "\n")
    requests.flush()
    return next(NUMBERS)


def exit_status(number: int) -> int:
    """Of a program, when it has ended."""
    answers = server().stdout
    assert answers is not None
    ended, status = 0, 0
    while ended != number:
        ended, status = map(int, answers.readline().split())
    return status


class Terminal:
    """Runs a program in a terminal.

    Args:
        code: the program; it has NAMES.
        folder: where it runs.
        columns: of the screen.
        rows: of the screen.
        environment: variables beside those of this process.
    """

    def __init__(
        self, code: str, folder: Path, columns: int = 100, rows: int = 20, environment: Mapping[str, str] | None = None
    ) -> None:
        self.screen = pyte.HistoryScreen(columns, rows, history=1000)
        self.stream = pyte.ByteStream(self.screen)
        self.output = b""
        self.terminal, theirs = pty.openpty()
        self._size(columns, rows)
        self.number = start(code, os.ttyname(theirs), folder, environment)
        self._theirs: int | None = theirs  # until it has written, so that the terminal is not closed before it opens it

    def _size(self, columns: int, rows: int) -> None:
        fcntl.ioctl(self.terminal, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))

    def resize(self, columns: int, rows: int = 20) -> None:
        """The window gets another size."""
        self.screen.resize(rows, columns)
        self._size(columns, rows)

    def press(self, keys: bytes) -> None:
        """As on a keyboard; b"\\x03" is Ctrl+C."""
        os.write(self.terminal, keys)

    @property
    def lines(self) -> list[str]:
        """What is on the screen, and above it where it scrolled."""
        above = ["".join(line[i].data for i in range(self.screen.columns)) for line in self.screen.history.top]
        return [line.rstrip() for line in (*above, *self.screen.display) if line.strip()]

    def matching(self, pattern: str) -> list[str]:
        """The lines in which a pattern is found."""
        return [line for line in self.lines if re.search(pattern, line)]

    def _read(self, seconds: float) -> bool:
        """Take what the program writes; False when it has ended."""
        if not select.select([self.terminal], [], [], seconds)[0]:
            return True
        try:
            written = os.read(self.terminal, 65536)
        except OSError as error:
            if error.errno != errno.EIO:
                raise
            written = b""
        if self._theirs is not None:
            os.close(self._theirs)
            self._theirs = None
        self.output += written
        self.stream.feed(written)
        return bool(written)

    def wait(self, condition: Callable[[], Any], seconds: float = 60) -> None:
        """Until the screen is as expected."""
        until = time.monotonic() + seconds
        while not condition():
            if not self._read(0.2) or time.monotonic() > until:
                os.close(self.terminal)  # which ends the program
                raise AssertionError("this was never seen; the screen at the end:\n" + "\n".join(self.lines))

    def end(self, seconds: float = 60) -> int:
        """Wait for the program's end; its exit status."""
        until = time.monotonic() + seconds
        while self._read(0.2):
            if time.monotonic() > until:
                os.close(self.terminal)
                raise AssertionError("it did not end; the screen:\n" + "\n".join(self.lines))
        os.close(self.terminal)
        return exit_status(self.number)


def run(code: str, folder: Path, columns: int = 100, environment: Mapping[str, str] | None = None) -> Terminal:
    """A program's terminal after its end, which must be a good one."""
    terminal = Terminal(code, folder, columns, environment=environment)
    assert terminal.end() == 0, "\n".join(terminal.lines)
    return terminal


def written(code: str, folder: Path, environment: Mapping[str, str] | None = None) -> str:
    """What a program writes into a file."""
    file = folder / "output.txt"
    number = start(code, str(file), folder, environment)
    assert exit_status(number) == 0, file.read_text()
    return file.read_text()

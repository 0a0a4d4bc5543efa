"""Reads the files of offline wandb runs: protobuf records in the log format of LevelDB."""

from __future__ import annotations

import json
import struct
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

BLOCK = 32768  # bytes; no header of a piece lies across two blocks
HEAD = 7  # bytes of the file's header, and of a piece's: checksum (4), length (2), kind (1)
FULL, FIRST, MIDDLE, LAST = 1, 2, 3, 4


def payloads(data: bytes) -> Iterator[bytes]:
    """The records of a file, put together from their pieces."""
    at, record = HEAD, b""
    while at + HEAD <= len(data):
        if BLOCK - at % BLOCK < HEAD:  # too little room for a header: filled with zeros
            at += BLOCK - at % BLOCK
            continue
        _, length, kind = struct.unpack("<IHB", data[at : at + HEAD])
        record += data[at + HEAD : at + HEAD + length]
        at += HEAD + length
        if kind in (FULL, LAST):
            yield record
            record = b""


def finished(file: Path) -> list[Any]:
    """The records of a run that has ended; wandb's service may still be writing the last of them."""
    from google.protobuf.message import DecodeError
    from wandb.proto.wandb_internal_pb2 import Record

    deadline = time.monotonic() + 20
    while time.monotonic() < deadline:
        with suppress(DecodeError):
            records = [Record.FromString(payload) for payload in payloads(file.read_bytes())]
            if records and records[-1].WhichOneof("record_type") == "exit":
                return records
        time.sleep(0.05)
    raise TimeoutError(f"{file} never came to its end")


def row_of(items: Any) -> dict[str, Any]:
    """A logged dict; names that begin with a "_" are wandb's own."""
    row: dict[str, Any] = {}
    for item in items:
        *outer, name = item.nested_key or [item.key]
        place = row
        for level in outer:
            place = place.setdefault(level, {})
        place[name] = json.loads(item.value_json)
    return {name: value for name, value in row.items() if not name.startswith("_")}


class WandbRun:
    """What is in the file of the only offline run below a folder.

    `rows` are the logged dicts, `config` the hyperparameters, `axes` the x axis of each metric that was defined,
    `artifacts` pairs of the artifact's record and the aliases.
    """

    def __init__(self, folder: str | Path) -> None:
        (file,) = Path(folder).glob("wandb/offline-run-*/*.wandb")
        self.file = file
        self.rows: list[dict[str, Any]] = []
        self.config: dict[str, Any] = {}
        self.axes: dict[str, str] = {}
        self.artifacts: list[Any] = []
        self.run: Any = None
        for record in finished(file):
            kind = record.WhichOneof("record_type")
            if kind == "history":
                self.rows.append(row_of(record.history.item))
            elif kind == "metric":
                metric = record.metric
                self.axes[metric.glob_name or metric.name] = metric.step_metric
            elif kind == "run":
                self.run = record.run
                self._configure(record.run.config)
            elif kind == "config":
                self._configure(record.config)
            elif kind == "artifact":
                self.artifacts.append(record.artifact)

    def _configure(self, config: Any) -> None:
        for item in config.update:
            if not item.key.startswith("_"):
                self.config[item.key] = json.loads(item.value_json)

    def series(self, name: str) -> list[tuple[int, float]]:
        """A metric's values with their steps."""
        return [(row["trainer/global_step"], row[name]) for row in self.rows if name in row]

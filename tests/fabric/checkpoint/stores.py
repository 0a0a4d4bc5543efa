"""Real servers on this machine that checkpoints are stored on: an object store that speaks S3's protocol, and FTP."""

from __future__ import annotations

import errno
import io
import logging
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import fsspec
import pytest


@contextmanager
def object_store() -> Iterator[str]:
    """The URL of a bucket; while the block runs `s3://` means that server."""
    server_of = pytest.importorskip("moto.server")
    pytest.importorskip("s3fs")
    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    server = server_of.ThreadedMotoServer("127.0.0.1", 0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    before = fsspec.config.conf.get("s3")
    options = {"endpoint_url": f"http://{host}:{port}", "key": "any", "secret": "any"}
    fsspec.config.conf["s3"] = options
    try:
        fsspec.filesystem("s3").mkdir("bucket")
        yield "s3://bucket"
    finally:
        server.stop()
        fsspec.config.conf.pop("s3")
        if before is not None:
            fsspec.config.conf["s3"] = before


@contextmanager
def ftp_server(
    folder: Path, refuses_to_replace: bool = False, fails_after: int | None = None, patience: float = 300
) -> Iterator[str]:
    """The URL of an FTP server.

    Args:
        folder: what it serves.
        refuses_to_replace: whether it renames onto no file that exists, as many do.
        fails_after: bytes of a file that it takes before its disk is full.
        patience: seconds after which it closes a connection that is idle.
    """
    handlers = pytest.importorskip("pyftpdlib.handlers")
    servers = pytest.importorskip("pyftpdlib.servers")
    authorizers = pytest.importorskip("pyftpdlib.authorizers")
    files = pytest.importorskip("pyftpdlib.filesystems")
    users = authorizers.DummyAuthorizer()
    users.add_user("me", "secret", str(folder), perm="elradfmwMT")

    class Disk(files.AbstractedFS):  # type: ignore[misc, name-defined]
        def rename(self, source: str, target: str) -> None:
            if refuses_to_replace and os.path.exists(target):
                raise files.FilesystemError("there is such a file")
            super().rename(source, target)

        def open(self, name: str, mode: str) -> Any:
            return super().open(name, mode) if fails_after is None or mode == "rb" else Full(name, mode)

    class Full(io.FileIO):
        def write(self, data: Any) -> int:
            if fails_after is not None and self.tell() + len(data) > fails_after:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            return super().write(data)

    class Handler(handlers.FTPHandler):  # type: ignore[misc, name-defined]
        authorizer = users
        abstracted_fs = Disk
        timeout = patience

    logging.getLogger("pyftpdlib").setLevel(logging.CRITICAL)
    server: Any = servers.ThreadedFTPServer(("127.0.0.1", 0), Handler)
    stop = threading.Event()

    def serve() -> None:
        while not stop.is_set():
            server.serve_forever(timeout=0.1, blocking=False)
        server.close_all()

    thread = threading.Thread(target=serve)
    thread.start()
    try:
        yield f"ftp://me:secret@127.0.0.1:{server.address[1]}"
    finally:
        stop.set()
        thread.join()

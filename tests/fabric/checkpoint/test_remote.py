"""Checkpoints in stores of fsspec: memory, file://, a real object store, a real FTP server."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from uuid import uuid4

import fsspec
import pytest
import torch

from gpulayer.fabric.checkpoint import AsyncCheckpointIO, TorchCheckpointIO
from gpulayer.fabric.utilities.exceptions import MisconfigurationException
from gpulayer.fabric.utilities.files import (
    clean_up,
    copy_file,
    damage,
    exists,
    is_folder,
    join,
    list_folder,
    load_file,
    modified,
    remove,
    save_file,
)
from gpulayer.fabric.utilities.replace import QUIET, temporary_name
from gpulayer.pytorch import Trainer
from gpulayer.pytorch.callbacks import ModelCheckpoint
from gpulayer.pytorch.demos.boring_classes import BoringModel
from tests.fabric.checkpoint.stores import ftp_server, object_store

STORES = ["memory", "file", "local", "s3", "ftp"]


@pytest.fixture(scope="module")
def bucket() -> Iterator[str]:
    with object_store() as url:
        yield url


@pytest.fixture(params=STORES)
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """The path or URL of a folder that does not exist yet."""
    if request.param == "s3":
        yield f"{request.getfixturevalue('bucket')}/{uuid4().hex}"
    elif request.param == "ftp":
        with ftp_server(tmp_path) as url:
            yield f"{url}/runs/one"
    else:
        folder = tmp_path / "runs" / "one"
        yield {"memory": f"memory://{uuid4().hex}/one", "file": folder.as_uri(), "local": str(folder)}[request.param]


class TestEachStore:
    def test_what_is_saved_is_there(self, store: str) -> None:
        path = join(store, "a.ckpt")
        assert not exists(path)
        assert not exists(store)
        assert list_folder(store) == []
        before = time.time()
        save_file({"w": torch.arange(3.0), "n": 1}, path)
        assert exists(path)
        assert exists(store)
        assert is_folder(store)
        assert not is_folder(path)
        assert list_folder(store) == [path]
        assert before - 2 <= modified(path) <= time.time() + 2
        assert damage(path) is None
        assert load_file(path)["n"] == 1
        save_file({"n": 2}, path)
        assert load_file(path) == {"n": 2}
        assert list_folder(store) == [path]

    def test_copies_and_deletions(self, store: str, tmp_path: Path) -> None:
        a, b = join(store, "a.ckpt"), join(store, "deep", "b.ckpt")
        save_file({"n": 1}, a)
        copy_file(a, b)
        assert load_file(b) == {"n": 1}
        copy_file(a, tmp_path / "here" / "c.ckpt")
        assert load_file(tmp_path / "here" / "c.ckpt") == {"n": 1}
        save_file({"n": 2}, tmp_path / "here" / "c.ckpt")
        copy_file(tmp_path / "here" / "c.ckpt", b)
        assert load_file(b) == {"n": 2}
        assert list_folder(store) == [a, join(store, "deep")]
        remove(a)
        remove(a)
        assert list_folder(store) == [join(store, "deep")]
        remove(join(store, "deep"))
        assert list_folder(store) == []

    def test_damage_is_found_and_named(self, store: str, tmp_path: Path) -> None:
        path = join(store, "a.ckpt")
        save_file({"w": torch.ones(1000)}, tmp_path / "good.ckpt")
        whole = (tmp_path / "good.ckpt").read_bytes()
        middle = len(whole) // 2
        for content in (whole[:middle], whole[:middle] + b"x" + whole[middle + 1 :]):
            (tmp_path / "bad.ckpt").write_bytes(content)
            copy_file(tmp_path / "bad.ckpt", path)
            assert damage(path, archive=True) is not None
            with pytest.raises(MisconfigurationException, match=r"a\.ckpt' is no checkpoint, or a damaged one"):
                load_file(path)

    def test_what_is_not_there(self, store: str) -> None:
        with pytest.raises(FileNotFoundError, match=r"There is no checkpoint at '.*a\.ckpt'"):
            load_file(join(store, "a.ckpt"))
        save_file({}, join(store, "a.ckpt"))
        with pytest.raises(MisconfigurationException, match="is a folder"):
            load_file(store)

    def test_a_save_that_fails_leaves_what_was_there(self, store: str) -> None:
        path = join(store, "a.ckpt")
        save_file({"n": 1}, path)
        with pytest.raises(TypeError, match="cannot pickle"):
            save_file({"w": torch.ones(1000), "generator": (x for x in [])}, path)
        assert load_file(path) == {"n": 1}
        assert list_folder(store) == [path]

    def test_through_the_checkpoint_io(self, store: str) -> None:
        io = TorchCheckpointIO()
        a, b, c = (join(store, f"{name}.ckpt") for name in "abc")
        io.save_checkpoint({"n": 1}, a)
        io.copy_checkpoint(a, b)
        io.link_checkpoint(a, c)
        io.remove_checkpoint(b)
        assert io.load_checkpoint(c) == {"n": 1}
        assert list_folder(store) == [a, c]


# -- uploads that do not get through ---------------------------------------------------------------------------------


def test_an_interrupted_upload_leaves_the_object_before(bucket: str, tmp_path: Path) -> None:
    """In several parts, of which the second is refused by the server."""
    s3fs = pytest.importorskip("s3fs")
    path = f"{bucket}/{uuid4().hex}/a.ckpt"
    save_file({"n": 1}, path)
    filesystem = fsspec.filesystem("s3")
    sent: list[int] = []
    call = s3fs.S3FileSystem._call_s3

    async def refuses(self: Any, method: str, *args: Any, **kwargs: Any) -> Any:
        if method == "upload_part":
            sent.append(kwargs["PartNumber"])
            if len(sent) == 2:
                raise ConnectionError("the line is dead")
        return await call(self, method, *args, **kwargs)

    patch = pytest.MonkeyPatch()
    patch.setattr(s3fs.S3FileSystem, "_call_s3", refuses)
    with pytest.raises(ConnectionError, match="the line is dead"):
        save_file({"w": torch.ones(40_000_000)}, path)  # 160 MB: more than one part
    patch.undo()
    assert len(sent) >= 2
    assert load_file(path) == {"n": 1}
    bucket_name, _, key = path.removeprefix("s3://").partition("/")
    assert not filesystem.call_s3("list_multipart_uploads", Bucket=bucket_name, Prefix=key).get("Uploads")


class TestServersWithFolders:
    """A file is uploaded under another name and renamed when all of it has arrived."""

    def test_one_whose_disk_is_full_keeps_the_file_before(self, tmp_path: Path) -> None:
        with ftp_server(tmp_path, fails_after=100_000) as url:
            save_file({"n": 1}, f"{url}/a.ckpt")
            with pytest.raises(Exception, match="transfer aborted"):
                save_file({"w": torch.ones(1_000_000)}, f"{url}/a.ckpt")
        assert os.listdir(tmp_path) == ["a.ckpt"]
        assert load_file(tmp_path / "a.ckpt") == {"n": 1}

    def test_one_that_renames_onto_no_file_that_exists(self, tmp_path: Path) -> None:
        with ftp_server(tmp_path, refuses_to_replace=True) as url:
            for n in (1, 2):
                save_file({"n": n}, f"{url}/a.ckpt")
                assert load_file(f"{url}/a.ckpt") == {"n": n}
        assert os.listdir(tmp_path) == ["a.ckpt"]

    def test_one_that_closes_idle_connections(self, tmp_path: Path) -> None:
        with ftp_server(tmp_path, patience=0.3) as url:
            for n in (1, 2):
                save_file({"n": n}, f"{url}/a.ckpt")
                time.sleep(0.8)
        assert load_file(tmp_path / "a.ckpt") == {"n": 2}

    def test_old_temporary_files_are_deleted(self, tmp_path: Path) -> None:
        old, new = temporary_name(), temporary_name()
        for name in (old, new):
            (tmp_path / name).touch()
        os.utime(tmp_path / old, (time.time() - QUIET - 60,) * 2)
        with ftp_server(tmp_path) as url:
            assert list_folder(url + "/") == []
            clean_up(url + "/")
            assert os.listdir(tmp_path) == [new]
            os.utime(tmp_path / new, (time.time() - QUIET - 60,) * 2)
            save_file({}, f"{url}/a.ckpt")
        assert os.listdir(tmp_path) == ["a.ckpt"]


def test_a_store_that_is_away_is_not_taken_for_an_empty_one(tmp_path: Path) -> None:
    with ftp_server(tmp_path) as url:
        pass
    with pytest.raises(OSError, match="refused"):
        exists(f"{url}/a.ckpt")
    with pytest.raises(OSError, match="refused"):
        list_folder(url)


# -- a run -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("background", [False, True])
def test_a_run_in_an_object_store(bucket: str, background: bool) -> None:
    """The best two and the last; a second run goes on from there."""
    folder = f"{bucket}/{uuid4().hex}/run"

    class Model(BoringModel):
        def training_step(self, batch: Any, batch_idx: int) -> Any:
            self.log("score", float((batch_idx * 7) % 5))
            return super().training_step(batch, batch_idx)

    def fit(max_steps: int, ckpt_path: str | None) -> Trainer:
        saver = ModelCheckpoint(folder, monitor="score", save_top_k=2, save_last=True, every_n_train_steps=1)
        plugins = [AsyncCheckpointIO()] if background else []
        trainer = Trainer(max_steps=max_steps, accelerator="cpu", logger=False, callbacks=[saver], plugins=plugins)
        trainer.fit(Model(), ckpt_path=ckpt_path)
        return trainer

    trainer = fit(6, None)
    names = [path.rpartition("/")[2] for path in list_folder(folder)]
    assert len(names) == 3  # of six that were written
    assert "last.ckpt" in names
    assert load_file(join(folder, "last.ckpt"))["global_step"] == 6
    saver: Any = trainer.checkpoint_callback
    assert {path.rpartition("/")[2] for path in saver.best_k_models} == set(names) - {"last.ckpt"}
    assert exists(saver.best_model_path)
    for path in ("last", join(folder, "last.ckpt")):
        assert fit(8, path).global_step == 8
    assert load_file(join(folder, "last.ckpt"))["global_step"] == 8
    assert len(list_folder(folder)) == 3

"""Checkpoints that were cut short or altered after they were saved: found by their checksums, named, passed over."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from gpulayer.fabric.utilities.exceptions import MisconfigurationException
from gpulayer.fabric.utilities.files import damage, save_file
from gpulayer.pytorch.callbacks import ModelCheckpoint
from tests.pytorch.models import Line, loader, trainer


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-500])


def altered(path: Path) -> None:
    """One bit of a weight."""
    content = bytearray(path.read_bytes())
    at = content.index(torch.full((64,), 3.0).numpy().tobytes())
    content[at] ^= 1
    path.write_bytes(content)


def emptied(path: Path) -> None:
    path.write_bytes(b"")


class Wide(Line):
    """Holds bytes that can be found in a file."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("threes", torch.full((64,), 3.0))


WAYS = [cut, altered, emptied]


def saved() -> list[Path]:
    saver = ModelCheckpoint("saved", "{step}", save_top_k=-1, save_last=True)
    trainer(max_epochs=3, callbacks=[saver]).fit(Wide(), loader())
    return sorted(Path("saved").glob("*.ckpt"))


def go_on() -> Wide:
    model = Wide()
    saver = ModelCheckpoint("saved", "{step}", save_top_k=-1, save_last=True)
    trainer(max_epochs=4, callbacks=[saver]).fit(model, loader(), ckpt_path="last")
    return model


@pytest.mark.filterwarnings("ignore:.*is not empty")
@pytest.mark.parametrize("damages", WAYS)
def test_the_newest_good_one_takes_the_place_of_a_damaged_last(damages: Callable[[Path], None]) -> None:
    assert [file.name for file in saved()] == ["last.ckpt", "step=12.ckpt", "step=4.ckpt", "step=8.ckpt"]
    damages(Path("saved/last.ckpt"))
    damages(Path("saved/step=12.ckpt"))
    with pytest.warns(UserWarning, match=r"last\.ckpt' is damaged.*newest good checkpoint, .*step=8\.ckpt'"):
        model = go_on()
    assert model.trainer.ckpt_path is not None
    assert model.trainer.ckpt_path.endswith("step=8.ckpt")
    assert model.trainer.global_step == 16


@pytest.mark.parametrize("damages", WAYS)
def test_all_are_damaged(damages: Callable[[Path], None]) -> None:
    for file in saved():
        damages(file)
    with pytest.raises(MisconfigurationException, match=r"ckpt_path='last'`: .*is damaged.*Give another"):
        go_on()


@pytest.mark.parametrize("damages", WAYS)
def test_a_damaged_one_that_is_given_is_named(damages: Callable[[Path], None]) -> None:
    path = saved()[1]
    damages(path)
    with pytest.raises(MisconfigurationException, match=r"step=12\.ckpt' is no checkpoint, or a damaged one"):
        trainer(max_epochs=4).fit(Wide(), loader(), ckpt_path=path)
    with pytest.raises(MisconfigurationException, match="a damaged one"):
        Wide.load_from_checkpoint(path)


def test_a_bit_is_found_and_told() -> None:
    path = saved()[1]
    assert damage(path) is None
    altered(path)
    assert "was altered after it was saved" in str(damage(path))


def test_files_elsewhere_are_checked_too() -> None:
    save_file({"state_dict": {}}, "memory://folder/some.ckpt")
    import fsspec

    with fsspec.open("memory://folder/some.ckpt", "rb") as file:
        assert damage(file) is None
        assert file.tell() == 0

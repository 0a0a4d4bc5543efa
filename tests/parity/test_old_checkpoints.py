"""Checkpoints that real old versions of Lightning wrote, see old_checkpoints/README.md."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset

import gpulayer.pytorch as L
from gpulayer.fabric.utilities.files import load_file
from gpulayer.pytorch.callbacks import EarlyStopping, ModelCheckpoint, Timer
from gpulayer.pytorch.trainer.upgrade import LAYOUT_VERSION, ORIGINAL_VERSION, VERSION, numbers_of, upgrade
from gpulayer.pytorch.utilities.upgrade_checkpoint import main
from tests.parity.oracle import lightning, parting, quiet

FOLDER = Path(__file__).parent / "old_checkpoints"
VERSIONS = sorted({file.name.rpartition("-")[0] for file in FOLDER.glob("*.ckpt")}, key=numbers_of)

# What each of those versions ended with, bit for bit (weights, bias): uninterrupted; and where a file says less than
# today's do, what the version itself ends with when it goes on from it.
WHOLE = [0.39662545919418335, 0.7879277467727661, 0.19776996970176697, -0.5372776985168457]
# before 1.6, from the middle of an epoch: its rest is left out
REST_LEFT_OUT = [0.42337289452552795, 0.8147675395011902, 0.1906660944223404, -0.553369402885437]
# before 1.2, from an epoch's end: saved before the scheduler's move
BEFORE_THE_MOVE = [0.529474675655365, 0.941333532333374, 0.4620106816291809, -0.5079822540283203]


def loader(seed: int) -> DataLoader[Any]:
    rows = torch.randn(16, 3, generator=torch.Generator().manual_seed(seed))
    return DataLoader(TensorDataset(rows, rows.sum(1, keepdim=True)), batch_size=4)


class Net(L.Module):
    def __init__(self, rate: float = 0.1, name: str = "line") -> None:
        super().__init__()
        self.save_hyperparameters()
        self.net = torch.nn.Linear(3, 1)

    def loss(self, batch: Any) -> torch.Tensor:
        return torch.nn.functional.mse_loss(self.net(batch[0]), batch[1])

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        return self.loss(batch)

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        self.log("val_loss", self.loss(batch))

    def configure_optimizers(self) -> Any:
        optimizer = torch.optim.Adam(self.parameters(), lr=0.1)
        return [optimizer], [torch.optim.lr_scheduler.StepLR(optimizer, 1, gamma=0.5)]


class Reads(L.Callback):
    """What the other callbacks and the Trainer know when training goes on."""

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        self.epoch, self.step, self.batch = trainer.current_epoch, trainer.global_step, trainer.progress.batch_in_epoch
        stopper, saver, timer = trainer.callbacks[0], trainer.checkpoint_callback, trainer.callbacks[1]
        self.best, self.path, self.seconds = stopper.best_score, saver.best_model_path, timer.time_elapsed("train")
        self.score = saver.best_model_score


@pytest.mark.parametrize("moment", ["mid", "end"])
@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.filterwarnings(
    "ignore:The checkpoint's ModelCheckpoint wrote to", "ignore:ModelCheckpoint goes on without"
)
def test_training_goes_on(version: str, moment: str, tmp_path: Path) -> None:
    numbers, module, reads = numbers_of(version), Net(), Reads()
    shutil.copy(FOLDER / f"{version}-end.ckpt", tmp_path / "epoch=0.ckpt")  # the best, in a folder that has moved
    saver = ModelCheckpoint(tmp_path, monitor="val_loss", filename="{epoch}", save_top_k=-1)
    trainer = L.Trainer(
        max_epochs=3,
        accelerator="cpu",
        logger=False,
        num_sanity_val_steps=0,
        callbacks=[EarlyStopping("val_loss", patience=7), Timer({"hours": 1}), reads, saver],
    )
    trainer.fit(module, loader(1), loader(2), ckpt_path=FOLDER / f"{version}-{moment}.ckpt")
    mid = moment == "mid"
    if numbers < (1, 6):
        assert (reads.epoch, reads.step, reads.batch) == ((2, 6, 0) if mid else (1, 4, 0))
    else:  # at an epoch's end its hooks are still running
        assert (reads.epoch, reads.step, reads.batch) == ((1, 6, 2) if mid else (0, 4, 4))
    expected = WHOLE
    if numbers < (1, 6) and mid:
        expected = REST_LEFT_OUT
    elif numbers < (1, 2) and not mid:
        expected = BEFORE_THE_MOVE
    found = torch.cat([value.flatten() for value in module.state_dict().values()])
    assert torch.allclose(found, torch.tensor(expected), rtol=1e-5)
    assert trainer.current_epoch == 3
    if numbers >= (0, 9):
        assert reads.best < float("inf")
    if numbers >= (1, 0):
        assert Path(reads.path).name == "epoch=0.ckpt"
    assert (reads.seconds > 0.005) == (numbers >= (1, 3))


@pytest.mark.parametrize("version", VERSIONS)
def test_a_module_is_made_of_it(version: str) -> None:
    """From before 0.8 its hyperparameters lie under another name, as the one argument `hparams`."""
    file = FOLDER / f"{version}-end.ckpt"
    if numbers_of(version) >= (0, 8):
        loaded = Net.load_from_checkpoint(file)
        assert (loaded.hparams.rate, loaded.hparams.name) == (0.5, "line")
    else:

        class Old(Net):
            def __init__(self, hparams: Any) -> None:
                super().__init__(hparams.rate, hparams["name"])

        loaded = Old.load_from_checkpoint(file)
        assert loaded.hparams.rate == 0.5
    assert torch.equal(loaded.net.weight, torch.load(file, weights_only=False)["state_dict"]["net.weight"])


@pytest.mark.parametrize("version", VERSIONS)
def test_it_means_what_lightning_takes_it_for(version: str) -> None:
    """Its own upgrade is the same, but for what it leaves as it was and what it does not count."""
    from lightning.pytorch.utilities.migration import migrate_checkpoint, pl_legacy_patch

    file = FOLDER / f"{version}-mid.ckpt"
    with quiet(), pl_legacy_patch():
        lightning()
        theirs = torch.load(file, weights_only=False)
        if numbers_of(version) < (0, 8):
            theirs[VERSION] = version
        theirs = migrate_checkpoint(theirs)[0]
    theirs["callbacks"] = {getattr(key, "__name__", key): state for key, state in theirs["callbacks"].items()}
    ours = load_file(file)
    upgrade(ours)
    both = parting(theirs, ours)
    expected = ("/loops/fit_loop/epoch_loop.val_loop", "/pytorch-", "/legacy_", "/hparams", "/hyper_parameters")
    if numbers_of(version) < (1, 6):  # there it sets two counters, and leaves the others, which follow from them, at 0
        expected += ("/loops",)
    if numbers_of(version) < (1, 5):  # the best file and its score are among the best
        expected += ("/callbacks/ModelCheckpoint",)
    if numbers_of(version) < (0, 10):  # it passes over the state that 0.9 wrote, and takes over one without a score
        expected += ("/callbacks/EarlyStopping", "/early_stop_callback_state_dict")
    assert [place for place in both if not place.startswith(expected)] == []
    assert ours["loops"]["fit_loop"]["epoch_progress"]["current"]["completed"] == theirs["epoch"]


def test_a_file_from_a_newer_version_is_read_as_it_is(caplog: pytest.LogCaptureFixture) -> None:
    checkpoint = {VERSION: "2.9.1", "state_dict": {}, "loops": {}}
    before = dict(checkpoint)
    with caplog.at_level("INFO", "gpulayer"):
        assert not upgrade(checkpoint)
    assert checkpoint == before
    assert "written by Lightning 2.9.1. The newest layout that is known here is that of 2.6.6" in caplog.text


def test_the_scaler_keeps_its_state() -> None:
    for name in ("native_amp_scaling_state", "NativeMixedPrecisionPlugin", "MixedPrecisionPlugin"):
        checkpoint = {VERSION: "1.9.0", "state_dict": {}, "loops": {}, name: {"scale": 8.0}, "amp_scaling_state": {}}
        assert upgrade(checkpoint)
        assert checkpoint["MixedPrecision"] == {"scale": 8.0}
        assert name not in checkpoint
        assert "amp_scaling_state" not in checkpoint


def test_two_savers_that_differ_by_the_dropped_argument_keep_their_keys() -> None:
    keys = [f"ModelCheckpoint{{'monitor': None, 'save_on_train_epoch_end': {value}}}" for value in ("True", "None")]
    checkpoint = {VERSION: "1.8.0", "state_dict": {}, "callbacks": {key: {} for key in keys}, "loops": {"fit_loop": {}}}
    upgrade(checkpoint)
    assert list(checkpoint["callbacks"]) == keys


def test_upgraded_once_and_for_all(tmp_path: Path) -> None:
    """The command that Lightning has, too: of a file or of all in a folder, with the original beside it."""
    (tmp_path / "below").mkdir()
    shutil.copy(FOLDER / "1.4.9-end.ckpt", tmp_path / "below" / "old.ckpt")
    shutil.copy(FOLDER / "2.5.5-end.ckpt", tmp_path / "new.ckpt")
    done = subprocess.run(
        [sys.executable, "-m", "gpulayer.pytorch.utilities.upgrade_checkpoint", str(tmp_path)],
        capture_output=True, text=True, check=True, env=os.environ,
    )  # fmt: skip
    assert "old.ckpt: upgraded from the layout of Lightning 1.4.9; the original is old.bak" in done.stdout
    assert "new.ckpt: nothing to do" in done.stdout
    upgraded = torch.load(tmp_path / "below" / "old.ckpt", weights_only=True)
    assert (upgraded[VERSION], upgraded[ORIGINAL_VERSION]) == (LAYOUT_VERSION, "1.4.9")
    assert sorted(file.name for file in (tmp_path / "below").iterdir()) == ["old.bak", "old.ckpt"]
    assert (tmp_path / "below" / "old.bak").read_bytes() == (FOLDER / "1.4.9-end.ckpt").read_bytes()


def test_lightning_goes_on_from_what_we_upgraded(tmp_path: Path) -> None:
    shutil.copy(FOLDER / "1.2.10-end.ckpt", tmp_path / "old.ckpt")
    assert main([str(tmp_path / "old.ckpt")]) == 0
    with quiet():
        pl = lightning()
        body = {name: vars(Net)[name] for name in ("loss", "training_step", "configure_optimizers")}

        def make(self: Any) -> None:
            pl.LightningModule.__init__(self)
            self.net = torch.nn.Linear(3, 1)

        module = type("Theirs", (pl.LightningModule,), {**body, "__init__": make})()
        trainer = pl.Trainer(max_epochs=3, accelerator="cpu", logger=False, enable_checkpointing=False,
                             enable_progress_bar=False, enable_model_summary=False)  # fmt: skip
        trainer.fit(module, loader(1), ckpt_path=tmp_path / "old.ckpt")
    found = torch.cat([value.flatten() for value in module.state_dict().values()])
    assert torch.allclose(found, torch.tensor(WHOLE), rtol=1e-5)
    assert (trainer.current_epoch, trainer.global_step) == (3, 12)


def test_files_that_cannot_be_upgraded(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "notes.ckpt").write_text("nothing")
    assert main([str(tmp_path)]) == 1
    assert "notes.ckpt" in capsys.readouterr().err
    assert main([str(tmp_path / "none.ckpt")]) == 1
    with pytest.raises(SystemExit):
        main([str(tmp_path), "--extension", "pt"])

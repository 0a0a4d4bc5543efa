"""However a process ends, the others end with it, in seconds, and the first error is on top."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from tests.distributed.programs import run

FAILS = """
class Failing(Net):
    def training_step(self, batch, batch_idx):
        if self.global_rank == int(os.environ["RANK_TO_FAIL"]) and batch_idx == 3:
            print("FAILING", time.time(), flush=True)
            if os.environ["HOW"] == "raise":
                raise ValueError("a bad batch")
            os.kill(os.getpid(), signal.SIGKILL)
        return super().training_step(batch, batch_idx)


trainer(2).fit(Failing(), DataLoader(rows(64), 4))
"""


@pytest.mark.parametrize("rank", [0, 1])
def test_a_process_that_raises_ends_all_with_its_error_on_top(tmp_path: Path, rank: int) -> None:
    ended = run(tmp_path, FAILS, RANK_TO_FAIL=str(rank), HOW="raise")
    assert ended.code == 1
    assert "ValueError: a bad batch" in ended.errors
    if rank:
        own, of_first = ended.errors.index("[rank 1] failed:"), ended.errors.index("[rank0]:")
        assert own < of_first
        assert "RankError: Rank 1 failed: ValueError: a bad batch" in ended.errors
    assert ended.seconds < 60


def test_a_process_that_is_killed_is_named(tmp_path: Path) -> None:
    ended = run(tmp_path, FAILS, RANK_TO_FAIL="1", HOW="kill")
    assert ended.code == 1
    assert "RankError: Rank 1 failed: it was ended by SIGKILL" in ended.errors


def test_when_rank_0_is_killed_the_others_end(tmp_path: Path) -> None:
    ended = run(tmp_path, FAILS + "open('rank1_went_on', 'w')\n", RANK_TO_FAIL="0", HOW="kill")
    assert ended.code == -signal.SIGKILL
    assert not (tmp_path / "rank1_went_on").exists()  # `run` waits for all who hold the streams, so rank 1 is gone


STOPS = """
class Stopping(Net):
    def training_step(self, batch, batch_idx):
        if self.global_step == 13 and self.global_rank == int(os.environ["RANK_TO_STOP"]):
            if os.environ["HOW"] == "should_stop":
                self.trainer.should_stop = True
            else:
                os.kill(os.getpid(), int(os.environ["HOW"]))
        if os.environ["HOW"] == "none" and self.global_rank == 1 and batch_idx % 3 == 0:
            return None
        return super().training_step(batch, batch_idx)


model, saver = Stopping(), L.callbacks.ModelCheckpoint(dirpath=".")
trainer = trainer(2, max_epochs=5, callbacks=[saver], enable_checkpointing=True)
try:
    trainer.fit(model, DataLoader(rows(64), 4))
finally:
    weights = torch.cat([parameter.detach().flatten() for parameter in model.parameters()])
    print(f"END {trainer.global_step} {weights.tolist()}\\n", end="", flush=True)
"""


@pytest.mark.parametrize("rank", [0, 1])
@pytest.mark.parametrize("how", ["should_stop", signal.SIGTERM, signal.SIGINT])
def test_all_stop_after_the_same_batch(tmp_path: Path, rank: int, how: str | int) -> None:
    ended = run(tmp_path, STOPS, RANK_TO_STOP=str(rank), HOW=str(int(how) if isinstance(how, int) else how))
    assert ended.code == (0 if how == "should_stop" else 128 + int(how)), ended.errors
    ends = [line for line in ended.output.splitlines() if line.startswith("END")]
    assert len(ends) == 2, ended.output
    assert ends[0] == ends[1]
    assert ends[0].split()[1] in ("14", "15")
    assert "Traceback" not in ended.errors
    if how != "should_stop":
        assert (tmp_path / "last.ckpt").exists()


@pytest.mark.filterwarnings("ignore")
def test_a_process_that_returns_none_adds_no_gradients(tmp_path: Path) -> None:
    ended = run(tmp_path, STOPS, RANK_TO_STOP="9", HOW="none")
    assert ended.code == 0, ended.errors
    ends = [line for line in ended.output.splitlines() if line.startswith("END")]
    assert len(ends) == 2, ended.output
    assert ends[0] == ends[1]
    assert ends[0].split()[1] == "40"

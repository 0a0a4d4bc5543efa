"""What a person sees of both bars: real programs in a real pseudo-terminal, read from the screen."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.pytorch.callbacks.terminal import Terminal, run, written

BARS = ("TQDMProgressBar", "RichProgressBar")
EPOCH_LINE = r"epoch {0}/2  step {1}  .*batches/s"


@pytest.mark.parametrize("bar", BARS)
def test_fit_leaves_a_line_an_epoch_and_the_last_bar(bar: str, tmp_path: Path) -> None:
    code = f"trainer(max_epochs=2, num_sanity_val_steps=2, callbacks=[{bar}()]).fit(Model(), loader(7), loader(3))"
    terminal = run(code, tmp_path)
    lines = terminal.lines
    assert re.fullmatch(EPOCH_LINE.format(1, 7), lines[0])
    assert re.fullmatch(EPOCH_LINE.format(2, 14), lines[1])
    assert len(lines) == 3
    assert lines[2].startswith("Epoch 2/2")
    assert "7/7" in lines[2]
    assert re.search(r"loss[=:] ?0\.25.* score[=:] ?1\.50", lines[2])


@pytest.mark.parametrize("bar", BARS)
def test_leave_keeps_each_epochs_bar(bar: str, tmp_path: Path) -> None:
    terminal = run(f"trainer(max_epochs=2, callbacks=[{bar}(leave=True)]).fit(Model(), loader(7), loader(1))", tmp_path)
    lines = terminal.lines
    assert [line.split(":")[0].split(" ━")[0].split("  ")[0] for line in lines] == [
        "Epoch 1/2",
        "epoch 1/2",
        "Epoch 2/2",
        "epoch 2/2",
    ]
    assert all("7/7" in line for line in lines[::2])


@pytest.mark.parametrize("bar", BARS)
def test_validation_has_a_bar_below_that_says_which_loader(bar: str, tmp_path: Path) -> None:
    code = f"""
Model.seconds = 0.1
trainer(val_check_interval=2, callbacks=[{bar}()]).fit(Model(), loader(3), [loader(11), loader(12)])
"""
    terminal = Terminal(code, tmp_path)
    for loader, total in ((0, 11), (1, 12)):
        terminal.wait(lambda loader=loader: terminal.matching(f"Validation DataLoader {loader}"))
        training, validation = terminal.lines[-2:] if bar == "TQDMProgressBar" else terminal.lines[:2]
        assert "Epoch 1/1" in training
        assert "2/3" in training
        assert re.search(rf"\b\d+/{total}\b", validation)
    assert terminal.end() == 0
    assert not terminal.matching("Validation")
    assert "3/3" in terminal.matching("Epoch 1/1")[0]


@pytest.mark.parametrize("bar", BARS)
@pytest.mark.parametrize(("call", "name"), [("validate", "Validation"), ("test", "Testing"), ("predict", "Predicting")])
def test_the_other_calls_leave_their_bar(bar: str, call: str, name: str, tmp_path: Path) -> None:
    terminal = run(f"trainer(callbacks=[{bar}()]).{call}(Model(), [loader(5), loader(3)])", tmp_path)
    shown = terminal.lines[0]
    assert shown.startswith(f"{name} DataLoader 1")
    assert "3/3" in shown
    assert ("score" in shown) is (call != "predict")
    assert terminal.lines[1:] == ([] if call == "predict" else [f"{call}: score 1.5  score1 1.5"])


@pytest.mark.parametrize("bar", BARS)
def test_what_is_printed_and_logged_stands_above_whole(bar: str, tmp_path: Path) -> None:
    code = f"""
logging.basicConfig(level=logging.INFO, format="%(message)s")
class Talks(Model):
    seconds = 0.02
    def training_step(self, batch, batch_idx):
        print("plain", batch_idx)
        self.print("own", batch_idx)
        self.trainer.print("trainer", batch_idx, file=sys.stderr)
        logging.info("logged %d", batch_idx)
        return super().training_step(batch, batch_idx)
trainer(callbacks=[{bar}()]).fit(Talks(), loader(10), loader(1))
print("after")
"""
    terminal = run(code, tmp_path)
    lines = terminal.lines
    expected = [f"{word} {i}" for i in range(10) for word in ("plain", "own", "trainer", "logged")]
    assert lines[:40] == expected
    assert re.match("epoch 1/1", lines[40])
    assert "10/10" in lines[41]
    assert lines[42:] == ["after"]


def test_text_without_an_end_of_line_is_not_lost(tmp_path: Path) -> None:
    code = """
class Dots(Model):
    seconds = 0.03
    def training_step(self, batch, batch_idx):
        print(".", end="")
        return super().training_step(batch, batch_idx)
trainer(callbacks=[TQDMProgressBar()]).fit(Dots(), loader(12), loader(1))
"""
    terminal = run(code, tmp_path)
    lines = terminal.lines
    assert sum(len(line) for line in lines if set(line) == {"."}) == 12
    assert len(terminal.matching("Epoch")) == 1


def test_a_bar_of_the_users_own_is_left_alone(tmp_path: Path) -> None:
    code = """
class Nested(Model):
    def on_validation_epoch_end(self):
        from tqdm import tqdm
        for _ in tqdm(range(3), desc="mine"):
            time.sleep(0.15)
trainer(callbacks=[TQDMProgressBar()]).fit(Nested(), loader(5), loader(2))
"""
    terminal = run(code, tmp_path)
    lines = terminal.lines
    assert len(terminal.matching("mine: 100%")) == 1
    assert len(terminal.matching("Epoch 1/1: 100%.*5/5")) == 1
    assert len(lines) == 3


@pytest.mark.parametrize("bar", BARS)
def test_ctrl_c_leaves_a_clean_terminal(bar: str, tmp_path: Path) -> None:
    code = f"Model.seconds = 0.05\ntrainer(callbacks=[{bar}()]).fit(Model(), loader(200), loader(5))"
    terminal = Terminal(code, tmp_path)
    terminal.wait(lambda: terminal.matching(r" [1-9]\d*/200"))
    terminal.press(b"\x03")
    assert terminal.end() != 0
    bars = terminal.matching("Epoch 1/1")
    assert len(bars) == 1
    assert "^C" not in bars[0]
    assert len(terminal.matching(r"Ctrl\+C: the run ends after this batch; once more to end at once\.$")) == 1
    assert terminal.lines[-1].endswith("Interrupted: 130")  # which this process prints, and Python would not
    assert not terminal.screen.cursor.hidden


@pytest.mark.parametrize("bar", BARS)
def test_an_error_in_validation_leaves_a_clean_terminal(bar: str, tmp_path: Path) -> None:
    code = f"""
class Fails(Model):
    seconds = 0.05
    def validation_step(self, batch, batch_idx):
        super().validation_step(batch, batch_idx)
        assert batch_idx < 4, "broken"
try:
    trainer(callbacks=[{bar}()]).fit(Fails(), loader(4), loader(9))
except AssertionError as error:
    print("caught", error, type(sys.stdout).__name__, type(sys.stderr).__name__)
"""
    terminal = run(code, tmp_path)
    lines = terminal.lines
    assert lines[-1] == "caught broken TextIOWrapper TextIOWrapper"
    assert len(terminal.matching("Epoch 1/1.* 4/4")) == 1
    assert terminal.matching("Validation") == []


@pytest.mark.parametrize("bar", BARS)
@pytest.mark.parametrize("columns", [40, 80])
def test_a_narrow_window_with_many_long_and_wide_names(bar: str, columns: int, tmp_path: Path) -> None:
    code = f"""
class Many(Model):
    seconds = 0.02
    def training_step(self, batch, batch_idx):
        self.log_dict({{f"学習損失_with_a_long_name_{{i}}": float(i) for i in range(12)}}, prog_bar=True)
        return super().training_step(batch, batch_idx)
trainer(callbacks=[{bar}()]).fit(Many(), loader(20), loader(1))
"""
    terminal = Terminal(code, tmp_path, columns)
    terminal.wait(lambda: terminal.matching("Epoch 1/1"))
    assert terminal.end() == 0
    bars = terminal.matching("Epoch 1/1")
    assert len(bars) == 1
    assert "20/20" in bars[0]


@pytest.mark.parametrize("bar", BARS)
def test_a_window_that_gets_narrower(bar: str, tmp_path: Path) -> None:
    """The lines drawn before are the terminal's to wrap; the bar goes on within the new width."""
    terminal = Terminal(
        f"Model.seconds = 0.05\ntrainer(callbacks=[{bar}()]).fit(Model(), loader(40), loader(1))", tmp_path, 120
    )
    terminal.wait(lambda: terminal.matching(r" [1-9]\d?/40"))
    terminal.resize(50)
    assert terminal.end() == 0
    assert len(terminal.matching("40/40")) == 1


@pytest.mark.parametrize("bar", BARS)
def test_a_loader_without_a_length(bar: str, tmp_path: Path) -> None:
    code = f"trainer(max_epochs=2, callbacks=[{bar}()]).fit(Model(), stream(7), stream(3))"
    shown = run(code, tmp_path).lines[-1]
    assert shown.startswith("Epoch 2/2")
    assert re.search(r"\b7(it|/\?)", shown)


@pytest.mark.parametrize("bar", BARS)
def test_drawn_ten_times_a_second_at_most(bar: str, tmp_path: Path) -> None:
    """A thousand batches, some tenths of a second: counted by what reaches the terminal."""
    code = f"""
Model.seconds = 0.0005
began = time.monotonic()
trainer(callbacks=[{bar}()]).fit(Model(), loader(1000), loader(1))
print("seconds", time.monotonic() - began)
"""
    terminal = run(code, tmp_path)
    seconds = float(terminal.lines[-1].split()[1])
    assert len(re.findall(rb"\d+/1000", terminal.output)) <= 10 * seconds + 6


@pytest.mark.parametrize("bar", BARS)
@pytest.mark.parametrize("environment", [{}, {"FORCE_COLOR": "1"}])
def test_in_a_file_there_are_lines(bar: str, environment: dict[str, str], tmp_path: Path) -> None:
    code = f"""
used = trainer(max_epochs=2, num_sanity_val_steps=1, callbacks=[{bar}()])
used.fit(Model(), loader(50), loader(9))
used.test(Model(), loader(4))
used.predict(Model(), [loader(4), loader(5)])
"""
    text = written(code, tmp_path, environment)
    assert "\r" not in text
    assert "\x1b" not in text
    lines = text.splitlines()
    assert re.match(EPOCH_LINE.format(1, 50), lines[0])
    assert re.match(EPOCH_LINE.format(2, 100), lines[1])
    assert lines[2] == "test: score 1.5"
    assert lines[3].startswith("predict: 9 batches  ")
    assert len(lines) == 4


@pytest.mark.parametrize("bar", BARS)
def test_a_dumb_terminal_gets_lines(bar: str, tmp_path: Path) -> None:
    terminal = run(
        f"trainer(callbacks=[{bar}()]).fit(Model(), loader(5), loader(1))", tmp_path, environment={"TERM": "dumb"}
    )
    assert len(terminal.lines) == 1
    assert terminal.lines[0].startswith("epoch 1/1  step 5")
    assert b"\x1b" not in terminal.output


@pytest.mark.parametrize("bar", BARS)
def test_fit_twice_with_one_bar_and_a_resumed_epoch(bar: str, tmp_path: Path) -> None:
    code = f"""
class Saves(Model):
    seconds = 0.06
    def training_step(self, batch, batch_idx):
        if batch_idx == 3 and self.trainer.max_epochs == 2:
            self.trainer.save_checkpoint("middle.ckpt")
        return super().training_step(batch, batch_idx)
bar = {bar}()
trainer(max_epochs=2, limit_train_batches=4, callbacks=[bar]).fit(Saves(), loader(8), loader(1))
print("first", bar.trainer.current_epoch)
trainer(max_epochs=3, callbacks=[bar]).fit(Saves(), loader(8), loader(1), ckpt_path="middle.ckpt")
"""
    terminal = Terminal(code, tmp_path)
    terminal.wait(lambda: terminal.matching(r"Epoch 2/3.*\b3/8"))
    assert terminal.end() == 0
    assert len(terminal.matching("Epoch 2/2.*4/4")) == 1
    assert len(terminal.matching("Epoch 3/3.*8/8")) == 1


def test_columns_of_ones_own(tmp_path: Path) -> None:
    code = """
from rich.progress import TextColumn
class Own(RichProgressBar):
    def configure_columns(self, trainer):
        return [TextColumn("mine"), *super().configure_columns(trainer)[2:3]]
trainer(callbacks=[Own()]).fit(Model(), loader(5), loader(1))
"""
    assert re.match(r"mine\s+5/5\s+loss: 0\.250 score: 1\.500$", run(code, tmp_path).lines[-1])

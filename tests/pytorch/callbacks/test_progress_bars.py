"""Bars where nothing is drawn: what they know, what they cost, and wrong arguments."""

from __future__ import annotations

import copy
import io
import logging
import pickle
import re
import subprocess
import sys
from typing import Any

import pytest
from tqdm.utils import disp_len

import gpulayer.pytorch as L
from gpulayer.fabric.utilities.exceptions import MisconfigurationException
from gpulayer.pytorch.callbacks import ProgressBar, RichProgressBar, TQDMProgressBar
from gpulayer.pytorch.callbacks.progress import drawn
from gpulayer.pytorch.callbacks.progress.rich_progress import RichProgressBarTheme
from gpulayer.pytorch.callbacks.progress.tqdm_progress import Tqdm
from gpulayer.pytorch.loggers import CSVLogger
from gpulayer.pytorch.loops import fit, run
from tests.architecture.test_host_sync import ScalarReads
from tests.pytorch.callbacks.terminal import Model
from tests.pytorch.models import Line, loader, trainer

KINDS = (TQDMProgressBar, RichProgressBar)


class Screen(io.StringIO):
    """Says that it is a terminal."""

    def isatty(self) -> bool:
        return True


def watch(monkeypatch: pytest.MonkeyPatch) -> Screen:
    """Let standard output be a terminal until the test's end."""
    monkeypatch.setenv("TERM", "xterm")
    screen = Screen()
    monkeypatch.setattr(sys, "stdout", screen)
    return screen


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("rate", [-1, 1.5, True, None])
def test_a_wrong_rate(kind: Any, rate: Any) -> None:
    with pytest.raises(MisconfigurationException, match=rf"{kind.__name__}\(refresh_rate={rate}\)"):
        kind(refresh_rate=rate)


def test_a_wrong_position_theme_and_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(MisconfigurationException, match="process_position=-1"):
        TQDMProgressBar(process_position=-1)
    with pytest.raises(MisconfigurationException, match="give a RichProgressBarTheme"):
        RichProgressBar(theme="red")  # type: ignore[arg-type]
    monkeypatch.setenv("TQDM_MINITERS", "many")
    with pytest.raises(MisconfigurationException, match="TQDM_MINITERS is 'many'"):
        TQDMProgressBar()


def test_without_rich_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "rich", None)
    monkeypatch.delitem(sys.modules, "rich.progress", raising=False)
    with pytest.raises(ModuleNotFoundError, match=r"pip install gpulayer\[rich\]"):
        RichProgressBar()


@pytest.mark.parametrize("kind", KINDS)
def test_rate_zero_shows_nothing(kind: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    screen = watch(monkeypatch)
    bar = kind(refresh_rate=0)
    trainer(callbacks=[bar]).fit(Model(), loader(), loader())
    assert screen.getvalue() == ""
    assert bar.is_disabled


@pytest.mark.parametrize("kind", KINDS)
def test_disabled_and_enabled_again(kind: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    screen = watch(monkeypatch)
    bar = kind()
    bar.disable()
    used = trainer(callbacks=[bar])
    used.validate(Model(), loader())
    assert screen.getvalue() == ""
    bar.enable()
    used.validate(Model(), loader())
    assert "4/4" in screen.getvalue()


class Often(TQDMProgressBar):
    """Draws whenever the clock is looked at."""

    seen: list[int]

    def _draw(self, stage: str, done: int, metrics: Any) -> None:
        super()._draw(stage, done, metrics)
        if stage == "train":
            self.seen.append(done)
        self._next = 0.0

    def _show(self, *args: Any) -> None:
        super()._show(*args)
        self._next = 0.0


@pytest.mark.parametrize(("rate", "variable", "seen"), [
    (1, "1", [0, 1, 2, 3, 4, 5, 6, 7, 7]), (3, "1", [0, 3, 6, 7]), (1, "3", [0, 3, 6, 7]), (5, "3", [0, 5, 7]),
])  # fmt: skip
def test_the_clock_is_looked_at_every_so_many_batches(
    rate: int, variable: str, seen: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """And the last batch is shown always."""
    watch(monkeypatch)
    monkeypatch.setenv("TQDM_MINITERS", variable)
    bar = Often(refresh_rate=rate)
    bar.seen = []
    trainer(callbacks=[bar]).fit(Line(), loader(7))
    assert bar.seen == seen


def test_the_host_waits_at_a_refresh_only(monkeypatch: pytest.MonkeyPatch) -> None:
    """However many batches go by between two drawings."""
    watch(monkeypatch)

    def reads(batches: int) -> int:
        with ScalarReads() as mode:
            trainer(callbacks=[TQDMProgressBar(refresh_rate=1000)]).fit(Model(), loader(batches), loader(1))
        return mode.count

    assert reads(40) == reads(20)


def test_metrics_are_read_at_refreshes_and_at_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    watch(monkeypatch)
    monkeypatch.setattr(drawn, "BETWEEN_DRAWINGS", 1000.0)
    monkeypatch.setattr(drawn, "MOST_BETWEEN_DRAWINGS", 1000.0)
    calls = []

    class Counts(TQDMProgressBar):
        def get_metrics(self, trainer: Any, pl_module: Any) -> Any:
            calls.append(trainer.progress.batch_in_epoch)
            return super().get_metrics(trainer, pl_module)

    trainer(max_epochs=2, callbacks=[Counts()]).fit(Line(), loader(9))
    assert calls == [0, 9, 9]


def test_what_the_module_logs_at_the_end_of_an_epoch_is_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    screen = watch(monkeypatch)

    class Late(Line):
        def on_train_epoch_end(self) -> None:
            self.log("late", 7.0, prog_bar=True)

    trainer(callbacks=[TQDMProgressBar()]).fit(Late(), loader())
    assert "late=7.000" in screen.getvalue()


def test_of_metrics_with_the_bars_own_name_the_users_is_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    screen = watch(monkeypatch)

    class Same(Line):
        def training_step(self, batch: Any, batch_idx: int) -> Any:
            self.log("v_num", 5.0, prog_bar=True)
            return self.loss(batch)

    with pytest.warns(UserWarning, match=r"shows \['v_num'\] of its own"):
        trainer(logger=CSVLogger("."), callbacks=[TQDMProgressBar()]).fit(Same(), loader())
    assert "v_num=5.000" in screen.getvalue()


def test_the_minute_line_is_left_out_where_a_bar_is_drawn(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    watch(monkeypatch)
    now = [0.0]
    for module in (fit, run):
        monkeypatch.setattr(module, "monotonic", lambda: now[0])

    class Slow(Line):
        def training_step(self, batch: Any, batch_idx: int) -> Any:
            now[0] += 61
            return self.loss(batch)

    trainer(callbacks=[TQDMProgressBar()]).fit(Slow(), loader(3))
    assert len(caplog.messages) == 1
    monkeypatch.setattr(sys, "stdout", io.StringIO())
    trainer(callbacks=[TQDMProgressBar()]).fit(Slow(), loader(3))
    assert len(caplog.messages) == 1 + 3 + 1


def test_a_long_evaluation_in_a_file_has_a_line_a_minute(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    now = [0.0]
    monkeypatch.setattr(drawn, "monotonic", lambda: now[0])

    class Slow(Model):
        def test_step(self, batch: Any, batch_idx: int, dataloader_idx: int = 0) -> None:
            now[0] += 25

        predict_step = test_step

    bar = TQDMProgressBar()
    trainer(callbacks=[bar]).test(Slow(), loader(7), verbose=False)
    assert caplog.messages == [
        "test  batch 3/7  25 s/batch  1 min 40 s left",
        "test  batch 6/7  25 s/batch  25 s left",
    ]
    caplog.clear()
    trainer(callbacks=[bar]).predict(Slow(), [loader(2), loader(3)])
    assert caplog.messages == [
        "predict loader 1  batch 1/3  25 s/batch  50 s left",
        "predict: 5 batches  2 min 05 s, 25 s/batch",
    ]


def test_bars_of_ones_own_by_overriding(monkeypatch: pytest.MonkeyPatch) -> None:
    screen = watch(monkeypatch)

    class Own(TQDMProgressBar):
        def init_train_tqdm(self) -> Tqdm:
            bar = super().init_train_tqdm()
            bar.bar_format = "mine {n_fmt} of {total_fmt}{postfix}"
            return bar

        def init_test_tqdm(self) -> Tqdm:
            bar = super().init_test_tqdm()
            bar.set_description("on trial")
            return bar

        def get_metrics(self, trainer: Any, pl_module: Any) -> Any:
            return {"own": "text"}

        def on_train_epoch_start(self, *args: Any) -> None:
            super().on_train_epoch_start(*args)
            assert self.train_progress_bar.total == 4

    bar = Own()
    used = trainer(callbacks=[bar])
    used.fit(Line(), loader())
    assert "mine 4 of 4, own=text" in screen.getvalue()
    assert bar.train_progress_bar.n == 4
    used.test(Line(), loader())
    assert "on trial: 100%" in screen.getvalue()


def test_bars_are_there_where_nothing_is_drawn() -> None:
    """Code that changes a bar in a hook works in a file, too."""

    class Own(TQDMProgressBar):
        def on_train_epoch_start(self, *args: Any) -> None:
            super().on_train_epoch_start(*args)
            self.train_progress_bar.set_description("mine")

    trainer(callbacks=[Own()]).fit(Line(), loader())


def test_a_bar_that_has_not_run() -> None:
    bar = TQDMProgressBar()
    with pytest.raises(TypeError, match="'train' yet"):
        _ = bar.train_progress_bar
    with pytest.raises(TypeError, match=r"TQDMProgressBar\.trainer"):
        _ = bar.trainer


@pytest.mark.parametrize("kind", KINDS)
def test_copies_and_pickles(kind: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    watch(monkeypatch)
    bar = kind(refresh_rate=3)

    class Copies(Line):
        def training_step(self, batch: Any, batch_idx: int) -> Any:
            for other in (copy.deepcopy(bar), pickle.loads(pickle.dumps(bar))):
                assert other.refresh_rate == 3
                assert not other.is_drawn
            return self.loss(batch)

    trainer(callbacks=[bar]).fit(Copies(), loader())


def test_streams_and_handlers_are_given_back(monkeypatch: pytest.MonkeyPatch) -> None:
    screen = watch(monkeypatch)
    handler = logging.StreamHandler(screen)
    logging.getLogger("mine").addHandler(handler)
    trainer(callbacks=[TQDMProgressBar()]).fit(Line(), loader())
    assert sys.stdout is screen
    assert handler.stream is screen
    logging.getLogger("mine").removeHandler(handler)


def test_a_bar_written_by_a_user(capsys: pytest.CaptureFixture[str]) -> None:
    class Percent(ProgressBar):
        def __init__(self) -> None:
            super().__init__()
            self.enable = True  # type: ignore[assignment, method-assign]  # as Lightning's documentation does

        def on_train_batch_end(self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
            super().on_train_batch_end(trainer, pl_module, outputs, batch, batch_idx)
            self.print(f"{100 * (batch_idx + 1) / self.total_train_batches:.0f}")

    used = trainer(callbacks=[Percent()])
    used.fit(Line(), loader())
    assert capsys.readouterr().out.split() == ["25", "50", "75", "100"]


@pytest.mark.parametrize(
    ("number", "text"),
    [(21, "21"), (5.0, "5.000"), (3.14159, "3.140"), (21.7, "21.70"), (0.00123, "0.00123"), (1e-6, "1e-6"),
     (123456.0, "1.23e+5"), (float("nan"), "nan"), (float("inf"), "inf"), ("text", "text")],
)  # fmt: skip
def test_numbers_keep_their_width(number: Any, text: str) -> None:
    assert Tqdm.format_num(number) == text


@pytest.mark.parametrize("columns", range(4, 200, 7))
@pytest.mark.parametrize("metrics", [{}, {"loss": 0.25}, {f"損失_{i}": 0.1 * i for i in range(12)}])
def test_a_bar_never_is_wider_than_its_window(columns: int, metrics: dict[str, float]) -> None:
    bar = Tqdm(desc="Epoch 12/20", total=400, file=Screen(), dynamic_ncols=True, delay=1)
    bar.dynamic_ncols = lambda _: (columns, 20)
    bar.set_postfix(metrics, refresh=False)
    for bar.n, bar.total in ((380, 400), (380, None)):
        assert disp_len(str(bar)) < columns
        if columns >= 40:
            assert re.search(r"\b380", str(bar))
    bar.disable = True


def test_a_theme(monkeypatch: pytest.MonkeyPatch) -> None:
    screen = watch(monkeypatch)
    theme = RichProgressBarTheme(metrics_format=".5f", metrics_text_delimiter=" | ", description="bold")
    trainer(callbacks=[RichProgressBar(theme=theme)]).fit(Model(), loader(), loader(1))
    assert "loss: 0.25000 | score: 1.50000" in screen.getvalue()


def test_nothing_is_imported_before_a_bar_is_made() -> None:
    """But for tqdm itself, which torch imports."""
    code = "import gpulayer.pytorch.callbacks, sys; print([n for n in sys.modules if n.split('.')[0] == 'rich'])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_two_bars_are_refused() -> None:
    with pytest.raises(MisconfigurationException, match="progress bars"):
        L.Trainer(callbacks=[TQDMProgressBar(), RichProgressBar()])

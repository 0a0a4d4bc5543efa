"""Ctrl+C, SIGTERM and SLURM's notice end a run after its batch, with everything saved, and the same script goes on."""

from __future__ import annotations

import os
import pty
import shutil
import signal
import subprocess
import sys
import time
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest

from tests.pytorch.trainer.signalled import PATH, Program, run

EXIT = {signal.SIGINT: 130, signal.SIGTERM: 143}
TOLD = {signal.SIGINT: "Interrupted", signal.SIGTERM: "SIGTERMException"}


def found(output: str, word: str) -> list[str]:
    """The lines that begin with a word."""
    return [line for line in output.splitlines() if line.split(" ")[0] == word]


@cache
def whole(arguments: str) -> tuple[list[str], list[str]]:
    """The batches of a run that nobody interrupts, and its end."""
    with TemporaryDirectory() as folder:
        status, output = run(f"train({arguments})", Path(folder), at_once="loader" not in arguments)
    assert status == 0, output
    return found(output, "batch"), found(output, "ended")


def files(folder: Path) -> list[str]:
    """All names in a folder, hidden ones too."""
    return sorted(path.name for path in folder.iterdir())


# -- training ---------------------------------------------------------------------------------------------------------

WINDOWS = "accumulate_grad_batches=2"
OFTEN = "val_check_interval=2"
WORKERS = "loader={'num_workers': 2}"
PERSISTENT = "loader={'num_workers': 2, 'persistent_workers': True}"
INT, TERM = EXIT
MOMENTS = [
    (INT, ("on_train_start", 0, None), ""),
    (TERM, ("on_train_batch_start", 1, 2), ""),
    (INT, ("training_step", 1, 2), ""),
    (TERM, ("training_step", 1, 2), WINDOWS),  # the first half of a step
    (INT, ("training_step", 1, 4), ""),  # a validation and the epoch's end are due then
    (TERM, ("training_step", 1, 3), OFTEN),
    (INT, ("on_before_zero_grad", 1, None), WORKERS),
    (TERM, ("on_train_batch_end", 1, 2), PERSISTENT),
    (INT, ("validation_step", 1, 1), ""),
    (TERM, ("validation_step", 1, 1), OFTEN + ", " + WINDOWS),
    (INT, ("on_validation_epoch_end", 1, None), OFTEN),
    (TERM, ("on_train_epoch_end", 1, None), ""),
    (INT, ("training_step", 2, 4), ""),  # the very last one
    (TERM, ("on_train_end", 3, None), ""),
    (TERM, ("training_step", 1, 2), "background=True"),
]


@pytest.mark.parametrize(("number", "moment", "arguments"), MOMENTS)
def test_a_run_that_is_ended_goes_on_as_if_nothing_had_happened(
    number: signal.Signals, moment: Any, arguments: str, tmp_path: Path
) -> None:
    alone = "loader" not in arguments  # without workers, which Python ends when it ends
    status, output = run(f"train({moment}, {number:d}, {arguments})", tmp_path, at_once=alone)
    assert status == EXIT[number], output
    assert "Traceback" not in output
    after = output.partition(f"signal {number:d}")[2]
    assert len(found(after, "batch")) <= 1  # the one at work
    assert len(found(after, "evaluated")) <= 1
    assert output.index("Saved ") < output.index(f"on_exception {TOLD[number]}")
    assert "teardown" not in output
    assert "last.ckpt" in files(tmp_path / "saved")
    again, rest = run(f"train({arguments})", tmp_path, at_once=alone)
    assert again == 0, rest
    batches, end = whole(arguments)
    assert found(output, "batch") + found(rest, "batch") == batches
    assert found(rest, "ended") == end


@pytest.mark.parametrize("arguments", [WORKERS, PERSISTENT])
def test_workers_get_the_signal_too(arguments: str, tmp_path: Path) -> None:
    """SLURM, and `docker stop` with an init, end all processes: the workers are gone when the batch is done."""
    status, output = run(f"train(('training_step', 1, 1), group=True, {arguments})", tmp_path)
    assert (status, "Traceback" in output) == (143, False), output
    assert found(output, "batch") == whole(arguments)[0][:7]
    status, rest = run(f"train({arguments})", tmp_path)
    assert found(output, "batch") + found(rest, "batch") == whole(arguments)[0]
    assert found(rest, "ended") == whole(arguments)[1]


@pytest.mark.parametrize(("keys", "workers"), [(b"\x03", 0), (b"\x03", 2), (b"\x03\x03", 2)])
def test_ctrl_c_on_a_terminal(keys: bytes, workers: int, tmp_path: Path) -> None:
    """While the batch is being fetched: the first one waits for it, the second does not."""
    code = f"""
trainer, seconds = a_trainer(), {0.5 if len(keys) == 1 else 1.5}
try:
    trainer.fit(Model(), data(seconds, num_workers={workers}))
finally:
    print(trainer.state.status.value, trainer.interrupted, trainer.received_sigterm)
"""
    terminal, theirs = pty.openpty()
    program, screen = Program(code, tmp_path, terminal=os.ttyname(theirs)), b""
    while b"batch 0 0" not in screen:
        screen += os.read(terminal, 10_000)
    os.close(theirs)
    time.sleep(0.1)
    for key in keys:
        os.write(terminal, bytes([key]))
        time.sleep(0.1)
    while True:
        try:
            screen += os.read(terminal, 10_000)
        except OSError:
            break
    os.close(terminal)
    assert program.end() == 130
    text = screen.decode()
    assert "Ctrl+C: the run ends after this batch; once more to end at once." in text
    assert "interrupted True False" in text
    after = text.partition("^C")[2]
    assert ("batch 0" in after, "Saved" in after) == ((True, True) if len(keys) == 1 else (False, False)), text
    assert "Traceback" not in text
    assert not subprocess.run(["pgrep", "-s", str(program.process)], capture_output=True).stdout  # no worker is left


def test_workers_that_died_while_a_batch_was_fetched(tmp_path: Path) -> None:
    """The batch never comes; torch notices after some seconds, and what was trained is saved."""
    program = Program("a_trainer().fit(Model(), data(1.5, num_workers=2))", tmp_path)
    program.wait_for("batch 0 1")
    os.killpg(program.process, signal.SIGTERM)
    assert program.end() == 143, program.output
    assert "Saved" in program.output
    assert "Traceback" not in program.output


def test_a_step_that_hangs(tmp_path: Path) -> None:
    """A second Ctrl+C ends it; the hooks for errors run."""
    code = """
class Hangs(Model):
    def training_step(self, batch, batch_idx):
        print("hangs")
        time.sleep(1000)
from gpulayer.pytorch.trainer import signals
signals.PATIENCE = 3600  # the second one is to end it, however long this machine takes to send it
a_trainer().fit(Hangs(), data())
"""
    program = Program(code, tmp_path)
    program.wait_for("hangs")
    os.kill(program.process, signal.SIGINT)
    program.wait_for("once more")
    os.kill(program.process, signal.SIGTERM)  # is not needed, and not heard
    os.kill(program.process, signal.SIGINT)
    assert program.end() == 130
    assert found(program.output, "on_exception") == ["on_exception Interrupted"]
    assert "Saved" not in program.output


def test_ctrl_c_is_patient_with_a_batch_for_some_seconds(tmp_path: Path) -> None:
    """Then the run ends in its midst, but not within an optimizer's step; what was trained before is saved."""
    code = """
from gpulayer.pytorch.trainer import signals
signals.PATIENCE = 1.0
def nap(optimizer, *arguments):
    print("steps")
    end = time.monotonic() + 2
    while time.monotonic() < end:
        time.sleep(0.05)
    print("has stepped")
class Hangs(Model):
    def configure_optimizers(self):
        optimizer = torch.optim.SGD(self.parameters(), lr=0.1)
        optimizer.register_step_post_hook(nap)
        return optimizer
    def on_train_batch_end(self, *arguments):
        print("hangs")
        time.sleep(1000)
a_trainer().fit(Hangs(), data())
"""
    program = Program(code, tmp_path)
    program.wait_for("steps")
    began = time.monotonic()
    os.kill(program.process, signal.SIGINT)
    assert program.end() == 130, program.output
    assert 2 <= time.monotonic() - began < 5
    assert found(program.output, "has") == ["has stepped"]
    assert "Saved" in program.output
    assert "last.ckpt" in files(tmp_path / "saved")
    assert "Traceback" not in program.output


@pytest.mark.parametrize("number", EXIT, ids=lambda number: number.name)
def test_more_signals_during_the_save(number: signal.Signals, tmp_path: Path) -> None:
    """SIGTERM does not break it off. Ctrl+C does, and leaves the checkpoint before, and nothing half-written."""
    code = f"""
class Slow(L.Callback):
    def on_exception(self, trainer, model, error):
        print("on_exception", trainer.received_sigterm)
class Stubborn:
    def __reduce__(self):
        if trainer.global_step == 7:
            send({number:d})
        return dict, ()
class Big(Model):
    def on_save_checkpoint(self, checkpoint):
        checkpoint["torch"] = torch.zeros(100_000)
        checkpoint["mine"] = Stubborn()
trainer = a_trainer(callbacks=[ModelCheckpoint("saved", save_last=True), Slow()])
model = Big()
at(model, "training_step", 1, 1, lambda: send({number:d}))
trainer.fit(model, data())
"""
    status, output = run(code, tmp_path)
    assert status == EXIT[number], output
    assert output.count(f"signal {number:d}") == 2
    assert f"on_exception {number == signal.SIGTERM}" in output
    assert files(tmp_path / "saved") == ["epoch=0-step=5.ckpt", "last.ckpt"]
    step = "import torch; print('step', torch.load('saved/last.ckpt', weights_only=False)['global_step'])"
    assert f"step {7 if number == signal.SIGTERM else 5}" in run(step, tmp_path, at_once=True)[1]
    assert "Traceback" not in output


def test_a_save_that_fails_is_an_error(tmp_path: Path) -> None:
    code = """
class Full(ModelCheckpoint):
    def save_last_now(self, trainer):
        raise OSError("no space left on device")
model = Model()
at(model, "training_step", 1, 1, lambda: send(signal.SIGTERM))
a_trainer(callbacks=[Full("saved"), Ends()]).fit(model, data())
"""
    status, output = run(code, tmp_path)
    assert status == 1
    assert "OSError: no space left on device" in output
    assert found(output, "on_exception") == ["on_exception OSError"]


# -- what else a script does ------------------------------------------------------------------------------------------


def test_calls_and_their_phases(tmp_path: Path) -> None:
    """Each call ends after its batch, its set-up at once; afterwards the handlers are those of before."""
    code = """
def ended(name, call, hook, batch=None, epoch=0, **arguments):
    model, used = Model(), a_trainer(**{"callbacks": [Ends()], "enable_checkpointing": False, **arguments})
    original = getattr(model, hook)
    def sends(*args, **arguments):
        if batch is None or args[-1] == batch:
            send(signal.SIGINT)
            print("goes on")
        return original(*args, **arguments)
    setattr(model, hook, sends)
    print("call", name)
    try:
        getattr(used, call)(model, data(), **({"val_dataloaders": data()} if call == "fit" else {}))
    except KeyboardInterrupt:
        print("ended", used.state.status.value)
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
    assert signal.getsignal(signal.SIGUSR1) is signal.SIG_DFL
    return used

ended("fit", "fit", "training_step", 1)
ended("sanity", "fit", "validation_step", 0, num_sanity_val_steps=2)
ended("validate", "validate", "validation_step", 1)
ended("test", "test", "test_step", 1)
ended("predict", "predict", "predict_step", 1)
ended("setup", "fit", "setup")
ended("teardown", "fit", "teardown")
print("call done")
used = a_trainer()
used.fit(Model(), data())
print(used.state.status.value, used.interrupted)
"""
    status, output = run(code, tmp_path)
    assert status == 0, output
    calls = {part.split("\n")[0]: part for part in output.split("call ")}
    told = "on_exception Interrupted"
    for name in ("fit", "validate", "test", "predict"):
        seen = found(calls[name], "batch") + found(calls[name], "evaluated")
        assert len(seen) == 2, calls[name]
        assert "goes on" in calls[name]
        assert [told, "ended interrupted"] == found(calls[name], "on_exception") + found(calls[name], "ended")
    assert "Nothing is saved, for there is no ModelCheckpoint." in calls["fit"]
    assert "Nothing is saved" not in calls["test"]
    for name in ("sanity", "setup", "teardown"):
        assert "goes on" not in calls[name]
        assert [told, "ended interrupted"] == found(calls[name], "on_exception") + found(calls[name], "ended")
    assert "finished False" in calls["done"]


def test_scripts_that_catch_keyboard_interrupt(tmp_path: Path) -> None:
    code = """
model, trainer = Model(), a_trainer()
at(model, "training_step", 1, 1, lambda: send(signal.SIGINT))
try:
    trainer.fit(model, data())
except KeyboardInterrupt:
    trainer.save_checkpoint("mine.ckpt")
    trainer.test(model, data(), verbose=False)
    print("tested", trainer.state.status.value)
again = a_trainer()
again.fit(Model(), data(), ckpt_path="mine.ckpt")
"""
    status, output = run(code, tmp_path, at_once=True)
    assert status == 0, output
    assert found(output, "tested") == ["tested finished"]
    assert len(found(output, "batch")) == 15


def test_where_someone_types_nothing_exits(tmp_path: Path) -> None:
    code = """
sys.ps1 = ">>> "
model = Model()
at(model, "training_step", 1, 1, lambda: send(signal.SIGINT))
try:
    a_trainer().fit(model, data())
except BaseException as error:
    print("caught", type(error) is KeyboardInterrupt)
"""
    assert "caught True" in run(code, tmp_path, at_once=True)[1]


def test_a_handler_of_the_users_own_is_left_alone(tmp_path: Path) -> None:
    """Installed before the call or within it; the other signals are handled as ever."""
    code = """
def mine(number, frame):
    print("mine", number)
signal.signal(signal.SIGTERM, mine)
model = Model()
at(model, "training_step", 0, 1, lambda: send(signal.SIGTERM))
at(model, "training_step", 1, 0, lambda: signal.signal(signal.SIGINT, mine))
at(model, "training_step", 1, 1, lambda: send(signal.SIGINT))
a_trainer().fit(model, data())
assert signal.getsignal(signal.SIGTERM) is mine and signal.getsignal(signal.SIGINT) is mine
signal.signal(signal.SIGINT, signal.default_int_handler)
at(model, "validation_step", 3, 1, lambda: send(signal.SIGINT))
a_trainer().validate(model, data())
"""
    status, output = run(code, tmp_path)
    assert len(found(output, "batch")) == 15, output
    assert found(output, "mine") == ["mine 15", "mine 2"]
    assert "finished" not in output
    assert status == 0


def test_threads_calls_within_calls_and_forks(tmp_path: Path) -> None:
    code = """
import threading
before = signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGINT)
seen = []

# A thread has no handlers, nor may it install any.
class Looks(L.Callback):
    def on_train_batch_start(self, *args):
        seen.append((signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGINT)))
thread = threading.Thread(target=lambda: a_trainer(callbacks=[Looks()], max_epochs=1).fit(Model(), data()))
thread.start()
thread.join()
assert set(seen) == {before}, seen

# A process that a hook forks dies of a signal as one of the user's own would.
class Forks(L.Callback):
    def on_train_start(self, *args):
        child = os.fork()
        if not child:
            time.sleep(60)
        time.sleep(0.1)
        os.kill(child, signal.SIGTERM)
        print("child", os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
a_trainer(callbacks=[Forks()], max_epochs=1).fit(Model(), data())

# A call within a call shares the handlers: both end.
class Within(L.Callback):
    def on_train_batch_end(self, trainer, model, outputs, batch, batch_idx):
        other = Model()
        if batch_idx == 1:
            at(other, "validation_step", 0, 1, lambda: send(signal.SIGTERM))
        handlers = signal.getsignal(signal.SIGTERM)
        inner = a_trainer(callbacks=[Ends()], enable_checkpointing=False)
        try:
            inner.validate(other, data(), verbose=False)
        finally:
            assert signal.getsignal(signal.SIGTERM) == handlers
            print("inner", inner.state.status.value, inner.received_sigterm)
try:
    used = a_trainer(callbacks=[Within(), ModelCheckpoint("within"), Ends()])
    used.fit(Model(), data())
finally:
    print("outer", used.state.status.value, used.received_sigterm)
    assert (signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGINT)) == before
"""
    status, output = run(code, tmp_path)
    assert status == 143, output
    assert found(output, "child") == ["child -15"]
    assert found(output, "inner") == ["inner finished False", "inner interrupted True"]
    assert found(output, "outer") == ["outer interrupted True"]
    assert found(output, "on_exception") == ["on_exception SIGTERMException"] * 2
    assert files(tmp_path / "within") == ["last.ckpt"]


# -- SLURM ------------------------------------------------------------------------------------------------------------


def slurm(folder: Path, fails: bool = False, **variables: str) -> dict[str, str]:
    """The variables of a job, and a `scontrol` that notes what it is told and ends the job's process, as SLURM does."""
    scontrol = folder / "bin" / "scontrol"
    scontrol.parent.mkdir(exist_ok=True)
    does = 'echo "Invalid job id specified" >&2; exit 1' if fails else "kill -TERM $PPID"
    scontrol.write_text(f'#!/bin/sh\necho "$@" >> {folder}/scontrol.txt\n{does}\n')
    scontrol.chmod(0o755)
    job = {"SLURM_JOB_ID": "77", "SLURM_JOB_NAME": "train", "PATH": f"{scontrol.parent}:{os.environ['PATH']}"}
    return {**job, **variables}


def test_slurms_notice_saves_and_requeues(tmp_path: Path) -> None:
    """Twice; the job goes on from there each time, and ends as one that was left alone."""
    seen: list[str] = []
    for epoch in (0, 1):
        code = (
            f"Path('first').unlink(True); train(('training_step', {epoch}, 2), signal.SIGUSR1, default_root_dir='root')"
        )
        status, output = run(code, tmp_path, slurm(tmp_path, SLURM_RESTART_COUNT=str(epoch)))
        assert (status, "Traceback" in output) == (138, False), output
        assert "The job is back in SLURM's queue." in output
        assert found(output, "on_exception") == ["on_exception SystemExit"]
        seen += found(output, "batch")
    assert (tmp_path / "scontrol.txt").read_text().splitlines() == ["requeue 77"] * 2
    assert {"hpc_ckpt_1.ckpt", "hpc_ckpt_2.ckpt"} <= set(files(tmp_path / "root"))
    environment = slurm(tmp_path, SLURM_RESTART_COUNT="2")
    status, output = run("train(default_root_dir='root')", tmp_path, environment, at_once=True)
    assert status == 0, output
    assert (seen + found(output, "batch"), found(output, "ended")) == whole("")


def test_slurms_notice_outside_of_training(tmp_path: Path) -> None:
    """A task of an array, in a test; SLURM refuses. Nothing is saved, and the job's end tells of no success."""
    code = """
model = Model()
at(model, "test_step", 0, 1, lambda: send(signal.SIGUSR1))
a_trainer().test(model, data())
"""
    task = slurm(tmp_path, fails=True, SLURM_ARRAY_JOB_ID="70", SLURM_ARRAY_TASK_ID="7")
    status, output = run(code, tmp_path, task)
    assert status == 138
    assert found(output, "evaluated") == ["evaluated 0", "evaluated 1"]
    assert (tmp_path / "scontrol.txt").read_text() == "requeue 70_7\n"
    assert "`scontrol requeue 70_7` failed: Invalid job id specified. Submit it again." in output
    assert not list(tmp_path.glob("**/*.ckpt"))


def test_a_signal_and_a_switch_of_the_users(tmp_path: Path) -> None:
    """Another signal than SIGUSR1; or none at all, and then SIGUSR1 ends the process as ever."""
    code = """
from gpulayer.pytorch.plugins.environments import SLURMEnvironment
model = Model()
at(model, "training_step", 1, 1, lambda: send(signal.{}))
a_trainer(plugins=[SLURMEnvironment({})]).fit(model, data())
"""
    status, output = run(code.format("SIGUSR2", "requeue_signal=signal.SIGUSR2"), tmp_path, slurm(tmp_path))
    assert status == 128 + signal.SIGUSR2, output
    assert "hpc_ckpt_1.ckpt" in files(tmp_path)
    status, output = run(code.format("SIGUSR1", "auto_requeue=False"), tmp_path, slurm(tmp_path))
    assert status == -signal.SIGUSR1, output
    assert (tmp_path / "scontrol.txt").read_text() == "requeue 77\n"


def test_which_checkpoint_a_job_goes_on_from(tmp_path: Path) -> None:
    code = """
import shutil
def goes_on(name, ckpt_path=None, restarts=0, **arguments):
    os.environ["SLURM_RESTART_COUNT"] = str(restarts)
    used = a_trainer(callbacks=[ModelCheckpoint("saved")], max_epochs=3, **arguments)
    try:
        used.fit(Model(), data(), ckpt_path=ckpt_path)
        print(name, used.ckpt_path)
    except L.utilities.exceptions.MisconfigurationException as error:
        print(name, error)

goes_on("none-yet", "hpc")
a_trainer(callbacks=[ModelCheckpoint("saved", "one", save_last=True)], max_epochs=1).fit(Model(), data())
shutil.copy("saved/one.ckpt", "start.ckpt")
goes_on("fresh")
for number in (2, 10):
    shutil.copy("start.ckpt", f"hpc_ckpt_{number}.ckpt")
Path("hpc_ckpt_x.ckpt").touch()
goes_on("newest")
goes_on("path-at-first", "start.ckpt")
goes_on("path-requeued", "start.ckpt", restarts=1)
os.utime("saved/last.ckpt", (1, 1))
goes_on("last-older", "last")  # and those of the runs before, which went further, are newer
for path in Path("saved").glob("epoch=*"):
    os.utime(path, (1, 1))
goes_on("all-older", "last")
os.utime("saved/last.ckpt", (2e9, 2e9))
goes_on("last-newer", "last")
goes_on("switched-off", plugins=[SLURMEnvironment(auto_requeue=False)])
os.environ["SLURM_JOB_NAME"] = "interactive"
goes_on("interactive")
goes_on("asked", "hpc")
"""
    code = "from gpulayer.pytorch.plugins.environments import SLURMEnvironment\n" + code
    status, output = run(code, tmp_path, slurm(tmp_path))
    assert status == 0, output
    assert "there is no hpc_ckpt_<number>.ckpt in" in found(output, "none-yet")[0]
    taken = {
        "fresh": "None", "newest": "hpc_ckpt_10.ckpt", "path-at-first": "start.ckpt",
        "path-requeued": "hpc_ckpt_10.ckpt", "all-older": "hpc_ckpt_10.ckpt", "last-newer": "last.ckpt",
        "switched-off": "None", "interactive": "None", "asked": "hpc_ckpt_10.ckpt",
    }  # fmt: skip
    assert {name: Path(found(output, name)[0].split(" ")[1]).name for name in taken} == taken
    assert Path(found(output, "last-older")[0].split(" ")[1]).name.startswith("epoch=2-step=15")


def cluster() -> bool:
    """Whether there is a SLURM here with an idle node."""
    if shutil.which("sinfo") is None:
        return False
    return bool(subprocess.run(["sinfo", "-h", "-t", "idle", "-o", "%D"], capture_output=True).stdout.strip())


@pytest.mark.skipif(not cluster(), reason="no SLURM with an idle node")
def test_a_job_of_a_real_slurm(tmp_path: Path) -> None:
    """SLURM tells all processes of the job, the workers too; it is requeued, goes on, and ends."""
    (tmp_path / "train.py").write_text(
        "from tests.pytorch.trainer.signalled import *\n"
        "class Waits(L.Callback):\n"
        "    def on_train_batch_end(self, *args):\n"
        "        time.sleep(0.3)\n"
        "train(callbacks=[ModelCheckpoint('saved'), Ends(), Waits()], loader={'num_workers': 2})\n"
    )
    (tmp_path / "job").write_text(
        "#!/bin/sh\n#SBATCH -J signals -n 1 --requeue --open-mode=append --output=output.txt\n"
        f"srun env PYTHONPATH={PATH} OMP_NUM_THREADS=1 PYTHONUNBUFFERED=1 {sys.executable} -W ignore train.py\n"
    )
    job = subprocess.check_output(["sbatch", "--parsable", "job"], cwd=tmp_path, text=True).strip()

    def wait_for(text: str) -> str:
        for _ in range(200):
            output = (tmp_path / "output.txt").read_text() if (tmp_path / "output.txt").exists() else ""
            if text in output:
                return output
            time.sleep(0.5)
        raise AssertionError(f"{text!r} was never written:\n{output}")

    try:
        wait_for("batch 0 1")
        subprocess.run(["scancel", "--signal=USR1", job], check=True)
        wait_for("back in SLURM's queue")
        wait_for("task 0:")  # the first processes are gone
        time.sleep(2)
        # By itself a requeued job starts after two minutes.
        subprocess.run(["scontrol", "update", f"JobId={job}", "StartTime=now"], check=True)
        output = wait_for("ended 15")
    finally:
        subprocess.run(["scancel", job], capture_output=True)
    assert (found(output, "batch"), found(output, "ended")) == whole(WORKERS)

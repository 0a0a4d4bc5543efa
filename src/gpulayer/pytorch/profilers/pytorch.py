"""PyTorchProfiler: the operators and kernels of a few batches, as a table and as a trace."""

from __future__ import annotations

import os
from collections import Counter, defaultdict
from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack
from functools import partial
from tempfile import TemporaryDirectory
from threading import get_ident
from typing import Any
from warnings import catch_warnings, filterwarnings

import torch
from torch import nn
from torch._C._autograd import _profiler_enabled
from torch.profiler import ProfilerAction, record_function

from gpulayer.fabric.utilities.exceptions import MisconfigurationException
from gpulayer.fabric.utilities.files import copy_file
from gpulayer.fabric.utilities.rank_zero import log, rank_zero_info, rank_zero_warn
from gpulayer.fabric.utilities.types import Path
from gpulayer.pytorch.profilers.parts import DATA, FORWARD, STAGES, part_of
from gpulayer.pytorch.profilers.profiler import Profiler
from gpulayer.pytorch.profilers.torch_arguments import SORT_KEYS, check_profile, check_table

WAIT, WARMUP, ACTIVE = 1, 1, 3  # batches
MANY = 10  # recordings of one stage, after which a warning says that there is no end to them
WATCHED = ("train", "validation", "test", "predict")  # stages
RECORDING = (ProfilerAction.RECORD, ProfilerAction.RECORD_AND_SAVE)


class PyTorchProfiler(Profiler):
    """`torch.profiler` on a few batches of each stage; the others run at full speed.

    Without a schedule one batch is passed over, one warms up and three are recorded, once a stage. Each recording gives
    a table at the end of the call, and a trace that opens in https://ui.perfetto.dev. In it actions of the Trainer and
    those of `self.trainer.profiler.profile("name")` are ranges, as are submodules. A validation within training that
    comes while training is being recorded is in that trace.

    Args:
        dirpath: as in `Profiler`; traces are `<dirpath>/fit-<filename>-train-<batch>-<rank>.pt.trace.json`.
        filename: as in `Profiler`.
        group_by_input_shapes: a row of the table for each set of shapes; turns `record_shapes` on.
        emit_nvtx: instead of all that, mark operators for NVIDIA's tools during the whole call:
            `nsys profile python train.py`.
        export_to_chrome: write traces.
        row_limit: rows of a table; -1 for all.
        sort_by_key: the column to sort by, as "cpu_memory_usage". Default: "cuda_time_total" with a GPU, else
            "cpu_time_total".
        record_module_names: mark the forward pass of each submodule.
        table_kwargs: more arguments of the table, as in `torch.autograd.profiler_util.EventList.table`.
        profiler_kwargs: arguments of `torch.profiler.profile`, such as `schedule`, `profile_memory`, `with_stack`,
            `record_shapes`, `activities` or `on_trace_ready`, which takes the place of writing the trace. A schedule
            counts the batches of each stage, those of all epochs together.

    Raises:
        MisconfigurationException: an argument cannot be used; or, when a call begins, a `torch.profiler` is at work.
    """

    AVAILABLE_SORT_KEYS = SORT_KEYS

    def __init__(
        self,
        dirpath: Path | None = None,
        filename: str | None = None,
        group_by_input_shapes: bool = False,
        emit_nvtx: bool = False,
        export_to_chrome: bool = True,
        row_limit: int = 20,
        sort_by_key: str | None = None,
        record_module_names: bool = True,
        table_kwargs: dict[str, Any] | None = None,
        **profiler_kwargs: Any,
    ) -> None:
        super().__init__(dirpath, filename)
        check_table(row_limit, sort_by_key, table_kwargs)
        check_profile(profiler_kwargs)
        if emit_nvtx and not torch.cuda.is_available():
            raise MisconfigurationException(
                "`PyTorchProfiler(emit_nvtx=True)` marks operators for NVIDIA's tools, and torch sees no NVIDIA GPU "
                "here: leave it out for a table and a trace."
            )
        self.group_by_input_shapes = group_by_input_shapes
        self.emit_nvtx = emit_nvtx
        self.export_to_chrome = export_to_chrome
        self.row_limit = row_limit
        self.sort_by_key = sort_by_key
        self.record_module_names = record_module_names
        self.table_kwargs = table_kwargs or {}
        self.profiler_kwargs = profiler_kwargs
        if group_by_input_shapes:
            self.profiler_kwargs["record_shapes"] = True
        self._forget()

    def _forget(self) -> None:
        self._stages: list[str] = []  # those that are under way
        self._schedules: dict[str, Callable[[int], ProfilerAction]] = {}
        self._batches: Counter[str] = Counter()  # of each stage, all that are done
        self._due: set[str] = set()  # stages whose step is done, where the next batch was not asked for yet
        self._profile: torch.profiler.profile | None = None
        self._of = ""  # whose stage that is
        self._ranges: defaultdict[int, list[tuple[str, AbstractContextManager[Any]]]] = defaultdict(list)  # of threads
        self._hooks: list[Any] = []  # of submodules
        self._since = 0  # at which batch the recording began
        self._tables: dict[str, str] = {}  # the newest of each stage
        self._recordings: Counter[str] = Counter()
        self._nvtx = ExitStack()

    # -- the course of a call ----------------------------------------------------------------------------------------

    def setup(self, stage: str, local_rank: int | None = None, log_dir: str | None = None) -> None:
        super().setup(stage, local_rank, log_dir)
        if _profiler_enabled():
            raise MisconfigurationException(
                "A `torch.profiler` is at work around this call, and there can be one at a time: leave it out, or the "
                "PyTorchProfiler."
            )
        self._forget()

    def start(self, action_name: str) -> None:
        stage = STAGES.get(action_name)
        if stage is not None:
            self._begin(stage)
            return
        part = part_of(action_name)
        if part == DATA and self._stages and not self.emit_nvtx:
            self._batch_over()
            self._record_if_due(self._stages[-1])
        if self._recording or self.emit_nvtx:
            entered = record_function(printable(action_name))
            entered.__enter__()
            self._ranges[get_ident()].append((action_name, entered))

    def stop(self, action_name: str) -> None:
        if action_name in STAGES:
            self._end()
            return
        if part_of(action_name) == FORWARD and self._stages:
            self._due.add(self._stages[-1])
        ranges = self._ranges[get_ident()]
        for place in range(len(ranges) - 1, -1, -1):
            if ranges[place][0] == action_name:
                ranges.pop(place)[1].__exit__(None, None, None)
                return

    def _begin(self, stage: str) -> None:
        self._batch_over()  # the one that a validation follows
        self._stages.append(stage)
        if self.emit_nvtx and len(self._stages) == 1:
            self._nvtx.enter_context(torch.autograd.profiler.emit_nvtx())
            self._name_modules()

    def _end(self) -> None:
        if not self._stages:
            raise ValueError("A stage was stopped, but none was started.")
        self._batch_over()
        if self._stages.pop() == self._of:
            self._leave()
        if self.emit_nvtx and not self._stages:
            self._unname_modules()
            self._nvtx.close()

    # -- one stage ---------------------------------------------------------------------------------------------------

    @property
    def _recording(self) -> bool:
        return self._profile is not None and self._profile.current_action in RECORDING

    def _batch_over(self) -> None:
        """The batch of the innermost stage is over, if one was begun."""
        stage = self._stages[-1] if self._stages else ""
        if stage not in self._due:
            return
        self._due.discard(stage)
        self._batches[stage] += 1
        if self._profile is None or stage != self._of:
            return
        if self._recording and not _profiler_enabled():
            self._lose()
            return
        self._close_ranges()
        goes_on = self._profile.current_action is ProfilerAction.RECORD
        with catch_warnings():
            # A schedule that repeats is meant to, and each cycle has its own trace.
            filterwarnings("ignore", ".*clears events at the end of each cycle")
            self._profile.step()
        if not goes_on:
            self._since = self._batches[stage]
        if self._profile.current_action is ProfilerAction.NONE:
            self._leave()

    def _record_if_due(self, stage: str) -> None:
        """Start torch's profiler if the schedule wants the next batch; between recordings there is none at work."""
        if self._profile is not None or stage not in WATCHED:
            return
        if stage not in self._schedules:
            self._schedules[stage] = self.profiler_kwargs.get("schedule") or default_schedule(self._count(stage))
        schedule, done = self._schedules[stage], self._batches[stage]
        action = schedule(done)
        if action is ProfilerAction.NONE:
            return
        ready = partial(self._trace_ready, stage)
        arguments = {**self.profiler_kwargs, "schedule": schedule, "on_trace_ready": ready}
        profile: Any = torch.profiler.profile(**arguments)
        profile.step_num, profile.current_action = done, action  # its steps have the numbers of batches
        profile.start()
        self._profile, self._of, self._since = profile, stage, done
        self._name_modules()

    def _leave(self) -> None:
        """Stop torch's profiler; what was being recorded becomes a trace."""
        if self._profile is None:
            return
        if self._recording and not _profiler_enabled():
            self._lose()
            return
        self._close_ranges()
        self._unname_modules()
        self._profile.stop()
        self._profile, self._of = None, ""

    def _lose(self) -> None:
        """Another `torch.profiler` has ended this recording; torch crashes when asked for what is left of it."""
        rank_zero_warn(
            f"The program used a `torch.profiler` of its own while the PyTorchProfiler recorded {self._of}, and there "
            "can be one at a time: the recording is lost."
        )
        self._ranges.clear()
        self._unname_modules()
        self._profile, self._of = None, ""

    def _count(self, stage: str) -> float:
        """How many batches a stage has at most."""
        trainer = self._trainer
        if trainer is None:
            return float("inf")
        if stage == "train":
            epochs = trainer.max_epochs if trainer.max_epochs not in (None, -1) else 1
            steps = trainer.max_steps * trainer.accumulate_grad_batches if trainer.max_steps != -1 else float("inf")
            return min(trainer.num_training_batches * max(epochs, 1), steps) - trainer.progress.batch
        counts = {"validation": "num_val_batches", "test": "num_test_batches", "predict": "num_predict_batches"}
        most: float = sum(getattr(trainer, counts[stage]))
        return most

    def _close_ranges(self) -> None:
        """Those of this thread: the others' are ended where they were begun."""
        ranges = self._ranges[get_ident()]
        while ranges:
            ranges.pop()[1].__exit__(None, None, None)

    # -- names of submodules -----------------------------------------------------------------------------------------

    def _name_modules(self) -> None:
        if self._hooks or self._trainer is None or not self.record_module_names:
            return
        for name, module in self._trainer.lightning_module.named_modules():
            if name and not isinstance(module, torch.jit.ScriptModule):
                self._hooks += mark_forward(name, module)

    def _unname_modules(self) -> None:
        for hook in self._hooks:
            hook.remove()
        self._hooks.clear()

    # -- what comes of it --------------------------------------------------------------------------------------------

    def _trace_ready(self, stage: str, profile: torch.profiler.profile) -> None:
        last = self._batches[stage]
        if last == self._since:  # the stage ended before the first batch
            return
        self._recordings[stage] += 1
        if self._recordings[stage] == MANY:
            rank_zero_warn(
                f"PyTorchProfiler has recorded {stage} {MANY} times, and its schedule goes on: each recording costs "
                "time and a file. `torch.profiler.schedule(..., repeat=1)` records once."
            )
        title = f"Operators of {stage}, up to batch {last}"
        ready = self.profiler_kwargs.get("on_trace_ready")
        if ready is not None:
            ready(profile)
        elif self.export_to_chrome:
            names = (self.filename or "", stage if self._stage == "fit" else "", str(last))
            path = self._path(*names, extension=".pt.trace.json")
            try:
                write_trace(profile, path)
                title += f"; for https://ui.perfetto.dev: {path}"
            except Exception as error:  # the run is worth more
                log.warning("PyTorchProfiler could not write %s (%s).", path, error)
        self._tables[stage] = f"{title}\n{self._table(profile)}"

    def _table(self, profile: torch.profiler.profile) -> str:
        events = profile.key_averages(group_by_input_shape=self.group_by_input_shapes)
        on_device = any(event.device_time_total for event in events)
        sort_by = self.sort_by_key or ("cuda_time_total" if on_device else "cpu_time_total")
        arguments = {"sort_by": sort_by, "row_limit": self.row_limit, **self.table_kwargs}
        table: str = events.table(**arguments)
        return table

    def summary(self) -> str:
        return "\n\n".join(self._tables.values())

    def describe(self) -> None:
        super().describe()
        if self.emit_nvtx:
            rank_zero_info("PyTorchProfiler marked operators for NVIDIA's tools; look at what nsys wrote.")
        elif not self._tables:
            rank_zero_warn(
                "PyTorchProfiler recorded nothing: the call had fewer batches than its schedule waits for. Give a "
                "shorter one, such as `schedule=torch.profiler.schedule(wait=0, warmup=1, active=2, repeat=1)`."
            )

    def teardown(self, stage: str | None) -> None:
        self._leave()
        self._nvtx.close()

    def __getstate__(self) -> dict[str, Any]:
        return {
            **super().__getstate__(),
            "_profile": None,
            "_hooks": [],
            "_ranges": defaultdict(list),
            "_schedules": {},
            "_nvtx": ExitStack(),
        }


def mark_forward(name: str, module: nn.Module) -> list[Any]:
    """Make the forward pass of a submodule a range, `[module]torch.nn.modules.linear.Linear: net.0`."""
    kind, entered = type(module), []

    def before(*_: Any) -> None:
        entered.append(record_function(printable(f"[module]{kind.__module__}.{kind.__qualname__}: {name}")))
        entered[-1].__enter__()

    def after(*_: Any) -> None:
        if entered:
            entered.pop().__exit__(None, None, None)

    return [module.register_forward_pre_hook(before), module.register_forward_hook(after, always_call=True)]


def printable(name: str) -> str:
    """A name that a trace can hold: torch does not escape what JSON would, and knows ASCII only."""
    if name.isascii() and name.isprintable() and '"' not in name:
        return name
    return "".join(c if c.isascii() and c.isprintable() else "?" for c in name).replace('"', "'")


def default_schedule(batches: float) -> Callable[[int], ProfilerAction]:
    """One recording of a stage: from its third batch on, or of all batches where there are few."""
    if batches < WAIT + WARMUP + ACTIVE:
        last = int(batches) - 1
        return lambda step: (
            ProfilerAction.RECORD if step < last
            else ProfilerAction.RECORD_AND_SAVE if step == last else ProfilerAction.NONE
        )  # fmt: skip
    return torch.profiler.schedule(wait=WAIT, warmup=WARMUP, active=ACTIVE, repeat=1)


def write_trace(profile: torch.profiler.profile, path: str) -> None:
    """Write a trace to a path or URL; the file is there whole or not at all."""
    with TemporaryDirectory() as folder:
        local = os.path.join(folder, "trace.json")  # torch writes to local files only
        profile.export_chrome_trace(local)
        copy_file(local, path)

"""Which metrics share a chart: one metric in its stages and forks, and those that belong to the machine."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, field

METRICS, LEARNING_RATE, THROUGHPUT, DEVICE = "Metrics", "Learning rate", "Throughput", "Device"

_STAGE = "train|training|val|valid|validate|validation|test"
_SHORT = {"training": "train", "valid": "val", "validate": "val", "validation": "val"}
_BEFORE = re.compile(rf"({_STAGE})[_/.\-: ](.+)", re.IGNORECASE)
_AFTER = re.compile(rf"(.+)[_/.\-: ]({_STAGE})", re.IGNORECASE)
_LOADER = re.compile(r"(.+)/dataloader_idx_(\d+)")
_LEARNING_RATE = re.compile(r"(lr|learning_rate)([-/_. ].*)?", re.IGNORECASE)
_RATE = re.compile(r"(.+[/|])?((batches|samples|items|flops)_per_sec|mfu)")
_IN_TOTAL = " in total"
_TOTAL = re.compile(r"(train|validate|test|predict)[/|](time|batches|samples|lengths|items)")


@dataclass(frozen=True)
class Line:
    """One metric as a line of a chart.

    Attributes:
        name: as it was logged.
        fork: "step" or "epoch" where `self.log(on_step=True, on_epoch=True)` logged both, else "".
        stem: the name without the fork; both forks have the same colour.
        stage: "train", "val", "test" or "".
    """

    name: str
    stem: str
    fork: str = ""
    stage: str = ""


@dataclass
class Group:
    """The metrics of one chart.

    Attributes:
        section: where on the page it belongs.
        title: what the metrics have in common.
        lines: training first, then validation, test and others.
    """

    section: str
    title: str
    lines: list[Line] = field(default_factory=list)


def group(names: Iterable[str]) -> list[Group]:
    """Sort metrics into charts: losses first, then those of several stages, totals last, and so by columns."""
    every = list(dict.fromkeys(names))
    groups: dict[tuple[str, str], Group] = {}
    for name in every:
        section, title, line = _place(name, every)
        groups.setdefault((section, title), Group(section, title)).lines.append(line)
    for found in groups.values():
        found.lines.sort(key=_order)
        if found.section == METRICS and len(found.lines) == 1:
            found.title = found.lines[0].name
    return sorted(groups.values(), key=_rank)


def _rank(found: Group) -> tuple[bool, bool, bool]:
    return ("loss" not in found.title.lower(), found.title.endswith(_IN_TOTAL), len(found.lines) == 1)


def _place(name: str, every: list[str]) -> tuple[str, str, Line]:
    """The section and the title of the chart that a metric belongs to, and its line there."""
    if name.startswith("DeviceStatsMonitor."):
        return DEVICE, name.partition("/")[2] or name, Line(name, name)
    rate = _RATE.fullmatch(name)
    if rate:
        return THROUGHPUT, rate[2].replace("_per_sec", " per second"), Line(name, name)
    total = _TOTAL.fullmatch(name)
    if total and all(f"{total[1]}{name[len(total[1])]}{other}" in every for other in ("time", "batches")):
        return THROUGHPUT, f"{total[2]}{_IN_TOTAL}", Line(name, name)
    if _LEARNING_RATE.fullmatch(name):
        for ending, title in (("-momentum", "Momentum"), ("-weight_decay", "Weight decay")):
            if name.endswith(ending):
                return LEARNING_RATE, title, Line(name, name)
        return LEARNING_RATE, "Learning rate", Line(name, name)
    return METRICS, *_parts(name, every)


def _parts(name: str, every: list[str]) -> tuple[str, Line]:
    """What a metric measures, and in which stage, loader and fork."""
    stem, fork, stage = name, "", ""
    loader = _LOADER.fullmatch(name)
    rest = loader[1] if loader else name
    for ending, other in (("step", "epoch"), ("epoch", "step")):
        if rest.endswith(f"_{ending}") and name.replace(rest, f"{rest.removesuffix(ending)}{other}") in every:
            stem = name.replace(rest, rest.removesuffix(f"_{ending}"))
            rest, fork = rest.removesuffix(f"_{ending}"), ending
            break
    before, after = _BEFORE.fullmatch(rest), _AFTER.fullmatch(rest)
    if before:
        stage, rest = before[1], before[2]
    elif after:
        rest, stage = after[1], after[2]
    return rest, Line(name, stem, fork, _SHORT.get(stage.lower(), stage.lower()))


def _order(line: Line) -> tuple[int, str, str]:
    stages = ["train", "", "val", "test"]
    return (stages.index(line.stage), line.stem, line.fork)

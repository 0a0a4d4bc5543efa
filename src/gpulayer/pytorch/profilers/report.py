"""The report of a Timeline: shares of each stage's time that add up to 100 %, and the actions that took longest."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable

from gpulayer.pytorch.profilers.parts import AROUND, DATA, PARTS, REST, STAGES, STEPS, part_of
from gpulayer.pytorch.profilers.timeline import Stack, Timeline

ALL = "all"
NAME_WIDTH, WIDTH, LONGEST_NAME = 12, 17, 44  # characters
MUCH_WAITING, LONG_WAITING = 0.2, 0.1  # of training's time; seconds


def place_of(stack: Stack) -> tuple[str, str]:
    """The stage and the part that a slice of time belongs to: those of the innermost actions that have one."""
    part = None
    for name in reversed(stack):
        if name in STAGES:
            return STAGES[name], part or REST
        part = part or part_of(name)
    return AROUND, part or REST


def by_stage(timeline: Timeline) -> dict[str, dict[str, float]]:
    """Seconds of each part of each stage, in the order of the report."""
    found: dict[str, dict[str, float]] = {}
    for stack, seconds in timeline.spent.items():
        stage, part = place_of(stack)
        parts = found.setdefault(stage, defaultdict(float))
        parts[part] += seconds
    order = ("train", "validation", "test", "predict", AROUND)
    return {stage: dict(found[stage]) for stage in order if stage in found}


def batches(timeline: Timeline) -> Counter[str]:
    """How many batches each stage has had."""
    counts: Counter[str] = Counter()
    for stack, calls in timeline.calls.items():
        stage = place_of(stack)[0]
        if stage in STEPS and stack[-1].startswith("[Strategy]") and stack[-1].endswith(f".{STEPS[stage]}"):
            counts[stage] += calls
    return counts


def shares(seconds: Iterable[float]) -> list[float]:
    """Percentages in tenths, which add up to 100.0: what rounding leaves goes to those that lost most by it."""
    values = list(seconds)
    total = sum(values)
    if total <= 0:
        return [0.0] * len(values)
    exact = [1000 * value / total for value in values]
    tenths = [int(value) for value in exact]
    by_loss = sorted(range(len(values)), key=lambda i: exact[i] - tenths[i], reverse=True)
    for i in by_loss[: 1000 - sum(tenths)]:
        tenths[i] += 1
    return [value / 10 for value in tenths]


def table_of_parts(timeline: Timeline, call: str) -> str:
    """Where the time went, on one screen of 80 columns."""
    stages = by_stage(timeline)
    total = sum(sum(parts.values()) for parts in stages.values())
    columns = dict(stages)
    if len(stages) > 1:
        columns[ALL] = {part: sum(parts.get(part, 0.0) for parts in stages.values()) for part in PARTS}
    counts = batches(timeline)
    rows = [("", [f"{name:>{WIDTH}}" for name in columns])]
    cells = [shares(parts.get(part, 0.0) for part in PARTS) for parts in columns.values()]
    for number, part in enumerate(PARTS):
        seconds = [parts.get(part, 0.0) for parts in columns.values()]
        if any(seconds):
            rows.append((part, [cell(one, share[number]) for one, share in zip(seconds, cells, strict=True)]))
    sums = {name: sum(parts.values()) for name, parts in columns.items()}
    rows.append(("total", [cell(seconds, 100) for seconds in sums.values()]))
    if counts:
        rows.append(("batches", [f"{counts[name]:>{WIDTH},}" if counts[name] else " " * WIDTH for name in columns]))
        each = {name: spoken(sums[name] / counts[name]) if counts[name] else "" for name in columns}
        rows.append(("a batch", [f"{each[name]:>{WIDTH}}" for name in columns]))
    lines = [f"Where the time of {call} went: {spoken(total)}", ""]
    lines += [f"{name:{NAME_WIDTH}}{''.join(row)}".rstrip() for name, row in rows]
    train = stages.get("train", {})
    if train.get(DATA, 0.0) > max(MUCH_WAITING * sum(train.values()), LONG_WAITING):
        lines += ["", "Training waits for data much of the time: try more `num_workers` in its DataLoader."]
    return "\n".join(lines)


def cell(seconds: float, share: float) -> str:
    """One number of the table."""
    return f"{spoken(seconds):>{WIDTH - 8}}{share:6.1f} %" if seconds else f"{'-':>{WIDTH - 8}}{'':8}"


def spoken(seconds: float) -> str:
    """A time in few digits: 12.3 s, 4.56 ms, 7 us."""
    if seconds >= 1000:
        return f"{seconds:,.0f} s"
    if seconds >= 0.9995:
        return f"{seconds:.3g} s" if seconds < 100 else f"{seconds:.0f} s"
    if seconds >= 1e-3:
        return f"{seconds * 1e3:.3g} ms" if seconds < 0.0995 else f"{seconds * 1e3:.0f} ms"
    return f"{seconds * 1e6:.0f} us"


def actions(timeline: Timeline) -> dict[str, tuple[float, int]]:
    """Seconds, with what was nested in it, and calls of each action, the longest first."""
    seconds: defaultdict[str, float] = defaultdict(float)
    calls: Counter[str] = Counter()
    for thread in (timeline, *timeline.others.values()):
        for stack, spent in thread.spent.items():
            for name in set(stack) - set(STAGES):
                seconds[name] += spent
        for stack, count in thread.calls.items():
            calls[stack[-1]] += count
    return {name: (seconds[name], calls[name]) for name in sorted(seconds, key=lambda name: -seconds[name])}


def table_of_actions(timeline: Timeline, extended: bool, most: int | None = None) -> str:
    """The actions that took longest.

    Args:
        timeline: what was measured.
        extended: also how often, and which share of the whole.
        most: how many of them; None for all.
    """
    found, total = actions(timeline), sum(timeline.spent.values())
    shown = list(found.items())[:most]
    width = max([len("Action"), *(len(shorten(name, most)) for name, _ in shown)])
    head = f"{'Action':{width}}{'total':>9}" + (f"{'share':>8}{'calls':>10}" if extended else "") + f"{'mean':>9}"
    lines = [head, "-" * len(head)]
    for name, (seconds, calls) in shown:
        more = f"{100 * seconds / total:6.1f} %{calls:10,}" if extended else ""
        lines.append(f"{shorten(name, most):{width}}{spoken(seconds):>9}{more}{spoken(seconds / calls):>9}")
    if left := len(found) - len(shown):
        lines.append(f"(and {left} more: give the profiler a `filename`, and it writes all of them there)")
    return "\n".join(lines)


def shorten(name: str, most: int | None) -> str:
    """The name as it is shown: on a screen its beginning may be left out."""
    return name if most is None or len(name) <= LONGEST_NAME else f"...{name[3 - LONGEST_NAME :]}"

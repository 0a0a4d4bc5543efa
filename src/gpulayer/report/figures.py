"""Charts as plotly figures: one for each group of metrics, with the lines of all runs."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from html import escape
from typing import TYPE_CHECKING

from gpulayer.report.groups import LEARNING_RATE, Group
from gpulayer.report.metrics import Series
from gpulayer.report.read import Run
from gpulayer.report.thin import mean, thin

if TYPE_CHECKING:
    import plotly.graph_objects as go

# Told apart on white and on black, and by most colour-blind people.
COLOURS = "#3d7eea #ee7f2d #2fa56d #c754a8 #8b6ae0 #b7960e #19a3b8 #e05252 #7d8a97 #7ba33a".split()
DASHES = "solid dash dot dashdot longdash longdashdot".split()
POINTS_OF_A_LINE = (200, 2000)  # at least and at most
POINTS_OF_A_PAGE = 200_000
MEANS = 150  # of a line that is thinned
MARKED = 60  # lines of up to so many points show each of them


@dataclass
class Key:
    """A line's entry in the legend: all lines of one metric (one run), or of one run.

    Attributes:
        text: the metric's name.
        colour: of the line; "" where each run has its own.
        dash: plotly's name of the pattern.
        faint: drawn thin, as values of single steps are beside means over epochs.
    """

    text: str
    colour: str
    dash: str
    faint: bool


@dataclass
class Chart:
    """A figure, and what stands around it on the page.

    Attributes:
        group: its metrics.
        figure: plotly's figure, without colours of text and background, which follow the reader's light or dark mode.
        keys: its legend.
        notes: sentences about values that cannot be drawn.
        has_positive: whether there is anything to draw on a logarithmic axis.
        nonpositive: how many values a logarithmic axis leaves out.
    """

    group: Group
    figure: go.Figure
    keys: list[Key]
    notes: list[str]
    has_positive: bool
    nonpositive: int


def points_of_a_line(runs: list[Run]) -> int:
    """How many points each line may have so that the page stays small enough to open at once."""
    lines = sum(len(run.metrics.series) for run in runs)
    least, most = POINTS_OF_A_LINE
    return max(least, min(most, POINTS_OF_A_PAGE // max(lines, 1)))


def draw(group: Group, runs: list[Run], points: int) -> Chart:
    """One chart.

    Args:
        group: the metrics.
        runs: whose lines to draw; each has a colour of its own if there are several.
        points: about how many points a line may have.
    """
    import plotly.graph_objects as go

    stems = list(dict.fromkeys(line.stem for line in group.lines))
    figure = go.Figure()
    keys, notes, values = [], [], []
    alone = len(runs) == 1
    for line in group.lines:
        number = stems.index(line.stem)
        key = Key(
            text=line.name,
            colour=COLOURS[number % len(COLOURS)] if alone else "",
            dash="solid" if alone else DASHES[number % len(DASHES)],
            faint=line.fork == "step",
        )
        keys.append(key)
        for index, run in enumerate(runs):
            series = run.metrics.series.get(line.name)
            if series is None:
                continue
            colour = key.colour or COLOURS[index % len(COLOURS)]
            name = line.name if alone else f"{run.name}: {line.name}"
            finite = series.finite()
            values += finite
            if len(finite) < len(series.values):
                notes.append(_missing(name, series, len(finite)))
            style = _Style(name, colour, key.dash, width=1.2 if key.faint else 2, opacity=0.55 if key.faint else 1)
            meta = {"run": index, "key": line.name}
            for drawn, its_style in _thinned(series, style, points, smooth=group.section == LEARNING_RATE):
                figure.add_trace(_trace(run, drawn, its_style, meta))
    figure.update_layout(
        template="none",
        showlegend=False,
        hovermode="x unified",
        margin={"l": 56, "r": 12, "t": 8, "b": 36},
        xaxis={"title": {"text": "step", "standoff": 8}, "exponentformat": "none"},
        yaxis={"tickformat": ",.6~g", "nticks": 6},  # with more, labels of a log axis overlap
    )
    nonpositive = sum(value <= 0 for value in values)
    return Chart(group, figure, keys, notes, nonpositive < len(values), nonpositive)


@dataclass
class _Style:
    """How a line looks, and its name where the pointer is."""

    name: str
    colour: str
    dash: str
    width: float
    opacity: float


def _thinned(series: Series, style: _Style, points: int, smooth: bool) -> Iterator[tuple[Series, _Style]]:
    """What to draw of a line: all of it; or, of a long one, its extremes pale and its mean strong."""
    if len(series.values) <= points:
        yield series, style
    elif smooth:  # a mean would round off the corners
        yield thin(series, points), style
    else:
        yield thin(series, points), replace(style, width=1, opacity=0.4)
        yield mean(series, MEANS), replace(style, name=f"{style.name}, mean", opacity=1)


def _trace(run: Run, series: Series, style: _Style, meta: dict[str, object]) -> dict[str, object]:
    """A line as plotly's figure takes it; `meta` tells the page's script what it belongs to."""
    epochs = [run.metrics.epochs_done(step) for step in series.steps]
    trace: dict[str, object] = {
        "type": "scatter",
        "x": series.steps,
        "y": [None if value is None else float(f"{value:.7g}") for value in series.values],
        "customdata": [None if done is None else round(done, 4) for done in epochs],  # the other x axis
        "name": escape(style.name, quote=False),  # plotly reads some HTML in names
        "meta": meta,
        "mode": "lines",
        "line": {"color": style.colour, "dash": style.dash, "width": style.width},
        "opacity": style.opacity,
        "hovertemplate": "%{y:.6~g}",
    }
    lonely = _lonely(series.values)
    if len(series.values) <= MARKED:
        trace |= {"mode": "lines+markers", "marker": {"size": 5}}
    elif lonely:
        sizes = [5 if place in lonely else 0 for place in range(len(series.values))]
        trace |= {"mode": "lines+markers", "marker": {"size": sizes}}
    return trace


def _lonely(values: list[float | None]) -> set[int]:
    """Places of values without a neighbour, which a line alone would not show."""
    padded = [None, *values, None]
    return {
        place
        for place, value in enumerate(values)
        if value is not None and padded[place] is None and padded[place + 2] is None
    }


def _missing(name: str, series: Series, finite: int) -> str:
    count = len(series.values)
    first = series.steps[series.values.index(None)]
    return f"{name}: {count - finite:,} of {count:,} values NaN or infinite, first at step {first:,}; gaps in the line."

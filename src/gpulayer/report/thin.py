"""Fewer points of a long line: its extremes, and its mean."""

from __future__ import annotations

from math import fsum

from gpulayer.report.metrics import Series


def thin(series: Series, most: int) -> Series:
    """Keep the lowest, the highest and the first missing value of each of `most / 2` stretches of equal length.

    A mean would hide the one step where the loss jumped; the extremes keep it at its own step and value. The first and
    the last point stay, too.

    Args:
        series: a line; it is returned as it is if it is short enough.
        most: about how many points to keep; up to half as many more where values are missing.
    """
    count = len(series.values)
    if count <= most:
        return series
    stretches = max(most // 2, 1)
    kept = {0, count - 1}
    for number in range(stretches):
        start, end = number * count // stretches, (number + 1) * count // stretches
        values = series.values[start:end]
        finite = [value for value in values if value is not None]
        if len(finite) < len(values):
            kept.add(start + values.index(None))
        if finite:
            kept.add(start + values.index(min(finite)))
            kept.add(start + values.index(max(finite)))
    order = sorted(kept)
    return Series([series.steps[index] for index in order], [series.values[index] for index in order])


def mean(series: Series, stretches: int) -> Series:
    """The mean of each of so many stretches of equal length, at the step in its middle; None where all is missing."""
    count = len(series.values)
    result = Series()
    for number in range(stretches):
        start, end = number * count // stretches, (number + 1) * count // stretches
        finite = [value for value in series.values[start:end] if value is not None]
        result.steps.append(series.steps[(start + end) // 2])
        result.values.append(fsum(finite) / len(finite) if finite else None)
    return result

"""Text, numbers and tables as HTML; whatever comes from a run is escaped here."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import datetime, timedelta
from html import escape


class Html(str):
    """Text that is HTML already; all other text is escaped when it is put into a page."""


def html(value: object) -> Html:
    """Anything as HTML; None as a dash."""
    if isinstance(value, Html):
        return value
    return Html("&ndash;" if value is None else escape(str(value)))


def tag(name: str, content: object = "", **attributes: object) -> Html:
    """An element. Underscores at the end of attributes' names are dropped, others become "-"; None leaves one out."""
    written = "".join(
        f' {key.rstrip("_").replace("_", "-")}="{escape(str(value))}"'
        for key, value in attributes.items()
        if value is not None
    )
    return Html(f"<{name}{written}>{html(content)}</{name}>")


def join(parts: Iterable[object], between: str = "\n") -> Html:
    """Parts, one after the other."""
    return Html(between.join(html(part) for part in parts))


def table(heads: Sequence[object], rows: Iterable[Sequence[object]], marked: Iterable[int] = ()) -> Html:
    """A table that scrolls by itself where the screen is narrower.

    Args:
        heads: the head of each column.
        rows: the cells; columns of numbers are put on the right.
        marked: indices of rows to highlight.
    """
    highlighted, rows = set(marked), list(rows)
    kinds = [_kind(cell for cell in column if cell is not None) for column in zip(*rows, strict=True)]
    head = tag(
        "tr", join((tag("th", name, scope="col", class_=kind) for name, kind in zip(heads, kinds, strict=True)), "")
    )
    body = join(
        tag(
            "tr",
            join((tag("td", _text(cell), class_=kind) for cell, kind in zip(row, kinds, strict=True)), ""),
            class_=mark,
        )
        for row, mark in ((row, "marked" if index in highlighted else None) for index, row in enumerate(rows))
    )
    whole = tag("table", join([tag("thead", head), tag("tbody", body)]))
    return tag("div", whole, class_="table", tabindex=0)


def _kind(column: Iterable[object]) -> str | None:
    """The class of a column's cells."""
    return "number" if any(isinstance(cell, int | float) for cell in column) else None


def _text(value: object) -> object:
    return number(value) if isinstance(value, float) else f"{value:,}" if isinstance(value, int) else value


def number(value: float | None) -> str | None:
    """Five digits, which is what a person compares."""
    return None if value is None else f"{value:.5g}"


def size(count: int) -> str:
    """Bytes in the largest unit that keeps a digit before the point."""
    value, unit = float(count), "B"
    for larger in ("kB", "MB", "GB", "TB"):
        if value < 1000:
            break
        value, unit = value / 1000, larger
    return f"{value:.0f} {unit}" if unit == "B" else f"{value:.3g} {unit}" if value < 100 else f"{value:.0f} {unit}"


def moment(time: datetime | None) -> Html | None:
    """Local time to the second."""
    return None if time is None else tag("span", time.strftime("%Y-%m-%d %H:%M:%S"), class_="moment")


def duration(time: timedelta) -> str:
    """A length of time in its two largest units."""
    seconds = round(time.total_seconds())
    minutes, hours, days = seconds // 60, seconds // 3600, seconds // 86400
    if days:
        return f"{days} d {hours % 24} h"
    if hours:
        return f"{hours} h {minutes % 60} min"
    return f"{minutes} min {seconds % 60} s" if minutes else f"{seconds} s"

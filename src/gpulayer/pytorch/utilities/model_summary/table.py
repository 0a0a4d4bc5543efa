"""A summary as text: numbers that a person reads at a glance, and a table that fits the terminal."""

from __future__ import annotations

import os
from math import log10
from unicodedata import combining, east_asian_width

Columns = list[tuple[str, list[str]]]  # each with its header and its cells

UNITS = ("", "K", "M", "B", "T")
NUMBERS = ("Params", "FLOPs")  # the columns that are aligned to the right
WIDEST, NARROWEST = 80, 10  # characters of a cell
GAP = "  "


def get_human_readable_count(number: float) -> str:
    """A count in thousands (K), millions (M), billions (B) or trillions (T).

    Args:
        number: from 0.

    Returns:
        Two or three digits and the unit, such as "1.2 K"; below 1000 the number and two spaces, so that units stand
        below each other in a column.

    Raises:
        ValueError: the number is negative.
    """
    if number < 0:
        raise ValueError(f"`get_human_readable_count({number!r})`: give a number from 0.")
    power = min(int(log10(number)) // 3, len(UNITS) - 1) if number >= 1 else 0
    scaled = number * 1000.0**-power
    digits = f"{scaled:,.1f}" if power and scaled < 100 else f"{int(scaled):,}"
    return f"{digits} {UNITS[power] or ' '}"


def get_formatted_model_size(total_model_size: float) -> str:
    """A size in megabytes, with three decimals."""
    return f"{total_model_size:,.3f}"


def totals(
    total_parameters: int,
    trainable_parameters: int,
    model_size: float,
    total_training_modes: dict[str, int],
    total_flops: int,
) -> list[tuple[str, str]]:
    """What stands below the table of layers: numbers, and what each one counts.

    Args:
        total_parameters: of the whole model.
        trainable_parameters: those that require gradients.
        model_size: of the parameters, in megabytes.
        total_training_modes: how many modules are in "train" and how many in "eval" mode.
        total_flops: of a forward pass; 0 if there was none.
    """
    lines = [
        (get_human_readable_count(trainable_parameters), "trainable parameters"),
        (get_human_readable_count(total_parameters - trainable_parameters), "frozen parameters"),
        (get_human_readable_count(total_parameters), "parameters in all"),
        (get_formatted_model_size(model_size), "MB of parameters"),
        (f"{total_training_modes['train']:,}", "modules in train mode"),
        (f"{total_training_modes['eval']:,}", "modules in eval mode"),
    ]
    if total_flops:
        lines.append((get_human_readable_count(total_flops), "FLOPs of a forward pass"))
    return [(number.strip(), text) for number, text in lines]


def draw(columns: Columns, below: list[tuple[str, str]], width: int | None = None) -> str:
    """The layers as a table, and the totals below it.

    Args:
        columns: the table; no columns, no table.
        below: the totals, as `totals` gives them.
        width: of the terminal, in characters; None: as wide as the table is.
    """
    columns, rooms = fit(columns, width)
    padded = [
        [pad(text, room, header in NUMBERS) for text in (header, "-" * room, *cells)]
        for (header, cells), room in zip(columns, rooms, strict=True)
    ]
    table = [GAP.join(row).rstrip() for row in zip(*padded, strict=True)]
    numbers = max(len(number) for number, _ in below)
    lines = [f"{number:<{numbers}}{GAP}{text}" for number, text in below]
    return "\n".join([*table, "", *lines] if table else lines)


def fit(columns: Columns, width: int | None) -> tuple[Columns, list[int]]:
    """What there is room for.

    Where room is short, row numbers and the blanks in shapes are left out, then the widest columns are cut; if that is
    not enough, the last ones are left out.

    Args:
        columns: the table.
        width: of the terminal, in characters; None: as wide as the table is.

    Returns:
        The columns, and how many characters wide each is.
    """

    def rooms_of(columns: Columns) -> list[int]:
        return [min(WIDEST, max(map(width_of, (header, *cells)))) for header, cells in columns]

    rooms = rooms_of(columns)
    if width is not None and needed(rooms) > width:
        columns = [(header, [cell.replace(", ", ",") for cell in cells]) for header, cells in columns if header.strip()]
        rooms = rooms_of(columns)
        while len(rooms) > 1 and needed([min(room, NARROWEST) for room in rooms]) > width:
            columns, rooms = columns[:-1], rooms[:-1]
        while needed(rooms) > width and max(rooms) > 1:
            rooms[rooms.index(max(rooms))] -= 1
    cut_columns = [
        (header, [cut(cell, room, 0 if header == "Name" else room // 2) for cell in cells])
        for (header, cells), room in zip(columns, rooms, strict=True)
    ]
    return cut_columns, rooms


def needed(rooms: list[int]) -> int:
    """Characters of a line: the columns and the gaps between them."""
    return sum(rooms) + len(GAP) * (len(rooms) - 1)


def cut(text: str, room: int, first: int) -> str:
    """The text, or its `first` columns, an ellipsis, and as much of its end as there is room for.

    Names keep their ends, in which neighbours differ.
    """
    if width_of(text) <= room:
        return text
    start, end = text, text[::-1]
    while width_of(start) > first:
        start = start[:-1]
    while width_of(end) > room - 1 - first:
        end = end[:-1]
    return f"{start}…{end[::-1]}"


def pad(text: str, room: int, to_the_right: bool) -> str:
    """The text in `room` columns of a terminal."""
    blank = " " * (room - width_of(text))
    return blank + text if to_the_right else text + blank


def width_of(text: str) -> int:
    """How many columns of a terminal the text takes: East Asian characters take two, combining ones none."""
    if text.isascii():
        return len(text)
    return sum(0 if combining(char) else 2 if east_asian_width(char) in "WF" else 1 for char in text)


def terminal_width() -> int | None:
    """Columns of the terminal that log lines go to; None if they go to a file, or it does not tell."""
    standard_error = 2
    return os.get_terminal_size(standard_error).columns or None if os.isatty(standard_error) else None

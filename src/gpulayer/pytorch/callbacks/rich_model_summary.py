"""RichModelSummary: the table of the model's layers in colours, by the library rich."""

from __future__ import annotations

from importlib.util import find_spec
from typing import Any

from gpulayer.pytorch.callbacks.model_summary import ModelSummary
from gpulayer.pytorch.utilities.model_summary.table import NUMBERS, Columns, fit, needed, totals


class RichModelSummary(ModelSummary):
    """Print a table of the layers at the start of `fit`, in colours; needs the package rich.

    Args:
        max_depth: how deep into nested modules layers are listed; -1: all of them, 0: nothing is printed.
        **summarize_kwargs: `header_style`, rich's style for the names of the columns (default "bold magenta"); for
            subclasses that override `summarize`, anything.

    Raises:
        ModuleNotFoundError: rich is not installed.
        MisconfigurationException: `max_depth` is below -1 or no whole number.
    """

    def __init__(self, max_depth: int = 1, **summarize_kwargs: Any) -> None:
        if find_spec("rich") is None:
            raise ModuleNotFoundError("`RichModelSummary` needs rich: pip install gpulayer[rich]")
        super().__init__(max_depth, **summarize_kwargs)

    @staticmethod
    def summarize(
        summary_data: Columns,
        total_parameters: int,
        trainable_parameters: int,
        model_size: float,
        total_training_modes: dict[str, int],
        total_flops: int,
        **summarize_kwargs: Any,
    ) -> None:
        from rich import box, get_console
        from rich.table import Table
        from rich.text import Text

        console = get_console()
        columns, rooms = fit(summary_data, console.width if console.is_terminal else None)
        layers = Table(
            box=box.SIMPLE_HEAD,
            show_edge=False,
            pad_edge=False,
            padding=(0, 1, 0, 0),
            width=needed(rooms) if columns else None,
            header_style=summarize_kwargs.get("header_style", "bold magenta"),
        )
        for (header, _), room in zip(columns, rooms, strict=True):
            layers.add_column(header, width=room, justify="right" if header in NUMBERS else "left")
        for cells in zip(*(cells for _, cells in columns), strict=True):
            layers.add_row(*map(Text, cells))  # as text: rich takes what is in brackets for its markup
        below = Table.grid(padding=(0, 2, 0, 0))
        for number, text in totals(
            total_parameters, trainable_parameters, model_size, total_training_modes, total_flops
        ):
            below.add_row(Text(number, "bold"), text)
        for part in ("", layers, "", below, ""):
            console.print(part, crop=False)

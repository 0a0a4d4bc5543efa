"""Names of files made of metrics: "model-{epoch:02d}-{val_loss:.2f}"."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from math import isfinite
from string import Formatter
from typing import Any

from torch import Tensor

from gpulayer.fabric.utilities.exceptions import MisconfigurationException


def check_template(template: Any) -> None:
    """Raise unless a number can be put into each field of the template.

    Raises:
        MisconfigurationException: it is no text, a brace or a name is missing, or a format is none of a number.
    """
    if template is None:
        return
    try:
        fill_template(template, {})
        if "" in template_fields(template):
            raise ValueError("a pair of braces has no name in it")
    except (TypeError, ValueError) as error:
        raise MisconfigurationException(
            f"`ModelCheckpoint(filename={template!r})` is no template ({error}): write names of metrics in "
            "braces, such as 'model-{epoch:02d}-{val_loss:.2f}'."
        ) from error


def template_fields(template: str) -> Iterator[str]:
    """The names in a template."""
    return (name for _, name, _, _ in Formatter().parse(template) if name is not None)


def fill_template(template: str, metrics: Mapping[str, Any], equals: str | None = None) -> str:
    """A template with its fields replaced by the metrics' values; a name that is missing counts as 0.

    Args:
        template: the template; a name may hold a slash or a dot.
        metrics: values by name.
        equals: what to put between a name and its value, such as "="; None: the value alone.
    """
    parts = []
    for literal, name, specification, _ in Formatter().parse(template):
        parts.append(literal)
        if name is not None:
            value = metrics.get(name, 0)
            value = value.item() if isinstance(value, Tensor) else value
            if (specification or "").endswith("d") and isfinite(value):
                value = int(value)
            elif specification:
                value = float(value)
                specification = specification.removesuffix("d")  # of NaN, which is no integer
            parts.append("" if equals is None else f"{name}{equals}")
            parts.append(format(value, specification or ""))
    return "".join(parts)


def made_from(template: str, name: str, version: str) -> bool:
    """Whether a file's name, without its ending, may have been made from a template.

    Args:
        template: the template.
        name: the name.
        version: what stands before the number of one that was taken, such as "-v".
    """
    parts = [
        re.escape(literal) + ("" if field is None else ".+") for literal, field, _, _ in Formatter().parse(template)
    ]
    return re.fullmatch(f"{''.join(parts)}({re.escape(version)}\\d+)?", name) is not None

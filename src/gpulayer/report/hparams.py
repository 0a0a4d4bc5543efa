"""hparams.yaml as text by dotted name."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

DEEPEST = 6  # levels of nesting that get names of their own; YAML may even nest a thing in itself
LONGEST = 500  # characters of one value


class _Reader(yaml.SafeLoader):
    """Reads plain YAML; objects of Python, which Lightning writes too, become their text and are not made."""


def _as_text(loader: yaml.SafeLoader, kind: str, node: yaml.Node) -> Any:
    if isinstance(node, yaml.ScalarNode):
        return node.value or re.split("[:/]", kind)[-1]
    if isinstance(node, yaml.MappingNode):
        return loader.construct_mapping(node, deep=True)
    assert isinstance(node, yaml.SequenceNode)
    values = loader.construct_sequence(node, deep=True)
    return f"{re.split('[:/.]', kind)[-1]}({', '.join(map(str, values))})"


_Reader.add_multi_constructor("", _as_text)


def read_hparams(file: Path, notes: list[str]) -> dict[str, str]:
    """Hyperparameters, nested ones as "optimizer.lr"; none if there is no file.

    Args:
        file: hparams.yaml.
        notes: gets a sentence if the file cannot be read.
    """
    try:
        with open(file, encoding="utf-8", errors="replace") as opened:
            content = yaml.load(opened, _Reader)
    except FileNotFoundError:
        return {}
    except (OSError, yaml.YAMLError, ValueError, RecursionError) as error:
        reason = getattr(error, "strerror", None) or str(error).splitlines()[0]
        notes.append(f"{file.name} could not be read: {reason}.")
        return {}
    if content is None:
        return {}
    if not isinstance(content, dict):
        notes.append(f"{file.name} holds no names with values.")
        return {}
    return dict(_flat(content, "", DEEPEST))


def _flat(values: dict[Any, Any], prefix: str, levels: int) -> Iterator[tuple[str, str]]:
    for name, value in values.items():
        if isinstance(value, dict) and value and levels > 1:
            yield from _flat(value, f"{prefix}{name}.", levels - 1)
        else:
            text = str(value)
            yield f"{prefix}{name}", text if len(text) <= LONGEST else f"{text[:LONGEST]}..."

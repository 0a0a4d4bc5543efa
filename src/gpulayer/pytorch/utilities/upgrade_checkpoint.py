"""Upgrade checkpoints of older versions of Lightning to today's layout: for once and all, rather than at each load.

    python -m gpulayer.pytorch.utilities.upgrade_checkpoint FILE_OR_FOLDER

The original is kept beside the upgraded file, with the ending .bak.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from gpulayer.fabric.utilities.exceptions import MisconfigurationException
from gpulayer.fabric.utilities.files import copy_file, load_file, save_file
from gpulayer.pytorch.trainer.upgrade import ORIGINAL_VERSION, upgrade


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line.

    Args:
        argv: the arguments after the program's name. Default: those of this process.

    Returns:
        The exit code: 0, or 1 where a file could not be upgraded.
    """
    parser = argparse.ArgumentParser(prog="upgrade_checkpoint", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("path", type=Path, help="a checkpoint, or a folder: then all of them in it and below")
    parser.add_argument("-e", "--extension", default=".ckpt", help="of checkpoints in a folder (default: %(default)s)")
    parser.add_argument("--map-to-cpu", action="store_true", help="for a checkpoint of a GPU, on a machine without one")
    parser.add_argument(
        "--trust",
        action="store_true",
        help="load what is more than plain data, too, which can run code that the file brings along",
    )
    chosen = parser.parse_args(argv)
    ending = f".{chosen.extension.removeprefix('.')}"
    files = sorted(chosen.path.rglob(f"*{ending}")) if chosen.path.is_dir() else [chosen.path]
    if not files:
        parser.error(f"no files *{ending} in {chosen.path}; `--extension` says what their names end with")
    failed = 0
    for file in files:
        try:
            print(f"{file}: {upgrade_file(file, 'cpu' if chosen.map_to_cpu else None, chosen.trust)}")
        except (MisconfigurationException, OSError) as error:
            print(f"{file}: {error}", file=sys.stderr)
            failed += 1
    return int(failed > 0)


def upgrade_file(file: Path, map_location: str | None, trust: bool) -> str:
    """Upgrade one, and say what was done.

    Raises:
        MisconfigurationException: it is no checkpoint, or holds more than plain data and is not trusted.
        OSError: it cannot be read or written.
    """
    checkpoint = load_file(file, map_location, weights_only=not trust)
    if not upgrade(checkpoint):
        return "nothing to do"
    original = file.with_suffix(".bak")
    if not original.exists():
        copy_file(file, original)
    save_file(checkpoint, file)
    return f"upgraded from the layout of Lightning {checkpoint[ORIGINAL_VERSION]}; the original is {original.name}"


if __name__ == "__main__":
    sys.exit(main())

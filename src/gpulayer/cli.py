"""The `gpulayer` command: finds the subcommand that was asked for and hands the rest of the line to it.

A subcommand is a module with two functions, `add_arguments(parser)` and `run(arguments, parser)`. It is imported when
it is called for, so that `gpulayer --help` answers at once.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from importlib import import_module

import gpulayer

# name: its module, and its line in `gpulayer --help`
COMMANDS = {
    "report": ("gpulayer.report.command", "draw the learning curves of runs into one HTML page"),
}


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line.

    Args:
        argv: the arguments after the program's name. Default: those of this process.

    Returns:
        The exit code: 0, or 1 where the work could not be done. A command line that cannot be understood ends the
        process with 2, as argparse does.
    """
    parser = argparse.ArgumentParser(
        prog="gpulayer",
        description="Train PyTorch models, from a laptop to many machines.",
        epilog="commands:\n"
        + "\n".join(f"  {name:<10} {summary}" for name, (_, summary) in COMMANDS.items())
        + "\n\n`gpulayer COMMAND --help` explains a command.",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"gpulayer {gpulayer.__version__}")
    parser.add_argument("command", choices=COMMANDS, metavar="COMMAND", help="what to do, see below")
    parser.add_argument("rest", nargs=argparse.REMAINDER, metavar="...", help="the command's own arguments")
    chosen = parser.parse_args(argv)
    command = import_module(COMMANDS[chosen.command][0])
    own = argparse.ArgumentParser(prog=f"gpulayer {chosen.command}", description=command.__doc__)
    command.add_arguments(own)
    return int(command.run(own.parse_args(chosen.rest), own))

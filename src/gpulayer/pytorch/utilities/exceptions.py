"""Errors, at the path where code written for Lightning imports them."""

import signal

from gpulayer.fabric.utilities.exceptions import MisconfigurationException

__all__ = ["MisconfigurationException", "SIGTERMException"]


class SIGTERMException(SystemExit):
    """SIGTERM asked the process to end: what `on_exception` is told, and how the program ends, with exit code 143."""

    def __init__(self) -> None:
        super().__init__(128 + signal.SIGTERM)

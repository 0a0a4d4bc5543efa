"""Where bars can be drawn, and how what is printed meanwhile comes out above them."""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Callable, Iterable
from threading import RLock
from typing import Any, TextIO, cast

MARGIN = 3  # columns that bars leave free at the right, for the ^C that a terminal writes there


def is_terminal(stream: Any) -> bool:
    """Whether a stream ends on a screen whose cursor can be moved; `TERM=dumb` says that it cannot."""
    try:
        return bool(stream.isatty()) and os.environ.get("TERM") != "dumb"
    except (AttributeError, ValueError):  # None in a program without a console; closed
        return False


def can_draw(stream: Any) -> bool:
    """Whether a bar can move there: on a terminal or in a notebook, but not in a file or a pipe."""
    return is_terminal(stream) or type(stream).__module__.startswith("ipykernel.")


def switch_handlers(before: TextIO, after: TextIO) -> None:
    """Let the handlers of `logging` that write to one stream write to another."""
    for logger in (logging.root, *logging.root.manager.loggerDict.values()):
        for handler in getattr(logger, "handlers", ()):
            if isinstance(handler, logging.StreamHandler) and handler.stream is before:
                handler.setStream(after)


class Screen:
    """A terminal with bars on its last lines: what is printed or logged meanwhile comes out above them.

    From `take` to `give_back`, `sys.stdout` and `sys.stderr` are streams that take the bars off, write, and put the
    bars back; so are the streams of `logging`. Text that moves the cursor itself, such as another bar, passes as it is.

    Args:
        take_off: removes the bars from the screen.
        put_back: draws them again.
    """

    def __init__(self, take_off: Callable[[], object], put_back: Callable[[], object]) -> None:
        self._take_off, self._put_back = take_off, put_back
        self._lock = RLock()
        self._streams: list[tuple[str, TextIO, TextIO]] = []
        self._partial = False  # whether the cursor stands behind text that has not ended its line

    def take(self) -> None:
        """From now on, lines come out above the bars."""
        for name in ("stdout", "stderr"):
            stream = getattr(sys, name)
            if is_terminal(stream):
                above = cast(TextIO, _Above(self, stream))
                setattr(sys, name, above)
                switch_handlers(stream, above)
                self._streams.append((name, stream, above))

    def give_back(self) -> None:
        """From now on, lines go straight to the terminal."""
        for name, stream, above in self._streams:
            if getattr(sys, name) is above:
                setattr(sys, name, stream)
            switch_handlers(above, stream)
        self.end_line()
        self._streams.clear()

    def end_line(self) -> None:
        """Before a bar is drawn: text without an end of line, from `print(".", end="")`, gets one."""
        if self._partial and self._streams:
            self._partial = False
            self._streams[0][1].write("\n")

    def write(self, stream: TextIO, text: str) -> int:
        """Write above the bars."""
        with self._lock:
            if not self._streams:
                return stream.write(text)
            self._take_off()
            written = stream.write(text)
            stream.flush()
            if "\r" in text or "\x1b[A" in text:  # somebody else's bar
                self._partial = False
            elif not text.endswith("\n"):
                self._partial = self._partial or bool(text)
            elif self._partial or text != "\n":
                self._partial = False
                self._put_back()
            return written


class _Above:
    """A stream of a `Screen`; all but writing is that of the stream in whose place it stands."""

    def __init__(self, screen: Screen, stream: TextIO) -> None:
        self._screen, self._stream = screen, stream

    def write(self, text: str) -> int:
        return self._screen.write(self._stream, text)

    def writelines(self, lines: Iterable[str]) -> None:
        for line in lines:
            self.write(line)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

"""What the demo shows while it runs: one moving line on a terminal, plain lines elsewhere."""

from __future__ import annotations

import shutil
import sys
import time
from typing import TextIO

PLAIN_SECONDS = 2.0
BAR = 24


class Screen:
    """Prints lines that stay, and one line of progress below them."""

    def __init__(self, stream: TextIO | None = None) -> None:
        self._stream = stream or sys.stdout
        self._live = self._stream.isatty()
        self._shown = ""
        self._last_plain = ""
        self._next_plain = 0.0

    def say(self, text: str = "") -> None:
        """Print lines that stay."""
        self._clear()
        self._stream.write(f"{text}\n")
        self._stream.flush()

    def progress(self, done: int, of: int, text: str) -> None:
        """Show how far it is; not on a terminal at most every two seconds."""
        filled = BAR * done // of if of else BAR
        line = f"  [{'#' * filled}{'.' * (BAR - filled)}] {done}/{of} {text}"
        if self._live:
            self._redraw(line)
        elif line != self._last_plain and time.monotonic() >= self._next_plain:
            self._next_plain = time.monotonic() + PLAIN_SECONDS
            self._last_plain = line
            self.say(line)

    def _redraw(self, line: str) -> None:
        width = max(shutil.get_terminal_size().columns - 1, 20)
        self._clear()
        self._shown = line[:width]
        self._stream.write(self._shown)
        self._stream.flush()

    def _clear(self) -> None:
        if self._shown:
            self._stream.write("\r" + " " * len(self._shown) + "\r")
            self._shown = ""

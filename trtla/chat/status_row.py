"""The terminal's last row, kept for live figures while text scrolls above it.

ANSI only: a scroll region without the last row. Nothing happens where there is no terminal.
"""

from __future__ import annotations

import shutil
import sys
import time
from types import TracebackType

_EVERY_S = 0.1
_SAVE, _BACK, _CLEAR_ROW = "\x1b7", "\x1b8", "\x1b[2K"
_WHOLE = "\x1b[r"  # no scroll region
_ROOM_BELOW = "\x1bD\x1b[A"  # down, which scrolls in the last row, and up; the column stays
_REVERSED, _PLAIN = "\x1b[7m", "\x1b[0m"


class StatusRow:
    """A context manager; `show` may be called as often as one likes."""

    def __init__(self) -> None:
        self._rows = 0
        self._due = 0.0

    def __enter__(self) -> StatusRow:
        self._reserve()
        return self

    def show(self, text: str) -> None:
        """Draw the row, at most ten times a second."""
        now = time.monotonic()
        if now < self._due:
            return
        self._due = now + _EVERY_S
        columns, rows = shutil.get_terminal_size()
        if rows != self._rows:  # the window was resized
            self._reserve()
        line = f" {text}"[:columns].ljust(columns)
        self._write(f"{_SAVE}\x1b[{rows};1H{_REVERSED}{line}{_PLAIN}{_BACK}")

    def _reserve(self) -> None:
        self._rows = shutil.get_terminal_size().lines
        self._write(f"{_SAVE}{_WHOLE}{_BACK}{_ROOM_BELOW}")
        self._write(f"{_SAVE}\x1b[1;{max(self._rows - 1, 1)}r{_BACK}")

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._write(f"{_SAVE}{_WHOLE}\x1b[{self._rows};1H{_CLEAR_ROW}{_BACK}")

    def _write(self, text: str) -> None:
        sys.stdout.write(text)
        sys.stdout.flush()

"""Ctrl-C of the command line: the signal's handler and the exit code."""

from __future__ import annotations

import signal
import threading
from types import FrameType

INTERRUPTED = 130
"""Exit code after Ctrl-C, 128 + SIGINT as shells count it."""


class Interrupt:
    """The SIGINT handler. It remembers: imports may turn KeyboardInterrupt into other errors."""

    def __init__(self) -> None:
        self.seen = False

    def install(self) -> None:
        """Take SIGINT over, unless the caller ignores it (nohup) or this is not the main thread."""
        if threading.current_thread() is not threading.main_thread():
            return
        if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
            signal.signal(signal.SIGINT, self)

    def __call__(self, signum: int, frame: FrameType | None) -> None:
        """Note it and stop what runs."""
        self.seen = True
        raise KeyboardInterrupt

"""Ctrl-C ends the program with one line and exit code 130, and a second one at once.

KeyboardInterrupt unwinds the program; where it would be lost the process ends at once. This is the
first file that runs, so it imports little.
"""

from __future__ import annotations

import _thread
import os
import sys

TYPE_CHECKING = False  # the import of typing takes as long as all the others here
if TYPE_CHECKING:
    import signal
    from types import FrameType
    from typing import Any
else:
    import _signal as signal  # without the enumerations of `signal`, whose import takes as long

_NAMES: dict[int, str] = {signal.SIGINT: "interrupted", signal.SIGTERM: "terminated"}


class Interrupts:
    """The handler of signals that end the program; one per process."""

    came: int | None = None  # the signal, once the main thread has handled one
    code: int | None = None  # the exit code, once only the interpreter's own end is left
    _silent = _thread.allocate_lock()  # never released: the first to say it prints it

    def install(self) -> None:
        """Handle SIGINT in the main thread, unless the caller ignores it (nohup)."""
        if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
            signal.signal(signal.SIGINT, self)
            reading, writing = os.pipe()
            os.set_blocking(writing, False)
            signal.set_wakeup_fd(writing, warn_on_full_buffer=False)
            _thread.start_new_thread(self._end_at_second, (reading,))

    def terminable(self) -> None:
        """Let SIGTERM end the program as SIGINT does, if SIGINT is handled."""
        if signal.getsignal(signal.SIGINT) is self:
            signal.signal(signal.SIGTERM, self)

    def say(self) -> int:
        """Print why the program ended, once; return the exit code as shells count it."""
        number = self.came or signal.SIGINT
        try:
            if self._silent.acquire(timeout=0.2):  # another thread may be printing
                start = "\n" if sys.stderr.isatty() else ""  # below a terminal's last row
                os.write(sys.stderr.fileno(), f"{start}error: {_NAMES[number]}\n".encode())
        except (OSError, ValueError, AttributeError):  # closed, or no file
            pass
        return 128 + number

    def __call__(self, number: int, frame: FrameType | None) -> None:
        if self.code is not None or self.came is not None:  # it is over, or this is a second one
            os._exit(self.say() if self.code is None else self.code)
        self.came, sys.unraisablehook = number, self._unless_lost
        while frame is not None and frame.f_code.co_filename != "<frozen importlib._bootstrap>":
            frame = frame.f_back
        if frame is not None:  # imported libraries swallow it, or abort in C++
            os._exit(self.say())
        raise KeyboardInterrupt

    def _end_at_second(self, pipe: int) -> None:
        """End the process even where a call into C keeps the main thread."""
        left = 2
        while left:
            number = os.read(pipe, 1)[0]
            left -= signal.getsignal(number) is self  # other handlers end in their own way
        self.came = self.came or number
        os._exit(self.say() if self.code is None else self.code)

    def _unless_lost(self, lost: Any) -> None:
        """End the process where a finaliser swallows the interrupt; report other errors."""
        if issubclass(lost.exc_type, KeyboardInterrupt):
            os._exit(self.say())
        sys.__unraisablehook__(lost)


INTERRUPTS = Interrupts()

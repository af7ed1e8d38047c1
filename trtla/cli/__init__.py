"""The entry point: Ctrl-C and exit codes are in place before anything is imported.

The commands are one file each beside this one; heavy imports (torch, ...) happen inside them.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Sequence
from types import FrameType

_FAILED = 1
_INTERRUPTED = 130  # 128 + SIGINT, as shells count it


class _Interrupt:
    """The SIGINT handler. It remembers: imports may turn KeyboardInterrupt into other errors."""

    def __init__(self) -> None:
        self.seen = False

    def install(self) -> None:
        """Handle SIGINT, unless the caller ignores it (nohup) or this is not the main thread."""
        if threading.current_thread() is not threading.main_thread():
            return
        if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
            signal.signal(signal.SIGINT, self)

    def __call__(self, signum: int, frame: FrameType | None) -> None:
        self.seen = True
        raise KeyboardInterrupt


def _open_closed_streams() -> None:
    """Open the null device for a stream that was closed (`>&-`), so that no caller has to check."""
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, mode))  # noqa: SIM115


def _missing(error: ModuleNotFoundError) -> int:
    """Say what the command line itself could not import; the exit code."""
    if error.name is None or error.name.startswith("trtla"):
        raise error
    from trtla.errors import missing_package

    message, hint = missing_package(error.name)
    print(f"error: {message}\nhint: {hint}", file=sys.stderr)
    return _FAILED


def main(args: Sequence[str] | None = None) -> None:
    """Run `trtla` with these arguments (sys.argv's without any) and exit with its code."""
    interrupt = _Interrupt()
    interrupt.install()
    _open_closed_streams()
    try:
        from trtla.cli.failure import execute

        code = execute(list(sys.argv[1:] if args is None else args), lambda: interrupt.seen)
    except ModuleNotFoundError as error:
        code = _missing(error)
    except KeyboardInterrupt:
        print("\nerror: interrupted", file=sys.stderr)
        code = _INTERRUPTED
    sys.exit(code)

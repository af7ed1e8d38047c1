"""The entry point: Ctrl-C and exit codes are in place before anything is imported.

The commands are one file each in the folders below; heavy imports (torch, ...) happen inside them.
"""

from __future__ import annotations

import os
import sys

from trtla.interrupts import INTERRUPTS

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

_FAILED = 1


def _open_closed_streams() -> None:
    """Open the null device for a stream that was closed (`>&-`), so that no caller has to check."""
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, mode))  # noqa: SIM115


def _missing(error: ModuleNotFoundError) -> int:
    """Report a failed import of the command line itself; return the exit code."""
    if error.name is None or error.name.startswith("trtla"):
        raise error
    from trtla.errors import missing_package

    message, hint = missing_package(error.name)
    print(f"error: {message}\nhint: {hint}", file=sys.stderr)
    return _FAILED


def main(args: Sequence[str] | None = None) -> None:
    """Run `trtla` with these arguments (default: sys.argv's) and exit with its code."""
    try:
        _open_closed_streams()
        INTERRUPTS.install()
        os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")  # its warnings are for developers
        from trtla.cli.app import execute

        INTERRUPTS.code = execute(list(sys.argv[1:] if args is None else args))
    except ModuleNotFoundError as error:
        INTERRUPTS.code = _missing(error)
    except KeyboardInterrupt:
        INTERRUPTS.code = INTERRUPTS.say()
    sys.exit(INTERRUPTS.code)

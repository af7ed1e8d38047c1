"""The front door: Ctrl-C and exit codes are in place before anything is imported.

The commands are one file each beside this one; heavy imports (torch, ...) happen inside them.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence

from trtla.cli.interrupt import INTERRUPTED, Interrupt


def _open_closed_streams() -> None:
    """Make the null device of a stream that was closed (`>&-`), so that nobody has to ask."""
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, mode))  # noqa: SIM115


def main(args: Sequence[str] | None = None) -> None:
    """Run `trtla` with these arguments (sys.argv's without any) and exit with its code."""
    interrupt = Interrupt()
    interrupt.install()
    _open_closed_streams()
    try:
        from trtla.cli.failure import execute

        code = execute(list(sys.argv[1:] if args is None else args), interrupt)
    except KeyboardInterrupt:
        print("\nerror: interrupted", file=sys.stderr)
        code = INTERRUPTED
    sys.exit(code)

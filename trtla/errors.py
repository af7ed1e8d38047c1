"""What trtla raises: one sentence that names the value, one hint with the next step, an exit code.

The command line prints these without a traceback; library users catch `TrtlaError`. Other people's
errors are brought to one line here.
"""

from __future__ import annotations

from collections.abc import Iterable

_NEAR = 0.75
"""Likeness of what may be a slip of the fingers: `nsad` for `nasd`, not `bogus` for `verbose`."""


class TrtlaError(Exception):
    """An operation failed; the base class of everything trtla raises on purpose (exit code 1)."""

    exit_code = 1

    def __init__(self, message: str, hint: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint


class UsageError(TrtlaError):
    """The request, the flags, the configuration or the input files are wrong (exit code 2)."""

    exit_code = 2


class CheckFailed(TrtlaError):
    """The work was done and a check on it failed, e.g. ROUGE below its threshold (exit code 3)."""

    exit_code = 3


def first_line(text: object) -> str:
    """The first line of somebody else's message, without files, lines and stacks below it."""
    return str(text).strip().partition("\n")[0]


def sentence(error: BaseException) -> str:
    """An error of somebody else's code in one line: its type, and what it says."""
    said = first_line(error)
    return f"{type(error).__name__}: {said}" if said else type(error).__name__


def closest(given: str, known: Iterable[str]) -> str | None:
    """The known name that a mistyped one is most like; None where none is like it.

    `float8` is not a mistyped `float32`: numbers without a common digit are meant to differ.
    """
    from difflib import get_close_matches

    names = {name.lower(): name for name in known}
    digits = _digits(given)
    same = [name for name in names if not digits or digits & _digits(name)]
    found = get_close_matches(given.lower(), same, 1, _NEAR)
    return names[found[0]] if found else None


def _digits(name: str) -> set[str]:
    return set(filter(str.isdigit, name))


def did_you_mean(given: str, known: Iterable[str]) -> str:
    """How a hint begins when a name is mistyped: `did you mean NAME? `, or nothing."""
    guess = closest(given, known)
    return f"did you mean {guess}? " if guess else ""

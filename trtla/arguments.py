"""Checks of single values that people give in Python, in prompt files and as flags: type and range.

Each check gives the value in the type that the rest of trtla works with. Torch-free.
"""

from __future__ import annotations

import sys
from contextlib import suppress
from numbers import Integral, Real

from trtla.errors import UsageError

_SHOWN = 60  # characters of a wrong value that an error repeats


def shown(value: object) -> str:
    """A wrong value as an error shows it: shortened, whatever it is."""
    try:
        text = ascii(value) if isinstance(value, (str, bytes)) else repr(value)
    except Exception:  # an integer of thousands of digits, or somebody's __repr__
        text = f"a {type(value).__name__} that cannot be printed"
    line = " ".join(text.split())
    return line if len(line) <= _SHOWN else f"{line[:_SHOWN]}..."


def wrong(name: str, value: object, rule: str) -> UsageError:
    """The refusal of a value: NAME is VALUE, --NAME must be RULE."""
    return UsageError(f"{name} is {shown(value)}", f"{_flag(name)} must be {rule}")


def _flag(name: str) -> str:
    return "--" + name.replace("_", "-").replace(" ", "-")


def is_whole(value: object) -> bool:
    """Whether a value is an integer of any library; True and False are none."""
    return isinstance(value, Integral) and not isinstance(value, bool)


def whole(name: str, value: object, rule: str, least: int, most: int | None = 2**63 - 1) -> int:
    """An integer from `least` to `most`; None: without an upper limit.

    Raises:
        UsageError: it is none.
    """
    if is_whole(value):
        number = int(value)  # type: ignore[call-overload]
        if least <= number and (most is None or number <= most):
            return int(number)
    raise wrong(name, value, rule)


def real(
    name: str, value: object, rule: str, least: float, most: float = sys.float_info.max
) -> float:
    """A number from `least` to `most`.

    Raises:
        UsageError: it is none.
    """
    if isinstance(value, Real) and not isinstance(value, bool):
        with suppress(OverflowError):  # of an integer
            if least <= (number := float(value)) <= most:
                return number
    raise wrong(name, value, rule)


def texts(name: str, value: object, rule: str) -> tuple[str, ...]:
    """Non-empty texts; a text alone stands for a list of one.

    Raises:
        UsageError: it is anything else.
    """
    if value in ("", ("",), [""]):
        raise UsageError(f"{name} is empty", f"{_flag(name)} must be {rule}")
    items = (value,) if isinstance(value, str) else value
    if not isinstance(items, (tuple, list)):
        raise wrong(name, value, rule)
    for item in items:
        if not isinstance(item, str) or not item:
            raise wrong(name, value, rule)
        check_text(item, name)
    return tuple(items)


def check_text(text: str, name: str) -> None:
    """Refuse what no file and no tokenizer can hold.

    Raises:
        UsageError: the text has half of a surrogate pair, as Python reads bytes that are no UTF-8.
    """
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise UsageError(
            f"{name} is not UTF-8 text: {shown(text[error.start])} at character {error.start}",
            "convert it to UTF-8",
        ) from None

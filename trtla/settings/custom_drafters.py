"""Drafters that a program brings itself: their protocol, and their names in settings.

A name is `module:Name` or `file.py:Name`. Settings have names alone, so that a request can choose
among the drafters that the model was opened with and never name code to import.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Protocol, SupportsIndex

from trtla.errors import UsageError, at_start
from trtla.settings.fields import wrong

_NAME = re.compile(r"(\w+(\.\w+)*|.+\.py):\w+")

_OF_PATHS = ("draft", "head")
"""Modules whose names before a colon would be kinds of drafters."""


class TokenDrafter(Protocol):
    """A drafter that proposes one chain of token ids a step.

    `observe(ids)` is optional: if it exists, it is called before `propose` with the ids that are
    new since the last call, the whole prompt first.
    """

    def propose(self, ids: list[int], /) -> Iterable[SupportsIndex]:
        """Return token ids that may follow a text, the next one first.

        Args:
            ids: prompt and output so far; a list of its own.
        """


CustomDrafter = TokenDrafter | Callable[[], TokenDrafter]
"""An object that drafts for all requests, or a class or function that makes one for each."""


def is_custom_name(name: str) -> bool:
    """Return True for `module:Name` and `file.py:Name`."""
    return _NAME.fullmatch(name) is not None


def is_custom(value: object) -> bool:
    """Return True for a drafter itself, in place of its name."""
    return callable(value) or hasattr(value, "propose")


def name_of(drafter: object) -> str:
    """Return the name of a drafter: its module, and its own name or that of its class."""
    named: Any = drafter if hasattr(drafter, "__name__") else type(drafter)
    module = re.sub(r"[^\w.]", "_", getattr(named, "__module__", None) or "__main__")
    own = re.sub(r"\W", "_", named.__name__.strip("<>"))
    return f"{module}.py:{own}" if module in _OF_PATHS else f"{module}:{own}"


def with_names(value: object) -> tuple[object, tuple[object, ...]]:
    """Return the value of a setting with names in place of drafters, and these drafters."""
    items: Sequence[object] = value if isinstance(value, (list, tuple)) else (value,)
    drafters = tuple(item for item in items if is_custom(item))
    if not drafters and items is not value:
        return value, ()
    return tuple(name_of(item) if is_custom(item) else item for item in items), drafters


def checked(name: str, value: object) -> tuple[object, ...]:
    """Return the items of a setting that holds drafters and names of drafters."""
    items = tuple(value) if isinstance(value, (list, tuple)) else (value,)
    for item in items:
        if not (is_custom_name(item) if isinstance(item, str) else is_custom(item)):
            raise wrong(name, item, "drafters, or names such as module:Name")
    return items


def check_opened(wanted: Iterable[str], opened: Iterable[str], label: str) -> None:
    """Refuse a request's drafters that the model is not opened with: no request imports code."""
    known = tuple(opened)
    for name in wanted:
        if name not in known:
            raise UsageError(
                f"{label} asks for the drafter {name}, which the model was not opened with",
                f"open the model with {at_start('drafter')} {name}",
                "drafter",
            )

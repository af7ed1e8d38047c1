"""Exceptions at chosen places of a run: at the k-th line that is executed in certain modules."""

from __future__ import annotations

import gc
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from types import FrameType, ModuleType
from typing import Any

Place = tuple[str, int]
"""File and line."""


class Lines:
    """Watches the lines of some modules that one thread executes, and raises at one of them.

    Args:
        modules: whose lines count.
        raise_at: at which of them, counted from 0; None: at none.
        error: what is raised.
    """

    def __init__(
        self,
        modules: Iterable[ModuleType],
        raise_at: int | None = None,
        error: type[BaseException] = KeyboardInterrupt,
    ) -> None:
        self._files = {module.__file__ for module in modules}
        self._raise_at, self._error = raise_at, error
        self.seen: list[Place] = []

    def __enter__(self) -> Lines:
        sys.settrace(self._enter)
        return self

    def __exit__(self, *exc: object) -> None:
        sys.settrace(None)

    def _enter(self, frame: FrameType, event: str, arg: Any) -> Any:
        return self._line if frame.f_code.co_filename in self._files else None

    def _line(self, frame: FrameType, event: str, arg: Any) -> Any:
        if event != "line":
            return self._line
        self.seen.append((frame.f_code.co_filename, frame.f_lineno))
        if len(self.seen) - 1 == self._raise_at:
            sys.settrace(None)
            raise self._error
        return self._line


@contextmanager
def no_collection() -> Iterator[None]:
    """Keep the finalizers of older objects out of the lines that are watched.

    They would run at other lines each time, and an exception that leaves one is lost.
    """
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


def once_each(seen: Iterable[Place]) -> list[int]:
    """Where to interrupt a run that executes these lines: each of them once.

    By turns that is the line's first execution, and its fourth where there are so many.
    """
    places: dict[Place, list[int]] = {}
    for index, place in enumerate(seen):
        places.setdefault(place, []).append(index)
    return [
        found[min(3 * (turn % 2), len(found) - 1)] for turn, found in enumerate(places.values())
    ]

"""The replica that last read each beginning of a text, as far as remembered."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator, Sequence
from typing import Any

_BLOCK = 32
"""Tokens of a beginning; shorter ones do not influence routing."""
_MOST = 1 << 17
"""Beginnings that are remembered."""


class Beginnings:
    """The owner that each beginning was sent to last."""

    def __init__(self, most: int = _MOST) -> None:
        self._most = most
        self._owners: OrderedDict[int, Any] = OrderedDict()

    def longest(self, ids: Sequence[int], known: set[Any]) -> Any | None:
        """Return the owner of the most of these ids, among the known ones."""
        owner = None
        for key in _keys(ids):
            candidate = self._owners.get(key)
            if candidate is None:
                break
            if candidate in known:
                owner = candidate
        return owner

    def add(self, ids: Sequence[int], owner: Any) -> None:
        """Record that an owner reads these ids now."""
        for key in reversed(tuple(_keys(ids))):  # longer beginnings are forgotten first
            self._owners[key] = owner
            self._owners.move_to_end(key)
        while len(self._owners) > self._most:
            self._owners.popitem(last=False)


def _keys(ids: Sequence[int]) -> Iterator[int]:
    """Yield a key for each whole block, which includes all blocks before it."""
    key = 0
    for start in range(0, len(ids) - _BLOCK + 1, _BLOCK):
        key = hash((key, tuple(ids[start : start + _BLOCK])))
        yield key

"""Who has read which beginning of a text last, as far as this is remembered."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator, Sequence
from typing import Any

_BLOCK = 32
"""Tokens of which a beginning is made; shorter ones are no reason to go anywhere."""
_MOST = 1 << 17
"""Beginnings that are remembered."""


class Beginnings:
    """Who was sent which beginning last."""

    def __init__(self, most: int = _MOST) -> None:
        self._most = most
        self._owners: OrderedDict[int, Any] = OrderedDict()

    def longest(self, ids: Sequence[int], known: set[Any]) -> Any | None:
        """Who has most of these ids, of those that are known."""
        owner = None
        for key in _keys(ids):
            found = self._owners.get(key)
            if found is None:
                break
            if found in known:
                owner = found
        return owner

    def add(self, ids: Sequence[int], owner: Any) -> None:
        """Somebody reads these ids now."""
        for key in reversed(tuple(_keys(ids))):  # what is longer is forgotten first
            self._owners[key] = owner
            self._owners.move_to_end(key)
        while len(self._owners) > self._most:
            self._owners.popitem(last=False)


def _keys(ids: Sequence[int]) -> Iterator[int]:
    """One for each whole block, which stands for all before it too."""
    key = 0
    for start in range(0, len(ids) - _BLOCK + 1, _BLOCK):
        key = hash((key, tuple(ids[start : start + _BLOCK])))
        yield key

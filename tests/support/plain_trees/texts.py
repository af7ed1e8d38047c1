"""Texts that drafts are taken from in plain Python: the oracle of `native/index.h`."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

SEPARATOR = -1
"""Between two texts; no token."""
LONGEST_MATCH = 32
_STRETCHES = (4, 2, 1)
_MOST_LOOKED = 16


class Place(NamedTuple):
    """A place of an index where a text goes on from a match."""

    next: int
    """Place of the token that continues the match."""
    match: int
    """Tokens before it that are the tail's."""


class Index:
    """Texts that drafts are taken from: for each tail, the places before that end as it does."""

    def __init__(self) -> None:
        self.tokens: list[int] = []
        self._latest: dict[tuple[int, ...], int] = {}
        """The latest place that ends in a stretch of tokens."""
        self._before: dict[int, list[int]] = {length: [] for length in _STRETCHES}
        """For each place, the latest one before that ends in the same tokens."""

    def append(self, token: int) -> None:
        self.tokens.append(token)
        for length in _STRETCHES:
            stretch = tuple(self.tokens[-length:])
            before = -1
            if len(stretch) == length and SEPARATOR not in stretch:
                before = self._latest.get(stretch, -1)
                self._latest[stretch] = len(self.tokens) - 1
            self._before[length].append(before)

    def add(self, tokens: Iterable[int]) -> None:
        self.append(SEPARATOR)
        for token in tokens:
            self.append(token)

    def find(self, tail: Sequence[int]) -> list[Place]:
        """Where a tail stood before and what followed: longer stretches first, then latest ones.

        Args:
            tail: up to `LONGEST_MATCH` tokens, in the order of the text.
        """
        found: dict[int, Place] = {}
        for length in _STRETCHES:
            place = self._latest.get(tuple(tail[-length:]), -1) if len(tail) >= length else -1
            for _ in range(_MOST_LOOKED):
                if place < 0:
                    break
                if self._goes_on(place + 1) and place + 1 not in found:
                    found[place + 1] = Place(place + 1, self._match(tail, place))
                place = self._before[length][place]
        return list(found.values())

    def follow(self, places: Iterable[Place], token: int) -> list[Place]:
        return [
            Place(place.next + 1, min(place.match + 1, LONGEST_MATCH))
            for place in places
            if self.tokens[place.next] == token and self._goes_on(place.next + 1)
        ]

    def _goes_on(self, place: int) -> bool:
        return place < len(self.tokens) and self.tokens[place] != SEPARATOR

    def _match(self, tail: Sequence[int], place: int) -> int:
        match = 0
        for token in reversed(tail):
            if match > place or self.tokens[place - match] != token:
                break
            match += 1
        return match


@dataclass(slots=True)
class _Text:
    tokens: tuple[int, ...]
    used: int
    kept: bool

    @property
    def cost(self) -> int:
        return len(self.tokens) + (not self.kept)


class Texts:
    """Texts that every request drafts from: kept ones, at most so many tokens, and outputs, what
    the kept ones leave of that or a quarter of it. Of each kind the least recently used ones go.
    """

    def __init__(self, most: int) -> None:
        self.index, self.version = Index(), 0
        """The version changes with the places of the index."""
        self._most, self._now = most, 0
        self._starts: list[int] = []
        self._texts: list[_Text] = []

    def __iter__(self) -> Iterator[tuple[int, ...]]:
        return (one.tokens for one in self._texts)

    def add(self, tokens: Sequence[int], *, kept: bool = False) -> None:
        if not len(tokens):
            return
        own = self._most if kept else max(self._most - self._size(True), self._most // 4)
        end = tuple(tokens[max(0, len(tokens) - own) :])
        if self._size(kept) + len(end) > own:
            room = own - own // 4 - len(end)
            self._drop(kept, own - len(end) if kept and room < 0 else room)
        self._now += 1
        self._place(_Text(end, self._now, kept))

    def touch(self, place: int) -> None:
        self._now += 1
        self._texts[bisect_right(self._starts, place) - 1].used = self._now

    def _size(self, kept: bool) -> int:
        return sum(one.cost for one in self._texts if one.kept == kept)

    def _place(self, text: _Text) -> None:
        self._starts.append(len(self.index.tokens) + 1)
        self._texts.append(text)
        self.index.add(text.tokens)

    def _drop(self, kept: bool, room: int) -> None:
        """Begin anew with the most recently used texts of a kind, of so many tokens together, and
        the end of the one that does not fit; the other kind stays."""
        old, self._texts, self._starts = self._texts, [], []
        self.index = Index()
        self.version += 1
        for one in sorted((one for one in old if one.kept == kept), key=lambda one: -one.used):
            cost, size = one.cost, len(one.tokens)
            left = max(0, min(size, room - (cost - size)))
            one.tokens = one.tokens[size - left :]
            room -= cost
        for one in old:
            if one.tokens:
                self._place(one)

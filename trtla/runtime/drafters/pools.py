"""Where drafters look up n-grams: lookahead's pool, a pool kept between requests, a text's index."""

from __future__ import annotations

from collections.abc import Sequence


class NgramPool:
    """Continuations of N-1 tokens under a one-token key, at most `capacity` (G) per key.

    A value is kept once per key; inserting it again makes it the youngest; overflow drops the
    oldest. This is the rule of lade and of TensorRT-LLM (lookaheadPoolManager). Capacity 0 stores
    nothing.
    """

    def __init__(self, ngram_size: int, capacity: int) -> None:
        self._value_len = ngram_size - 1
        self._capacity = capacity if ngram_size > 1 else 0
        self._values: dict[int, dict[tuple[int, ...], None]] = {}

    def insert(self, key: int, value: tuple[int, ...]) -> None:
        """Add a continuation of exactly N-1 tokens."""
        if not self._capacity:
            return
        values = self._values.setdefault(key, {})
        values.pop(value, None)
        values[value] = None  # dicts keep insertion order: first is oldest
        if len(values) > self._capacity:
            del values[next(iter(values))]

    def insert_text(self, tokens: Sequence[int]) -> None:
        """Add every n-gram of a text, oldest first; texts shorter than N hold none."""
        size = self._value_len
        for start in range(len(tokens) - size):
            self.insert(tokens[start], tuple(tokens[start + 1 : start + 1 + size]))

    def lookup(self, key: int) -> list[tuple[int, ...]]:
        """The continuations under a key, oldest first, at most `capacity`."""
        return list(self._values.get(key, ()))

    def __len__(self) -> int:
        """Number of stored n-grams."""
        return sum(len(values) for values in self._values.values())


_MOST_VALUES = 16  # continuations of a key: more are never verified together in common triples


class KeptPool:
    """Continuations of N-1 tokens under the one or two tokens before them.

    Args:
        ngram_size: N.
        capacity: most continuations kept; whole keys go, those first that were used longest ago.
    """

    def __init__(self, ngram_size: int, capacity: int) -> None:
        self._length, self._capacity = ngram_size - 1, capacity
        self._values: dict[tuple[int, ...], dict[tuple[int, ...], None]] = {}
        self._size = 0

    def insert_text(self, text: Sequence[int], start: int) -> None:
        """Add the n-grams of a text that end at place `start` or after it."""
        for end in range(max(start, self._length), len(text)):
            split = end + 1 - self._length
            value = tuple(text[split : end + 1])
            for context in (1, 2)[:split]:
                self._insert(tuple(text[split - context : split]), value)

    def _insert(self, key: tuple[int, ...], value: tuple[int, ...]) -> None:
        values = self._values.pop(key, {})
        self._values[key] = values  # the youngest key now
        self._size += value not in values
        values.pop(value, None)
        values[value] = None
        if len(values) > _MOST_VALUES:
            del values[next(iter(values))]
            self._size -= 1
        while self._size > self._capacity:
            self._size -= len(self._values.pop(next(iter(self._values))))

    def lookup(self, text: Sequence[int], context: int) -> list[tuple[int, ...]]:
        """What followed the last `context` tokens (1 or 2) of a text, youngest first."""
        key = tuple(text[-context:])
        if len(key) < context or key not in self._values:
            return []
        values = self._values[key] = self._values.pop(key)  # the youngest key now
        return list(reversed(values))

    def __len__(self) -> int:
        """Number of kept continuations."""
        return self._size

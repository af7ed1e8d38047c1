"""Where lookahead looks n-grams up: continuations by the token before them."""

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

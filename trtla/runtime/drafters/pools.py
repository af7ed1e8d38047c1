"""The n-gram pool of lookahead decoding: key token -> its most recently inserted continuations."""

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


_MOST_PLACES = 64  # of a pair of tokens that are looked at: bounds the time of a look-up


class TextIndex:
    """A growing text, and the place before where each of its pairs of tokens stood.

    Args:
        text: the tokens so far; its owner appends to it.
        longest: most tokens of context that are compared, at least 2.
    """

    def __init__(self, text: list[int], longest: int) -> None:
        self._text, self._longest = text, longest
        self._last: dict[tuple[int, int], int] = {}
        self._before = [0]
        """For each place, the one before where the same two tokens ended; 0: none."""

    def continuations(self, length: int, most: int) -> list[tuple[int, tuple[int, ...]]]:
        """What followed the text's end where it stood before: longest context, then youngest first.

        Where the text ends too early it is taken to repeat from there, so all are equally long.

        Args:
            length: tokens of a continuation.
            most: continuations wanted.

        Returns:
            (tokens of context, at least 2; continuation), none twice.
        """
        self._catch_up()
        found: dict[tuple[int, ...], int] = {}
        for context, place in self._places(most):
            if len(found) == most:
                break
            found.setdefault(self._after(place, length), context)
        return [(context, tokens) for tokens, context in found.items()]

    def _catch_up(self) -> None:
        text, last, before = self._text, self._last, self._before
        for place in range(len(before), len(text)):
            pair = (text[place - 1], text[place])
            before.append(last.get(pair, 0))
            last[pair] = place

    def _places(self, enough: int) -> list[tuple[int, int]]:
        """(tokens of context, place of their last one), longest context first, then youngest."""
        found = []
        place = self._before[-1] if self._text else 0
        for _ in range(_MOST_PLACES):
            if not place or enough <= 0:
                break
            context = self._context(place)
            enough -= context == self._longest
            found.append((context, place))
            place = self._before[place]
        return sorted(found, reverse=True)  # a later place is a younger one

    def _context(self, place: int) -> int:
        """How many tokens up to a place are those up to the text's end; two are known to be."""
        text, back, count = self._text, len(self._text) - 1 - place, 2
        while count < self._longest and count <= place:
            if text[place - count] != text[place + back - count]:
                break
            count += 1
        return count

    def _after(self, place: int, length: int) -> tuple[int, ...]:
        after = self._text[place + 1 : place + 1 + length]
        while len(after) < length:
            after += after[: length - len(after)]
        return tuple(after)

"""Where the end of a text stood before in it: prompt lookup, longest context first."""

from __future__ import annotations

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

"""Stop texts, which may name control tokens.

Control tokens are in no text, but each has a place in it: `\\n<|im_start|>user` ends a text where
that token comes behind a newline and before `user`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

Place = tuple[int, int]
"""How many characters are before a control token, and its id."""


@dataclass(frozen=True, slots=True)
class StopText:
    """Stretches of text, a control token between each two; a text without any is one."""

    texts: tuple[str, ...]
    tokens: tuple[int, ...] = ()

    def find(self, text: str, places: Sequence[Place], start: int) -> int | None:
        """Where it is in a text, at `start` or behind it.

        Args:
            places: of the control tokens in the text, in order.
        """
        if not self.tokens:
            at = text.find(self.texts[0], start)
            return None if at < 0 else at
        firsts = range(len(places) - len(self.tokens) + 1)
        found = (self._begin(text, places, first, whole=True) for first in firsts)
        return next((at for at in found if at is not None and at >= start), None)

    def opens(self, text: str, places: Sequence[Place], shared: int) -> int:
        """From where on the end of a text may become it; the text's length: from nowhere.

        Args:
            shared: characters at the end of the text that its first stretch begins with.
        """
        firsts = range(max(0, len(places) - len(self.tokens)), len(places))
        found = (self._begin(text, places, first, whole=False) for first in firsts)
        return min((at for at in found if at is not None), default=len(text) - shared)

    def _begin(self, text: str, places: Sequence[Place], first: int, *, whole: bool) -> int | None:
        """Where it begins, if its control tokens are at the places from `first` on.

        Args:
            whole: it is there to its end, not only as far as the text goes.
        """
        own = places[first : first + len(self.tokens)]
        begin = own[0][0] - len(self.texts[0])
        before = places[first - 1][0] if first else 0
        behind = places[first + len(own)][0] if first + len(own) < len(places) else len(text)
        edges = [*(at for at, _ in own), behind]
        *inside, last = (text[a:b] for a, b in pairwise(edges))
        fits = (
            begin >= before
            and tuple(token for _, token in own) == self.tokens[: len(own)]
            and text.startswith(self.texts[0], begin)
            and tuple(inside) == self.texts[1 : len(own)]
        )
        end = self.texts[len(own)]
        return begin if fits and (last.startswith(end) if whole else end.startswith(last)) else None


class Beginning:
    """How much of the beginning of a text is at the end of another that grows.

    A character costs the same however long both are (Knuth, Morris and Pratt).
    """

    def __init__(self, text: str) -> None:
        self._text = text
        self._shorter = [0]
        """The longest other beginning that each beginning ends with."""
        self.length = 0
        for char in text[1:]:
            self._shorter.append(self._after(self._shorter[-1], char))

    def read(self, more: str) -> None:
        """Go on with the text that grows."""
        for char in more:
            length = self.length
            if length == len(self._text):
                length = self._shorter[-1] if length else 0
            self.length = self._after(length, char)

    def _after(self, length: int, char: str) -> int:
        while length and self._text[length] != char:
            length = self._shorter[length - 1]
        return length + self._text.startswith(char, length)


def as_stop_texts(stop: Sequence[str]) -> tuple[StopText, ...]:
    """Stop texts in which nothing is a control token."""
    return tuple(StopText((text,)) for text in stop)

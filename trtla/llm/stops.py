"""Stop texts, which may name control tokens.

Texts hold no control tokens, but each has a position: `\\n<|im_start|>user` ends a text at that
token if a newline precedes it and `user` follows.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

Place = tuple[int, int]
"""The number of characters before a control token, and its id."""
SIGNS = "".join(map(chr, range(0xDC00, 0xDC07)))
"""Characters that stand for the marks of messages with headers: no decoder makes halves of
surrogate pairs."""
BODY = SIGNS[3]
"""The one behind a header; what follows any other is one."""


@dataclass(frozen=True, slots=True)
class StopText:
    """Stretches of text with a control token between them; a single one without control tokens."""

    texts: tuple[str, ...]
    tokens: tuple[int, ...] = ()

    def find(self, text: str, places: Sequence[Place], start: int) -> int | None:
        """Return where it begins in a text, at `start` or later.

        Args:
            places: of the control tokens in the text, in order.
        """
        if not self.tokens:
            at = text.find(self.texts[0], start)
            while at >= 0 and _in_header(text, at):
                at = text.find(self.texts[0], at + 1)
            return None if at < 0 else at
        firsts = range(len(places) - len(self.tokens) + 1)
        begins = (self._begin(text, places, first, whole=True) for first in firsts)
        return next((at for at in begins if at is not None and at >= start), None)

    def opens(self, text: str, places: Sequence[Place], shared: int) -> int:
        """Return where an end of the text begins that may grow into it; else the text's length.

        Args:
            shared: number of characters at the text's end that its first stretch begins with.
        """
        firsts = range(max(0, len(places) - len(self.tokens)), len(places))
        begins = (self._begin(text, places, first, whole=False) for first in firsts)
        return min((at for at in begins if at is not None), default=len(text) - shared)

    def _begin(self, text: str, places: Sequence[Place], first: int, *, whole: bool) -> int | None:
        """Return where it begins, if its control tokens match the places from `first` on.

        Args:
            whole: match to its end, not only as far as the text goes.
        """
        matched = places[first : first + len(self.tokens)]
        begin = matched[0][0] - len(self.texts[0])
        before = places[first - 1][0] if first else 0
        behind = (
            places[first + len(matched)][0] if first + len(matched) < len(places) else len(text)
        )
        edges = [*(at for at, _ in matched), behind]
        *inside, last = (text[a:b] for a, b in pairwise(edges))
        fits = (
            begin >= before
            and tuple(token for _, token in matched) == self.tokens[: len(matched)]
            and text.startswith(self.texts[0], begin)
            and tuple(inside) == self.texts[1 : len(matched)]
        )
        end = self.texts[len(matched)]
        reached = last.startswith(end) if whole else end.startswith(last)
        return begin if fits and reached else None


def _in_header(text: str, at: int) -> bool:
    """Return True if a place is in a header, which is no part of what is answered."""
    signs = (char for char in reversed(text[:at]) if char in SIGNS)
    return next(signs, BODY) != BODY


class Beginning:
    """The longest beginning of a text that a growing text ends with.

    A character takes constant time however long both are (Knuth, Morris and Pratt).
    """

    def __init__(self, text: str) -> None:
        self._text = text
        self._shorter = [0]
        """The longest other beginning at the end of each beginning."""
        self.length = 0
        for char in text[1:]:
            self._shorter.append(self._after(self._shorter[-1], char))

    def read(self, more: str) -> None:
        """Extend the growing text."""
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
    """Convert stop texts without control tokens."""
    return tuple(StopText((text,)) for text in stop)

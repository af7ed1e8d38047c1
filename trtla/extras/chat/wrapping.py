"""Line breaks between words of a text that comes in pieces, at a terminal.

A word that turns out too long for its line is taken back and begins the next one.
"""

from __future__ import annotations

import re
from collections.abc import Callable

from prompt_toolkit.utils import get_cwidth

Paint = Callable[[str], str]
"""Returns a text with its colours."""

_PARTS = re.compile(r"\n|[^\S\n]|\S+")
_TAB = 8


class WordWrap:
    """The end of a text that is being written: its column, and its last word."""

    def __init__(self) -> None:
        self._column = 0
        self._word: list[tuple[str, Paint]] = []

    def reset(self) -> None:
        """Begin a new line."""
        self._column, self._word = 0, []

    def add(self, text: str, paint: Paint, width: int) -> str:
        """Return what to write so that the text continues in lines of this width."""
        parts = (part for piece in _PARTS.findall(text) for part in _breakable(piece))
        return "".join(self._part(part, paint, width) for part in parts)

    def _part(self, part: str, paint: Paint, width: int) -> str:
        if part == "\n":
            self.reset()
            return part
        if part.isspace():
            return self._blank(part, width)
        wide = get_cwidth(part)
        if get_cwidth(part[0]) > 1:  # no letter of an alphabet: lines break before any of these
            self._word = []
        begin = self._column - sum(get_cwidth(text) for text, _ in self._word)
        self._word.append((part, paint))
        self._column += wide
        if self._column <= width or not begin:  # a word of more than a line breaks anywhere
            return paint(part)
        self._column -= begin
        whole = "".join(shade(text) for text, shade in self._word)
        return f"\x1b[{begin + 1}G\x1b[K\n{whole}"

    def _blank(self, part: str, width: int) -> str:
        self._word = []
        column = (self._column // _TAB + 1) * _TAB if part == "\t" else self._column + 1
        if column > width:
            self.reset()
            return "\n"
        self._column = column
        return part


def _breakable(piece: str) -> list[str]:
    """The parts of a piece between which a line may break: wide characters alone, or the piece."""
    if all(get_cwidth(char) < 2 for char in piece):
        return [piece]
    return list(piece)

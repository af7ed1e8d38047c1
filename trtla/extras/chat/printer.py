"""The output of a session as text on stdout; the terminal shows the same in colour.

Answers and command output go to stdout, remarks and refusals to stderr.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING

from trtla.console import Console

if TYPE_CHECKING:
    from trtla.llm.llm import Piece

_WIDTH = 100
_CONTROL = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f]")
_ACCEPTED, _REJECTED, _TARGET = "green", "red", "blue"
_SOURCES = {
    "context": "green", "expected": "bright_green", "requests": "cyan", "window": "magenta",
    "chain": "blue", "grammar": "bright_cyan", "recycling": "yellow", "agreement": "bright_yellow",
}  # fmt: skip


class Printer:
    """The output of a session that runs a script."""

    def __init__(self, console: Console) -> None:
        self._console = console

    @property
    def width(self) -> int:
        return _WIDTH

    def out(self, text: str) -> None:
        self._console.out(text)

    def note(self, text: str) -> None:
        self._console.note(text)

    def refuse(self, text: str) -> None:
        print(f"error: {text}", file=sys.stderr, flush=True)

    def clear(self) -> None:
        """Clear the screen; without effect here."""

    def live(self, text: str) -> None:
        """Show the present speed; without effect here."""

    def clean(self, text: str) -> str:
        return text

    def flow(self, text: str, paint: Callable[[str], str]) -> str:
        """Return what to write to continue a text."""
        return paint(text)

    def text(self, pieces: Iterable[Piece], sources: Sequence[str] = ()) -> None:
        """Print the model's text, coloured by the `sources` of its pieces if given."""
        pieces = list(pieces)
        shown = ""
        for (text, accepted), source in zip(pieces, sources or [""] * len(pieces), strict=True):
            piece, color = self.clean(text), _SOURCES.get(source, _ACCEPTED)
            shown += self.flow(piece, partial(self._console.styled, fg=color) if accepted else str)
        self._console.out(shown, end="")

    def step(self, number: int, accepted: int, texts: tuple[str, str, str]) -> None:
        """Print one line of /debug: accepted tokens, rejected ones, the model's own."""
        signs = zip((_ACCEPTED, _REJECTED, _TARGET), "+-=", texts, strict=True)
        parts = (
            self._console.styled(f"{sign}{text!r}", fg=color) for color, sign, text in signs if text
        )
        self._console.out(f"{number:4} {accepted:2} accepted  {' '.join(parts)}")

    def legend(self, sources: Mapping[str, int]) -> None:
        style, counts = self._console.styled, [item for item in sources.items() if item[1]]
        shown = ", ".join(style(f"{name} {count}", fg=_SOURCES[name]) for name, count in counts)
        if shown:
            self._console.out(f"accepted by source: {shown}")


def harmless(text: str) -> str:
    """Replace the control characters that would steer a terminal; newlines and tabs stay."""
    return _CONTROL.sub("\N{REPLACEMENT CHARACTER}", text)

"""The output of a session as text on stdout; the terminal shows the same in colour.

Answers and command output go to stdout, remarks and refusals to stderr.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterable
from functools import partial
from typing import TYPE_CHECKING

from trtla.console import Console

if TYPE_CHECKING:
    from trtla.llm.llm import Piece

_CONTROL = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f]")
_ACCEPTED, _REJECTED, _TARGET = "green", "red", "blue"


class Printer:
    """The output of a session that runs a script."""

    def __init__(self, console: Console) -> None:
        self._console = console

    def out(self, text: str) -> None:
        self._console.out(text)

    def note(self, text: str) -> None:
        self._console.note(text)

    def refuse(self, text: str) -> None:
        print(f"error: {text}", file=sys.stderr, flush=True)

    def clear(self) -> None:
        """Clear the screen; without effect here."""

    def clean(self, text: str) -> str:
        return text

    def flow(self, text: str, paint: Callable[[str], str]) -> str:
        """Return a part of the model's text with its colours and line breaks."""
        return paint(text)

    def text(self, pieces: Iterable[Piece]) -> None:
        """Print a part of the model's text; accepted tokens are green."""
        accepted = partial(self._console.styled, fg=_ACCEPTED)
        for piece, is_accepted in pieces:
            shown = self.flow(self.clean(piece), accepted if is_accepted else str)
            self._console.out(shown, end="")

    def step(self, number: int, accepted: int, texts: tuple[str, str, str]) -> None:
        """Print one line of /debug: accepted tokens, rejected ones, the model's own."""
        signs = zip((_ACCEPTED, _REJECTED, _TARGET), "+-=", texts, strict=True)
        parts = (
            self._console.styled(f"{sign}{text!r}", fg=color) for color, sign, text in signs if text
        )
        self._console.out(f"{number:4} {accepted:2} accepted  {' '.join(parts)}")


def harmless(text: str) -> str:
    """Replace the control characters that would steer a terminal; newlines and tabs stay."""
    return _CONTROL.sub("\N{REPLACEMENT CHARACTER}", text)

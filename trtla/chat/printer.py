"""Events as text on stdout, and a chat from a script; the terminal prints likewise, in colour.

Answers and what was asked for go to stdout, remarks and refusals to stderr.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Literal

from trtla.chat.decode import Comparison, Decoded, Step
from trtla.chat.events import Answered, Compared, Event, Leave, Noted, Refused, Said, Streamed
from trtla.chat.session import Session
from trtla.console import Console

if TYPE_CHECKING:
    from rich.table import Table
    from rich.text import Text

    from trtla.llm.llm import Piece
    from trtla.llm.text import Tokenizer

_WIDTH = 100
_CONTROL = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f]")
_ACCEPTED, _REJECTED, _OWN = "green", "red", "blue"
_SOURCES = {
    "own": "green", "expected": "bright_green", "others": "cyan", "window": "magenta",
    "chain": "blue", "rows": "yellow", "both": "bright_yellow",
}  # fmt: skip


class Printer:
    """Prints events; `show` each as it comes."""

    def __init__(self, console: Console, tokenizer: Tokenizer) -> None:
        self._console, self._tokenizer = console, tokenizer
        self._steps = 0

    @property
    def width(self) -> int:
        """Columns that tables take."""
        return _WIDTH

    def show(self, event: Event) -> None:
        """Print one event; those that are only for terminals print nothing."""
        match event:
            case Said(text):
                self._console.out(text)
            case Noted(text):
                self.note(text)
            case Refused(text):
                self.refuse(text)
            case Streamed(step, debug, by_source):
                sources = step.chunk.sources if by_source else ()
                self._step(step) if debug else self._pieces(step.chunk.pieces or (), sources)
            case Answered(answer, debug, by_source):
                self._end(answer, debug)
                if by_source:
                    self._legend(answer)
            case Compared(comparison):
                self._compare(comparison)

    def note(self, text: str) -> None:
        """Print a remark."""
        self._console.note(text)

    def refuse(self, text: str) -> None:
        """Print an error."""
        print(f"error: {text}", file=sys.stderr, flush=True)

    def clean(self, text: str) -> str:
        """The model's text as it may be printed."""
        return text

    def _pieces(self, pieces: Sequence[Piece], sources: Sequence[str] = ()) -> None:
        """Print text; `sources` of each piece, where these are the colours."""
        named = zip(pieces, sources or [""] * len(pieces), strict=True)
        shown = (self._tinted(*piece, source) for piece, source in named)
        self._console.out("".join(shown), end="")

    def _tinted(self, text: str, accepted: bool, source: str = "") -> str:
        shown, color = self.clean(text), _SOURCES.get(source, _ACCEPTED)
        return self._console.styled(shown, fg=color) if accepted else shown

    def _legend(self, answer: Decoded) -> None:
        """What the colours mean: the sources of an answer's accepted tokens."""
        counts = {name: count for name, count in answer.sources.items() if count}
        if counts:
            names = (
                self._console.styled(f"{name} {count}", fg=_SOURCES[name])
                for name, count in counts.items()
            )
            self._console.out(f"accepted by source: {', '.join(names)}")

    def _step(self, step: Step) -> None:
        """One line a step: what was accepted, what was not, what the model said itself."""
        ids, accepted = step.chunk.token_ids, step.chunk.accepted
        parts = [
            self._coloured(ids[:accepted], _ACCEPTED, "+"),
            self._coloured(step.rejected, _REJECTED, "-"),
            self._coloured(ids[accepted:], _OWN, "="),
        ]
        self._console.out(
            f"{self._steps:4} {accepted:2} accepted  " + " ".join(filter(None, parts))
        )
        self._steps += 1

    def _coloured(self, ids: tuple[int, ...], color: str, sign: str) -> str:
        """Tokens with their text between quotes; the sign says which without colours."""
        if not ids:
            return ""
        text = repr(self._tokenizer.decode(ids))
        return self._console.styled(f"{sign}{text}", fg=color)

    def _end(self, answer: Decoded, debug: bool) -> None:
        self._steps = 0
        if debug:
            self._pieces(answer.pieces)
        self._console.out()

    def _compare(self, comparison: Comparison) -> None:
        from rich.console import Console as RichConsole

        coloured = self._console.colored
        system: Literal["standard"] | None = "standard" if coloured else None
        console = RichConsole(
            width=self.width, color_system=system, force_terminal=coloured, highlight=False
        )
        console.print(self._columns(comparison, plain=not coloured))
        self._console.out(comparison.verdict)

    def _columns(self, comparison: Comparison, *, plain: bool) -> Table:
        from rich import box
        from rich.table import Table
        from rich.text import Text

        table = Table(box=box.ASCII if plain else box.ROUNDED, width=self.width)
        table.add_column("")
        for name, side in zip("AB", comparison.sides, strict=True):
            table.add_column(Text(f"{name}: {side.name}"), ratio=1, overflow="fold")
        table.add_row("text", *(self._rich(text) for text in comparison.texts), end_section=True)
        for row in comparison.rows():
            table.add_row(*row)
        return table

    def _rich(self, answer: Decoded) -> Text:
        from rich.text import Text

        shown = Text()
        for text, accepted in answer.pieces:
            shown.append(self.clean(text), _ACCEPTED if accepted else "")
        return shown


def chat_piped(session: Session, lines: Iterable[str], printer: Printer) -> None:
    """Handle lines, each a message or a command, until they end or one leaves."""
    for line in lines:
        for event in session.handle(line.rstrip("\r\n")):
            if isinstance(event, Leave):
                return
            printer.show(event)


def harmless(text: str) -> str:
    """Without the control characters that would steer a terminal; newlines and tabs stay."""
    return _CONTROL.sub("\N{REPLACEMENT CHARACTER}", text)

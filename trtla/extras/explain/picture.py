"""A step as an SVG picture: the text view in its terminal colours, with masks of any width."""

from __future__ import annotations

import io
from collections.abc import Sequence
from pathlib import Path

from trtla.errors import UsageError
from trtla.extras.explain.record import RecordedRun, RecordedStep
from trtla.extras.explain.text_view import step_lines
from trtla.extras.explain.words import WIDTH, Paint, Words, summary

_MOST_FED = 400  # tokens: viewers are slow with larger masks
_WIDEST = 2 * _MOST_FED  # columns of a mask


def check_picture(path: Path) -> None:
    """Refuse a name that is not a picture's, before decoding."""
    if path.suffix.lower() != ".svg":
        raise UsageError(
            f"{path} has the wrong ending: pictures are SVG files", "end its name with .svg"
        )


def step_picture(run: RecordedRun, step: RecordedStep, words: Words, paint: Paint) -> str:
    """Return the step as SVG.

    Args:
        paint: colours a text by the codes of terminals.
    """
    if step.draft.size > _MOST_FED:
        raise UsageError(
            f"step {step.number} fed {step.draft.size} tokens, and a mask of more than {_MOST_FED} "
            "is not drawn",
            "use a smaller --lookahead, or --json",
        )
    lines = [paint(summary(run), "bold"), "", *step_lines(run, step, words, paint, _WIDEST)]
    return _svg(lines, f"trtla explain, step {step.number}")


def _svg(lines: Sequence[str], title: str) -> str:
    from rich.console import Console
    from rich.terminal_theme import DEFAULT_TERMINAL_THEME
    from rich.text import Text

    texts = [Text.from_ansi(line) for line in lines]
    width = max(WIDTH, *(text.cell_len for text in texts))
    console = Console(record=True, width=width, file=io.StringIO(), highlight=False)
    for text in texts:
        console.print(text, no_wrap=True, overflow="ignore", crop=False)
    return console.export_svg(title=title, theme=DEFAULT_TERMINAL_THEME, unique_id="step")

"""Text in cells of a terminal: fitted to a width in columns, painted by what it means."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

from rich.cells import cell_len, set_cell_size

Style = Literal["plain", "bold", "dim", "accepted", "rejected", "input", "window", "candidate"]
Paint = Callable[[str, Style], str]
"""Text and what it means -> the text, coloured where that is possible."""

CHECK, CROSS = "\N{CHECK MARK}", "\N{BALLOT X}"
ELLIPSIS = "\N{HORIZONTAL ELLIPSIS}"


def plain(text: str, style: Style) -> str:
    """No colours."""
    return text


def fit(text: str, width: int) -> str:
    """A text in exactly so many columns, cut with an ellipsis."""
    if cell_len(text) <= width or width < 1:
        return set_cell_size(text, max(0, width))
    return set_cell_size(text, width - 1) + ELLIPSIS


def clip(text: str, width: int) -> str:
    """A text in at most so many columns."""
    return fit(text, width) if cell_len(text) > width else text

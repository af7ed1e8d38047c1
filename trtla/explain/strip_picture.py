"""A whole run as a picture: a row a step, accepted tokens tinted, the target's own plain."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.cells import cell_len

from trtla.charts.theme import INK
from trtla.errors import UsageError
from trtla.explain.canvas import Canvas, token_width
from trtla.explain.cells import clip
from trtla.explain.colours import ACCEPTED, FAINT, tint
from trtla.explain.record import RecordedRun
from trtla.explain.strip import StripRow, strip_rows, summary
from trtla.explain.words import SHORT, Words

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_LEFT, _TOP, _ROW, _SIZE = 18.0, 18.0, 19.0, 9.0
_TOKENS = 108.0
_MOST_ROWS = 1000  # a PNG is at most 65 535 pixels high
_LONGEST = 16  # letters of a token


def strip_picture(run: RecordedRun, words: Words) -> Figure:
    """Draw a run.

    Raises:
        UsageError: it is too long to be drawn.
        TrtlaError: matplotlib is not installed.
    """
    canvas, rows = Canvas("strip"), strip_rows(run)
    if len(rows) > _MOST_ROWS:
        raise UsageError(
            f"the run has {len(rows)} steps, and a strip of more than {_MOST_ROWS} is not drawn",
            "lower --max-output-len, or use --json",
        )
    canvas.prose(_LEFT, _TOP + 8, "The run, step by step", 15, bold=True)
    canvas.prose(_LEFT, _TOP + 27, summary(run), 9.5, colour=FAINT)
    canvas.box((_LEFT, _TOP + 41, 9, 9), tint(ACCEPTED, 0.45), ACCEPTED)
    told = "accepted drafts; the other tokens are the target's own"
    canvas.prose(_LEFT + 14, _TOP + 45.5, told, 9, colour=FAINT)
    top = _TOP + 68
    for place, name in ((0.0, "step"), (40.0, "fed"), (_TOKENS - _LEFT, "tokens")):
        canvas.prose(_LEFT + place, top, name, 8.5, colour=FAINT)
    ends = [_draw_row(canvas, row, words, top + 9 + i * _ROW) for i, row in enumerate(rows)]
    right = max(ends) + 16
    canvas.prose(right, top, "ended by", 8.5, colour=FAINT)
    for index, row in enumerate(rows):
        y = top + 9 + (index + 0.5) * _ROW
        canvas.prose(right, y, SHORT[row.reason], 8.5, colour=FAINT)
    return canvas.figure()


def _draw_row(canvas: Canvas, row: StripRow, words: Words, y: float) -> float:
    """Draw a step's numbers and tokens; where they end."""
    canvas.token((_LEFT, y, 26, _ROW), str(row.number), _SIZE, align="right", colour=FAINT)
    canvas.token((_LEFT + 30, y, 34, _ROW), str(row.fed), _SIZE, align="right", colour=FAINT)
    x, added = _TOKENS, () if row.added is None else (row.added,)
    for place, token in enumerate((*row.accepted, *added)):
        text = clip(words.cell(token), _LONGEST)
        width = token_width(cell_len(text), _SIZE) + 8
        box = (x, y + 1.5, width, _ROW - 3)
        kept = place < len(row.accepted)
        canvas.box(box, tint(ACCEPTED, 0.45) if kept else "none", ACCEPTED if kept else "#c9ced6")
        canvas.token(box, text, _SIZE, colour=INK)
        x += width + 3
    return x

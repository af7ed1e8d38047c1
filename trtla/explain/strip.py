"""A whole run as a strip, printed or drawn: a row a step, what it accepted and what was added."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from rich.cells import cell_len

from trtla.charts.theme import INK
from trtla.console import counted
from trtla.errors import UsageError
from trtla.explain.canvas import ACCEPTED, FAINT, Canvas, tint, token_width
from trtla.explain.record import RecordedRun
from trtla.explain.step_outcome import Reason, outcome_of
from trtla.explain.words import ELLIPSIS, SHORT, Paint, Words, clip

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_WIDTH = 100
_REASON = 17

_LEFT, _TOP, _ROW, _SIZE = 18.0, 18.0, 19.0, 9.0
_TOKENS = 108.0
_MOST_ROWS = 1000  # a PNG is at most 65 535 pixels high
_LONGEST = 16  # letters of a token


@dataclass(frozen=True, slots=True)
class StripRow:
    """One step of a run."""

    number: int
    fed: int
    accepted: tuple[int, ...]
    added: int | None
    reason: Reason


def strip_rows(run: RecordedRun) -> list[StripRow]:
    """A row a step, the prefill first."""
    rows = []
    for step in run.steps:
        outcome = outcome_of(run, step)
        fed = step.draft.size if step.number else len(run.completion.input_ids)
        rows.append(StripRow(step.number, fed, outcome.accepted, outcome.added, outcome.reason))
    return rows


def summary(run: RecordedRun) -> str:
    """The run in a line."""
    stats, tokens = run.completion.stats, len(run.completion.output_ids)
    triple = run.completion.lookahead
    how = (
        f"W,N,G = {triple}"
        if not run.is_tree
        else f"auto within {triple}"
        if "lookahead" in stats.drafter.split(",")
        else stats.drafter
    )
    return (
        f"{counted(stats.steps, 'step')} after the prefill, {counted(tokens, 'token')}, "
        f"S = {stats.tokens_per_step:.2f} tokens a step ({how})"
    )


def strip_lines(run: RecordedRun, words: Words, paint: Paint) -> Iterator[str]:
    """The strip for a terminal; accepted tokens in brackets, so that it needs no colours."""
    yield paint(summary(run), "bold")
    yield "Accepted tokens are in [brackets], the others are the target's own."
    yield f"step   fed  {'tokens'.ljust(_WIDTH - 12 - _REASON)} ended by"
    for row in strip_rows(run):
        tokens = [(f"[{words.cell(token)}]", True) for token in row.accepted]
        if row.added is not None:
            tokens.append((words.cell(row.added), False))
        line = _fitted(tokens, _WIDTH - 12 - _REASON, paint)
        yield f"{row.number:4} {row.fed:5}  {line} {SHORT[row.reason]}"


def _fitted(tokens: list[tuple[str, bool]], width: int, paint: Paint) -> str:
    """As many tokens as fit, filled up to the width."""
    line, used = "", 0
    for index, (text, accepted) in enumerate(tokens):
        room = width - used - (2 if index < len(tokens) - 1 else 0)
        if cell_len(text) > room:
            line, used = line + ELLIPSIS, used + 1
            break
        line += (paint(text, "accepted") if accepted else text) + " "
        used += cell_len(text) + 1
    return line + " " * (width - used)


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
    legend = "accepted drafts; the other tokens are the target's own"
    canvas.prose(_LEFT + 14, _TOP + 45.5, legend, 9, colour=FAINT)
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

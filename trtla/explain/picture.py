"""One step as a picture: window, n-grams and candidates at the left, the attention mask beside."""

from __future__ import annotations

import textwrap
from typing import TYPE_CHECKING

from rich.cells import cell_len

from trtla.charts.theme import INK
from trtla.console import counted
from trtla.errors import UsageError
from trtla.explain.canvas import (
    ACCEPTED,
    CANDIDATE,
    FAINT,
    REJECTED,
    WINDOW,
    Canvas,
    level_tint,
    prose_letters,
    tint,
    token_width,
)
from trtla.explain.mask_picture import MaskPicture, key
from trtla.explain.record import RecordedRun, RecordedStep, WindowCells
from trtla.explain.step_outcome import Candidate, Outcome, outcome_of
from trtla.explain.tree import draw_tree
from trtla.explain.words import CHECK, CROSS, Words, candidates_line, headline, why

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_LEFT, _TOP, _GUTTER = 18.0, 18.0, 78.0
_ROOM = 480.0  # points that a grid's cells take together, where they are not too many
_WIDEST, _NARROWEST, _ROW = 72.0, 38.0, 20.0
_MOST_FED = 400  # tokens: a larger mask's pixels would not fit into memory
_LEAST = 470.0  # width of the left half


def step_picture(run: RecordedRun, step: RecordedStep, words: Words) -> Figure:
    """Draw a step.

    Raises:
        UsageError: it is too large to be drawn.
        TrtlaError: matplotlib is not installed.
    """
    if step.draft.size > _MOST_FED:
        raise UsageError(
            f"step {step.number} fed {step.draft.size} tokens, and a mask of more than {_MOST_FED} "
            "is not drawn",
            "use a smaller --lookahead, or --json",
        )
    canvas = Canvas(f"step {step.number}")
    _Step(canvas, run, step, words).draw()
    return canvas.figure()


class _Step:
    def __init__(self, canvas: Canvas, run: RecordedRun, step: RecordedStep, words: Words) -> None:
        self._canvas, self._run, self._step, self._words = canvas, run, step, words
        self._outcome: Outcome = outcome_of(run, step)
        self._y = _TOP

    def draw(self) -> None:
        """Everything, from top to bottom, then the mask to the right of it."""
        self._title()
        top = self._y
        window = self._step.window or (None if self._step.number else self._step.window_after)
        if window is not None:
            self._window(window)
            self._harvest()
        if self._step.number:
            self._candidates()
        self._ending()
        if self._step.draft.tokens:
            x = max(self._canvas.right, _LEFT + _LEAST) + 34
            mask = MaskPicture(self._canvas, self._run, self._step, self._words)
            self._canvas.prose(
                x, top + 7, "Attention: a row sees the filled columns", 11, bold=True
            )
            y = key(self._canvas, self._step, x, top + 20)
            mask.draw(x, y + 2, self._outcome.accepted_nodes)

    def _title(self) -> None:
        run, step, triple = self._run, self._step, self._run.completion.lookahead
        self._canvas.prose(_LEFT, self._y + 8, headline(run, step, self._outcome), 15, bold=True)
        how = f"W, N, G = {triple.window_size}, {triple.ngram_size}, {triple.verification_set_size}"
        if run.is_tree:
            how = f"auto within {how}"
        elif "lookahead" not in run.completion.stats.drafter:
            how = f"drafter {run.completion.stats.drafter}"
        fed = f"{counted(step.draft.size, 'token')} fed in one forward"
        line = f"{how}: {fed}" if step.number else how
        self._canvas.prose(_LEFT, self._y + 27, line, 9.5, colour=FAINT)
        self._text(self._y + 46)
        self._y += 72

    def _text(self, y: float) -> None:
        """The text so far, the input marked, then what the step added."""
        size, x, step = 9.0, _LEFT, self._step
        before = self._run.text_before(step) if step.number else self._run.completion.input_ids
        shown = self._words.end(before[:-1], 58)
        self._canvas.prose(x, y, shown, size, colour=FAINT, mono=True)
        x += token_width(cell_len(shown), size) + 5
        for place, token in enumerate((before[-1], *step.committed)):
            text = self._words.cell(token)
            width = token_width(cell_len(text), size) + 7
            kept = 0 < place <= len(self._outcome.accepted)
            fill = tint(ACCEPTED, 0.35) if kept else "none"
            edge = FAINT if not place else ACCEPTED if kept else INK
            self._canvas.box((x, y - 8, width, 16), fill, edge, dashed=not place)
            self._canvas.token((x, y - 8, width, 16), text, size, bold=place > 0)
            x += width + 3

    def _heading(self, text: str, note: str = "") -> None:
        self._canvas.prose(_LEFT, self._y + 7, text, 11, bold=True)
        self._y += 18
        for line in textwrap.wrap(note, prose_letters(_LEAST, 8.5)):
            self._canvas.prose(_LEFT, self._y + 5, line, 8.5, colour=FAINT)
            self._y += 12
        self._y += 4 if note else 0

    def _label(self, text: str, colour: str = INK) -> None:
        box = (_LEFT, self._y, _GUTTER - 6, _ROW)
        self._canvas.token(box, text, 8.0, colour=colour, align="left")

    def _window(self, window: WindowCells) -> None:
        columns, levels = len(window.levels[0]), len(window.levels)
        most = self._run.completion.lookahead.ngram_size - 1
        filled = "" if window.full else f", {levels} filled so far"
        start = self._run.position(self._step) + (not window.full) * (len(window.fillers) + 1)
        note = f"Level l, column j is a guess for position {start} + l + j."
        if not self._step.number:
            note = "It starts with tokens of the prompt: they change the speed, never the text."
        self._heading(f"Window: W = {columns} columns, N-1 = {most} levels{filled}", note)
        width = _cell_width(columns)
        for column in range(columns):
            box = (_LEFT + _GUTTER + column * width, self._y, width, 11.0)
            self._canvas.token(box, f"col {column}", 7.0, colour=FAINT)
        self._y += 13
        if window.fillers:
            self._row("fillers", window.fillers, width, tint(WINDOW, 0.08))
        for level, tokens in enumerate(window.levels):
            has_input = window.full and not level
            ground = level_tint(level, levels)
            self._row(f"level {level}", tokens, width, ground, has_input=has_input)
        if self._step.observed:
            self._row("new level", self._step.observed, width, "none", WINDOW, dashed=True)
        self._y += 12

    def _row(
        self,
        label: str,
        tokens: tuple[int, ...],
        width: float,
        fill: str,
        edge: str = "none",
        *,
        dashed: bool = False,
        has_input: bool = False,
    ) -> None:
        """A grid's row; its first cell is the input token where it has that."""
        self._label(label)
        for column, token in enumerate(tokens):
            box = (_LEFT + _GUTTER + column * width + 1, self._y + 1, width - 2, _ROW - 2)
            is_input = has_input and not column
            self._canvas.box(box, INK if is_input else fill, edge, dashed=dashed)
            colour = "white" if is_input else INK
            self._canvas.token(box, self._words.cell(token), 8.5, colour=colour, bold=dashed)
        self._y += _ROW

    def _harvest(self) -> None:
        if not self._step.harvest:
            return
        count = len(self._step.harvest)
        self._heading(
            f"Collected into the pool: {count} n-grams of N = {len(self._step.harvest[0])} tokens",
            "A column is read from the oldest level to the new one; its first token is the key.",
        )
        width = _cell_width(len(self._step.harvest[0]))
        for column, ngram in enumerate(self._step.harvest):
            self._row(f"col {column}", ngram, width, tint(WINDOW, 0.16))
            box = (_LEFT + _GUTTER + 1, self._y - _ROW + 1, width - 2, _ROW - 2)
            self._canvas.box(box, edge=WINDOW)
        self._y += 12

    def _candidates(self) -> None:
        self._heading(candidates_line(self._run, self._step, self._outcome, self._words))
        if self._run.is_tree:
            place = (_LEFT, self._y)
            self._y = draw_tree(self._canvas, *place, self._step, self._outcome, self._words) + 12
            return
        if not self._outcome.candidates:
            self._y += 8
            return
        longest = max(len(candidate.tokens) for candidate in self._outcome.candidates)
        width = _cell_width(longest + 1)
        self._drawn(width)
        for number, candidate in enumerate(self._outcome.candidates, 1):
            self._candidate(number, candidate, longest, width)
        self._y += 12

    def _drawn(self, width: float) -> None:
        """What the target drew, over the places of the candidates' tokens."""
        self._label("target drew")
        for place, token in enumerate(self._step.committed):
            kept = place < len(self._outcome.accepted)
            box = (_LEFT + _GUTTER + place * width + 1, self._y + 1, width - 2, _ROW - 2)
            self._canvas.box(box, tint(ACCEPTED, 0.35) if kept else "none", INK)
            self._canvas.token(box, self._words.cell(token), 8.5, bold=True)
        self._y += _ROW + 3

    def _candidate(self, number: int, candidate: Candidate, longest: int, width: float) -> None:
        self._label(f"candidate {number}")
        for place, token in enumerate(candidate.tokens):
            box = (_LEFT + _GUTTER + place * width + 1, self._y + 1, width - 2, _ROW - 2)
            text, fill, edge = self._words.cell(token), tint(CANDIDATE, 0.14), "none"
            mark, colour = "", FAINT
            if place < candidate.matched:
                mark, fill, colour = CHECK, tint(ACCEPTED, 0.35), INK
            elif place == candidate.matched:
                mark, edge, colour = CROSS, REJECTED, INK
            self._canvas.box(box, fill, edge)
            x, y, across, height = box
            self._canvas.token((x, y, across - 12 * bool(mark), height), text, 8.5, colour=colour)
            own = ACCEPTED if mark == CHECK else REJECTED
            self._canvas.token((x + across - 13, y, 11, height), mark, 9, colour=own, bold=True)
        seen = "seen in " + ", ".join(candidate.sources) if candidate.sources else ""
        x = _LEFT + _GUTTER + longest * width + 5
        self._canvas.prose(x, self._y + _ROW / 2, seen, 8, colour=FAINT)
        self._y += _ROW

    def _ending(self) -> None:
        self._heading("Why it ended")
        reason = why(self._run, self._step, self._outcome, self._words)
        for line in textwrap.wrap(reason, prose_letters(_LEAST, 9.5)):
            self._canvas.prose(_LEFT, self._y + 6, line, 9.5)
            self._y += 14


def _cell_width(columns: int) -> float:
    return max(_NARROWEST, min(_WIDEST, _ROOM / columns))

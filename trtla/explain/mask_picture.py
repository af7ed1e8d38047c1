"""A step's attention mask on a canvas, as the paper draws it: rows see the filled columns."""

from __future__ import annotations

from collections.abc import Sequence

from trtla.charts.theme import INK
from trtla.explain.canvas import ACCEPTED, CACHED, FAINT, PARTS, Canvas, tint
from trtla.explain.mask import Block, Part, blocks, positions, roles, visible
from trtla.explain.record import RecordedRun, RecordedStep
from trtla.explain.words import Words

_ROOM, _SMALLEST, _LARGEST = 560.0, 6.5, 16.0  # points: of the cells together, of one cell
_HEAD = 64.0
_LABEL, _PLACE, _TOKEN = 6, 5, 11  # letters
_LETTER = 0.62
_KEY: dict[Part, str] = {
    "input": "input",
    "filler": "fillers",
    "window": "lookahead branch: level.column",
    "candidate": "verification branch: candidate.place",
}


class MaskPicture:
    """Draws a mask with its upper left corner at a place."""

    def __init__(self, canvas: Canvas, run: RecordedRun, step: RecordedStep, words: Words) -> None:
        self._canvas, self._step, self._blocks = canvas, step, blocks(step)
        self._names = roles(step)
        self._seen = visible(step.draft.parents)
        tokens = (run.text_before(step)[-1], *step.draft.tokens)
        self._tokens = [words.cell(token) for token in tokens]
        self._places = positions(step, run.position(step))
        self._cell = max(_SMALLEST, min(_LARGEST, _ROOM / len(self._seen)))
        self._size = min(8.0, self._cell * 0.86)
        letter = self._size * _LETTER
        self._columns = (0.0, _LABEL * letter, (_LABEL + _PLACE) * letter)
        self._left = (_LABEL + _PLACE + _TOKEN) * letter
        self._cached = max(14.0, self._cell)

    def draw(self, x: float, y: float, accepted: Sequence[int]) -> float:
        """Draw it; where it ends below."""
        cells, top = x + self._left + self._cached, y + _HEAD
        self._heads(x, cells, top)
        self._grounds(cells, top)
        for node in range(len(self._seen)):
            self._row(node, x, top + node * self._cell, accepted)
        side = self._cell * len(self._seen)
        self._canvas.box((x + self._left, top, self._cached - 2, side), tint(CACHED, 0.55))
        for block in self._blocks:
            self._fill(block, cells, top)
            self._side(block, cells + side + 4, top)
        self._canvas.box((cells, top, side, side), edge=CACHED)
        return top + side

    def _heads(self, x: float, cells: float, top: float) -> None:
        cached = x + self._left + self._cached / 2 - 1
        self._canvas.upright(cached, top - 3, "cached text", self._size, _HEAD)
        for node, token in enumerate(self._tokens):
            place = cells + (node + 0.5) * self._cell
            self._canvas.upright(place, top - 3, token, self._size, _HEAD)

    def _grounds(self, cells: float, top: float) -> None:
        """The blocks on the diagonal, which belong together."""
        for block in self._blocks:
            start, size = block.start * self._cell, (block.end - block.start) * self._cell
            ground = tint(PARTS[block.part], 0.12)
            across = (cells, top + start, self._cell * len(self._seen), size)
            if block.part in ("window", "candidate"):
                self._canvas.box(across, tint(PARTS[block.part], 0.05))
            self._canvas.box((cells + start, top + start, size, size), ground)

    def _row(self, node: int, x: float, y: float, accepted: Sequence[int]) -> None:
        kept = node in accepted
        texts = (self._names[node].label, str(self._places[node]), self._tokens[node])
        for place, letters, text in zip(
            self._columns, (_LABEL, _PLACE, _TOKEN), texts, strict=True
        ):
            box = (x + place, y, letters * self._size * _LETTER - 3, self._cell)
            colour = ACCEPTED if kept else INK
            self._canvas.token(box, text, self._size, colour=colour, align="left", bold=kept)

    def _fill(self, block: Block, cells: float, top: float) -> None:
        """The columns of a block that rows see."""
        side, gap = self._cell, min(1.0, self._cell * 0.08)
        seen = [
            (cells + node * side + gap, top + row * side + gap, side - 2 * gap, side - 2 * gap)
            for row, sees in enumerate(self._seen)
            for node in range(block.start, block.end)
            if sees[node]
        ]
        odd = block.name.endswith(("1", "3", "5", "7", "9"))
        colour = PARTS[block.part]
        self._canvas.boxes(seen, tint(colour, 0.72) if odd else colour)

    def _side(self, block: Block, x: float, top: float) -> None:
        """The block's name beside its rows."""
        y, height = top + block.start * self._cell, (block.end - block.start) * self._cell
        self._canvas.box((x, y + 1, 2.5, height - 2), PARTS[block.part])
        size = min(8.0, max(self._size, height * 0.8) if height < 8 else 8.0)
        self._canvas.prose(x + 6, y + height / 2, block.name, size, colour=FAINT)


def key(canvas: Canvas, step: RecordedStep, x: float, y: float) -> float:
    """What the mask's colours mean; where that ends below."""
    fed = {role.part for role in roles(step)}
    canvas.box((x, y, 9, 9), tint(CACHED, 0.55))
    x = _named(canvas, x, y, "cached text")
    for part, name in _KEY.items():
        if part in fed:
            canvas.box((x, y, 9, 9), PARTS[part])
            x = _named(canvas, x, y, name)
    return y + 12


def _named(canvas: Canvas, x: float, y: float, name: str) -> float:
    canvas.prose(x + 13, y + 4.5, name, 8.0, colour=FAINT)
    return x + 30 + len(name) * 4.4

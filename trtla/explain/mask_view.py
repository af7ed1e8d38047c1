"""A step's attention mask in letters, as the paper draws it: rows see the filled columns."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby

from trtla.explain.mask import Part, Stretch, blocks, positions, roles
from trtla.explain.step_outcome import Outcome
from trtla.explain.words import CHECK, WIDTH, Paint, Style, Words, fit
from trtla.runtime.models.batch import tree_bias

_LABEL = 6
_STYLES: dict[Part, Style] = {
    "input": "input",
    "filler": "window",
    "window": "window",
    "candidate": "candidate",
}
_GLYPHS: dict[Part, str] = {"input": "█", "filler": "█", "window": "█", "candidate": "▓"}
_KEY: dict[Part, str] = {
    "input": "input",
    "window": "lookahead branch, L level.column",
    "candidate": "verification branch, C candidate.place",
}
_CACHED, HIDDEN = "▒", "·"


@dataclass(frozen=True, slots=True)
class _Layout:
    """How many columns the mask's parts take."""

    cell: int
    gap: int
    """Between blocks."""
    position: int
    """0: it is left out."""
    token: int

    @property
    def gutter(self) -> int:
        return _LABEL + self.position + self.token

    def width(self, size: int, stretches: int) -> int:
        return self.gutter + self.cell * (size + 1) + self.gap * stretches + 2


_LAYOUTS = (
    _Layout(2, 1, 6, 11),
    _Layout(2, 0, 6, 11),
    _Layout(1, 1, 6, 11),
    _Layout(1, 1, 0, 8),
    _Layout(1, 0, 0, 8),
)


def mask_lines(outcome: Outcome, words: Words, paint: Paint, width: int = WIDTH) -> Iterator[str]:
    """The mask's lines; one that says so where it is too wide."""
    step = outcome.step
    size, names, stretches = step.draft.size, roles(step), blocks(step)
    if size == 1:
        yield "Attention: the input sees the cached text and itself."
        return
    fitting = (one for one in _LAYOUTS if one.width(size, len(stretches)) <= width)
    layout = next(fitting, None)
    if layout is None:
        yield f"The attention mask of {size} x {size} tokens is drawn with -o step.svg."
        return
    yield from _legend({role.part for role in names}, paint)
    yield (" " * (layout.gutter + layout.cell + layout.gap) + _heading(stretches, layout)).rstrip()
    tokens = (outcome.text[-1], *step.draft.tokens)
    places = positions(step, outcome.position)
    seen_by = (tree_bias(step.draft.parents) == 0).tolist()  # the mask that the model uses
    for node, seen in enumerate(seen_by):
        label = fit(names[node].label, _LABEL) + fit(str(places[node]), layout.position)
        label += fit(words.cell(tokens[node]), layout.token - 1) + " "
        cached = paint(_CACHED * layout.cell, "dim")
        mark = f" {CHECK}" if node in outcome.accepted_nodes else ""
        cells = _cells(seen, stretches, layout, paint)
        yield (paint(label, "accepted") if mark else label) + cached + cells + mark


def _legend(fed: set[Part], paint: Paint) -> Iterator[str]:
    yield "Attention mask: a row sees the columns that are filled, one for each position before it."
    kinds = [f"{paint(_CACHED, 'dim')} cached"]
    kinds += [f"{paint(_GLYPHS[part], _STYLES[part])} {_KEY[part]}" for part in _KEY if part in fed]
    yield "  " + "  ".join(kinds)


def _heading(stretches: Sequence[Stretch], layout: _Layout) -> str:
    """The blocks' short names over their columns, where they fit."""
    line = ""
    for stretch in stretches:
        name, room = stretch.name, (stretch.end - stretch.start) * layout.cell
        line += (fit(name, room) if len(name) <= room else " " * room) + " " * layout.gap
    return line


def _cells(
    seen: Sequence[bool], stretches: Sequence[Stretch], layout: _Layout, paint: Paint
) -> str:
    """A row of the mask; what is painted alike is painted together."""
    line = ""
    for stretch in stretches:
        line += " " * layout.gap
        nodes = range(stretch.start, stretch.end)
        for sees, group in groupby(nodes, lambda node: seen[node]):
            count = len(list(group)) * layout.cell
            style = _STYLES[stretch.part] if sees else "dim"
            line += paint((_GLYPHS[stretch.part] if sees else HIDDEN) * count, style)
    return line

"""One step for a terminal of 100 columns: window, n-grams, candidates, mask, why it ended."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby

from trtla.console import counted
from trtla.explain.mask import Block, Part, blocks, positions, roles, visible
from trtla.explain.record import RecordedRun, RecordedStep, WindowCells
from trtla.explain.step_outcome import Candidate, Outcome, outcome_of
from trtla.explain.tree import tree_lines
from trtla.explain.words import (
    CHECK,
    CROSS,
    Paint,
    Style,
    Words,
    candidates_line,
    clip,
    fit,
    headline,
    why,
)

WIDTH = 100
_GUTTER = 13
_WIDEST, _NARROWEST = 11, 4  # columns of a cell
_ROOM = WIDTH - 2 - _GUTTER
_SOURCES = 23  # columns for where a candidate was seen

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
_CACHED, _HIDDEN = "▒", "·"


def step_lines(run: RecordedRun, step: RecordedStep, words: Words, paint: Paint) -> list[str]:
    """The lines of a step's view."""
    outcome = outcome_of(run, step)
    lines = [paint(headline(run, step, outcome), "bold"), *_fed(step), "", *_text(run, step, words)]
    if step.number:
        lines += [*_window(run, step, words, paint), *_candidates(run, step, outcome, words, paint)]
        lines += ["", *mask_lines(run, step, outcome.accepted_nodes, words, paint)]
    else:
        lines += _start(run, step, words, paint)
    return [*lines, "", *_ending(run, step, outcome, words, paint)]


def _fed(step: RecordedStep) -> list[str]:
    if not step.number:
        return []
    parts = [role.part for role in roles(step)]
    window, candidates = parts.count("window") + parts.count("filler"), parts.count("candidate")
    what = [f"{window} of the window"] * bool(window) + [f"{candidates} of candidates"]
    return [f"Fed in one forward: {counted(len(parts), 'token')} = 1 input + {' + '.join(what)}."]


def _text(run: RecordedRun, step: RecordedStep, words: Words) -> list[str]:
    if not step.number:
        prompt = run.completion.input_ids
        return [
            f"Prompt  {words.end(prompt, WIDTH - 8)}",
            f"        {counted(len(prompt), 'token')}",
        ]
    *before, last = run.text_before(step)
    return [
        f"Text   {words.end(before, WIDTH - 7)}",
        f"Input  {words.quoted(last)} at position {run.position(step)}",
    ]


def _window(run: RecordedRun, step: RecordedStep, words: Words, paint: Paint) -> Iterator[str]:
    if step.window is None:
        return
    window = step.window
    yield ""
    yield from _wrapped(_about_window(run, step, window))
    yield from _grid(window, words, paint)
    yield from _new_level(step, words, paint)
    yield from _harvest(step, words, paint)


def _about_window(run: RecordedRun, step: RecordedStep, window: WindowCells) -> str:
    levels, most = len(window.levels), run.completion.lookahead.ngram_size - 1
    start = run.position(step) + (0 if window.full else len(window.fillers) + 1)
    word = "level" if most == 1 else "levels"
    filling = "" if window.full else f", {levels} of them filled so far"
    return (
        f"Window: W = {len(window.levels[0])} columns, N-1 = {most} {word}{filling}: guesses "
        f"about what comes. Level l, column j stands at position {start} + l + j."
    )


def _grid(window: WindowCells, words: Words, paint: Paint) -> Iterator[str]:
    size, shown = _cell_size(len(window.levels[0]))
    yield _line("", [fit(f"column {j}" if size > 8 else f"{j}", size) for j in range(shown)])
    if window.fillers:
        fillers = " ".join(map(words.cell, window.fillers))
        yield f"  {fit('fillers', _GUTTER)}{clip(fillers, _ROOM)}"
    for level, tokens in enumerate(window.levels):
        cells = [paint(fit(words.cell(token), size), "window") for token in tokens[:shown]]
        if window.full and not level:
            cells[0] = paint(fit(words.cell(tokens[0]), size), "input")
        yield _line(f"level {level}", cells)


def _new_level(step: RecordedStep, words: Words, paint: Paint) -> Iterator[str]:
    if step.observed:
        size, shown = _cell_size(len(step.observed))
        cells = [paint(fit(words.cell(token), size), "bold") for token in step.observed[:shown]]
        yield _line("new level", cells)
        newest = "drawn" if step.draft.drawn else "most probable"
        yield from _wrapped(
            f"The new level is the target's {newest} token after each cell of the newest one. "
            + ("Level 0 goes, the others move up." if step.harvest else "No level goes yet.")
        )


def _harvest(step: RecordedStep, words: Words, paint: Paint) -> Iterator[str]:
    if not step.harvest:
        return
    yield ""
    yield f"Collected into the pool: {len(step.harvest)} n-grams, one a column"
    length = len(step.harvest[0])
    size, shown = _cell_size(length + 1)
    for column, (key, *value) in enumerate(step.harvest):
        cells = [fit(words.cell(key), size), *(fit(words.cell(t), size) for t in value)]
        cells.insert(1, fit("->", 2))
        yield _line(f"column {column}", [paint(cell, "window") for cell in cells[: shown + 1]])


def _candidates(
    run: RecordedRun, step: RecordedStep, outcome: Outcome, words: Words, paint: Paint
) -> Iterator[str]:
    yield ""
    yield from _wrapped(candidates_line(run, step, outcome, words))
    if run.is_tree:
        yield from tree_lines(step, outcome, words, paint)
        return
    if not outcome.candidates:
        return
    longest = max(len(candidate.tokens) for candidate in outcome.candidates)
    size, shown = _cell_size(longest + 1, _ROOM - _SOURCES)
    position = run.position(step)
    seen_in = "seen in" if step.window is not None else ""
    places = [fit(str(position + 1 + i), size) for i in range(shown)]
    yield _line("position", [*places, seen_in])
    drawn = [
        paint(fit(words.cell(token), size), "accepted" if i < len(outcome.accepted) else "bold")
        for i, token in enumerate(step.committed[:shown])
    ]
    yield _line("target drew", drawn)
    for number, candidate in enumerate(outcome.candidates, 1):
        yield _candidate(number, candidate, (size, shown), words, paint)


def _candidate(
    number: int, candidate: Candidate, grid: tuple[int, int], words: Words, paint: Paint
) -> str:
    size, shown = grid
    cells = []
    for place, token in enumerate(candidate.tokens[:shown]):
        style: Style = "accepted" if place < candidate.matched else "dim"
        mark = CHECK if place < candidate.matched else " "
        if place == candidate.matched:
            style, mark = "rejected", CROSS
        cells.append(paint(fit(clip(words.cell(token), size - 2) + " " + mark, size), style))
    sources = ", ".join(candidate.sources)
    cells += [" " * size] * (shown - len(cells))
    return _line(f"candidate {number}", [*cells, sources])


def _start(run: RecordedRun, step: RecordedStep, words: Words, paint: Paint) -> Iterator[str]:
    yield ""
    window = step.window_after
    if window is None:
        lacks = "a window is fed where it pays" if run.is_tree else "this drafter has no window"
        yield f"Nothing is prepared: {lacks}."
        return
    yield f"The pool starts with the n-grams of the prompt: {step.pool_size} are kept."
    yield from _wrapped(
        "The window starts with tokens drawn from the prompt: they change the speed, never the "
        "text."
    )
    yield from _grid(window, words, paint)


def _ending(
    run: RecordedRun, step: RecordedStep, outcome: Outcome, words: Words, paint: Paint
) -> Iterator[str]:
    accepted = [paint(words.quoted(token), "accepted") for token in outcome.accepted]
    if accepted:
        yield "Accepted: " + " ".join(accepted)
    if outcome.added is not None:
        yield "Added by the target: " + paint(words.quoted(outcome.added), "bold")
    yield from _wrapped("Why it ended: " + why(run, step, outcome, words))


def _cell_size(columns: int, room: int = _ROOM) -> tuple[int, int]:
    """(width of a cell, cells that fit) for a grid of so many columns."""
    size = max(_NARROWEST, min(_WIDEST, (room + 1) // columns - 1))
    return size, min(columns, (room + 1) // (size + 1))


def _line(label: str, cells: Sequence[str]) -> str:
    return f"  {fit(label, _GUTTER)}{' '.join(cells)}".rstrip()


def _wrapped(text: str) -> list[str]:
    return textwrap.wrap(text, WIDTH)


@dataclass(frozen=True, slots=True)
class _Layout:
    """How much room the mask's parts take."""

    scale: int
    """Columns of a cell."""
    gap: int
    """Columns between blocks."""
    place: int
    """Columns of a position; 0: it is left out."""
    token: int

    @property
    def gutter(self) -> int:
        """Columns before the cells."""
        return _LABEL + self.place + self.token


_LAYOUTS = (
    _Layout(2, 1, 6, 11),
    _Layout(2, 0, 6, 11),
    _Layout(1, 1, 6, 11),
    _Layout(1, 1, 0, 8),
    _Layout(1, 0, 0, 8),
)


def mask_lines(
    run: RecordedRun, step: RecordedStep, accepted: Sequence[int], words: Words, paint: Paint
) -> Iterator[str]:
    """The mask's lines; one that says so where it is too wide for a terminal."""
    size, names, stretches = step.draft.size, roles(step), blocks(step)
    if size == 1:
        yield "Attention: the input sees the cached text and itself."
        return
    layout = next(
        (one for one in _LAYOUTS if _mask_width(one, size, len(stretches)) <= WIDTH), None
    )
    if layout is None:
        yield f"The attention mask of {size} x {size} tokens is drawn with -o step.svg."
        return
    yield from _legend({role.part for role in names}, paint)
    yield (" " * (layout.gutter + layout.scale + layout.gap) + _heading(stretches, layout)).rstrip()
    tokens = (run.text_before(step)[-1], *step.draft.tokens)
    places = positions(step, run.position(step))
    for node, seen in enumerate(visible(step.draft.parents)):
        label = fit(names[node].label, _LABEL) + fit(str(places[node]), layout.place)
        label += fit(words.cell(tokens[node]), layout.token - 1) + " "
        cached = paint(_CACHED * layout.scale, "dim")
        mark = f" {CHECK}" if node in accepted else ""
        cells = _cells(seen, stretches, layout, paint)
        yield (paint(label, "accepted") if mark else label) + cached + cells + mark


def _mask_width(layout: _Layout, size: int, stretches: int) -> int:
    return layout.gutter + layout.scale * (size + 1) + layout.gap * stretches + 2


def _legend(fed: set[Part], paint: Paint) -> Iterator[str]:
    yield "Attention mask: a row sees the columns that are filled, one for each position before it."
    kinds = [f"{paint(_CACHED, 'dim')} cached"]
    kinds += [f"{paint(_GLYPHS[part], _STYLES[part])} {_KEY[part]}" for part in _KEY if part in fed]
    yield "  " + "  ".join(kinds)


def _heading(stretches: Sequence[Block], layout: _Layout) -> str:
    """The blocks' short names over their columns, where they fit."""
    line = ""
    for block in stretches:
        name, room = _short(block), (block.end - block.start) * layout.scale
        line += (fit(name, room) if len(name) <= room else " " * room) + " " * layout.gap
    return line


def _short(block: Block) -> str:
    kind, _, number = block.name.partition(" ")
    return f"{kind[0].upper()}{number}" if number else kind[:2]


def _cells(
    seen: Sequence[bool],
    stretches: Sequence[Block],
    layout: _Layout,
    paint: Paint,
) -> str:
    """A row of the mask; what is painted alike is painted together."""
    line = ""
    for block in stretches:
        line += " " * layout.gap
        nodes = range(block.start, block.end)
        for sees, group in groupby(nodes, lambda node: seen[node]):
            count = len(list(group)) * layout.scale
            style = _STYLES[block.part] if sees else "dim"
            line += paint((_GLYPHS[block.part] if sees else _HIDDEN) * count, style)
    return line

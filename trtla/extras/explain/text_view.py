"""A run and one of its steps for a terminal of 100 columns.

The run is a strip, a row a step; a step shows its window, n-grams, candidates, attention mask, and
why it ended. In the mask, rows see the filled columns, as in the paper.
"""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby

from rich.cells import cell_len

from trtla.console import counted
from trtla.extras.explain.record import RecordedRun, RecordedStep, WindowCells
from trtla.extras.explain.step_outcome import (
    Candidate,
    Fate,
    Outcome,
    Part,
    Stretch,
    TreeNode,
    blocks,
    outcome_of,
    positions,
    roles,
    tree_nodes,
)
from trtla.extras.explain.words import (
    CHECK,
    CROSS,
    ELLIPSIS,
    SHORT,
    WIDTH,
    Paint,
    Style,
    Words,
    candidates_line,
    clip,
    fit,
    headline,
    summary,
    why,
)
from trtla.runtime.models.mask import seen_nodes

_GUTTER = 13
_WIDEST, _NARROWEST = 11, 4  # columns of a cell
_ROOM = WIDTH - 2 - _GUTTER
_SOURCES = 23  # columns for a candidate's earlier occurrences
_REASON = 17

_TOKENS, _SOURCE, _LEAST = 44, 10, 4  # columns of the tree
_FATES: dict[Fate, tuple[str, Style]] = {
    "accepted": (CHECK, "accepted"), "rejected": (CROSS, "rejected"), "not reached": ("", "dim"),
}  # fmt: skip


def strip_lines(run: RecordedRun, words: Words, paint: Paint) -> Iterator[str]:
    """Yield the run, a row a step; accepted tokens are in brackets, to be readable without
    colours."""
    width = WIDTH - 12 - _REASON
    yield paint(summary(run), "bold")
    yield "Accepted tokens are in [brackets], the others are the target's own."
    yield f"step   fed  {'tokens'.ljust(width)} ended by"
    for step in run.steps:
        outcome = outcome_of(run, step)
        fed = step.draft.size if step.number else len(run.completion.input_ids)
        tokens = [(f"[{words.cell(token)}]", True) for token in outcome.accepted]
        if outcome.added is not None:
            tokens.append((words.cell(outcome.added), False))
        line = _fitted(tokens, width, paint)
        yield f"{step.number:4} {fed:5}  {line} {SHORT[outcome.reason]}"


def _fitted(tokens: list[tuple[str, bool]], width: int, paint: Paint) -> str:
    line, used = "", 0
    for index, (text, accepted) in enumerate(tokens):
        room = width - used - (2 if index < len(tokens) - 1 else 0)
        if cell_len(text) > room:
            line, used = line + ELLIPSIS, used + 1
            break
        line += (paint(text, "accepted") if accepted else text) + " "
        used += cell_len(text) + 1
    return line + " " * (width - used)


def step_lines(
    run: RecordedRun, step: RecordedStep, words: Words, paint: Paint, widest: int = WIDTH
) -> list[str]:
    """Return the lines of one step, with a mask of up to `widest` columns."""
    outcome = outcome_of(run, step)
    view = StepView(outcome, words, paint)
    lines = [paint(headline(outcome), "bold"), *view.draft()]
    if step.number:
        lines += ["", *mask_lines(outcome, words, paint, widest)]
    return [*lines, "", *view.ending()]


@dataclass(frozen=True, slots=True)
class StepView:
    """The parts of a step as lines."""

    outcome: Outcome
    words: Words
    paint: Paint

    def draft(self) -> Iterator[str]:
        """Yield the fed tokens: the text, window, n-grams and candidates."""
        step, window = self.outcome.step, self.outcome.step.window
        if not step.number:
            prompt = self.outcome.run.completion.input_ids
            yield ""
            yield f"Prompt  {self.words.end(prompt, WIDTH - 8)}"
            yield f"        {counted(len(prompt), 'token')}"
            yield ""
            yield from self._start()
            return
        yield from (self._fed(), "", *self._text(), "")
        if window is not None:
            yield from _wrapped(self._about(window))
            yield from self._grid(window)
            yield from self._new_level() if step.observed else ()
            yield from self._harvest() if step.harvest else ()
            yield ""
        yield from _wrapped(candidates_line(self.outcome, self.words))
        if self.outcome.run.is_tree:
            yield from self._tree()
        elif self.outcome.candidates:
            yield from self._candidates()

    def ending(self) -> Iterator[str]:
        quoted, outcome = self.words.quoted, self.outcome
        if outcome.accepted:
            accepted = (self.paint(quoted(token), "accepted") for token in outcome.accepted)
            yield "Accepted: " + " ".join(accepted)
        if outcome.added is not None:
            yield "Added by the target: " + self.paint(quoted(outcome.added), "bold")
        yield from _wrapped("Why it ended: " + why(outcome, self.words))

    def _fed(self) -> str:
        parts = [role.part for role in roles(self.outcome.step)]
        window, candidates = parts.count("window") + parts.count("filler"), parts.count("candidate")
        drafts = [f"{window} of the window"] * bool(window) + [f"{candidates} of candidates"]
        return (
            f"Fed in one forward: {counted(len(parts), 'token')} = 1 input + {' + '.join(drafts)}."
        )

    def _text(self) -> Iterator[str]:
        *before, last = self.outcome.text
        yield f"Text   {self.words.end(before, WIDTH - 7)}"
        yield f"Input  {self.words.quoted(last)} at position {self.outcome.position}"

    def _start(self) -> Iterator[str]:
        step = self.outcome.step
        if step.window_after is None:
            tree = self.outcome.run.is_tree
            lacks = "a window is fed where it pays" if tree else "this drafter has no window"
            yield f"Nothing is prepared: {lacks}."
            return
        yield f"The pool starts with the n-grams of the prompt: {step.pool_size} are kept."
        yield from _wrapped(
            "The window starts with tokens drawn from the prompt: they change the speed, never the "
            "text."
        )
        yield from self._grid(step.window_after)

    def _about(self, window: WindowCells) -> str:
        levels, most = len(window.levels), self.outcome.run.completion.lookahead.ngram_size - 1
        start = self.outcome.position + (0 if window.full else len(window.fillers) + 1)
        word = "level" if most == 1 else "levels"
        filling = "" if window.full else f", {levels} of them filled so far"
        return (
            f"Window: W = {len(window.levels[0])} columns, N-1 = {most} {word}{filling}: guesses "
            f"about what comes. Level l, column j stands at position {start} + l + j."
        )

    def _cell(self, token: int, size: int, style: Style) -> str:
        return self.paint(fit(self.words.cell(token), size), style)

    def _grid(self, window: WindowCells) -> Iterator[str]:
        size, shown = _cell_size(len(window.levels[0]))
        yield _line("", [fit(f"column {j}" if size > 8 else f"{j}", size) for j in range(shown)])
        if window.fillers:
            fillers = " ".join(map(self.words.cell, window.fillers))
            yield f"  {fit('fillers', _GUTTER)}{clip(fillers, _ROOM)}"
        for level, tokens in enumerate(window.levels):
            cells = [self._cell(token, size, "window") for token in tokens[:shown]]
            if window.full and not level:
                cells[0] = self._cell(tokens[0], size, "input")
            yield _line(f"level {level}", cells)

    def _new_level(self) -> Iterator[str]:
        step = self.outcome.step
        size, shown = _cell_size(len(step.observed))
        new = [self._cell(token, size, "bold") for token in step.observed[:shown]]
        yield _line("new level", new)
        newest = "drawn" if step.draft.drawn else "most probable"
        yield from _wrapped(
            f"The new level is the target's {newest} token after each cell of the newest one. "
            + ("Level 0 goes, the others move up." if step.harvest else "No level goes yet.")
        )

    def _harvest(self) -> Iterator[str]:
        harvest = self.outcome.step.harvest
        yield ""
        yield f"Collected into the pool: {len(harvest)} n-grams, one a column"
        size, shown = _cell_size(len(harvest[0]) + 1)
        for column, ngram in enumerate(harvest):
            key, *value = (self._cell(token, size, "window") for token in ngram[:shown])
            yield _line(f"column {column}", [key, self.paint("->", "window"), *value])

    def _candidates(self) -> Iterator[str]:
        outcome = self.outcome
        longest = max(len(candidate.tokens) for candidate in outcome.candidates)
        size, shown = _cell_size(longest + 1, _ROOM - _SOURCES)
        columns = [fit(str(outcome.position + 1 + i), size) for i in range(shown)]
        seen_in = "seen in" if outcome.step.window is not None else ""
        yield _line("position", [*columns, seen_in])
        drawn = [
            self._cell(token, size, "accepted" if i < len(outcome.accepted) else "bold")
            for i, token in enumerate(outcome.step.committed[:shown])
        ]
        yield _line("target drew", drawn)
        for number, candidate in enumerate(outcome.candidates, 1):
            cells = self._judged(candidate, size, shown)
            cells += [" " * size] * (shown - len(cells))
            yield _line(f"candidate {number}", [*cells, ", ".join(candidate.sources)])

    def _judged(self, candidate: Candidate, size: int, shown: int) -> list[str]:
        cells = []
        for index, token in enumerate(candidate.tokens[:shown]):
            fate: Fate = "accepted" if index < candidate.matched else "not reached"
            mark, style = _FATES["rejected" if index == candidate.matched else fate]
            text = clip(self.words.cell(token), size - 2)
            cells.append(self.paint(fit(f"{text} {mark}", size), style))
        return cells

    def _tree(self) -> Iterator[str]:
        """Yield a row a node with its source, chance and fate; empty if no node was fed."""
        nodes = tree_nodes(self.outcome)
        if nodes:
            yield f"  {fit('token', _TOKENS)}{fit('source', _SOURCE)}chance  fate"
        for index, node in enumerate(nodes):
            branch = _branch(nodes, index)
            token = clip(self.words.cell(node.token), max(_LEAST, _TOKENS - 2 - len(branch)))
            mark, style = _FATES[node.fate]
            fate = self.paint(f"{node.fate} {mark}".rstrip(), style)
            figures = f"{fit(node.source, _SOURCE)}{node.chance:6.2f}"
            yield f"  {fit(branch + token, _TOKENS)}{figures}  {fate}"
        if any(node.source == "agreement" for node in nodes):
            yield "  agreement: a text and likely tokens (recycled, or a head's) propose it"


def _branch(nodes: Sequence[TreeNode], index: int) -> str:
    """Return the lines before a node: on each level, whether another child of the parent
    follows."""
    line, own_depth = "", nodes[index].depth
    for depth in range(1, own_depth + 1):
        after = next((node.depth for node in nodes[index + 1 :] if node.depth <= depth), 0)
        here, above = ("├ ", "│ ") if after == depth else ("└ ", "  ")
        line += here if depth == own_depth else above
    return line


def _cell_size(columns: int, room: int = _ROOM) -> tuple[int, int]:
    """Return (width of a cell, cells that fit) for a grid of `columns` columns."""
    size = max(_NARROWEST, min(_WIDEST, (room + 1) // columns - 1))
    return size, min(columns, (room + 1) // (size + 1))


def _line(label: str, cells: Sequence[str]) -> str:
    return f"  {fit(label, _GUTTER)}{' '.join(cells)}".rstrip()


def _wrapped(text: str) -> list[str]:
    return textwrap.wrap(text, WIDTH)


_LABEL = 6
_PART_STYLES: dict[Part, Style] = {
    "input": "input", "filler": "window", "window": "window", "candidate": "candidate",
}  # fmt: skip
_GLYPHS: dict[Part, str] = {"input": "█", "filler": "█", "window": "█", "candidate": "▓"}
_KEY: dict[Part, str] = {
    "input": "input",
    "window": "lookahead branch, L level.column",
    "candidate": "verification branch, C candidate.place",
}
_CACHED, HIDDEN = "▒", "·"


@dataclass(frozen=True, slots=True)
class _Layout:
    cell: int
    gap: int
    """Between blocks."""
    position: int
    """0: omitted."""
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
    """Yield the mask's lines, or a note if it is too wide."""
    step = outcome.step
    size, names, stretches = step.draft.size, roles(step), blocks(step)
    if size == 1:
        yield "Attention: the input sees the cached text and itself."
        return
    fitting = (layout for layout in _LAYOUTS if layout.width(size, len(stretches)) <= width)
    layout = next(fitting, None)
    if layout is None:
        yield f"The attention mask of {size} x {size} tokens is drawn with -o step.svg."
        return
    yield from _legend({role.part for role in names}, paint)
    yield (" " * (layout.gutter + layout.cell + layout.gap) + _heading(stretches, layout)).rstrip()
    tokens = (outcome.text[-1], *step.draft.tokens)
    columns = positions(step, outcome.position)
    seen_by = seen_nodes(step.draft.parents).tolist()  # the mask that the model uses
    for node, seen in enumerate(seen_by):
        label = fit(names[node].label, _LABEL) + fit(str(columns[node]), layout.position)
        label += fit(words.cell(tokens[node]), layout.token - 1) + " "
        cached = paint(_CACHED * layout.cell, "dim")
        mark = f" {CHECK}" if node in outcome.accepted_nodes else ""
        cells = _cells(seen, stretches, layout, paint)
        yield (paint(label, "accepted") if mark else label) + cached + cells + mark


def _legend(fed: set[Part], paint: Paint) -> Iterator[str]:
    yield "Attention mask: a row sees the columns that are filled, one for each position before it."
    kinds = [f"{paint(_CACHED, 'dim')} cached"]
    kinds += [
        f"{paint(_GLYPHS[part], _PART_STYLES[part])} {_KEY[part]}" for part in _KEY if part in fed
    ]
    yield "  " + "  ".join(kinds)


def _heading(stretches: Sequence[Stretch], layout: _Layout) -> str:
    line = ""
    for stretch in stretches:
        name, room = stretch.name, (stretch.end - stretch.start) * layout.cell
        line += (fit(name, room) if len(name) <= room else " " * room) + " " * layout.gap
    return line


def _cells(
    seen: Sequence[bool], stretches: Sequence[Stretch], layout: _Layout, paint: Paint
) -> str:
    line = ""
    for stretch in stretches:
        line += " " * layout.gap
        nodes = range(stretch.start, stretch.end)
        for sees, group in groupby(nodes, lambda node: seen[node]):
            count = len(list(group)) * layout.cell
            style = _PART_STYLES[stretch.part] if sees else "dim"
            line += paint((_GLYPHS[stretch.part] if sees else HIDDEN) * count, style)
    return line
